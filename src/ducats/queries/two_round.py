"""DUC's query (Xie et al., ICLR 2023, section 3.3): two rounds, one per origin of uncertainty."""

import math
from functools import partial
from typing import Literal

from torch import Tensor

from ducats.dirichlet import data_uncertainty, expected_probability, log_distribution_uncertainty
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
        share: kappa times this share of the pool (candidates and labelled images) pass the first round,
            rather than kappa times the budget; published: 0.01.
        epsilon: rank by U_dis itself, its entropy with log(p + epsilon), as the published code (1e-7) does.
    """
    if kappa < 1:
        raise ValueError(f"kappa must be at least 1, not {kappa}: the first round feeds the second")
    # U_dis is ranked by its logarithm: in float32 the number itself underflows where evidence is large.
    distribution = (
        log_distribution_uncertainty if epsilon is None else partial(_published_u_dis, epsilon=epsilon)
    )
    criteria = {"dis_data": (distribution, data_uncertainty), "data_dis": (data_uncertainty, distribution)}
    first, second = criteria[order]
    pool = len(slate.candidates) + len(slate.labelled)
    # 0.01 * 4365 * 10 is 436.49999999999994 in binary: forgive the last bits.
    wanted = math.ceil((kappa * slate.budget if share is None else kappa * share * pool) - 1e-9)
    passed = best(first(slate.candidates.z), max(wanted, slate.budget), slate.candidates)
    rows = slate.candidates[passed]
    return passed[best(second(rows.z), slate.budget, rows)]


def _published_u_dis(z: Tensor, *, epsilon: float) -> Tensor:
    """U_dis as the published code has it: below zero where evidence is large, and noise near there."""
    probability = expected_probability(z)
    return -(probability * (probability + epsilon).log()).sum(1) - data_uncertainty(z)
