"""The table of contents of a page: anchors and names of what is there."""

from collections.abc import Mapping
from typing import Any

from ducats.report.chapter import Chapter

Entry = tuple[str, str, list[tuple[str, str]]]  # anchor, name, and what is below it

OVERVIEW = (  # anchors of what is said about all runs, and what must be there for it
    ("comparison", "Methods against each other", "compared"),
    ("results", "Results", "table"),
    ("bought", "What the labels bought", "table"),
    ("classes", "Which classes gained", "class_table"),
    ("confidence", "Does confidence mean anything?", "reliability"),
    ("losses", "Training losses", "losses"),
    ("across", "The paper's figures over these runs", "across"),
)
FEW = 3  # chapters whose sections are listed, too
SECTIONS = (  # of a chapter
    ("worth", "Was it worth it?"),
    ("curve", "What the labels bought"),
    ("classes", "Which classes gained"),
    ("calibration", "Does confidence mean anything?"),
    ("why", "Why these samples?"),
    ("paper", "The paper's figures"),
    ("costs", "What it took"),
    ("made", "How it was made"),
)


def contents(part: Mapping[str, Any]) -> list[Entry]:
    """Anchors and names of what the part holds."""
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
        found.append((f"{key}people", "People", []))
    if not part["alone"]:
        found.append((f"{key}made", "How this was made", []))
    return [*found, (f"{key}words", "What the numbers mean", [])]


def _has(one: Chapter, section: str) -> bool:
    there = {"classes": one.by_class, "calibration": one.calibration.rows, "paper": one.paper}
    return bool(there.get(section, True))
