"""Check whether a copy of a benchmark is complete, by comparing image counts with the published ones."""

from collections.abc import Iterator, Mapping

from ducats.config import Config
from ducats.data import resolve_dataset
from ducats.data.benchmarks import ImageCount
from ducats.doctor.finding import Finding, count_images, join_names
from ducats.doctor.survey import survey_data
from ducats.doctor.survey_result import DataSurvey

MAX_CLASSES_NAMED = 5  # maximum number of classes in a message


def completeness_warnings(config: Config) -> list[str]:
    """Return warnings about missing or surplus images of a benchmark; files are listed, not read."""
    benchmark = resolve_dataset(config.data.name).benchmark
    if benchmark is None or benchmark.list_files is None:
        return []
    data_survey, _ = survey_data(config)
    return [finding.message for finding in check_counts(data_survey) if finding.severity == "warning"]


def check_counts(survey: DataSurvey) -> Iterator[Finding]:
    """Yield one finding per domain of a benchmark."""
    for role, (name, published) in survey.expected_counts.items():
        if role in survey.splits:
            yield _compare_counts(name, survey.splits[role].class_counts(), published)


def _compare_counts(name: str, counts: Mapping[str, int], published: ImageCount) -> Finding:
    total = sum(counts.values())
    classes_text = "" if published.classes is None else f" in {_format_classes(len(counts))}"
    if (
        total == published.total
        and len(counts) == (published.classes or len(counts))
        and not _count_differences(counts, published)
    ):
        return Finding("note", f"{name}: {count_images(total)}{classes_text}, as published")
    published_classes_text = "" if published.classes is None else f" in {_format_classes(published.classes)}"
    differences = join_names(_count_differences(counts, published), MAX_CLASSES_NAMED)
    return Finding(
        "warning",
        f"{name}: {count_images(total)}{classes_text}, but {published.total}{published_classes_text} are "
        f"published{f' ({differences})' if differences else ''}, so results are not comparable with "
        "published ones; download or unpack it again",
    )


def _format_classes(count: int) -> str:
    return "1 class" if count == 1 else f"{count} classes"


def _count_differences(counts: Mapping[str, int], published: ImageCount) -> list[str]:
    """Describe classes whose counts differ; empty if only the total is published."""
    if not published.per_class:
        return []
    return [
        f"{label!r} has {counts.get(label, 0)} instead of {published.per_class.get(label, 0)}"
        for label in sorted(counts.keys() | published.per_class.keys())
        if counts.get(label, 0) != published.per_class.get(label, 0)
    ]
