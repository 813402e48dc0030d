"""Figures of a comparison: ranks of the methods, and score against the cost of a run."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ducats.report.comparison.ranks import Ranking
from ducats.report.figures.render import render_svg
from ducats.report.figures.style import TEXT_COLOUR, LineStyle, set_log_scale
from ducats.report.figures.summary_stats import MeanStd
from ducats.report.method_tables.build import TaskTable

BYTES_PER_GB = 1e9
CHARACTER_WIDTH_PIXELS = 6.5  # estimated width of a character in pixels, in the browser's default font
LabelBox = tuple[float, float, float, float]  # left, bottom, right, top


def draw_ranks(ranking: Ranking, line_styles: Mapping[str, LineStyle], id_prefix: str) -> str:
    """Draw the mean rank of each method, its interquartile range, and its best and worst rank."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, rank in enumerate(ranking.ranks):
            style = line_styles[rank.method]
            axes.hlines(row, *rank.best_and_worst, color=style.colour, linewidth=1.0, alpha=0.6)
            axes.hlines(row, *rank.quartiles, color=style.colour, linewidth=4.5, alpha=0.45)
            axes.plot(rank.mean, row, style.marker, color=style.colour, markersize=7)
        if ranking.critical_difference is not None:
            first = ranking.ranks[0].mean
            axes.axvspan(
                first, first + ranking.critical_difference, color=TEXT_COLOUR, alpha=0.08, linewidth=0
            )
        axes.set_yticks(range(len(ranking.ranks)), [f"{r.method}  {r.mean:.2f}" for r in ranking.ranks])
        axes.set(xlim=(0.5, len(ranking.ranks) + 0.5), ylim=(len(ranking.ranks) - 0.4, -0.6))
        axes.set_xlabel(f"rank, 1 is the best; n = {ranking.n_comparisons}")
        axes.set_xticks(range(1, len(ranking.ranks) + 1, 1 + len(ranking.ranks) // 10))
        axes.grid(visible=False, axis="y")

    size = (6.4, 0.9 + 0.24 * len(ranking.ranks))
    return render_svg(draw, size, id_prefix, "Mean rank and spread of each method")


def draw_score_against_cost(
    table: TaskTable, cost_key: str, line_styles: Mapping[str, LineStyle], id_prefix: str
) -> str:
    """Draw the average score against the cost of a run, one point per method.

    The result is empty if fewer than two methods have both values.

    Args:
        cost_key: ``seconds`` or ``memory``.
    """
    scale, unit = (BYTES_PER_GB, "peak memory, GB") if cost_key == "memory" else (1.0, "seconds")
    points = method_costs(table, cost_key)
    if len(points) < 2:
        return ""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        cost_by_method = {method: cost / scale for method, (cost, _) in points.items()}
        for method, (_, value) in points.items():
            style = line_styles[method]
            mean, deviation = 100 * value.mean, 100 * (value.std or 0.0)
            axes.errorbar(
                cost_by_method[method], mean, deviation, fmt=style.marker, color=style.colour, elinewidth=1.0
            )
        if max(cost_by_method.values()) > 10 * min(cost_by_method.values()):
            set_log_scale(axes, "x")
        axes.set(xlabel=f"{unit} per run, mean over runs", ylabel=f"{table.kind.score_name}, %")
        axes.margins(0.1, 0.12)
        _name_points(figure, axes, {m: (cost_by_method[m], 100 * v.mean) for m, (_, v) in points.items()})

    return render_svg(
        draw, (5.4, 4.0), id_prefix, f"{table.kind.score_name} against {unit} per run, one point per method"
    )


def method_costs(table: TaskTable, cost_key: str) -> dict[str, tuple[float, MeanStd]]:
    """Return the cost of a run and the average score by method, for methods with both."""
    cost_and_score = {}
    for row in table.rows:
        cost = row.memory if cost_key == "memory" else row.seconds
        average = row.averages.get(table.measures[0].key) if table.measures else None
        if cost and average is not None:
            cost_and_score[row.method] = (cost, average)
    return cost_and_score


def _name_points(figure: Figure, axes: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Place each name next to, above or below its point without overlaps; skip it if there is no room."""
    figure.draw_without_rendering()  # fixes the layout, and with it the positions of the points
    pixel_positions = {name: tuple(axes.transData.transform(point)) for name, point in points.items()}
    occupied: list[LabelBox] = [(x - 4, y - 4, x + 4, y + 4) for x, y in pixel_positions.values()]
    x_limits = axes.bbox.x0, figure.bbox.x1
    for name, (x, y) in sorted(pixel_positions.items(), key=lambda item: -item[1][1]):
        width, height = CHARACTER_WIDTH_PIXELS * len(name), 12.0
        sides = [(left, y + up) for up in (0, 6, -6) for left in (x + 7, x - 7 - width)]
        candidates = [*sides, (x - width / 2, y + 13), (x - width / 2, y - 13)]
        boxes = [
            (left, middle - height / 2, left + width, middle + height / 2) for left, middle in candidates
        ]
        box = next(
            (
                b
                for b in boxes
                if x_limits[0] <= b[0] and b[2] <= x_limits[1] and not _overlaps_any(b, occupied)
            ),
            None,
        )
        if box is None:
            continue  # further away it could be taken for the name of another point
        occupied.append(box)
        left, middle = axes.transData.inverted().transform((box[0], (box[1] + box[3]) / 2))
        axes.text(left, middle, name, fontsize=8, va="center", ha="left")


def _overlaps_any(box: LabelBox, others: Sequence[LabelBox]) -> bool:
    return any(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
        for other in others
    )
