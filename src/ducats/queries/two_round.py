"""DUC's query (Xie et al., ICLR 2023, section 3.3): two rounds, one per origin of uncertainty."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from ducats.rows import Slate, best


def two_round(
    slate: Slate,
    *,
    kappa: float = 10.0,
    order: Literal["dis_data", "data_dis"] = "dis_data",
    share: float | None = None,
    epsilon: float | None = None,
) -> Tensor:
    """Of the kappa times budget candidates most foreign to the model, the most ambiguous (DUC).

    Args:
        slate: the candidates.
        kappa: how many times the budget pass the first round; 1 leaves the first criterion alone.
        order: ``dis_data`` is the paper's; ``data_dis`` swaps the two rounds.
        share: kappa times this share of the pool (candidates and labelled rows) pass the first round,
            rather than kappa times the budget; published for images: 0.01.
        epsilon: rank by U_dis itself, its entropy with log(p + epsilon), as the published code (1e-7) does.
    """
    check_kappa(kappa)
    distribution, data = two_round_needs({"epsilon": epsilon})
    first, second = {"dis_data": (distribution, data), "data_dis": (data, distribution)}[order]
    wanted = kappa * slate.budget if share is None else kappa * share * pool_of(slate)
    return in_two_rounds(slate, first, second, wanted)


def two_round_needs(knobs: Mapping[str, Any]) -> tuple[str, str]:
    """Columns of the distribution uncertainty and of the data uncertainty."""
    epsilon = knobs.get("epsilon")
    return "u_dis" if epsilon is None else f"published_u_dis@{float(epsilon)}", "u_data"


def in_two_rounds(slate: Slate, first: str, second: str, wanted: float) -> Tensor:
    """Of those highest in one column, the highest in another.

    Args:
        slate: the candidates.
        first: column of the first round.
        second: column of the second round, which is read of those only that passed the first.
        wanted: how many pass the first round, rounded up; never fewer than the budget.
    """
    passed = best(slate.candidates.column(first), at_least(wanted, slate), slate.candidates)
    rows = slate.candidates[passed]
    return passed[best(rows.column(second), slate.budget, rows)]


def at_least(wanted: float, slate: Slate) -> int:
    """A number of candidates, rounded up, and not below the budget."""
    # 0.01 * 4365 * 10 is 436.49999999999994 in binary: forgive the last bits.
    return max(math.ceil(wanted - 1e-9), slate.budget)


def pool_of(slate: Slate) -> int:
    """How many rows there were before the first was bought."""
    return len(slate.candidates) + len(slate.labelled) if slate.pool is None else slate.pool


def check_kappa(kappa: float) -> None:
    """Refuse a first round that is smaller than the second."""
    if kappa < 1:
        raise ValueError(f"kappa must be at least 1, not {kappa}: the first round feeds the second")


def check_share(share: float) -> None:
    """Refuse what is no share of a pool."""
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, not {share}: it is a share of the pool")
