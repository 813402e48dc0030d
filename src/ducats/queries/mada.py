"""Query of MADA (Ning et al., ICCV 2021): whole images far from all source anchors."""

import torch
from torch import Tensor

from ducats.anchors import anchors_of, errors_to
from ducats.errors import UserError
from ducats.rows import Slate, best


def mada(slate: Slate, *, anchors: int = 10) -> Tensor:
    """Select the images whose class descriptors are farthest from the nearest source anchor (MADA).

    The column ``descriptor`` holds the mean feature of each class in an image.

    Args:
        anchors: number of anchors, the k-means centres of the source descriptors.
    """
    if anchors < 1:
        raise ValueError(f"query.params.anchors must be at least 1, not {anchors}")
    if slate.source is None:
        raise UserError("the query 'mada' selects whole images; set task.unit=image")
    seed = int(torch.randint(2**31, (), generator=slate.generator))
    middles = anchors_of(slate.source.column("descriptor"), anchors, seed)
    far = errors_to(slate.candidates.column("descriptor"), middles).amin(1)
    return best(far, slate.budget, slate.candidates)
