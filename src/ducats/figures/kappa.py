"""Figure 4a: accuracy over kappa, how many times the budget pass the query's first round."""

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ducats.errors import UserError
from ducats.figures.curve import Curve, plot
from ducats.figures.drawing import Asked, Drawing
from ducats.figures.runs import Runs
from ducats.figures.settings import lines, score, setting
from ducats.figures.style import looks

KEY = "query.knobs.kappa"


def curves(runs: Runs) -> list[Curve]:
    """Scores by kappa, a curve for runs that are alike but for kappa and seed; by default kappa is 10."""
    having = [run for run in runs if setting(run, KEY) is not None]
    if not having:
        raise UserError(
            f"no run here has {KEY}: give runs of methods/duc, such as those of `ducats sweep digits-kappa`"
        )
    found = []
    for line in lines(having, (KEY,), "kappa"):
        values: dict[float, list[float]] = {}
        for run in line.runs:
            values.setdefault(float(setting(run, KEY)), []).append(100 * (score(run) or 0.0))
        found.append(Curve.of(line.label or line.runs[0].kind.score, values))
    if all(len(curve.points) < 2 for curve in found):
        raise UserError(
            f"these runs do not differ in {KEY} alone: give runs with several values of it, such as those of "
            "`ducats sweep digits-kappa`"
        )
    return found


def kappa(runs: Runs, asked: Asked) -> Drawing:  # noqa: ARG001 - every figure is asked alike
    """A line of means over seeds with one standard deviation."""
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
        axes.set(xlabel="κ, times the budget that passes the first round", ylabel=f"{name}, %")
        if len(found) > 1:
            axes.legend(frameon=False, fontsize=8)
        runs_in_all = sum(curve.count for curve in found)
        axes.set_title(f"mean ± standard deviation over seeds, n={runs_in_all} runs")

    title = f"{name} over kappa"
    return Drawing(draw, (5.2, 3.5), title, f"{title}. {'; '.join(c.told('kappa') for c in found)}.")
