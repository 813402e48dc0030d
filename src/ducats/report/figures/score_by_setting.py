"""Scores over settings: kappa (figure 4a), weights beta and lambda (figure 4b), label budget (appendix)."""

import re
from collections.abc import Callable
from itertools import takewhile
from typing import Any, TypeVar

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from ducats.report.figures.base import FigureOptions, PreparedFigure
from ducats.report.figures.curves import ScoreCurve, plot_score_curves
from ducats.report.figures.run_settings import RunGroup, final_score, get_setting, group_runs, other_settings
from ducats.report.figures.runs import RunSequence, is_segmentation
from ducats.report.figures.style import format_compact
from ducats.report.figures.summary_stats import MeanStd
from ducats.report.run_reader import Run
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise

KAPPA_KEY = "query.params.kappa"  # the first step of the query keeps kappa times the budget
BETA_KEY, LAMBDA_KEY = "objective.params.beta", "objective.params.lambda_"
_Position = TypeVar("_Position")
ScoresByWeights = dict[tuple[float, float], list[float]]  # (beta, lambda) -> percent of each seed


def _scores_by(position: Callable[[Run], _Position], runs: RunSequence) -> dict[_Position, list[float]]:
    """Return the final scores in percent by the position of their run on the axes."""
    scores: dict[_Position, list[float]] = {}
    for run in runs:
        scores.setdefault(position(run), []).append(100 * (final_score(run) or 0.0))
    return scores


def kappa_curves(runs: RunSequence) -> list[ScoreCurve]:
    """Return the score by kappa (default 10); one curve for runs that differ only in kappa and seed."""
    usable_runs = [run for run in runs if get_setting(run, KAPPA_KEY) is not None]
    if not usable_runs:
        raise UserError(
            f"none of the runs has {KAPPA_KEY}; give runs of methods/duc, e.g. of `ducats sweep digits-kappa`"
        )
    score_curves = []
    for group in group_runs(usable_runs, (KAPPA_KEY,), "kappa"):
        scores = _scores_by(lambda run: float(get_setting(run, KAPPA_KEY)), group.runs)
        score_curves.append(ScoreCurve.from_scores(group.label or group.runs[0].kind.score_name, scores))
    if all(len(curve.stats) < 2 for curve in score_curves):
        raise UserError(
            f"the runs must differ in {KAPPA_KEY} only; give runs with several values, e.g. of "
            "`ducats sweep digits-kappa`"
        )
    return score_curves


def prepare_kappa(runs: RunSequence, _: FigureOptions) -> PreparedFigure:
    """Prepare a plot of means over seeds with one standard deviation."""
    score_curves = kappa_curves(runs)
    ticks = sorted({x for curve in score_curves for x in curve.stats})
    metric_name = runs[0].kind.score_name

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        plot_score_curves(axes, score_curves)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set(xlabel="κ = candidates after the first step / budget", ylabel=f"{metric_name}, %")
        if len(score_curves) > 1:
            axes.legend(frameon=False, fontsize=8)
        n_runs = sum(curve.n_runs for curve in score_curves)
        axes.set_title(f"mean ± standard deviation over seeds, n={pluralise(n_runs, 'run')}")

    title = f"{metric_name} over kappa"
    return PreparedFigure(
        draw, (5.2, 3.5), title, f"{title}. {'; '.join(c.describe('kappa') for c in score_curves)}."
    )


def scores_by_weights(group: RunGroup) -> ScoresByWeights:
    """Return the scores of all seeds by the two weights."""
    return _scores_by(
        lambda run: (float(get_setting(run, BETA_KEY)), float(get_setting(run, LAMBDA_KEY))), group.runs
    )


def prepare_beta_lambda(runs: RunSequence, _: FigureOptions) -> PreparedFigure:
    """Prepare a heat map of the two weights: mean, deviation and number of seeds in each cell."""
    keys = (BETA_KEY, LAMBDA_KEY)
    usable_runs = [run for run in runs if all(get_setting(run, key) is not None for key in keys)]
    if not usable_runs:
        raise UserError(f"none of the runs has {BETA_KEY}; give runs with objective.name=duc")
    groups = group_runs(usable_runs, keys, "beta_lambda")
    heat_maps = [(g.label, by_weights) for g in groups if len(by_weights := scores_by_weights(g)) > 1]
    if not heat_maps:
        raise UserError(
            f"the runs must differ in {BETA_KEY} or {LAMBDA_KEY} only; give runs with several values, e.g. "
            "of `ducats sweep digits-beta-lambda`"
        )
    betas = sorted({weights[0] for _, by_weights in heat_maps for weights in by_weights})
    lambdas = sorted({weights[1] for _, by_weights in heat_maps for weights in by_weights})
    metric_name = usable_runs[0].kind.score_name
    stats_by_label = {
        label: {weights: MeanStd.from_values(scores) for weights, scores in by_weights.items()}
        for label, by_weights in heat_maps
    }
    all_means = [stats.mean for cells in stats_by_label.values() for stats in cells.values()]
    low, high = min(all_means), max(max(all_means), min(all_means) + 0.1)

    def draw(figure: Figure) -> None:
        row = figure.subplots(1, len(heat_maps), squeeze=False)[0]
        mesh = None
        for axes, (label, by_weights) in zip(row, heat_maps, strict=True):
            grid = np.full((len(lambdas), len(betas)), np.nan)
            for (beta, weight), stats in stats_by_label[label].items():
                grid[lambdas.index(weight), betas.index(beta)] = stats.mean
            mesh = axes.pcolormesh(grid, cmap="cividis", vmin=low, vmax=high, edgecolors="none")
            for (beta, weight), stats in stats_by_label[label].items():
                luminance = np.dot(
                    colormaps["cividis"]((stats.mean - low) / (high - low))[:3], (0.3, 0.59, 0.11)
                )
                deviation = "" if stats.std is None else f"\n± {stats.std:.1f}"
                seeds = len(by_weights[beta, weight])
                axes.text(
                    betas.index(beta) + 0.5,
                    lambdas.index(weight) + 0.5,
                    f"{stats.mean:.1f}{deviation}\nn={seeds}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="black" if luminance > 0.5 else "white",
                )
            axes.set_xticks(np.arange(len(betas)) + 0.5, [f"{value:g}" for value in betas])
            axes.set_yticks(np.arange(len(lambdas)) + 0.5, [f"{value:g}" for value in lambdas])
            axes.set(xlabel="β, weight of U_dis", ylabel="λ, weight of U_data")
            axes.set_title(label or f"{pluralise(sum(map(len, by_weights.values())), 'run')}, n per cell")
            axes.grid(visible=False)
        assert mesh is not None
        figure.colorbar(mesh, ax=list(row), label=f"{metric_name}, %")

    best, best_weights = max(
        (stats.mean, weights) for cells in stats_by_label.values() for weights, stats in cells.items()
    )
    title = f"{metric_name} over beta and lambda"
    summary = f"{low:.1f}% to {best:.1f}%, best at beta {best_weights[0]:g} and lambda {best_weights[1]:g}"
    size = (len(heat_maps) * (0.85 * len(betas) + 0.9) + 1.0, 0.72 * len(lambdas) + 0.9)
    return PreparedFigure(draw, (max(size[0], 4.0), max(size[1], 2.4)), title, f"{title}: {summary}.")


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
        scores = _scores_by(_label_count, (*group.runs, *start_runs))
        score_curves.append(ScoreCurve.from_scores(_method_name(group), scores))
    if all(len(curve.stats) < 2 for curve in score_curves):
        raise UserError(
            "the runs must differ in acquisition.budget only; give runs with several budgets, e.g. of "
            "`ducats sweep digits-budgets`"
        )
    return score_curves


def prepare_budget(runs: RunSequence, _: FigureOptions) -> PreparedFigure:
    """Prepare a plot of final scores over the number of labels and their share of the pool."""
    score_curves = budget_curves(runs)
    metric_name, labels_axis = runs[0].kind.score_name, runs[0].kind.labels_axis
    pool_sizes = {_pool_size(run) for run in runs}
    pool_size = pool_sizes.pop() if len(pool_sizes) == 1 else None

    n_runs = sum(curve.n_runs for curve in score_curves)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        plot_score_curves(axes, score_curves)
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
            title=f"mean ± deviation over seeds, n={pluralise(n_runs, 'run')}",
            title_fontsize=8,
        )

    title = f"{metric_name} over {labels_axis}"
    summary = "; ".join(curve.describe(labels_axis) for curve in score_curves)
    return PreparedFigure(
        draw, (5.2, 3.8), title, f"{title}, final stages of {pluralise(n_runs, 'run')}. {summary}."
    )


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
