"""Figure 3b: reliability diagrams and ECE at the first and last stage, and after temperature scaling."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ducats.errors import UserError
from ducats.figures.drawing import Asked, Drawing
from ducats.figures.numbers import Spread, number, reliability
from ducats.figures.runs import Runs
from ducats.figures.style import COLOURS, INK, Look, looks, short

BARS = {"first stage": (0.4, ""), "last stage": (1.0, ""), "last stage, temperature-scaled": (0.8, "//")}


@dataclass(frozen=True)
class Panel:
    """One stage of a method, pooled over seeds.

    Args:
        records: one record per seed with ``ece`` and ``reliability``.
    """

    title: str
    records: tuple[Mapping[str, Any], ...]

    @property
    def ece(self) -> Spread | None:
        """Expected calibration error over seeds, from 0 to 1."""
        known = [value for record in self.records if (value := number(record, "ece")) is not None]
        return Spread.of(known) if known else None

    @property
    def count(self) -> int:
        """Number of evaluated predictions of all seeds."""
        return sum(b.count for b in reliability(self.records))


def moments(runs: Runs) -> list[Panel]:
    """Return first stage, last stage and temperature-scaled last stage of one method's seeds."""
    measured = [run for run in runs if any("reliability" in stage for stage in run.stages)]
    chosen = [run for run in measured if run.finished] or measured
    stages = [[stage for stage in run.stages if "reliability" in stage] for run in chosen]
    if not stages:
        return []
    found = [Panel(_spent([run[0] for run in stages]), tuple(run[0] for run in stages))]
    if any(len(run) > 1 for run in stages):
        last = [run[-1] for run in stages]
        found.append(Panel(_spent(last), tuple(last)))
        tempered = [
            stage["temperature_scaled"]
            for stage in last
            if "reliability" in (stage.get("temperature_scaled") or {})
        ]
        if tempered:
            found.append(Panel("temperature-scaled softmax", tuple(tempered)))
    return found


def calibration(runs: Runs, asked: Asked) -> Drawing:  # noqa: ARG001 - same signature for all figures
    """Prepare a row of reliability diagrams per method, and bars of the ECE of all methods below."""
    methods = list(dict.fromkeys(run.method for run in runs))
    rows = {name: found for name in methods if (found := moments([r for r in runs if r.method == name]))}
    if not rows and not any(run.stages or run.finished for run in runs):
        raise UserError("no run has been evaluated yet; run the same command again to resume it")
    if not rows:
        raise UserError("calibration is unknown: no run was evaluated on a test set; set evaluation.split")
    look = looks(list(rows))
    most = max(len(found) for found in rows.values())
    bars = len(rows) > 1
    # With one panel per method, put them side by side.
    lines, columns = (len(rows), most) if most > 1 else (1, len(rows))

    def draw(figure: Figure) -> None:
        grid = figure.add_gridspec(lines + bars, columns)
        for line, (name, found) in enumerate(rows.items()):
            for place, panel in enumerate(found):
                axes = figure.add_subplot(grid[line, place] if most > 1 else grid[0, line])
                _reliability(axes, panel, look[name])
                if place == 0:
                    axes.set_ylabel(f"{name}\naccuracy, %")
        if bars:
            _bars(figure.add_subplot(grid[lines, :]), rows, look)

    said = "; ".join(
        f"{name}, {p.title}: ECE {_percent(p.ece)}" for name, found in rows.items() for p in found
    )
    title = "Calibration: accuracy against confidence"
    size = (2.75 * columns + 0.3, 2.6 * lines + (2.2 if bars else 0))
    return Drawing(draw, size, title, f"{title}. {said}.")


def _reliability(axes: Axes, panel: Panel, look: Look) -> None:
    bins = reliability(panel.records)
    total = sum(b.count for b in bins)
    upper = max(len(record["reliability"]["upper"]) for record in panel.records)
    axes.plot([0, 100], [0, 100], color=INK, linewidth=0.9, linestyle=(0, (4, 3)), alpha=0.7)
    x, y = [100 * b.confidence for b in bins], [100 * b.accuracy for b in bins]
    shares = [b.count / total for b in bins]
    axes.bar(x, [100 * share for share in shares], width=70 / upper, color=INK, alpha=0.13, linewidth=0)
    axes.vlines(x, y, x, color=look.colour, alpha=0.6, linewidth=1.2)
    # Bins with few predictions are unreliable, so their points are small.
    sizes = [(2.5 + 6 * math.sqrt(share)) ** 2 for share in shares]
    axes.scatter(x, y, s=sizes, color=look.colour, marker=look.marker, linewidths=0, zorder=3, clip_on=False)
    axes.set(xlim=(0, 102), ylim=(0, 104), xlabel="confidence, %")
    axes.set_title(f"{panel.title}\nECE {_percent(panel.ece)}, n={short(total)}", fontsize=9)
    axes.set_xticks([0, 50, 100])


def _bars(axes: Axes, rows: Mapping[str, Sequence[Panel]], look: Mapping[str, Look]) -> None:
    """Draw the ECE of each method: first stage, last stage, temperature-scaled."""
    most = max(len(panels) for panels in rows.values())
    for line, (name, panels) in enumerate(rows.items()):
        for place, (panel, (alpha, hatch)) in enumerate(zip(panels, BARS.values(), strict=False)):
            error = panel.ece
            if error is None:
                continue
            at, colour = line + 0.27 * (place - (most - 1) / 2), look[name].colour
            axes.bar(at, 100 * error.mean, 0.25, color=colour, alpha=alpha, hatch=hatch, edgecolor="white")
            axes.text(at, 100 * error.mean, f"{100 * error.mean:.1f}", ha="center", va="bottom", fontsize=8)
            if error.deviation is not None:
                axes.errorbar(at, 100 * error.mean, 100 * error.deviation, color=INK, elinewidth=1, capsize=2)
    axes.set(ylabel="ECE, %", xlim=(-0.6, len(rows) - 0.4))
    axes.set_xticks(range(len(rows)), list(rows))
    axes.grid(visible=False, axis="x")
    if most > 1:
        patches = [
            Patch(facecolor=COLOURS[-1], alpha=alpha, hatch=hatch, edgecolor="white", label=name)
            for name, (alpha, hatch) in list(BARS.items())[:most]
        ]
        axes.legend(
            handles=patches, frameon=False, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0)
        )


def _spent(stages: Sequence[Mapping[str, Any]]) -> str:
    labels = Spread.of([float(stage["labels"]) for stage in stages]).mean
    return "before any label" if labels == 0 else f"{short(labels)} labels"


def _percent(value: Spread | None) -> str:
    if value is None:
        return "–"
    return (
        f"{100 * value.mean:.1f}"
        + ("" if value.deviation is None else f" ± {100 * value.deviation:.1f}")
        + "%"
    )
