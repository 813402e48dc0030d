"""EUQ's query (Duan et al., WACV 2024): DUC's two rounds, with variances for the two uncertainties."""

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from ducats.queries.two_round import check_kappa, in_two_rounds
from ducats.rows import Slate

COLUMNS = {"variance": ("epistemic_variance", "aleatoric_variance"), "entropy": ("u_dis", "u_data")}


def euq(
    slate: Slate, *, kappa: float = 10.0, uncertainty: Literal["variance", "entropy"] = "variance"
) -> Tensor:
    """Of the kappa times budget candidates of highest epistemic variance, the highest aleatoric (EUQ).

    Args:
        slate: the candidates.
        kappa: how many times the budget pass the first round.
        uncertainty: ``variance`` of the class probabilities, or ``entropy``, which is DUC's.
    """
    check_kappa(kappa)
    if uncertainty not in COLUMNS:
        raise ValueError(f"uncertainty must be one of {', '.join(COLUMNS)}, not {uncertainty!r}")
    first, second = euq_needs({"uncertainty": uncertainty})
    return in_two_rounds(slate, first, second, kappa * slate.budget)


def euq_needs(knobs: Mapping[str, Any]) -> tuple[str, str]:
    """Columns of the epistemic and of the aleatoric uncertainty."""
    # A knob that is wrong is refused by the query itself, when it is tried.
    return COLUMNS["entropy" if knobs.get("uncertainty") == "entropy" else "variance"]
