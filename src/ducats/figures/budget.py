"""Final accuracy over the number of labels, from runs with different budgets; one line per method."""

import re
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ducats import snapshot_files
from ducats.errors import UserError
from ducats.figures.curve import Curve, plot
from ducats.figures.drawing import Asked, Drawing
from ducats.figures.runs import RunLike, Runs, of_pixels
from ducats.figures.settings import Line, lines, rest, score, setting
from ducats.figures.style import looks, short


def curves(runs: Runs) -> list[Curve]:
    """Return the score by number of labels; one curve for runs that differ only in budget and seed.

    The query does not matter in runs without labels: they start every curve with the same objective.
    """
    idle = [run for run in runs if score(run) is not None and not _spent(run)]
    buyers = [run for run in runs if run.stages and _spent(run)]
    found = []
    for line in lines(buyers, ("acquisition",), "budget") if buyers else ():
        alike = rest(line.runs[0], ("acquisition", "query"))
        start = [run for run in idle if rest(run, ("acquisition", "query")) == alike]
        values: dict[float, list[float]] = {}
        for run in (*line.runs, *start):
            values.setdefault(_spent(run), []).append(100 * (score(run) or 0.0))
        found.append(Curve.of(_name(line), values))
    if all(len(curve.points) < 2 for curve in found):
        raise UserError(
            "the runs must differ in acquisition.budget only; give runs with several budgets, e.g. of "
            "`ducats sweep digits-budgets`"
        )
    return found


def budget(runs: Runs, asked: Asked) -> Drawing:  # noqa: ARG001 - same signature for all figures
    """Prepare a plot of final scores over the number of labels and their share of the pool."""
    found = curves(runs)
    name, axis = runs[0].kind.score, runs[0].kind.axis
    totals = {_total(run) for run in runs}
    total = totals.pop() if len(totals) == 1 else None

    runs_in_all = sum(curve.count for curve in found)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for curve, look in zip(found, looks([str(n) for n in range(len(found))]).values(), strict=True):
            plot(axes, curve, look)
        axes.set(xlabel=axis, ylabel=f"{name}, %")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        if total:
            upper = axes.secondary_xaxis("top", functions=(_times(100 / total), _times(total / 100)))
            upper.set_xlabel(f"share of the pool ({short(total)}), %")
        axes.legend(
            frameon=False,
            fontsize=8,
            loc="lower right",
            title=f"mean ± deviation over seeds, n={runs_in_all} runs",
            title_fontsize=8,
        )

    title = f"{name} over {axis}"
    told = "; ".join(curve.told(axis) for curve in found)
    return Drawing(draw, (5.2, 3.8), title, f"{title}, final stages of {runs_in_all} runs. {told}.")


def _times(factor: float) -> Callable[[Any], Any]:
    return lambda values: factor * values


def _spent(run: RunLike) -> float:
    return float(run.stages[-1]["labels"])


def _name(line: Line) -> str:
    """Name the method without its budget: ``duc`` for duc-budget-5% and duc-budget-10%."""
    names = sorted({run.method for run in line.runs})
    if len(names) == 1:
        return names[0]
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    shared = "".join(letters[0] for letters in alike)
    return re.sub(r"[-_ ]*(budget)?[-_ =]*$", "", shared) or str(setting(line.runs[0], "query.name"))


def _total(run: RunLike) -> int | None:
    """Return the number of images or pixels in the pool; None if unknown."""
    if of_pixels(run):
        sizes = snapshot_files.pool_grid_sizes(run.folder)
        return None if sizes is None else int(sizes.prod(1).sum())
    pool = run.data.get("pool")
    images = pool.get("images") if isinstance(pool, dict) else None
    return int(images) if isinstance(images, int) else None
