"""WAAL's query (Shui et al., AISTATS 2020): uncertain, and far from what is labelled."""

import math

import torch
from torch import Tensor

from ducats.queries.distances import by_address, in_order
from ducats.rows import Slate, best

RAREST = math.log(1e-12)  # of a probability: below it a class counts no more
AT_ONCE = 2**16  # rows per pass


def waal(slate: Slate, *, weight: float = 10.0) -> Tensor:
    """Even probabilities, and a high score of the critic of labelled and unlabelled images (WAAL).

    The smallest ``(||log p||_2 + ||log p||_1) / 2 - weight * critic``: a sure prediction has classes of
    tiny probability, whose logarithms are large.

    Args:
        slate: the candidates.
        weight: of the critic; 0 leaves the uncertainty alone.
    """
    # In a fixed order: a sum's last bits may depend on where a row lies.
    order = by_address(slate.candidates)
    rows = in_order(slate.candidates, order)
    sure = torch.cat([sureness(z) for z in rows.z.split(AT_ONCE)])
    return order[best(weight * rows.column("critic").double() - sure, slate.budget, rows)]


def sureness(z: Tensor) -> Tensor:
    """``(||log p||_2 + ||log p||_1) / 2`` of each row, least where all classes are equally probable."""
    log_p = z.double().log_softmax(1).clamp(min=RAREST)
    return (log_p.square().sum(1).sqrt() + log_p.abs().sum(1)) / 2
