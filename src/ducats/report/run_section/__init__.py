"""The section of one run on the page: verdict, curves, classes, calibration, samples, cost, settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ducats.report import curves
from ducats.report.figures.style import LineStyle
from ducats.report.figures.summary_stats import finite_number
from ducats.report.headline import MAIN_METHOD
from ducats.report.run_kinds import RunKind
from ducats.report.run_reader import Run
from ducats.report.run_section import plots, stage_tables
from ducats.report.run_section.class_results import ClassResults, read_class_results
from ducats.report.run_section.figure_panels import FigurePanel, draw_paper_panels, draw_round_panels
from ducats.report.run_section.gain import has_same_data, selects_at_random
from ducats.report.run_section.selections import Selections, read_selections
from ducats.report.run_section.stage_tables import TextTable
from ducats.report.run_section.status import RunProvenance, progress_message, read_provenance
from ducats.report.run_section.verdict import Verdict, make_verdict

__all__ = ["FigurePanel", "RunSection", "build_run_section", "select_section_runs"]

MAX_RUNS_ALL_WITH_SECTION = 3  # up to this many runs, every run has a section
# Up to this many runs, every section has the paper's figures; otherwise only the first.
MAX_RUNS_ALL_WITH_PAPER_FIGURES = 2
MAX_RUN_SECTIONS = 4  # run sections on a page
MAX_RUNS_WITH_SECTIONS = 100  # with more runs the page has no run sections: no single run represents a sweep


@dataclass(frozen=True)
class RunSection:
    """Contents of a run section. Figures are SVG text, empty if there is nothing to draw.

    Args:
        id_prefix: prefix of the HTML ids in the section.
        run_name: name of the run folder.
        task: distinguishes the run's task from those of other runs on the page; empty if not needed.
        progress: progress message; empty if the run is finished.
        verdict: the result in words.
        metrics_table: metrics of each stage.
        score_curve: figure: score over labels.
        score_curve_by_clicks: figure: score over clicks; empty if each label is one click.
        ece_curve: figure: calibration error over labels.
        random_methods: methods with random selection that are drawn for comparison.
        line_styles: line styles of the methods in the curves.
        class_results: results of each class before and after.
        shown_class_table: table of the classes that changed most.
        other_class_table: table of the remaining classes.
        class_figure: figure: each class before and after.
        calibration_table: calibration metrics of each stage.
        reliability_figure: figure: accuracy against confidence at each stage.
        has_temperature_scaling: whether temperature scaling is shown for comparison.
        selections: the samples selected in each round.
        rounds_table: table of the rounds.
        round_panels: figures about the rounds.
        paper_panels: the paper's figures.
        cost_table: time and memory of each stage.
        missing_records: a sentence about times and memory that were not recorded; empty if all were.
        epoch_seconds_figure: figure: seconds of each epoch.
        loss_figure: figure: losses of each epoch.
        loss_term_styles: line styles of the loss terms.
        provenance: settings, digests, versions.
    """

    id_prefix: str
    run_name: str
    method: str
    seed: int
    task: str
    kind: RunKind
    progress: str
    verdict: Verdict
    metrics_table: TextTable
    score_curve: str
    score_curve_by_clicks: str
    ece_curve: str
    random_methods: tuple[str, ...]
    line_styles: Mapping[str, LineStyle]
    class_results: ClassResults | None
    shown_class_table: TextTable | None
    other_class_table: TextTable | None
    class_figure: str
    calibration_table: TextTable
    reliability_figure: str
    has_temperature_scaling: bool
    selections: Selections
    rounds_table: TextTable
    round_panels: tuple[FigurePanel, ...]
    paper_panels: tuple[FigurePanel, ...]
    cost_table: TextTable
    missing_records: str
    epoch_seconds_figure: str
    loss_figure: str
    loss_term_styles: Mapping[str, LineStyle]
    provenance: RunProvenance

    @property
    def title(self) -> str:
        """Method, task and seed."""
        return f"{self.method}{' on ' if self.task else ''}{self.task}, seed {self.seed}"

    @property
    def figures(self) -> list[str]:
        """All figures of the section."""
        own = [
            self.score_curve,
            self.score_curve_by_clicks,
            self.ece_curve,
            self.class_figure,
            self.reliability_figure,
            self.epoch_seconds_figure,
            self.loss_figure,
        ]
        return [*own, *(panel.svg for panel in (*self.round_panels, *self.paper_panels))]


def select_section_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that get a section.

    These are all runs if there are few, otherwise one per method: the finished run with the lowest seed. DUC
    comes first, since its selected samples are of most interest. A sweep of many runs has no run sections.
    """
    if len(runs) > MAX_RUNS_WITH_SECTIONS:
        return []
    if len(runs) <= MAX_RUNS_ALL_WITH_SECTION:
        return list(runs)
    first_by_method: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: (run.method != MAIN_METHOD, not run.finished, run.seed)):
        first_by_method.setdefault(run.method, run)
    return list(first_by_method.values())[:MAX_RUN_SECTIONS]


def build_run_section(
    run: Run,
    others: Sequence[Run],
    id_prefix: str,
    line_styles: Mapping[str, LineStyle],
    *,
    task: str = "",
    without_paper_figures: bool = False,
) -> RunSection:
    """Build the section of a run.

    Args:
        run: the run of the section.
        others: all runs of the page.
        id_prefix: prefix of the HTML ids in the section.
        line_styles: line styles of the methods on the page.
        task: distinguishes the run's task from those of other runs on the page.
        without_paper_figures: whether to leave out the paper's figures.
    """
    line_style = line_styles[run.method]
    random_runs = [
        other
        for other in others
        if other is not run and selects_at_random(other) and has_same_data(run, other)
    ]
    random_runs = [other for other in random_runs if other.method != run.method]
    curve_styles = {run.method: line_style} | {
        other.method: line_styles[other.method] for other in random_runs
    }
    has_scores = any(finite_number(stage, run.kind.headline_metric) is not None for stage in run.stages)
    class_results, selections = read_class_results(run), read_selections(run)
    has_clicks = any(finite_number(s, "clicks") not in (None, finite_number(s, "labels")) for s in run.stages)
    return RunSection(
        id_prefix=id_prefix,
        run_name=run.name,
        method=run.method,
        seed=run.seed,
        task=task,
        kind=run.kind,
        progress=progress_message(run),
        verdict=make_verdict(run, others),
        metrics_table=stage_tables.metrics_table(run),
        score_curve=_curve([run, *random_runs], curve_styles, id_prefix, "labels") if has_scores else "",
        score_curve_by_clicks=_curve([run, *random_runs], curve_styles, id_prefix, "clicks")
        if has_scores and has_clicks
        else "",
        ece_curve=_curve([run, *random_runs], curve_styles, id_prefix, "labels", "ece") if has_scores else "",
        random_methods=tuple(dict.fromkeys(other.method for other in random_runs)),
        line_styles=curve_styles,
        class_results=class_results,
        shown_class_table=stage_tables.per_class_table(class_results.shown, class_results)
        if class_results
        else None,
        other_class_table=stage_tables.per_class_table(class_results.collapsed, class_results)
        if class_results
        else None,
        class_figure=plots.draw_class_results(class_results, line_style, id_prefix) if class_results else "",
        calibration_table=stage_tables.calibration_table(run),
        reliability_figure=plots.draw_reliability_diagrams(run.stages, run.kind, line_style, id_prefix)
        if any("reliability" in stage for stage in run.stages)
        else "",
        has_temperature_scaling=any("temperature_scaled" in stage for stage in run.stages),
        selections=selections,
        rounds_table=stage_tables.rounds_table(selections.rounds, run.kind),
        round_panels=draw_round_panels(run, id_prefix),
        paper_panels=() if without_paper_figures else draw_paper_panels(run, id_prefix),
        cost_table=stage_tables.cost_table(run),
        missing_records=stage_tables.missing_records(run),
        epoch_seconds_figure=plots.draw_epoch_seconds(run, line_style, id_prefix)
        if any(finite_number(epoch, "seconds") is not None for epoch in run.epochs)
        else "",
        loss_figure=curves.draw_loss_curves([run], run.method, id_prefix=id_prefix) if run.epochs else "",
        loss_term_styles=curves.loss_term_styles([run]),
        provenance=read_provenance(run),
    )


def _curve(
    runs: Sequence[Run],
    line_styles: Mapping[str, LineStyle],
    id_prefix: str,
    x_key: str,
    metric_key: str = "",
) -> str:
    kind = runs[0].kind
    metric_key, title = (
        (metric_key, "calibration error") if metric_key else (kind.headline_metric, kind.score_name)
    )
    return curves.draw_learning_curve(
        runs, metric_key, title, x_key, line_styles=line_styles, id_prefix=id_prefix
    )
