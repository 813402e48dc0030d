"""Query of AADA (Su et al., WACV 2020): uncertain samples that look unlike the source."""

from torch import Tensor

from ducats.acquisition.queries.spec import UNCERTAINTIES, QuerySpec
from ducats.acquisition.queries.two_round import check_pool_fraction, initial_pool_size, sample_from_top
from ducats.acquisition.samples import QueryContext

MIN_SOURCE_PROBABILITY = 1e-6  # lower bound of D, which divides the score


def aada(context: QueryContext, *, pool_fraction: float = 0.02) -> Tensor:
    """Sample at random from the candidates with the highest importance times entropy (AADA).

    The importance is ``(1 - D) / D``, the odds that a sample is from the target. D is the column ``domain``,
    the discriminator's probability of the source.

    Args:
        pool_fraction: fraction of the pool (candidates and labelled samples) to sample from; at least the
            budget.
    """
    check_pool_fraction(pool_fraction)
    samples = context.candidates
    source_probability = samples.column("domain").double().clamp(MIN_SOURCE_PROBABILITY, 1.0)
    score = (1 - source_probability) / source_probability * samples.column("entropy").double()
    return sample_from_top(score, pool_fraction * initial_pool_size(context), samples, context)


AADA_SPEC = QuerySpec(aada, needs=("domain", "entropy"), explained_by=UNCERTAINTIES)
