"""Final accuracy over the number of labels, from runs with different budgets; one line per method."""

import re
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ducats.report.figures.base import FigureOptions, PreparedFigure
from ducats.report.figures.curves import ScoreCurve, plot_score_curve
from ducats.report.figures.run_settings import RunGroup, final_score, get_setting, group_runs, other_settings
from ducats.report.figures.runs import RunSequence, is_segmentation
from ducats.report.figures.style import assign_line_styles, format_compact
from ducats.report.run_reader import Run
from ducats.utils.errors import UserError


def budget_curves(runs: RunSequence) -> list[ScoreCurve]:
    """Return the score by number of labels; one curve for runs that differ only in budget and seed.

    The query does not matter in runs without labels: they start every curve with the same objective.
    """
    unlabelled_runs = [run for run in runs if final_score(run) is not None and not _label_count(run)]
    labelled_runs = [run for run in runs if run.stages and _label_count(run)]
    score_curves = []
    for group in group_runs(labelled_runs, ("acquisition",), "budget") if labelled_runs else ():
        shared_settings = other_settings(group.runs[0], ("acquisition", "query"))
        start_runs = [
            run for run in unlabelled_runs if other_settings(run, ("acquisition", "query")) == shared_settings
        ]
        scores: dict[float, list[float]] = {}
        for run in (*group.runs, *start_runs):
            scores.setdefault(_label_count(run), []).append(100 * (final_score(run) or 0.0))
        score_curves.append(ScoreCurve.from_scores(_method_name(group), scores))
    if all(len(curve.stats) < 2 for curve in score_curves):
        raise UserError(
            "the runs must differ in acquisition.budget only; give runs with several budgets, e.g. of "
            "`ducats sweep digits-budgets`"
        )
    return score_curves


def prepare_budget(runs: RunSequence, options: FigureOptions) -> PreparedFigure:  # noqa: ARG001 - same signature for all figures
    """Prepare a plot of final scores over the number of labels and their share of the pool."""
    score_curves = budget_curves(runs)
    metric_name, labels_axis = runs[0].kind.score_name, runs[0].kind.labels_axis
    pool_sizes = {_pool_size(run) for run in runs}
    pool_size = pool_sizes.pop() if len(pool_sizes) == 1 else None

    n_runs = sum(curve.n_runs for curve in score_curves)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for curve, line_style in zip(
            score_curves, assign_line_styles([str(n) for n in range(len(score_curves))]).values(), strict=True
        ):
            plot_score_curve(axes, curve, line_style)
        axes.set(xlabel=labels_axis, ylabel=f"{metric_name}, %")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_compact(value)))
        if pool_size:
            upper = axes.secondary_xaxis(
                "top", functions=(_scale_by(100 / pool_size), _scale_by(pool_size / 100))
            )
            upper.set_xlabel(f"share of the pool ({format_compact(pool_size)}), %")
        axes.legend(
            frameon=False,
            fontsize=8,
            loc="lower right",
            title=f"mean ± deviation over seeds, n={n_runs} runs",
            title_fontsize=8,
        )

    title = f"{metric_name} over {labels_axis}"
    summary = "; ".join(curve.describe(labels_axis) for curve in score_curves)
    return PreparedFigure(draw, (5.2, 3.8), title, f"{title}, final stages of {n_runs} runs. {summary}.")


def _scale_by(factor: float) -> Callable[[Any], Any]:
    return lambda values: factor * values


def _label_count(run: Run) -> float:
    return float(run.stages[-1]["labels"])


def _method_name(group: RunGroup) -> str:
    """Name the method without its budget: ``duc`` for duc-budget-5% and duc-budget-10%."""
    names = sorted({run.method for run in group.runs})
    if len(names) == 1:
        return names[0]
    shared_columns = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    shared = "".join(letters[0] for letters in shared_columns)
    return re.sub(r"[-_ ]*(budget)?[-_ =]*$", "", shared) or str(get_setting(group.runs[0], "query.name"))


def _pool_size(run: Run) -> int | None:
    """Return the number of images or pixels in the pool; None if unknown."""
    if is_segmentation(run):
        sizes = run.files.load_pool().sizes
        return None if sizes is None else int(sizes.prod(1).sum())
    pool = run.data.get("pool")
    images = pool.get("images") if isinstance(pool, dict) else None
    return int(images) if isinstance(images, int) else None
