"""Table of contents of a page."""

from collections.abc import Mapping
from typing import Any

from ducats.report.run_section import RunSection

TocEntry = tuple[str, str, list[tuple[str, str]]]  # anchor, name, sub-entries (anchor, name)

OVERVIEW_SECTIONS = (  # anchor, name, and the key of the page context that must be non-empty for it
    ("comparison", "Method comparison", "method_comparison"),
    ("results", "Results", "table"),
    ("curves", "Learning curves", "table"),
    ("classes", "Results by class", "class_table"),
    ("confidence", "Calibration", "reliability"),
    ("losses", "Training losses", "losses"),
    ("paper", "The paper's figures over these runs", "multi_run_panels"),
)
MAX_RUNS_WITH_SUBENTRIES = 3  # up to this many runs, the sections of each run are listed too
RUN_SECTIONS = (  # of a run: anchor and name
    ("verdict", "Verdict"),
    ("curve", "Learning curve"),
    ("classes", "Results by class"),
    ("calibration", "Calibration"),
    ("selections", "Selected samples"),
    ("paper", "The paper's figures"),
    ("costs", "Cost"),
    ("provenance", "Settings and versions"),
)


def build_toc(context: Mapping[str, Any]) -> list[TocEntry]:
    """Return the entries for the sections that the page context contains."""
    id_prefix: str = context["id_prefix"]
    entries: list[TocEntry] = []
    if not context["is_single_run"]:
        entries += [
            (id_prefix + anchor, name, [])
            for anchor, name, context_key in OVERVIEW_SECTIONS
            if context[context_key]
        ]
    for run_section in context["run_sections"]:
        subentries = [
            (run_section.id_prefix + anchor, name)
            for anchor, name in RUN_SECTIONS
            if _has_section(run_section, anchor)
        ]
        if context["is_single_run"]:
            entries += [(anchor, name, []) for anchor, name in subentries]
        else:
            entries.append(
                (
                    f"{run_section.id_prefix}top",
                    run_section.title,
                    subentries if len(context["run_sections"]) <= MAX_RUNS_WITH_SUBENTRIES else [],
                )
            )
    if context["annotation"]:
        entries.append((f"{id_prefix}annotators", "Annotators", []))
    if not context["is_single_run"]:
        entries.append((f"{id_prefix}provenance", "Runs, settings and versions", []))
    return [*entries, (f"{id_prefix}glossary", "Glossary", [])]


def _has_section(run_section: RunSection, anchor: str) -> bool:
    section_contents = {
        "classes": run_section.class_results,
        "calibration": run_section.calibration_table.rows,
        "paper": run_section.paper_panels,
    }
    return bool(section_contents.get(anchor, True))
