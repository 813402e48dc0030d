"""The HTML page of a report: one self-contained file, in light or dark mode."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ducats.report import provenance
from ducats.report.class_iou import format_percent
from ducats.report.comparison import build_comparison
from ducats.report.headline import Headline
from ducats.report.overview import build_overview
from ducats.report.page_budget import (
    GALLERY_SIZES,
    MAX_PAGE_BYTES,
    data_url_bytes,
    fitting_gallery_size,
    image_data_url,
    text_bytes,
)
from ducats.report.run_reader import BrokenRun, Run
from ducats.report.run_section import MAX_RUNS_ALL_WITH_PAPER_FIGURES, build_run_section, select_section_runs
from ducats.report.run_section.figure_panels import draw_requested_panels, svg_width
from ducats.report.run_section.near_duplicates import NEAR_DUPLICATE_COSINE, NEIGHBOUR_DISTANCE_PIXELS
from ducats.report.tables import group_by_kind, method_names
from ducats.report.tasks import collect_data_tasks, format_task, task_caption
from ducats.report.toc import build_toc
from ducats.utils.files import write_text_atomically

DEFAULT_TITLE = "ducats report"


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
    environment = Environment(
        loader=PackageLoader("ducats.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"arrow": format_task, "uncertainty": format_uncertainty, "svg_width": svg_width}
    contexts, figure_bytes = _kind_contexts(runs, broken)
    requested_panels = draw_requested_panels(figures, runs)
    figure_bytes += text_bytes([panel.svg for panel in requested_panels])
    rounds = [
        query_round
        for context in contexts
        for section in context["run_sections"]
        for query_round in section.selections.rounds
    ]
    galleries = [[image.thumbnail for image in query_round.images] for query_round in rounds]
    pairs = [
        image.thumbnail
        for query_round in rounds
        for first, second, _ in query_round.shown_pairs
        for image in (first, second)
    ]
    text = environment.get_template("page.html").render(
        title=title,
        contexts=contexts,
        broken=broken,
        requested_panels=requested_panels,
        format_percent=format_percent,
        image_data_url=image_data_url,
        n_shown_images=fitting_gallery_size(galleries, MAX_PAGE_BYTES - figure_bytes - data_url_bytes(pairs)),
        max_shown_images=GALLERY_SIZES[0],
        near_duplicate_cosine=NEAR_DUPLICATE_COSINE,
        neighbour_distance=NEIGHBOUR_DISTANCE_PIXELS,
    )
    write_text_atomically(out, text)
    return out


def format_uncertainty(value: float) -> str:
    """Format an uncertainty compactly, with two or three significant digits.

    >>> format_uncertainty(0.25), format_uncertainty(3), format_uncertainty(0.00001234)
    ('0.250', '3.00', '1.2e-05')
    """
    return f"{value:#.3g}" if value >= 0.001 else f"{value:.1e}"


def _kind_contexts(runs: Sequence[Run], broken: Sequence[BrokenRun]) -> tuple[list[dict[str, Any]], int]:
    """Return the template context of each kind of run, and the bytes that all figures take."""
    contexts = [_kind_context(group, broken) for group in group_by_kind(runs)]
    if len(contexts) > 1 and not any(
        context["method_comparison"] and context["method_comparison"]["multi_task"] for context in contexts
    ):
        several_kinds_caution = provenance.collect_cautions(runs)[0]
        contexts[0]["cautions"].insert(0, several_kinds_caution)
    figure_bytes = sum(map(text_bytes, contexts))
    for context in contexts:
        figure_bytes = _add_run_sections(context, figure_bytes)
        context["toc"] = build_toc(context)
    return contexts, figure_bytes


def _kind_context(runs: Sequence[Run], broken: Sequence[BrokenRun]) -> dict[str, Any]:
    """Return the template context of runs of one kind."""
    method_comparison = (
        build_comparison(runs, broken, id_prefix=runs[0].kind.id_prefix) if len(runs) > 1 else None
    )
    if not method_comparison or not method_comparison["multi_task"]:
        return build_overview(runs) | {"method_comparison": method_comparison}
    headline_context = {
        "headline": Headline(method_comparison["headline"]),
        "line_styles": method_comparison["line_styles"],
    }
    return build_overview(runs, multi_task=True) | {"method_comparison": method_comparison} | headline_context


def _add_run_sections(context: dict[str, Any], used_bytes: int) -> int:
    """Add run sections while they fit the size limit; the first is always added. Return the bytes used."""
    all_runs: Sequence[Run] = context["all_runs"]
    section_runs, data_tasks = select_section_runs(all_runs), collect_data_tasks(all_runs)
    for position, run in enumerate(section_runs, start=1):
        without_paper_figures = position > 1 and len(all_runs) > MAX_RUNS_ALL_WITH_PAPER_FIGURES
        id_prefix, task = f"{context['id_prefix']}run-{position}-", task_caption(run, data_tasks)
        section = build_run_section(
            run,
            all_runs,
            id_prefix,
            context["line_styles"],
            task=task,
            without_paper_figures=without_paper_figures,
        )
        section_bytes = text_bytes(section.figures)
        if context["run_sections"] and used_bytes + section_bytes > MAX_PAGE_BYTES:
            break
        context["run_sections"].append(section)
        used_bytes += section_bytes
    context["n_runs_without_section"] = len(all_runs) - len(context["run_sections"])
    context["has_more_methods"] = len(context["run_sections"]) < len(method_names(all_runs))
    if context["is_single_run"]:
        verdict = context["run_sections"][0].verdict
        context["headline"] = Headline(verdict.sentence, verdict.remarks)
    return used_bytes
