"""The section of one run on the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ducats.report.figures.curves import (
    CaptionedFigure,
    draw_audit_curves,
    draw_learning_curves,
    draw_loss_curves,
    loss_term_styles,
)
from ducats.report.figures.panels import FigurePanel, draw_paper_panels, draw_round_panels
from ducats.report.figures.reliability import draw_stage_reliability
from ducats.report.figures.run_details import draw_class_results, draw_epoch_seconds
from ducats.report.figures.style import LineStyle
from ducats.report.headline import MAIN_METHOD
from ducats.report.page_budget import text_bytes
from ducats.report.provenance import RunProvenance, progress_message, read_provenance
from ducats.report.run_reader import Run
from ducats.report.run_section import stage_tables
from ducats.report.run_section.class_results import ClassResults, read_class_results
from ducats.report.run_section.gain import has_same_data, selects_at_random
from ducats.report.run_section.selections import Selections, read_selections
from ducats.report.run_section.verdict import Verdict, make_verdict
from ducats.report.table import Table
from ducats.runfolder.records import finite_number

MAX_RUNS_ALL_WITH_SECTION = 3  # up to this many runs, every run has a section
# Up to this many runs, every section has the paper's figures; otherwise only the first.
MAX_RUNS_ALL_WITH_PAPER_FIGURES = 2
MAX_RUN_SECTIONS = 4  # run sections on a page
MAX_RUNS_WITH_SECTIONS = 100  # with more runs the page has no run sections: no single run represents a sweep


@dataclass(frozen=True)
class RunSection:
    """Contents of a run section."""

    run: Run
    id_prefix: str  # prefix of the HTML ids in the section
    task: str  # distinguishes the run's task from those of other runs on the page; empty if not needed
    progress: str  # progress message; empty if the run is finished
    verdict: Verdict
    # Line styles of the run's method and of methods with random selection, for comparison.
    line_styles: Mapping[str, LineStyle]
    learning_curves: tuple[CaptionedFigure, ...]
    class_results: ClassResults | None
    selections: Selections
    provenance: RunProvenance
    tables: Mapping[str, Table]  # by name
    figures: Mapping[str, str]  # SVG text by name; empty if there is nothing to draw
    round_panels: tuple[FigurePanel, ...]
    paper_panels: tuple[FigurePanel, ...]
    loss_term_styles: Mapping[str, LineStyle]

    @property
    def title(self) -> str:
        """Method, task and seed."""
        return f"{self.run.method}{' on ' if self.task else ''}{self.task}, seed {self.run.seed}"

    @property
    def toc(self) -> list[tuple[str, str]]:
        """Anchor and name of each part that is not empty."""
        parts = (
            ("verdict", "Verdict", True),
            ("curve", "Learning curve", True),
            ("audit", "Audit", self.tables["audit"].rows),
            ("classes", "Results by class", self.class_results),
            ("calibration", "Calibration", self.tables["calibration"].rows),
            ("selections", "Selected samples", True),
            ("paper", "The paper's figures", self.paper_panels),
            ("costs", "Cost", True),
            ("provenance", "Settings and versions", True),
        )
        return [(self.id_prefix + anchor, name) for anchor, name, part in parts if part]

    @property
    def random_methods(self) -> list[str]:
        """Methods with random selection that are drawn for comparison."""
        return [name for name in self.line_styles if name != self.run.method]

    @property
    def has_temperature_scaling(self) -> bool:
        """Whether temperature scaling is shown for comparison."""
        return any("temperature_scaled" in stage for stage in self.run.stages)

    @property
    def n_figure_bytes(self) -> int:
        """Size of all figures."""
        svgs = [*self.figures.values(), *(curve.svg for curve in self.learning_curves)]
        return text_bytes([*svgs, *(panel.svg for panel in (*self.round_panels, *self.paper_panels))])


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
    """Build the section of a run; ``others`` are all runs of the page, with their line styles."""
    line_style = line_styles[run.method]
    random_runs = [
        other
        for other in others
        if other.method != run.method and selects_at_random(other) and has_same_data(run, other)
    ]
    curve_styles = {each.method: line_styles[each.method] for each in (run, *random_runs)}
    has_scores = any(finite_number(stage, run.kind.headline_metric) is not None for stage in run.stages)
    has_clicks = any(finite_number(s, "clicks") not in (None, finite_number(s, "labels")) for s in run.stages)
    class_results, selections = read_class_results(run), read_selections(run)
    tables = {
        "metrics": stage_tables.metrics_table(run),
        "calibration": stage_tables.calibration_table(run),
        "audit": stage_tables.audit_table(run),
        "audit-classes": stage_tables.audit_class_table(run),
        "rounds": stage_tables.rounds_table(selections.rounds, run.kind),
        "pseudo-labels": stage_tables.pseudo_labels_table(run),
        "costs": stage_tables.cost_table(run),
        "added-classes": stage_tables.added_classes_table(run),
    }
    figures = {
        "reliability": draw_stage_reliability(run.stages, run.kind, line_style, id_prefix),
        "seconds": draw_epoch_seconds(run, line_style, id_prefix),
        "losses": draw_loss_curves([run], run.method, id_prefix) if run.epochs else "",
    }
    if class_results is not None:
        tables["classes"] = stage_tables.per_class_table(class_results.shown, class_results)
        tables["other-classes"] = stage_tables.per_class_table(class_results.collapsed, class_results)
        figures["classes"] = draw_class_results(class_results, line_style, id_prefix)
    return RunSection(
        run=run,
        id_prefix=id_prefix,
        task=task,
        progress=progress_message(run),
        verdict=make_verdict(run, others),
        line_styles=curve_styles,
        learning_curves=draw_learning_curves(
            [run, *random_runs], curve_styles, id_prefix, has_clicks=has_clicks
        )
        if has_scores
        else draw_audit_curves(run, line_style, id_prefix),
        class_results=class_results,
        selections=selections,
        provenance=read_provenance(run),
        tables=tables,
        figures=figures,
        round_panels=draw_round_panels(run, id_prefix),
        paper_panels=() if without_paper_figures else draw_paper_panels(run, id_prefix),
        loss_term_styles=loss_term_styles([run]),
    )
