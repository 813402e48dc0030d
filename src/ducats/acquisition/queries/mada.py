"""Query of MADA (Ning et al., ICCV 2021): whole images far from all source anchors."""

import torch
from torch import Tensor

from ducats.acquisition.class_descriptors import anchor_errors, fit_anchors
from ducats.acquisition.queries.spec import QuerySpec
from ducats.acquisition.samples import QueryContext, top_k
from ducats.utils.errors import UserError


def mada(context: QueryContext, *, n_anchors: int = 10) -> Tensor:
    """Select the images whose class descriptors are farthest from the nearest source anchor (MADA).

    The column ``descriptor`` holds the mean feature of each class in an image.

    Args:
        n_anchors: number of anchors, the k-means centres of the source descriptors.
    """
    if n_anchors < 1:
        raise ValueError(f"query.params.n_anchors must be at least 1, not {n_anchors}")
    if context.source is None:
        raise UserError("the query 'mada' selects whole images; set task.unit=image")
    seed = int(torch.randint(2**31, (), generator=context.generator))
    source_anchors = fit_anchors(context.source.column("descriptor"), n_anchors, seed)
    distance = anchor_errors(context.candidates.column("descriptor"), source_anchors).amin(1)
    return top_k(distance, context.budget, context.candidates)


MADA_SPEC = QuerySpec(mada, needs=("descriptor",), source_needs=("descriptor",))
