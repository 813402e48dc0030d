"""Query of EADA (Xie et al., AAAI 2022): two rounds on the class energies, ``E = -z``."""

from torch import Tensor

from ducats.acquisition.queries.spec import UNCERTAINTIES, QuerySpec
from ducats.acquisition.queries.two_round import check_pool_fraction, initial_pool_size, two_round_top_k
from ducats.acquisition.samples import QueryContext


def eada(context: QueryContext, *, pool_fraction: float = 0.5) -> Tensor:
    """Keep the candidates with the highest free energy, then pick the smallest energy gaps (EADA).

    Args:
        pool_fraction: fraction of the pool (candidates and labelled samples) that passes the first round; at
            least the budget.
    """
    check_pool_fraction(pool_fraction)
    return two_round_top_k(context, "free_energy", "energy_gap", pool_fraction * initial_pool_size(context))


EADA_SPEC = QuerySpec(eada, needs=("free_energy", "energy_gap"), streaming=None, explained_by=UNCERTAINTIES)
