"""Table of contents of a page."""

from collections.abc import Mapping
from typing import Any

from ducats.report.run_section import RunSection

Entry = tuple[str, str, list[tuple[str, str]]]  # anchor, name, sub-entries (anchor, name)

OVERVIEW = (  # anchor, name, and the key of the page context that must be non-empty for it
    ("comparison", "Method comparison", "compared"),
    ("results", "Results", "table"),
    ("bought", "Learning curves", "table"),
    ("classes", "Results by class", "class_table"),
    ("confidence", "Calibration", "reliability"),
    ("losses", "Training losses", "losses"),
    ("across", "The paper's figures over these runs", "across"),
)
FEW = 3  # up to this many runs, the sections of each run are listed too
SECTIONS = (  # of a run: anchor and name
    ("worth", "Verdict"),
    ("curve", "Learning curve"),
    ("classes", "Results by class"),
    ("calibration", "Calibration"),
    ("why", "Selected samples"),
    ("paper", "The paper's figures"),
    ("costs", "Cost"),
    ("made", "Settings and versions"),
)


def contents(part: Mapping[str, Any]) -> list[Entry]:
    """Return the entries for the sections that the page context contains."""
    key: str = part["key"]
    found: list[Entry] = []
    if not part["alone"]:
        found += [(key + anchor, name, []) for anchor, name, there in OVERVIEW if part[there]]
    for one in part["chapters"]:
        below = [(one.key + anchor, name) for anchor, name in SECTIONS if _has(one, anchor)]
        if part["alone"]:
            found += [(anchor, name, []) for anchor, name in below]
        else:
            found.append((f"{one.key}top", one.title, below if len(part["chapters"]) <= FEW else []))
    if part["people"]:
        found.append((f"{key}people", "Annotators", []))
    if not part["alone"]:
        found.append((f"{key}made", "Runs, settings and versions", []))
    return [*found, (f"{key}words", "Glossary", [])]


def _has(one: RunSection, section: str) -> bool:
    there = {
        "classes": one.class_results,
        "calibration": one.calibration_table.rows,
        "paper": one.paper_panels,
    }
    return bool(there.get(section, True))
