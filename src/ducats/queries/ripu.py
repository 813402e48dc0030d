"""RIPU (Xie et al., CVPR 2022): where classes meet, and the model is unsure of them.

A unit's score is its impurity, the entropy of the histogram of predicted classes, times its uncertainty, the
mean entropy of its pixels. The paper divides both by ln C; here the first is, which ranks the same.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ducats.rows import Slate, best

RADIUS = 32


def ripu(slate: Slate) -> Tensor:
    """Highest region impurity times mean entropy (RIPU by region); its unit is a region or a superpixel."""
    rows = slate.candidates
    return best(rows.column("impurity") * rows.column("entropy"), slate.budget, rows)


def ripu_points(slate: Slate, *, radius: int = RADIUS) -> Tensor:
    """Highest entropy times impurity of the window around, and none near another (RIPU by point).

    Args:
        slate: the candidates.
        radius: of the window, ``2 radius + 1`` pixels wide; picks are more than this apart, in rows or in
            columns, as long as there are any.
    """
    if radius < 1:
        raise ValueError(f"radius must be at least 1, not {radius}: a single pixel has no impurity")
    rows = slate.candidates
    around, entropy = points_needs({"radius": radius})
    return best(rows.column(around) * rows.column(entropy), slate.budget, rows, apart=radius)


def points_needs(knobs: Mapping[str, Any]) -> tuple[str, str]:
    """Columns of the impurity around a pixel and of its uncertainty."""
    return f"impurity@{knobs.get('radius', RADIUS)}", "entropy"
