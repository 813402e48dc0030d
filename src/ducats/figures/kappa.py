"""Figure 4a: accuracy over kappa. The first step of the query keeps kappa times the budget."""

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ducats.errors import UserError
from ducats.figures.curve import Curve, plot
from ducats.figures.drawing import Asked, Drawing
from ducats.figures.runs import Runs
from ducats.figures.settings import lines, score, setting
from ducats.figures.style import looks

KEY = "query.params.kappa"


def curves(runs: Runs) -> list[Curve]:
    """Return the score by kappa (default 10); one curve for runs that differ only in kappa and seed."""
    having = [run for run in runs if setting(run, KEY) is not None]
    if not having:
        raise UserError(
            f"none of the runs has {KEY}; give runs of methods/duc, e.g. of `ducats sweep digits-kappa`"
        )
    found = []
    for line in lines(having, (KEY,), "kappa"):
        values: dict[float, list[float]] = {}
        for run in line.runs:
            values.setdefault(float(setting(run, KEY)), []).append(100 * (score(run) or 0.0))
        found.append(Curve.of(line.label or line.runs[0].kind.score, values))
    if all(len(curve.points) < 2 for curve in found):
        raise UserError(
            f"the runs must differ in {KEY} only; give runs with several values, e.g. of "
            "`ducats sweep digits-kappa`"
        )
    return found


def kappa(runs: Runs, asked: Asked) -> Drawing:  # noqa: ARG001 - same signature for all figures
    """Prepare a plot of means over seeds with one standard deviation."""
    found = curves(runs)
    ticks = sorted({x for curve in found for x in curve.points})
    name = runs[0].kind.score

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for curve, look in zip(found, looks([str(n) for n in range(len(found))]).values(), strict=True):
            plot(axes, curve, look)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set(xlabel="κ = candidates after the first step / budget", ylabel=f"{name}, %")
        if len(found) > 1:
            axes.legend(frameon=False, fontsize=8)
        runs_in_all = sum(curve.count for curve in found)
        axes.set_title(f"mean ± standard deviation over seeds, n={runs_in_all} runs")

    title = f"{name} over kappa"
    return Drawing(draw, (5.2, 3.5), title, f"{title}. {'; '.join(c.told('kappa') for c in found)}.")
