"""Figures of a run section: results by class, seconds of each epoch."""

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ducats.report.figures.render import render_svg
from ducats.report.figures.style import TEXT_COLOUR, LineStyle
from ducats.report.run_reader import Run
from ducats.report.run_section.class_results import ClassResults
from ducats.runfolder.records import finite_number
from ducats.utils.findings import pluralise


def draw_class_results(class_results: ClassResults, line_style: LineStyle, id_prefix: str) -> str:
    """Draw each class before (hollow point) and after (filled point), the largest gain on top."""
    rows = [row for row in class_results.shown if row.after is not None]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for index, row in enumerate(rows):
            assert row.after is not None
            if row.before is not None:
                ends = [100 * row.before, 100 * row.after]
                axes.plot(ends, [index, index], color=line_style.colour, alpha=0.5, linewidth=2.5)
                axes.plot(ends[0], index, "o", color=line_style.colour, markerfacecolor="none", markersize=6)
            axes.plot(100 * row.after, index, "o", color=line_style.colour, markersize=6)
        axes.set(xlabel=f"{class_results.metric_name}, %", ylim=(len(rows) - 0.4, -0.6))
        axes.set_yticks(range(len(rows)), [_shorten(row.name) for row in rows])
        axes.grid(axis="y", alpha=0.06)

    title = (
        f"{class_results.metric_name} of each class before the first labels (hollow) and after the last "
        "(filled)"
    )
    return render_svg(draw, (4.9, 0.9 + 0.24 * len(rows)), f"{id_prefix}classes", title)


def draw_epoch_seconds(run: Run, line_style: LineStyle, id_prefix: str) -> str:
    """Draw the seconds of each epoch; thin lines mark new labels. Empty if none were recorded."""
    timed = [(e["epoch"], value) for e in run.epochs if (value := finite_number(e, "seconds")) is not None]
    if not timed:
        return ""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.bar([e for e, _ in timed], [s for _, s in timed], color=line_style.colour, alpha=0.75, width=0.8)
        for record in run.stages[:-1]:
            axes.axvline(record["epoch"] + 0.5, color=TEXT_COLOUR, alpha=0.25, linewidth=0.7)
        axes.set(xlabel="epoch", ylabel="training seconds")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))

    title = f"Training seconds of {pluralise(len(timed), 'epoch')}"
    return render_svg(draw, (4.3, 2.5), f"{id_prefix}seconds", title)


def _shorten(name: str, max_length: int = 22) -> str:
    return name if len(name) <= max_length else f"{name[: max_length - 1]}…"
