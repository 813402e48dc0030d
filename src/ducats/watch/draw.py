"""Curves in text: sparklines and braille plots."""

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
# Bits of a braille character: four rows of two columns, from the top left.
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def spark(values: Sequence[float], most: int = 24) -> str:
    """Draw values as blocks, scaled from minimum to maximum. Longer sequences are subsampled evenly.

    >>> spark([0.5, 0.6, 0.9]), spark([1.0, 1.0]), spark([])
    ('▁▃█', '▁▁', '')
    """
    if len(values) > most:
        last = len(values) - 1
        values = [values[round(place * last / (most - 1))] for place in range(most)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    span = (high - low) or 1.0
    return "".join(BLOCKS[round((value - low) / span * (len(BLOCKS) - 1))] for value in values)


def plot(points: Sequence[tuple[float, float]], *, width: int, height: int) -> list[str]:
    """Draw points joined by lines, each axis scaled from minimum to maximum. Return the rows from the top.

    >>> plot([(0, 0), (1, 1)], width=2, height=1)
    ['⡠⠊']

    Args:
        points: sorted by x.
        width: in characters, two dots each.
        height: in characters, four dots each.
    """
    columns, rows = 2 * width, 4 * height
    x, y = _scaled([p[0] for p in points], columns), _scaled([p[1] for p in points], rows)
    dots = {(x[0], y[0])} if points else set()
    for left, right in zip(range(len(points) - 1), range(1, len(points)), strict=True):
        steps = max(abs(x[right] - x[left]), abs(y[right] - y[left]), 1)
        for step in range(steps + 1):
            share = step / steps
            dots.add(
                (
                    round(x[left] + share * (x[right] - x[left])),
                    round(y[left] + share * (y[right] - y[left])),
                )
            )
    cells = [[0] * width for _ in range(height)]
    for across, up in dots:
        down = rows - 1 - up
        cells[down // 4][across // 2] |= DOTS[down % 4][across % 2]
    return ["".join(chr(0x2800 + cell) for cell in row) for row in cells]


def _scaled(values: Sequence[float], room: int) -> list[int]:
    low, high = min(values, default=0.0), max(values, default=0.0)
    if high == low:
        return [room // 2] * len(values)
    return [round((value - low) / (high - low) * (room - 1)) for value in values]
