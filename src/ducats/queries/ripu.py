"""RIPU (Xie et al., CVPR 2022): regions where classes meet and predictions are uncertain.

The score of a unit is its impurity (entropy of the histogram of predicted classes) times its uncertainty
(mean entropy of its pixels). The paper divides both by ln C. Here only the impurity is divided, which gives
the same ranking.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ducats.rows import Slate, best

RADIUS = 32


def ripu(slate: Slate) -> Tensor:
    """Select the highest impurity times mean entropy of regions or superpixels (RIPU by region)."""
    rows = slate.candidates
    return best(rows.column("impurity") * rows.column("entropy"), slate.budget, rows)


def ripu_points(slate: Slate, *, radius: int = RADIUS) -> Tensor:
    """Select pixels with the highest entropy times impurity of the window around them (RIPU by point).

    Args:
        radius: radius of the window, which is ``2 radius + 1`` pixels wide. Picks are more than this many
            rows or columns apart, as long as such pixels are left.
    """
    if radius < 1:
        raise ValueError(f"query.params.radius must be at least 1, not {radius}; one pixel has no impurity")
    rows = slate.candidates
    around, entropy = points_needs({"radius": radius})
    return best(rows.column(around) * rows.column(entropy), slate.budget, rows, apart=radius)


def points_needs(params: Mapping[str, Any]) -> tuple[str, str]:
    """Return the columns of the impurity around a pixel and of its entropy."""
    return f"impurity@{params.get('radius', RADIUS)}", "entropy"
