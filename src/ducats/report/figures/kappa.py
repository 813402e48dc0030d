"""Figure 4a: accuracy over kappa. The first step of the query keeps kappa times the budget."""

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ducats.report.figures.base import FigureOptions, PreparedFigure
from ducats.report.figures.curves import ScoreCurve, plot_score_curve
from ducats.report.figures.run_settings import final_score, get_setting, group_runs
from ducats.report.figures.runs import RunSequence
from ducats.report.figures.style import assign_line_styles
from ducats.utils.errors import UserError

KAPPA_KEY = "query.params.kappa"


def kappa_curves(runs: RunSequence) -> list[ScoreCurve]:
    """Return the score by kappa (default 10); one curve for runs that differ only in kappa and seed."""
    usable_runs = [run for run in runs if get_setting(run, KAPPA_KEY) is not None]
    if not usable_runs:
        raise UserError(
            f"none of the runs has {KAPPA_KEY}; give runs of methods/duc, e.g. of `ducats sweep digits-kappa`"
        )
    score_curves = []
    for group in group_runs(usable_runs, (KAPPA_KEY,), "kappa"):
        scores: dict[float, list[float]] = {}
        for run in group.runs:
            scores.setdefault(float(get_setting(run, KAPPA_KEY)), []).append(100 * (final_score(run) or 0.0))
        score_curves.append(ScoreCurve.from_scores(group.label or group.runs[0].kind.score_name, scores))
    if all(len(curve.stats) < 2 for curve in score_curves):
        raise UserError(
            f"the runs must differ in {KAPPA_KEY} only; give runs with several values, e.g. of "
            "`ducats sweep digits-kappa`"
        )
    return score_curves


def prepare_kappa(runs: RunSequence, options: FigureOptions) -> PreparedFigure:  # noqa: ARG001 - same signature for all figures
    """Prepare a plot of means over seeds with one standard deviation."""
    score_curves = kappa_curves(runs)
    ticks = sorted({x for curve in score_curves for x in curve.stats})
    metric_name = runs[0].kind.score_name

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for curve, line_style in zip(
            score_curves, assign_line_styles([str(n) for n in range(len(score_curves))]).values(), strict=True
        ):
            plot_score_curve(axes, curve, line_style)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set(xlabel="κ = candidates after the first step / budget", ylabel=f"{metric_name}, %")
        if len(score_curves) > 1:
            axes.legend(frameon=False, fontsize=8)
        n_runs = sum(curve.n_runs for curve in score_curves)
        axes.set_title(f"mean ± standard deviation over seeds, n={n_runs} runs")

    title = f"{metric_name} over kappa"
    return PreparedFigure(
        draw, (5.2, 3.5), title, f"{title}. {'; '.join(c.describe('kappa') for c in score_curves)}."
    )
