"""The HTML page of a report: one self-contained file, in light or dark mode."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ducats.files import write_text_atomically
from ducats.report import provenance
from ducats.report.allowance import GALLERY, LIMIT, inlined, inlined_size, shown_of_each, weight
from ducats.report.classes import percent
from ducats.report.comparison import comparison
from ducats.report.contents import contents
from ducats.report.overview import overview
from ducats.report.read import Broken, Run
from ducats.report.run_section import MAX_RUNS_ALL_WITH_PAPER_FIGURES, build_run_section, select_section_runs
from ducats.report.run_section.figure_panels import svg_width
from ducats.report.run_section.near_duplicates import NEAR_DUPLICATE_COSINE, NEIGHBOUR_DISTANCE_PIXELS
from ducats.report.tables import by_kind, methods
from ducats.report.tasks import arrow, columns_of, place_of
from ducats.report.words import Headline

DEFAULT_TITLE = "ducats report"


def write_page(
    runs: Sequence[Run], out: Path, title: str = DEFAULT_TITLE, broken: Sequence[Broken] = ()
) -> Path:
    """Write the page about the runs to ``out`` and return its path. The output is deterministic.

    The folders in ``broken``, which could not be read, are listed with the reason.
    """
    environment = Environment(
        loader=PackageLoader("ducats.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"arrow": arrow, "tiny": format_uncertainty, "width": svg_width}
    contexts, figure_bytes = _kind_contexts(runs, broken)
    rounds = [round for part in contexts for one in part["chapters"] for round in one.why.rounds]
    galleries = [[pick.picture for pick in round.picks] for round in rounds]
    pairs = [pick.picture for round in rounds for first, second, _ in round.pairs for pick in (first, second)]
    text = environment.get_template("page.html").render(
        title=title,
        parts=contexts,
        broken=broken,
        percent=percent,
        inlined=inlined,
        shown=shown_of_each(galleries, LIMIT - figure_bytes - inlined_size(pairs)),
        most=GALLERY[0],
        alike=NEAR_DUPLICATE_COSINE,
        near=NEIGHBOUR_DISTANCE_PIXELS,
    )
    write_text_atomically(out, text)
    return out


def format_uncertainty(value: float) -> str:
    """Format an uncertainty compactly, with two or three significant digits.

    >>> format_uncertainty(0.25), format_uncertainty(3), format_uncertainty(0.00001234)
    ('0.250', '3.00', '1.2e-05')
    """
    return f"{value:#.3g}" if value >= 0.001 else f"{value:.1e}"


def _kind_contexts(runs: Sequence[Run], broken: Sequence[Broken]) -> tuple[list[dict[str, Any]], int]:
    """Return the template context of each kind of run, and the bytes that all figures take."""
    contexts = [_kind_context(group, broken) for group in by_kind(runs)]
    if len(contexts) > 1 and not any(
        context["compared"] and context["compared"]["several"] for context in contexts
    ):
        contexts[0]["cautions"].insert(0, provenance.cautions(runs)[0])  # the warning about several kinds
    figure_bytes = sum(map(weight, contexts))
    for part in contexts:
        figure_bytes = _add_run_sections(part, figure_bytes)
        part["contents"] = contents(part)
    return contexts, figure_bytes


def _kind_context(runs: Sequence[Run], broken: Sequence[Broken]) -> dict[str, Any]:
    """Return the template context of runs of one kind."""
    method_comparison = comparison(runs, broken, key=runs[0].kind.prefix) if len(runs) > 1 else None
    if not method_comparison or not method_comparison["several"]:
        return overview(runs) | {"compared": method_comparison}
    headline_context = {
        "headline": Headline(method_comparison["headline"]),
        "looks": method_comparison["looks"],
    }
    return overview(runs, mixed=True) | {"compared": method_comparison} | headline_context


def _add_run_sections(context: dict[str, Any], used_bytes: int) -> int:
    """Add run sections while they fit the size limit; the first is always added. Return the bytes used."""
    all_runs: Sequence[Run] = context["every"]
    section_runs, columns = select_section_runs(all_runs), columns_of(all_runs)
    for position, run in enumerate(section_runs, start=1):
        without_paper_figures = position > 1 and len(all_runs) > MAX_RUNS_ALL_WITH_PAPER_FIGURES
        id_prefix, task = f"{context['key']}run-{position}-", place_of(run, columns)
        section = build_run_section(
            run, all_runs, id_prefix, context["looks"], task=task, without_paper_figures=without_paper_figures
        )
        section_bytes = weight(section.figures)
        if context["chapters"] and used_bytes + section_bytes > LIMIT:
            break
        context["chapters"].append(section)
        used_bytes += section_bytes
    context["without_chapter"] = len(all_runs) - len(context["chapters"])
    context["more_methods"] = len(context["chapters"]) < len(methods(all_runs))
    if context["alone"]:
        context["headline"] = Headline(
            context["chapters"][0].worth.sentence, context["chapters"][0].worth.remarks
        )
    return used_bytes
