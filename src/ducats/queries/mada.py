"""MADA's query (Ning et al., ICCV 2021): whole images that no anchor of the source is near to."""

import torch
from torch import Tensor

from ducats.anchors import anchors_of, errors_to
from ducats.errors import UserError
from ducats.rows import Slate, best


def mada(slate: Slate, *, anchors: int = 10) -> Tensor:
    """Images farthest from their nearest source anchor, by what each class looks like in them (MADA).

    Args:
        slate: the candidates; ``descriptor`` is the mean feature of each class.
        anchors: groups of source images, by k-means on their descriptors.
    """
    if anchors < 1:
        raise ValueError(f"anchors must be at least 1, not {anchors}: something must be near or far")
    if slate.source is None:
        raise UserError("the query 'mada' compares whole images with the source: set task.unit=image")
    seed = int(torch.randint(2**31, (), generator=slate.generator))
    middles = anchors_of(slate.source.column("descriptor"), anchors, seed)
    far = errors_to(slate.candidates.column("descriptor"), middles).amin(1)
    return best(far, slate.budget, slate.candidates)
