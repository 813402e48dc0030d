"""Query of SDM (Xie et al., CVPR 2022): small margins, preferring those that a label would widen.

To first order, a training step changes the margin between the two most probable classes by the inner product
of the margin's gradient Q and the step g, both with respect to the features. The label is unknown, so g is
averaged over the two classes, weighted by their probabilities.
"""

import torch
from torch import Tensor

from ducats.acquisition.queries.distances import chunk_slices, reorder, sort_by_location
from ducats.acquisition.queries.spec import UNCERTAINTIES, QuerySpec
from ducats.acquisition.samples import QueryContext, top_k
from ducats.dirichlet import expected_probability
from ducats.utils.errors import UserError


def sdm(context: QueryContext, *, weight: float = 0.01) -> Tensor:
    """Select small margins, preferring those that a label would widen (SDM-AG).

    Args:
        weight: weight of the cosine between the margin's gradient and the step that a label causes; 0 ranks
            by the margin alone.
    """
    if context.head is None:
        raise UserError(
            "the query 'sdm' needs a model with a linear last layer; choose another model.name or query.name"
        )
    order = sort_by_location(context.candidates)
    if min(context.budget, len(order)) == 0:
        return order[:0]
    samples = reorder(context.candidates, order)
    z = samples.z
    head = context.head.flatten(1).to(z.device, torch.float64)
    scores = [
        _score(z[chunk].double(), head, weight)
        for chunk in chunk_slices(len(z), sum(head.shape) + z.shape[1])
    ]
    return order[top_k(-torch.cat(scores), context.budget, samples)]


def _score(z: Tensor, head: Tensor, weight: float) -> Tensor:
    """``(p1 - p2) - weight cos(Q, g)``, ``(n,)``."""
    p, first, second = _top_two(z)
    p1, p2 = p.gather(1, first), p.gather(1, second)
    step = -p1 * loss_gradient(z, first) - p2 * loss_gradient(z, second)
    cosine = torch.cosine_similarity(margin_gradient(z) @ head, step @ head, dim=1)
    return (p1 - p2).squeeze(1) - weight * cosine


def margin_gradient(z: Tensor) -> Tensor:
    """Gradient of ``p1 - p2`` with respect to the logits, ``(n, C)``, without the cross terms of the two.

    Multiplied by the weights of the last layer it is the paper's Q, ``p1 (1 - p1) w1 - p2 (1 - p2) w2 -
    (p1 - p2) sum_c p_c w_c`` over the other classes c.
    """
    p, first, second = _top_two(z)
    p1, p2 = p.gather(1, first), p.gather(1, second)
    gradient = -(p1 - p2) * p
    return gradient.scatter(1, first, p1 * (1 - p1)).scatter(1, second, -p2 * (1 - p2))


def loss_gradient(z: Tensor, label: Tensor) -> Tensor:
    """Gradient of the loss with respect to the logits, ``(n, C)``, for labels ``(n, 1)``.

    The loss is the cross-entropy, plus the multi-class hinge of the normalised logits with a margin of 1,
    minus the normalised logit of the label.
    """
    norm = z.norm(dim=1, keepdim=True)
    unit = z / norm.clamp(min=torch.finfo(z.dtype).tiny)
    one_hot = torch.zeros_like(z).scatter_(1, label, 1.0)
    # Classes less than 1 below the label.
    violates_margin = (1 - unit.gather(1, label) + unit > 0) & (one_hot == 0)
    unit_gradient = violates_margin / z.shape[1] - one_hot * (
        1 + violates_margin.sum(1, keepdim=True) / z.shape[1]
    )
    normalised_gradient: Tensor = (unit_gradient - unit * (unit_gradient * unit).sum(1, keepdim=True)) / norm
    # All-zero logits have no direction.
    return expected_probability(z) - one_hot + normalised_gradient.masked_fill(norm == 0, 0.0)


def _top_two(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, and the two most probable classes, ``(n, 1)`` each; ties go to the first."""
    first = z.argmax(1, keepdim=True)
    second = z.scatter(1, first, -torch.inf).argmax(1, keepdim=True)
    return expected_probability(z), first, second


SDM_SPEC = QuerySpec(sdm, needs=("z",), needs_head=True, explained_by=UNCERTAINTIES)
