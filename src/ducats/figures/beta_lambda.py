"""Figure 4b: accuracy over the weights of U_dis (beta) and of U_data (lambda) in the objective."""

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from ducats.errors import UserError
from ducats.figures.drawing import Asked, Drawing
from ducats.figures.numbers import Spread
from ducats.figures.runs import Runs
from ducats.figures.settings import Line, lines, score, setting

BETA, LAMBDA = "objective.params.beta", "objective.params.lambda_"
Cells = dict[tuple[float, float], list[float]]  # (beta, lambda) -> percent of each seed


def cells(line: Line) -> Cells:
    """Return the scores of all seeds by the two weights."""
    found: Cells = {}
    for run in line.runs:
        place = float(setting(run, BETA)), float(setting(run, LAMBDA))
        found.setdefault(place, []).append(100 * (score(run) or 0.0))
    return found


def beta_lambda(runs: Runs, asked: Asked) -> Drawing:  # noqa: ARG001 - same signature for all figures
    """Prepare a heat map of the two weights: mean, deviation and number of seeds in each cell."""
    having = [run for run in runs if setting(run, BETA) is not None and setting(run, LAMBDA) is not None]
    if not having:
        raise UserError(f"none of the runs has {BETA}; give runs with objective.name=duc")
    maps = [(line.label, cells(line)) for line in lines(having, (BETA, LAMBDA), "beta_lambda")]
    maps = [(label, found) for label, found in maps if len(found) > 1]
    if not maps:
        raise UserError(
            f"the runs must differ in {BETA} or {LAMBDA} only; give runs with several values, e.g. of "
            "`ducats sweep digits-beta-lambda`"
        )
    betas = sorted({place[0] for _, found in maps for place in found})
    lambdas = sorted({place[1] for _, found in maps for place in found})
    name = having[0].kind.score
    means = {label: {place: Spread.of(values) for place, values in found.items()} for label, found in maps}
    flat = [spread.mean for found in means.values() for spread in found.values()]
    low, high = min(flat), max(max(flat), min(flat) + 0.1)

    def draw(figure: Figure) -> None:
        row = figure.subplots(1, len(maps), squeeze=False)[0]
        drawn = None
        for axes, (label, found) in zip(row, maps, strict=True):
            grid = np.full((len(lambdas), len(betas)), np.nan)
            for (beta, weight), spread in means[label].items():
                grid[lambdas.index(weight), betas.index(beta)] = spread.mean
            drawn = axes.pcolormesh(grid, cmap="cividis", vmin=low, vmax=high, edgecolors="none")
            for (beta, weight), spread in means[label].items():
                bright = np.dot(
                    colormaps["cividis"]((spread.mean - low) / (high - low))[:3], (0.3, 0.59, 0.11)
                )
                deviation = "" if spread.deviation is None else f"\n± {spread.deviation:.1f}"
                seeds = len(found[beta, weight])
                axes.text(
                    betas.index(beta) + 0.5,
                    lambdas.index(weight) + 0.5,
                    f"{spread.mean:.1f}{deviation}\nn={seeds}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="black" if bright > 0.5 else "white",
                )
            axes.set_xticks(np.arange(len(betas)) + 0.5, [f"{value:g}" for value in betas])
            axes.set_yticks(np.arange(len(lambdas)) + 0.5, [f"{value:g}" for value in lambdas])
            axes.set(xlabel="β, weight of U_dis", ylabel="λ, weight of U_data")
            axes.set_title(label or f"{sum(map(len, found.values()))} runs, n per cell")
            axes.grid(visible=False)
        assert drawn is not None
        figure.colorbar(drawn, ax=list(row), label=f"{name}, %")

    best, where = max((s.mean, place) for found in means.values() for place, s in found.items())
    title = f"{name} over beta and lambda"
    said = f"{low:.1f}% to {best:.1f}%, best at beta {where[0]:g} and lambda {where[1]:g}"
    size = (len(maps) * (0.85 * len(betas) + 0.9) + 1.0, 0.72 * len(lambdas) + 0.9)
    return Drawing(draw, (max(size[0], 4.0), max(size[1], 2.4)), title, f"{title}: {said}.")
