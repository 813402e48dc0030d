"""AADA's query (Su et al., WACV 2020): uncertain, and unlike the source."""

from torch import Tensor

from ducats.queries.two_round import at_least, check_share, pool_of
from ducats.randomness import draw_per_address
from ducats.rows import Slate, best

SUREST = 1e-6  # of the source, at least: a discriminator that is sure would divide by zero


def aada(slate: Slate, *, share: float = 0.02) -> Tensor:
    """At random from the top by entropy times importance, the odds that it is of the target (AADA).

    Args:
        slate: the candidates; ``domain`` is the probability D of the source, and the score is
            ``(1 - D) / D`` times the entropy.
        share: of the pool (candidates and labelled rows) that is drawn from; never below the budget.
    """
    check_share(share)
    rows = slate.candidates
    source = rows.column("domain").double().clamp(SUREST, 1.0)
    score = (1 - source) / source * rows.column("entropy").double()
    top = best(score, at_least(share * pool_of(slate), slate), rows)
    drawn = rows[top]
    return top[best(draw_per_address(slate.generator, drawn.image, drawn.position), slate.budget, drawn)]
