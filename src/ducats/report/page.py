"""The HTML page of a report: one self-contained file, in light or dark mode."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from ducats.report import provenance
from ducats.report.annotators import AnnotationStats, annotation_stats, describe_shared_answers
from ducats.report.comparison.build import Comparison, build_comparison
from ducats.report.figures.panels import draw_requested_panels, svg_width
from ducats.report.figures.style import LineStyle, assign_line_styles
from ducats.report.headline import make_headline
from ducats.report.method_results import aggregate_methods, group_by_kind, method_names
from ducats.report.method_tables.text import TABLE_NOTE
from ducats.report.overview import EMPTY_OVERVIEW, Overview, build_overview, run_table, settings_table
from ducats.report.page_budget import (
    GALLERY_SIZES,
    MAX_PAGE_BYTES,
    data_url_bytes,
    fitting_gallery_size,
    image_data_url,
    text_bytes,
)
from ducats.report.run_kinds import CLASSIFICATION, RunKind
from ducats.report.run_reader import BrokenRun, Run
from ducats.report.run_section.section import (
    MAX_RUNS_ALL_WITH_PAPER_FIGURES,
    RunSection,
    build_run_section,
    select_section_runs,
)
from ducats.report.run_section.selections import NEAR_DUPLICATE_COSINE, NEIGHBOUR_DISTANCE_PIXELS
from ducats.report.summary import Summary, summarise_methods, summarise_run, summarise_tasks
from ducats.report.table import Table
from ducats.report.tasks import collect_data_tasks, task_caption
from ducats.utils.errors import UserError
from ducats.utils.files import write_text_atomically

DEFAULT_TITLE = "ducats report"
MAX_SECTIONS_WITH_SUBENTRIES = 3  # up to this many, the table of contents lists the parts of each section
TocEntry = tuple[str, str, list[tuple[str, str]]]  # anchor, name, sub-entries (anchor, name)


@dataclass(frozen=True)
class KindReport:
    """The part of a page about the runs of one kind."""

    runs: tuple[Run, ...]
    summary: Summary | None  # None until the section of a single run is added
    # Warnings about means that are not comparable, and unreadable answers of annotators.
    cautions: tuple[str, ...]
    comparison: Comparison | None  # of the methods; None if there is nothing to compare
    overview: Overview  # empty for a single run, and for several tasks, which the comparison covers
    annotation: tuple[AnnotationStats, ...]
    sections: tuple[RunSection, ...] = ()  # of some of the runs

    @property
    def kind(self) -> RunKind:
        """Classification or segmentation."""
        return self.runs[0].kind

    @property
    def id_prefix(self) -> str:
        """Prefix of the HTML ids."""
        return self.kind.id_prefix

    @property
    def shared_answers(self) -> str:
        """How many answers of annotators the runs have in common; empty if there are none."""
        return describe_shared_answers(self.annotation)

    @property
    def is_single_run(self) -> bool:
        """Whether there is one run only, whose section has everything."""
        return len(self.runs) == 1

    @property
    def methods(self) -> list[str]:
        """Names of the methods."""
        return method_names(self.runs)

    @property
    def line_styles(self) -> Mapping[str, LineStyle]:
        """Line styles of the methods."""
        if self.comparison and self.comparison.multi_task:
            return self.comparison.line_styles
        return assign_line_styles(self.methods)

    @property
    def toc(self) -> list[TocEntry]:
        """Table of contents: an entry for each part of the report that is not empty."""
        overview = self.overview
        parts = (
            ("comparison", "Method comparison", self.comparison),
            ("results", "Results", overview.results),
            ("curves", "Learning curves", overview.results),
            ("classes", "Results by class", overview.classes),
            ("confidence", "Calibration", overview.reliability),
            ("losses", "Training losses", overview.losses),
            ("paper", "The paper's figures over these runs", overview.panels),
        )
        entries: list[TocEntry] = [
            (self.id_prefix + anchor, name, []) for anchor, name, part in parts if part
        ]
        for section in self.sections:
            if self.is_single_run:
                entries += [(anchor, name, []) for anchor, name in section.toc]
            else:
                subentries = section.toc if len(self.sections) <= MAX_SECTIONS_WITH_SUBENTRIES else []
                entries.append((f"{section.id_prefix}top", section.title, subentries))
        if self.annotation:
            entries.append((f"{self.id_prefix}annotators", "Annotators", []))
        if not self.is_single_run:
            entries.append((f"{self.id_prefix}provenance", "Runs, settings and versions", []))
        return [*entries, (f"{self.id_prefix}glossary", "Glossary", [])]


def write_page(
    runs: Sequence[Run],
    out: Path,
    title: str = DEFAULT_TITLE,
    broken: Sequence[BrokenRun] = (),
    figures: Sequence[str] = (),
) -> Path:
    """Write the page about the runs to ``out`` and return its path. The output is deterministic.

    The folders in ``broken``, which could not be read, are listed with the reason. The ``figures``, by the
    names of `ducats figure`, are added at the end.
    """
    reports, figure_bytes = _build_reports(runs, broken)
    requested_panels = draw_requested_panels(figures, runs)
    figure_bytes += text_bytes([panel.svg for panel in requested_panels])
    rounds = [each for report in reports for section in report.sections for each in section.selections.rounds]
    galleries = [[image.thumbnail for image in each.images] for each in rounds]
    pairs = [image.thumbnail for each in rounds for pair in each.shown_pairs for image in pair[:2]]
    text = (
        template_environment()
        .get_template("page.html")
        .render(
            title=title,
            reports=reports,
            broken=broken,
            requested_panels=requested_panels,
            classification=CLASSIFICATION,
            table_note=TABLE_NOTE,
            run_table=run_table,
            settings_table=settings_table,
            group_environments=provenance.group_environments,
            image_data_url=image_data_url,
            n_shown_images=fitting_gallery_size(
                galleries, MAX_PAGE_BYTES - figure_bytes - data_url_bytes(pairs)
            ),
            max_shown_images=GALLERY_SIZES[0],
            near_duplicate_cosine=NEAR_DUPLICATE_COSINE,
            neighbour_distance=NEIGHBOUR_DISTANCE_PIXELS,
        )
    )
    write_text_atomically(out, text)
    return out


def template_environment() -> Environment:
    """Return the environment of the templates."""
    environment = Environment(
        loader=PackageLoader("ducats.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"uncertainty": format_uncertainty, "svg_width": svg_width}
    return environment


def table_html(table: Table) -> str:
    """Write a table as HTML."""
    return str(template_environment().get_template("macros.html").module.html_table(table))  # type: ignore[attr-defined]


def format_uncertainty(value: float) -> str:
    """Format an uncertainty compactly, with two or three significant digits.

    >>> format_uncertainty(0.25), format_uncertainty(3), format_uncertainty(0.00001234)
    ('0.250', '3.00', '1.2e-05')
    """
    return f"{value:#.3g}" if value >= 0.001 else f"{value:.1e}"


def _build_reports(runs: Sequence[Run], broken: Sequence[BrokenRun]) -> tuple[list[KindReport], int]:
    """Return the report of each kind of run, and the bytes that all figures take."""
    reports = [_build_report(group, broken) for group in group_by_kind(runs)]
    if len(reports) > 1 and not any(each.comparison and each.comparison.multi_task for each in reports):
        several_kinds_caution = provenance.collect_cautions(runs)[0]
        reports[0] = replace(reports[0], cautions=(several_kinds_caution, *reports[0].cautions))
    figure_bytes = sum(
        each.overview.n_figure_bytes + (each.comparison.n_figure_bytes if each.comparison else 0)
        for each in reports
    )
    for index, report in enumerate(reports):
        reports[index] = _add_sections(report, figure_bytes)
        figure_bytes += sum(section.n_figure_bytes for section in reports[index].sections)
    return reports, figure_bytes


def _build_report(runs: Sequence[Run], broken: Sequence[BrokenRun]) -> KindReport:
    """Return the report of runs of one kind, without run sections."""
    kind, is_single_run = runs[0].kind, len(runs) == 1
    comparison = None if is_single_run else build_comparison(runs, broken, id_prefix=kind.id_prefix)
    multi_task = comparison is not None and comparison.multi_task
    annotation, warnings = _read_annotation(runs)
    # The section of a single run has its own warnings.
    cautions = [] if multi_task or is_single_run else provenance.collect_cautions(runs)
    overview = EMPTY_OVERVIEW if multi_task or is_single_run else build_overview(runs)
    summary, shares_answers = None, bool(describe_shared_answers(annotation))
    if comparison and multi_task:
        summary = summarise_tasks(runs, comparison, shares_answers=shares_answers)
    elif not is_single_run:
        headline = make_headline(aggregate_methods(runs), kind)
        summary = summarise_methods(runs, headline, overview, shares_answers=shares_answers)
    return KindReport(
        runs=tuple(runs),
        summary=summary,
        cautions=(*cautions, *warnings),
        comparison=comparison,
        overview=overview,
        annotation=tuple(annotation),
    )


def _read_annotation(runs: Sequence[Run]) -> tuple[list[AnnotationStats], list[str]]:
    """Return the annotation statistics of each run, and warnings about runs whose answers are unreadable."""
    stats, warnings = [], []
    for run in runs:
        try:
            stats += annotation_stats([run])
        except UserError as error:
            reason = str(error).replace(f"{run.folder}{os.sep}", "")
            warnings.append(f"The answers of annotators in {run.name} are not shown: {reason}.")
    return stats, warnings


def _add_sections(report: KindReport, used_bytes: int) -> KindReport:
    """Add run sections while they fit the size limit; the first is always added."""
    data_tasks, sections = collect_data_tasks(report.runs), list[RunSection]()
    for position, run in enumerate(select_section_runs(report.runs), start=1):
        section = build_run_section(
            run,
            report.runs,
            f"{report.id_prefix}run-{position}-",
            report.line_styles,
            task=task_caption(run, data_tasks),
            without_paper_figures=position > 1 and len(report.runs) > MAX_RUNS_ALL_WITH_PAPER_FIGURES,
        )
        used_bytes += section.n_figure_bytes
        if sections and used_bytes > MAX_PAGE_BYTES:
            break
        sections.append(section)
    report = replace(report, sections=tuple(sections))
    return replace(report, summary=summarise_run(sections[0])) if report.is_single_run else report
