"""Query of EUQ (Duan et al., WACV 2024): DUC's two rounds with variances as uncertainties."""

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from ducats.queries.two_round import check_kappa, in_two_rounds
from ducats.rows import Slate

COLUMNS = {"variance": ("epistemic_variance", "aleatoric_variance"), "entropy": ("u_dis", "u_data")}


def euq(
    slate: Slate, *, kappa: float = 10.0, uncertainty: Literal["variance", "entropy"] = "variance"
) -> Tensor:
    """Keep the κ·b candidates with the highest epistemic variance, then pick the b highest aleatoric (EUQ).

    Args:
        kappa: multiple of the budget that passes the first round.
        uncertainty: ``variance`` of the class probabilities, or ``entropy`` as in DUC.
    """
    check_kappa(kappa)
    if uncertainty not in COLUMNS:
        raise ValueError(f"query.params.uncertainty must be one of {', '.join(COLUMNS)}, not {uncertainty!r}")
    first, second = euq_needs({"uncertainty": uncertainty})
    return in_two_rounds(slate, first, second, kappa * slate.budget)


def euq_needs(params: Mapping[str, Any]) -> tuple[str, str]:
    """Return the columns of the epistemic and the aleatoric uncertainty."""
    # An invalid value is rejected by the query itself.
    return COLUMNS["entropy" if params.get("uncertainty") == "entropy" else "variance"]
