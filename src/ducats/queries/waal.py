"""Query of WAAL (Shui et al., AISTATS 2020): uncertain samples that look unlabelled to the critic."""

import math

import torch
from torch import Tensor

from ducats.queries.distances import by_address, in_order
from ducats.rows import Slate, best

RAREST = math.log(1e-12)  # lower bound of a log-probability
AT_ONCE = 2**16  # samples per pass


def waal(slate: Slate, *, weight: float = 10.0) -> Tensor:
    """Select uncertain predictions with a high score of the critic of labelled and unlabelled images (WAAL).

    Minimises ``(||log p||_2 + ||log p||_1) / 2 - weight * critic``. A confident prediction has classes of
    tiny probability, whose logarithms are large.

    Args:
        weight: weight of the critic; 0 ranks by uncertainty alone.
    """
    # In a fixed order, as the last bits of a sum may depend on the position of a sample.
    order = by_address(slate.candidates)
    rows = in_order(slate.candidates, order)
    sure = torch.cat([sureness(z) for z in rows.z.split(AT_ONCE)])
    return order[best(weight * rows.column("critic").double() - sure, slate.budget, rows)]


def sureness(z: Tensor) -> Tensor:
    """Compute ``(||log p||_2 + ||log p||_1) / 2``, which is lowest if all classes are equally probable."""
    log_p = z.double().log_softmax(1).clamp(min=RAREST)
    return (log_p.square().sum(1).sqrt() + log_p.abs().sum(1)) / 2
