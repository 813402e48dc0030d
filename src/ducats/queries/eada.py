"""EADA's query (Xie et al., AAAI 2022): two rounds on the energies of the classes, ``E = -z``."""

from torch import Tensor

from ducats.queries.two_round import check_share, in_two_rounds, pool_of
from ducats.rows import Slate


def eada(slate: Slate, *, share: float = 0.5) -> Tensor:
    """Of the half of the pool with the highest free energy, where the two lowest energies meet (EADA).

    Args:
        slate: the candidates.
        share: of the pool (candidates and labelled rows) that passes the first round; never below the budget.
    """
    check_share(share)
    return in_two_rounds(slate, "free_energy", "energy_gap", share * pool_of(slate))
