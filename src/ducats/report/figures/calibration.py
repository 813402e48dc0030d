"""Figure 3b: reliability diagrams and ECE at the first and last stage, and after temperature scaling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ducats.report.figures.base import FigureOptions, PreparedFigure
from ducats.report.figures.reliability import plot_reliability
from ducats.report.figures.runs import RunSequence
from ducats.report.figures.style import (
    PLOT_COLOURS,
    TEXT_COLOUR,
    LineStyle,
    assign_line_styles,
    format_compact,
)
from ducats.report.figures.summary_stats import MeanStd, pool_reliability_bins
from ducats.report.method_results import method_names
from ducats.report.run_reader import finished_or_all
from ducats.runfolder.records import finite_number
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise

BAR_STYLES = {
    "first stage": (0.4, ""),
    "last stage": (1.0, ""),
    "last stage, temperature-scaled": (0.8, "//"),
}


@dataclass(frozen=True)
class CalibrationPanel:
    """One stage of a method, pooled over seeds."""

    title: str
    records: tuple[Mapping[str, Any], ...]  # one record per seed with `ece` and `reliability`

    @property
    def ece(self) -> MeanStd | None:
        """Expected calibration error over seeds, from 0 to 1."""
        return MeanStd.from_known(finite_number(record, "ece") for record in self.records)

    @property
    def n_predictions(self) -> int:
        """Number of evaluated predictions of all seeds."""
        return sum(b.count for b in pool_reliability_bins(self.records))


def calibration_panels(runs: RunSequence) -> list[CalibrationPanel]:
    """Return first stage, last stage and temperature-scaled last stage of one method's seeds."""
    evaluated = [run for run in runs if any("reliability" in stage for stage in run.stages)]
    stages = [[stage for stage in run.stages if "reliability" in stage] for run in finished_or_all(evaluated)]
    if not stages:
        return []
    calibrations = [
        CalibrationPanel(_format_labels([run[0] for run in stages]), tuple(run[0] for run in stages))
    ]
    if any(len(run) > 1 for run in stages):
        last = [run[-1] for run in stages]
        calibrations.append(CalibrationPanel(_format_labels(last), tuple(last)))
        temperature_scaled = [
            stage["temperature_scaled"]
            for stage in last
            if "reliability" in (stage.get("temperature_scaled") or {})
        ]
        if temperature_scaled:
            calibrations.append(CalibrationPanel("temperature-scaled softmax", tuple(temperature_scaled)))
    return calibrations


def prepare_calibration(runs: RunSequence, _: FigureOptions) -> PreparedFigure:
    """Prepare a row of reliability diagrams per method, and bars of the ECE of all methods below."""
    rows = {
        name: panels
        for name in method_names(runs)
        if (panels := calibration_panels([r for r in runs if r.method == name]))
    }
    if not rows and not any(run.stages or run.finished for run in runs):
        raise UserError("no run has been evaluated yet; run the same command again to resume it")
    if not rows:
        raise UserError("calibration is unknown: no run was evaluated on a test set; set evaluation.split")
    line_styles = assign_line_styles(list(rows))
    max_panels = max(len(panels) for panels in rows.values())
    has_bars = len(rows) > 1
    # With one panel per method, put them side by side.
    n_lines, columns = (len(rows), max_panels) if max_panels > 1 else (1, len(rows))

    def draw(figure: Figure) -> None:
        grid = figure.add_gridspec(n_lines + has_bars, columns)
        for row, (name, panels) in enumerate(rows.items()):
            for column, panel in enumerate(panels):
                axes = figure.add_subplot(grid[row, column] if max_panels > 1 else grid[0, row])
                _draw_reliability(axes, panel, line_styles[name])
                if column == 0:
                    axes.set_ylabel(f"{name}\naccuracy, %")
        if has_bars:
            _draw_ece_bars(figure.add_subplot(grid[n_lines, :]), rows, line_styles)

    summary = "; ".join(
        f"{name}, {p.title}: ECE {_format_percent(p.ece)}" for name, panels in rows.items() for p in panels
    )
    title = "Calibration: accuracy against confidence"
    size = (2.75 * columns + 0.3, 2.6 * n_lines + (2.2 if has_bars else 0))
    return PreparedFigure(draw, size, title, f"{title}. {summary}.")


def _draw_reliability(axes: Axes, panel: CalibrationPanel, line_style: LineStyle) -> None:
    plot_reliability(axes, panel.records, line_style)
    axes.set_xlabel("confidence, %")
    n_predictions = format_compact(panel.n_predictions)
    axes.set_title(f"{panel.title}\nECE {_format_percent(panel.ece)}, n={n_predictions}", fontsize=9)


def _draw_ece_bars(
    axes: Axes, rows: Mapping[str, Sequence[CalibrationPanel]], line_styles: Mapping[str, LineStyle]
) -> None:
    """Draw the ECE of each method: first stage, last stage, temperature-scaled."""
    max_panels = max(len(panels) for panels in rows.values())
    for row, (name, panels) in enumerate(rows.items()):
        for index, (panel, (alpha, hatch)) in enumerate(zip(panels, BAR_STYLES.values(), strict=False)):
            error = panel.ece
            if error is None:
                continue
            x, colour = row + 0.27 * (index - (max_panels - 1) / 2), line_styles[name].colour
            axes.bar(x, 100 * error.mean, 0.25, color=colour, alpha=alpha, hatch=hatch, edgecolor="white")
            axes.text(x, 100 * error.mean, f"{100 * error.mean:.1f}", ha="center", va="bottom", fontsize=8)
            if error.std is not None:
                axes.errorbar(
                    x, 100 * error.mean, 100 * error.std, color=TEXT_COLOUR, elinewidth=1, capsize=2
                )
    axes.set(ylabel="ECE, %", xlim=(-0.6, len(rows) - 0.4))
    axes.set_xticks(range(len(rows)), list(rows))
    axes.grid(visible=False, axis="x")
    if max_panels > 1:
        patches = [
            Patch(facecolor=PLOT_COLOURS[-1], alpha=alpha, hatch=hatch, edgecolor="white", label=name)
            for name, (alpha, hatch) in list(BAR_STYLES.items())[:max_panels]
        ]
        axes.legend(
            handles=patches, frameon=False, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0)
        )


def _format_labels(stages: Sequence[Mapping[str, Any]]) -> str:
    labels = MeanStd.from_values([float(stage["labels"]) for stage in stages]).mean
    return "before any label" if labels == 0 else pluralise(labels, "label", format_compact(labels))


def _format_percent(value: MeanStd | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value.mean:.1f}" + ("" if value.std is None else f" ± {100 * value.std:.1f}") + "%"
