"""Query of EADA (Xie et al., AAAI 2022): two rounds on the class energies, ``E = -z``."""

from torch import Tensor

from ducats.queries.two_round import check_share, in_two_rounds, pool_of
from ducats.rows import Slate


def eada(slate: Slate, *, share: float = 0.5) -> Tensor:
    """Keep the candidates with the highest free energy, then pick the smallest energy gaps (EADA).

    Args:
        share: fraction of the pool (candidates and labelled samples) that passes the first round; at least
            the budget.
    """
    check_share(share)
    return in_two_rounds(slate, "free_energy", "energy_gap", share * pool_of(slate))
