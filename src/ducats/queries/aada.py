"""Query of AADA (Su et al., WACV 2020): uncertain samples that look unlike the source."""

from torch import Tensor

from ducats.queries.two_round import at_least, check_share, pool_of
from ducats.randomness import draw_per_address
from ducats.rows import Slate, best

SUREST = 1e-6  # lower bound of D, which divides the score


def aada(slate: Slate, *, share: float = 0.02) -> Tensor:
    """Sample at random from the candidates with the highest importance times entropy (AADA).

    The importance is ``(1 - D) / D``, the odds that a sample is from the target. D is the column ``domain``,
    the discriminator's probability of the source.

    Args:
        share: fraction of the pool (candidates and labelled samples) to sample from; at least the budget.
    """
    check_share(share)
    rows = slate.candidates
    source = rows.column("domain").double().clamp(SUREST, 1.0)
    score = (1 - source) / source * rows.column("entropy").double()
    top = best(score, at_least(share * pool_of(slate), slate), rows)
    drawn = rows[top]
    return top[best(draw_per_address(slate.generator, drawn.image, drawn.position), slate.budget, drawn)]
