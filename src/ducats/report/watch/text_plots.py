"""Curves in text: sparklines and braille plots."""

from collections.abc import Sequence
from itertools import pairwise

SPARKLINE_BLOCKS = "▁▂▃▄▅▆▇█"
# Bits of a braille character: four rows of two columns, from the top left.
BRAILLE_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def sparkline(values: Sequence[float], max_points: int = 24) -> str:
    """Draw values as blocks, scaled from minimum to maximum. Longer sequences are subsampled evenly.

    >>> sparkline([0.5, 0.6, 0.9]), sparkline([1.0, 1.0]), sparkline([])
    ('▁▃█', '▁▁', '')
    """
    if len(values) > max_points:
        last = len(values) - 1
        values = [values[round(index * last / (max_points - 1))] for index in range(max_points)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    span = (high - low) or 1.0
    return "".join(
        SPARKLINE_BLOCKS[round((value - low) / span * (len(SPARKLINE_BLOCKS) - 1))] for value in values
    )


def braille_plot(points: Sequence[tuple[float, float]], *, width: int, height: int) -> list[str]:
    """Draw points joined by lines, each axis scaled from minimum to maximum. Return the rows from the top.

    >>> braille_plot([(0, 0), (1, 1)], width=2, height=1)
    ['⡠⠊']

    Args:
        points: sorted by x.
        width: in characters, two dots each.
        height: in characters, four dots each.
    """
    columns, rows = 2 * width, 4 * height
    x, y = _scale([p[0] for p in points], columns), _scale([p[1] for p in points], rows)
    dots = {(x[0], y[0])} if points else set()
    for (x1, y1), (x2, y2) in pairwise(zip(x, y, strict=True)):
        steps = max(abs(x2 - x1), abs(y2 - y1), 1)
        fractions = [step / steps for step in range(steps + 1)]
        dots |= {(round(x1 + f * (x2 - x1)), round(y1 + f * (y2 - y1))) for f in fractions}
    cells = [[0] * width for _ in range(height)]
    for column, height_from_bottom in dots:
        cell_row = rows - 1 - height_from_bottom
        cells[cell_row // 4][column // 2] |= BRAILLE_DOTS[cell_row % 4][column % 2]
    return ["".join(chr(0x2800 + cell) for cell in row) for row in cells]


def _scale(values: Sequence[float], size: int) -> list[int]:
    low, high = min(values, default=0.0), max(values, default=0.0)
    if high == low:
        return [size // 2] * len(values)
    return [round((value - low) / (high - low) * (size - 1)) for value in values]
