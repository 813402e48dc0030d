"""RIPU (Xie et al., CVPR 2022): regions where classes meet and predictions are uncertain.

The score of a unit is its impurity (entropy of the histogram of predicted classes) times its uncertainty
(mean entropy of its pixels). The paper divides both by ln C. Here only the impurity is divided, which gives
the same ranking.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ducats.acquisition.queries.spec import UNCERTAINTIES, QuerySpec
from ducats.acquisition.samples import QueryContext, top_k

DEFAULT_RADIUS = 32


def ripu(context: QueryContext) -> Tensor:
    """Select the highest impurity times mean entropy of regions or superpixels (RIPU by region)."""
    samples = context.candidates
    return top_k(samples.column("impurity") * samples.column("entropy"), context.budget, samples)


def ripu_points(context: QueryContext, *, radius: int = DEFAULT_RADIUS) -> Tensor:
    """Select pixels with the highest entropy times impurity of the window around them (RIPU by point).

    Args:
        radius: radius of the window, which is ``2 radius + 1`` pixels wide. Picks are more than this many
            rows or columns apart, also from those of earlier rounds, as long as such pixels are left.
    """
    if radius < 1:
        raise ValueError(f"query.params.radius must be at least 1, not {radius}; one pixel has no impurity")
    samples = context.candidates
    impurity, entropy = ripu_points_needs({"radius": radius})
    score = samples.column(impurity) * samples.column(entropy)
    return top_k(score, context.budget, samples, min_distance=radius, apart_from=context.acquired)


def ripu_points_needs(params: Mapping[str, Any]) -> tuple[str, str]:
    """Return the columns of the impurity around a pixel and of its entropy."""
    return f"impurity@{params.get('radius', DEFAULT_RADIUS)}", "entropy"


RIPU_SPEC = QuerySpec(ripu, needs=("impurity", "entropy"), explained_by=UNCERTAINTIES)
RIPU_POINTS_SPEC = QuerySpec(
    ripu_points, ripu_points_needs({}), ripu_points_needs, explained_by=UNCERTAINTIES
)
