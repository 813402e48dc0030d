"""Check whether a copy of a benchmark is complete, by comparing image counts with the published ones."""

from collections.abc import Iterator, Mapping

from ducats.config import Config
from ducats.data.benchmarks import BENCHMARKS, ImageCount
from ducats.doctor.finding import Finding, images, some
from ducats.doctor.found import Survey
from ducats.doctor.survey import survey

NAMED = 5  # maximum number of classes in a message


def incomplete(config: Config) -> list[str]:
    """Return warnings about missing or surplus images of a benchmark; files are listed, not read."""
    benchmark = BENCHMARKS.get(config.data.name)
    if benchmark is None or benchmark.list_files is None:
        return []
    found, _ = survey(config)
    return [finding.what for finding in check_counts(found) if finding.severity == "warning"]


def check_counts(found: Survey) -> Iterator[Finding]:
    """Yield one finding per domain of a benchmark."""
    for role, (name, known) in found.expected.items():
        if role in found.parts:
            yield _compare(name, found.parts[role].classes(), known)


def _compare(name: str, here: Mapping[str, int], known: ImageCount) -> Finding:
    total = sum(here.values())
    inside = "" if known.classes is None else f" in {_classes(len(here))}"
    if total == known.total and len(here) == (known.classes or len(here)) and not _differing(here, known):
        return Finding("note", f"{name}: {images(total)}{inside}, as published")
    should = "" if known.classes is None else f" in {_classes(known.classes)}"
    differing = some(_differing(here, known), NAMED)
    return Finding(
        "warning",
        f"{name}: {images(total)}{inside}, but {known.total}{should} are published"
        f"{f' ({differing})' if differing else ''}, so results are not comparable with published ones; "
        "download or unpack it again",
    )


def _classes(number: int) -> str:
    return "1 class" if number == 1 else f"{number} classes"


def _differing(here: Mapping[str, int], known: ImageCount) -> list[str]:
    """Describe classes whose counts differ; empty if only the total is published."""
    if not known.per_class:
        return []
    return [
        f"{label!r} has {here.get(label, 0)} instead of {known.per_class.get(label, 0)}"
        for label in sorted(here.keys() | known.per_class.keys())
        if here.get(label, 0) != known.per_class.get(label, 0)
    ]
