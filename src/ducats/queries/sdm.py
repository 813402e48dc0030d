"""SDM (Xie et al., CVPR 2022): small margins, and rather those that a label would widen.

To first order, a step of training changes the margin between the two most probable classes by the inner
product of the margin's gradient Q and the step g, both by the features. Which class the label will be is not
known: g is that of either, weighted by their probabilities.
"""

import torch
from torch import Tensor

from ducats.dirichlet import expected_probability
from ducats.errors import UserError
from ducats.queries.distances import by_address, in_order, pieces
from ducats.rows import Slate, best


def sdm(slate: Slate, *, weight: float = 0.01) -> Tensor:
    """Smallest gap between the two best classes, rather where a label would widen it (SDM-AG).

    Args:
        slate: the candidates.
        weight: of the cosine of the gap's gradient and the step that a label causes; 0 leaves the gap alone.
    """
    if slate.head is None:
        raise UserError(
            "the query 'sdm' reads the weights of the model's last layer, which must be linear: "
            "choose another model.name or query.name"
        )
    order = by_address(slate.candidates)
    if min(slate.budget, len(order)) == 0:
        return order[:0]
    rows = in_order(slate.candidates, order)
    z = rows.z
    head = slate.head.flatten(1).to(z.device, torch.float64)
    parts = [
        _score(z[piece].double(), head, weight) for piece in pieces(len(z), sum(head.shape) + z.shape[1])
    ]
    return order[best(-torch.cat(parts), slate.budget, rows)]


def _score(z: Tensor, head: Tensor, weight: float) -> Tensor:
    """``(p1 - p2) - weight cos(Q, g)``, ``(n,)``."""
    p, first, second = _two_best(z)
    p1, p2 = p.gather(1, first), p.gather(1, second)
    step = -p1 * loss_slope(z, first) - p2 * loss_slope(z, second)
    cosine = torch.cosine_similarity(margin_slope(z) @ head, step @ head, dim=1)
    return (p1 - p2).squeeze(1) - weight * cosine


def margin_slope(z: Tensor) -> Tensor:
    """Slope of ``p1 - p2`` by each logit, ``(n, C)``, without what the two classes do to each other.

    Times the last layer's weights it is Q of the paper, ``p1 (1 - p1) w1 - p2 (1 - p2) w2 - (p1 - p2) times
    the sum of the other classes' p w``.
    """
    p, first, second = _two_best(z)
    p1, p2 = p.gather(1, first), p.gather(1, second)
    slope = -(p1 - p2) * p
    return slope.scatter(1, first, p1 * (1 - p1)).scatter(1, second, -p2 * (1 - p2))


def loss_slope(z: Tensor, label: Tensor) -> Tensor:
    """Slope of the loss by each logit, ``(n, C)``, for labels ``(n, 1)``.

    The loss is cross-entropy, plus the multi-class hinge of the normalised logits with a margin of 1, minus
    the normalised logit of the label.
    """
    length = z.norm(dim=1, keepdim=True)
    unit = z / length.clamp(min=torch.finfo(z.dtype).tiny)
    one = torch.zeros_like(z).scatter_(1, label, 1.0)
    short = (1 - unit.gather(1, label) + unit > 0) & (one == 0)  # classes that are less than 1 below
    outer = short / z.shape[1] - one * (1 + short.sum(1, keepdim=True) / z.shape[1])
    through: Tensor = (outer - unit * (outer * unit).sum(1, keepdim=True)) / length
    # Logits that are all 0 have no direction to change.
    return expected_probability(z) - one + through.masked_fill(length == 0, 0.0)


def _two_best(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, and the two most probable classes, ``(n, 1)`` each; the first of equals."""
    first = z.argmax(1, keepdim=True)
    second = z.scatter(1, first, -torch.inf).argmax(1, keepdim=True)
    return expected_probability(z), first, second
