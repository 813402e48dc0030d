"""DUC's query (Xie et al., ICLR 2023, section 3.3): two rounds, one per origin of uncertainty."""

import math
from typing import Literal

from torch import Tensor

from ducats.dirichlet import data_uncertainty, log_distribution_uncertainty
from ducats.rows import Slate, best


def two_round(
    slate: Slate, *, kappa: float = 10.0, order: Literal["dis_data", "data_dis"] = "dis_data"
) -> Tensor:
    """Of the kappa times budget candidates most foreign to the model, the most ambiguous (DUC).

    Args:
        slate: the candidates.
        kappa: how many times the budget pass the first round; 1 leaves the first criterion alone.
        order: ``dis_data`` is the paper's; ``data_dis`` swaps the two rounds.
    """
    if kappa < 1:
        raise ValueError(f"kappa must be at least 1, not {kappa}: the first round feeds the second")
    # U_dis is ranked by its logarithm: in float32 the number itself underflows where evidence is large.
    criteria = {"dis_data": (log_distribution_uncertainty, data_uncertainty)}
    criteria["data_dis"] = criteria["dis_data"][::-1]
    first, second = criteria[order]
    passed = best(first(slate.candidates.z), math.ceil(kappa * slate.budget), slate.candidates)
    rows = slate.candidates[passed]
    return passed[best(second(rows.z), slate.budget, rows)]
