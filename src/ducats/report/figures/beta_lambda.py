"""Figure 4b: accuracy over the weights of U_dis (beta) and of U_data (lambda) in the objective."""

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from ducats.report.figures.base import FigureOptions, PreparedFigure
from ducats.report.figures.run_settings import RunGroup, final_score, get_setting, group_runs
from ducats.report.figures.runs import RunSequence
from ducats.report.figures.summary_stats import MeanStd
from ducats.utils.errors import UserError

BETA_KEY, LAMBDA_KEY = "objective.params.beta", "objective.params.lambda_"
ScoresByWeights = dict[tuple[float, float], list[float]]  # (beta, lambda) -> percent of each seed


def scores_by_weights(group: RunGroup) -> ScoresByWeights:
    """Return the scores of all seeds by the two weights."""
    by_weights: ScoresByWeights = {}
    for run in group.runs:
        weights = float(get_setting(run, BETA_KEY)), float(get_setting(run, LAMBDA_KEY))
        by_weights.setdefault(weights, []).append(100 * (final_score(run) or 0.0))
    return by_weights


def prepare_beta_lambda(runs: RunSequence, options: FigureOptions) -> PreparedFigure:  # noqa: ARG001 - same signature for all figures
    """Prepare a heat map of the two weights: mean, deviation and number of seeds in each cell."""
    usable_runs = [
        run
        for run in runs
        if get_setting(run, BETA_KEY) is not None and get_setting(run, LAMBDA_KEY) is not None
    ]
    if not usable_runs:
        raise UserError(f"none of the runs has {BETA_KEY}; give runs with objective.name=duc")
    heat_maps = [
        (group.label, scores_by_weights(group))
        for group in group_runs(usable_runs, (BETA_KEY, LAMBDA_KEY), "beta_lambda")
    ]
    heat_maps = [(label, by_weights) for label, by_weights in heat_maps if len(by_weights) > 1]
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
            axes.set_title(label or f"{sum(map(len, by_weights.values()))} runs, n per cell")
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
