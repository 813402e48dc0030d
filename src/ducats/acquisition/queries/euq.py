"""Query of EUQ (Duan et al., WACV 2024): DUC's two rounds with variances as uncertainties."""

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from ducats.acquisition.queries.spec import UNCERTAINTIES, QuerySpec
from ducats.acquisition.queries.two_round import check_kappa, two_round_top_k
from ducats.acquisition.samples import QueryContext

UNCERTAINTY_COLUMNS = {
    "variance": ("epistemic_variance", "aleatoric_variance"),
    "entropy": ("u_dis", "u_data"),
}


def euq(
    context: QueryContext, *, kappa: float = 10.0, uncertainty: Literal["variance", "entropy"] = "variance"
) -> Tensor:
    """Keep the κ·b candidates with the highest epistemic variance, then pick the b highest aleatoric (EUQ).

    Args:
        kappa: multiple of the budget that passes the first round.
        uncertainty: ``variance`` of the class probabilities, or ``entropy`` as in DUC.
    """
    check_kappa(kappa)
    if uncertainty not in UNCERTAINTY_COLUMNS:
        raise ValueError(
            f"query.params.uncertainty must be one of {', '.join(UNCERTAINTY_COLUMNS)}, not {uncertainty!r}"
        )
    first, second = euq_needs({"uncertainty": uncertainty})
    return two_round_top_k(context, first, second, kappa * context.budget)


def euq_needs(params: Mapping[str, Any]) -> tuple[str, str]:
    """Return the columns of the epistemic and the aleatoric uncertainty."""
    # An invalid value is rejected by the query itself.
    return UNCERTAINTY_COLUMNS["entropy" if params.get("uncertainty") == "entropy" else "variance"]


EUQ_SPEC = QuerySpec(euq, euq_needs({}), euq_needs, streaming=None, explained_by=UNCERTAINTIES)
