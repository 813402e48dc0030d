"""Query of DUC (Xie et al., ICLR 2023, section 3.3): two rounds, one per kind of uncertainty."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from ducats.acquisition.queries.spec import UNCERTAINTIES, QuerySpec, StreamingRule
from ducats.acquisition.samples import QueryContext, SampleTable, random_k, top_k


def two_round(
    context: QueryContext,
    *,
    kappa: float = 10.0,
    order: Literal["dis_data", "data_dis"] = "dis_data",
    pool_fraction: float | None = None,
    epsilon: float | None = None,
) -> Tensor:
    """Keep the κ·b candidates with the highest U_dis, then pick the b with the highest U_data (DUC).

    Args:
        kappa: multiple of the budget that passes the first round; 1 selects by the first criterion alone.
        order: ``dis_data`` as in the paper; ``data_dis`` swaps the two rounds.
        pool_fraction: if given, κ times this fraction of the pool (candidates and labelled samples) passes
            the first round, instead of κ times the budget; the published code uses 0.01 for images.
        epsilon: if given, rank by U_dis itself with log(p + epsilon) in its entropy, as the published code
            does with 1e-7.
    """
    check_kappa(kappa)
    first, second = two_round_columns({"order": order, "epsilon": epsilon})
    n_passing = (
        kappa * context.budget
        if pool_fraction is None
        else kappa * pool_fraction * initial_pool_size(context)
    )
    return two_round_top_k(context, first, second, n_passing)


def two_round_needs(params: Mapping[str, Any]) -> tuple[str, str]:
    """Return the columns of the distribution uncertainty and the data uncertainty."""
    epsilon = params.get("epsilon")
    return "u_dis" if epsilon is None else f"published_u_dis@{float(epsilon)}", "u_data"


def two_round_columns(params: Mapping[str, Any]) -> tuple[str, str]:
    """Return the columns of the first and the second round."""
    distribution, data = two_round_needs(params)
    orders = {"dis_data": (distribution, data), "data_dis": (data, distribution)}
    return orders[params.get("order", "dis_data")]


def two_round_top_k(context: QueryContext, first: str, second: str, n_passing: float) -> Tensor:
    """Keep the highest values of one column, then pick the highest of another.

    Args:
        second: column of the second round, read only for candidates that passed the first.
        n_passing: number of candidates that pass the first round, rounded up; at least the budget.
    """
    passed = top_k(
        context.candidates.column(first), _round_up_to_budget(n_passing, context), context.candidates
    )
    samples = context.candidates[passed]
    return passed[top_k(samples.column(second), context.budget, samples)]


def sample_from_top(score: Tensor, n_top: float, samples: SampleTable, context: QueryContext) -> Tensor:
    """Return the indices of random samples among those with the highest scores.

    Args:
        n_top: number of samples to draw from, rounded up; at least the budget.
    """
    top = top_k(score, _round_up_to_budget(n_top, context), samples)
    return top[random_k(context.generator, context.budget, samples[top])]


def _round_up_to_budget(n_passing: float, context: QueryContext) -> int:
    """Round a number of candidates up, to at least the budget."""
    # 0.01 * 4365 * 10 is 436.49999999999994 in binary: ignore the last bits.
    return max(math.ceil(n_passing - 1e-9), context.budget)


def initial_pool_size(context: QueryContext) -> int:
    """Return the number of samples in the pool before any was labelled."""
    return len(context.candidates) + len(context.labelled) if context.pool_size is None else context.pool_size


def check_kappa(kappa: float) -> None:
    """Raise if the first round would be smaller than the second."""
    if kappa < 1:
        raise ValueError(f"query.params.kappa must be at least 1, not {kappa}")


def check_pool_fraction(pool_fraction: float) -> None:
    """Raise if ``pool_fraction`` is not a fraction of the pool."""
    if not 0 < pool_fraction <= 1:
        raise ValueError(f"query.params.pool_fraction must be above 0 and at most 1, not {pool_fraction}")


DUC_SPEC = QuerySpec(
    two_round,
    two_round_needs({}),
    two_round_needs,
    streaming=StreamingRule("two_rounds", two_round_columns({}), two_round_columns),
    explained_by=UNCERTAINTIES,
    search_grid={"kappa": (10, 20, 30)},  # values that work well in the paper
)
