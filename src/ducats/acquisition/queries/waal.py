"""Query of WAAL (Shui et al., AISTATS 2020): uncertain samples that look unlabelled to the critic."""

import math

import torch
from torch import Tensor

from ducats.acquisition.queries.distances import reorder, sort_by_location
from ducats.acquisition.queries.spec import UNCERTAINTIES, QuerySpec
from ducats.acquisition.samples import QueryContext, top_k

MIN_LOG_PROBABILITY = math.log(1e-12)  # lower bound of a log-probability
_SAMPLES_PER_CHUNK = 2**16  # samples per pass


def waal(context: QueryContext, *, weight: float = 10.0) -> Tensor:
    """Select uncertain predictions with a high score of the critic of labelled and unlabelled images (WAAL).

    Minimises ``(||log p||_2 + ||log p||_1) / 2 - weight * critic``. A confident prediction has classes of
    tiny probability, whose logarithms are large.

    Args:
        weight: weight of the critic; 0 ranks by uncertainty alone.
    """
    # In a fixed order, as the last bits of a sum may depend on the position of a sample.
    order = sort_by_location(context.candidates)
    samples = reorder(context.candidates, order)
    certainty = torch.cat([log_probability_norm(z) for z in samples.z.split(_SAMPLES_PER_CHUNK)])
    return order[top_k(weight * samples.column("critic").double() - certainty, context.budget, samples)]


def log_probability_norm(z: Tensor) -> Tensor:
    """Compute ``(||log p||_2 + ||log p||_1) / 2``, which is lowest if all classes are equally probable."""
    log_p = z.double().log_softmax(1).clamp(min=MIN_LOG_PROBABILITY)
    return (log_p.square().sum(1).sqrt() + log_p.abs().sum(1)) / 2


WAAL_SPEC = QuerySpec(waal, needs=("z", "critic"), explained_by=UNCERTAINTIES)
