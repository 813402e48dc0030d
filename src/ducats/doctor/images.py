"""Check images: readability, copies, classes, and the published counts of benchmarks."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from ducats.config import Config
from ducats.data.benchmarks.benchmark import ImageCount, TaskRole
from ducats.data.class_labels import (
    ADD_CLASSES_REMEDY,
    check_not_empty,
    class_indices,
    source_classes,
    target_only,
)
from ducats.data.decoding import find_unreadable
from ducats.data.registry import resolve_dataset
from ducats.data.store import ReadFailure, try_files
from ducats.doctor.survey import DataSurvey, SplitRole, SplitSurvey, survey_data
from ducats.utils.findings import (
    Finding,
    Severity,
    collect_findings,
    count_images,
    join_names,
    join_quoted,
    pluralise,
)
from ducats.utils.image_files import (
    PixelFormat,
    ValueRange,
    read_pixel_format,
    suggest_range,
    value_limits,
)

MAX_CLASSES_NAMED = 5  # maximum number of classes with a wrong count in a message
MAX_FILES_NAMED = 20  # maximum number of unreadable files in a message
# By whether it is an error.
UNREADABLE_ADVICE = {
    True: "remove or replace them",
    False: "a run skips them (with --strict it refuses): replace or remove them",
}
MAX_DEEP_FILES_NAMED = 3  # maximum number of files with more than 8 bits in a message
MAX_CLASS_IMBALANCE = 50  # largest class over smallest that is reported
LEAK_CHECKS: tuple[tuple[TaskRole, TaskRole, Severity, str], ...] = (
    ("source", "test", "error", "so the model is evaluated on training images"),
    ("target", "test", "error", "so the model is evaluated on images it may be trained on"),
    ("source", "target", "warning", "so budget may be spent on images that are already labelled"),
)

_T = TypeVar("_T")
Fingerprint = str  # equal for images with equal bytes
# Role and index of every occurrence.
CopiesByFingerprint = Mapping[Fingerprint, Mapping[SplitRole, Sequence[int]]]


def check_images(survey: DataSurvey) -> list[Finding]:
    """Run all checks of the images of a survey."""
    splits = survey.splits
    checks = [partial(report_counts, split) for split in splits.values()]
    source = splits.get("source")
    # A benchmark's lists may be incomplete.
    classes = survey.classes or sorted(() if source is None else source.class_counts())
    if classes:
        checks += [
            partial(_check_classes, split, classes, new_classes=survey.new_classes)
            for split in splits.values()
            if split is source or split.class_counts()
        ]
    unreadable_paths: set[Path] = set()
    must_exist = bool(survey.expected_counts)
    checks += [
        partial(
            check_readable,
            split,
            unreadable_paths,
            survey.value_range,
            strict=survey.strict,
            must_exist=must_exist,
        )
        for split in splits.values()
    ]
    return collect_findings(*checks, partial(check_copies, survey, unreadable_paths))


def report_counts(split: SplitSurvey) -> Iterator[Finding]:
    """Report the number of images per class."""
    check_not_empty(split.description, len(split))
    classes = split.class_counts()
    if not classes:
        yield Finding("note", f"{split.role}: {count_images(len(split))} without labels")
        return
    (largest, max_count), (smallest, min_count) = next(iter(classes.items())), list(classes.items())[-1]
    range_text = (
        ("" if len(classes) == 1 else f", {min_count} each")
        if max_count == min_count
        else f", from {min_count} ({smallest!r}) to {max_count} ({largest!r})"
    )
    n_classes = pluralise(len(classes), "class")
    yield Finding("note", f"{split.role}: {count_images(len(split))} in {n_classes}{range_text}")
    if max_count > MAX_CLASS_IMBALANCE * min_count:
        yield Finding(
            "note",
            f"{split.role}: the class {largest!r} is {max_count / min_count:.0f} times as large as "
            f"{smallest!r}, so also look at the accuracy per class",
        )
    rare = sorted(name for name, count in classes.items() if count < 2)
    if rare and split.role != "target":
        yield Finding(
            "warning",
            f"{split.description} has only one image of {join_quoted(rare)}; add images of each class",
        )


def _check_classes(split: SplitSurvey, classes: Sequence[str], *, new_classes: bool) -> Iterator[Finding]:
    """Compare the classes of a set with those of the source.

    Args:
        new_classes: whether the set may have classes that the source lacks.
    """
    labelled = [(label, name) for label, name in zip(split.labels, split.names, strict=True) if label]
    labels, names = [label for label, _ in labelled], [name for _, name in labelled]
    missing = sorted(set(classes) - set(labels))
    if missing and split.role != "source":
        yield Finding(
            "warning",
            f"{split.description} has no images of the classes {join_quoted(missing)}; "
            "these cannot be evaluated: add images, or check the names",
        )
    if split.role == "source":
        source_classes(split.description, labels)
    else:
        added = target_only(labels, classes, allowed=new_classes)
        if added:
            yield Finding(
                "note", f"{split.description} has classes that the source lacks: {join_quoted(added)}"
            )
        class_indices(split.description, labels, names, (*classes, *added), remedy=ADD_CLASSES_REMEDY)


def check_readable(
    split: SplitSurvey,
    unreadable_paths: set[Path],
    value_range: ValueRange | None,
    paths: Container[Path] | None = None,
    *,
    sample_note: str = "",
    strict: bool = False,
    must_exist: bool = False,
) -> Iterator[Finding]:
    """Decode files in full, all or those in ``paths``; add those that fail to ``unreadable_paths``.

    Args:
        strict: whether a run refuses unreadable files instead of skipping them.
        must_exist: whether a run refuses missing files, as those in the list of a benchmark.
    """
    to_read = [path for path in split.paths if paths is None or path in paths]
    formats = _read_all(read_pixel_format, split.paths)
    if formats:
        counts = Counter(formats.values()).most_common()
        formats_text = "; ".join(f"{count_images(count)} with {pixels}" for pixels, count in counts)
        yield Finding("note", f"{split.role}: {formats_text}")
    deep = [path for path in to_read if path in formats and formats[path].needs_range]
    if deep and value_range is None:
        limits = _read_all(value_limits, deep)
        unreadable_paths |= limits.keys()
        to_read = [path for path in to_read if path not in limits]
        yield from report_missing_range(split, limits, formats)
    unreadable = find_unreadable(to_read, value_range)
    unreadable_paths |= {path for path, _ in unreadable}
    if unreadable:
        names_text = join_names([f"{path} ({reason})" for path, reason in unreadable], MAX_FILES_NAMED)
        is_error = strict or len(unreadable) == len(to_read)
        is_error |= must_exist and not all(path.exists() for path, _ in unreadable)
        yield Finding(
            "error" if is_error else "warning",
            f"{len(unreadable)} of {count_images(len(split))} of the {split.role}{sample_note} cannot be "
            f"read: {names_text}; {UNREADABLE_ADVICE[is_error]}",
        )


def _read_all(fn: Callable[[Path], _T], paths: Sequence[Path]) -> dict[Path, _T]:
    """Return the results for the files that can be read."""
    outcomes = zip(paths, try_files(fn, paths), strict=True)
    return {path: outcome for path, outcome in outcomes if not isinstance(outcome, ReadFailure)}


def report_missing_range(
    split: SplitSurvey,
    limits: Mapping[Path, tuple[float, float]],
    formats: Mapping[Path, PixelFormat],
) -> Iterator[Finding]:
    """Report images with more than 8 bits per value, whose values of black and white are unknown."""
    if not limits:
        return
    smallest, largest = min(low for low, _ in limits.values()), max(high for _, high in limits.values())
    kinds = sorted({str(formats[path]) for path in limits})
    suggested = suggest_range(smallest, largest, is_float=any(formats[path].is_float for path in limits))
    yield Finding(
        "error",
        f"{len(limits)} of {count_images(len(split))} of the {split.role} have more than 8 bits per value "
        f"({' or '.join(kinds)}; values from {smallest:.12g} to {largest:.12g}), so black and white are "
        f"unknown: {join_names(list(map(str, limits)), MAX_DEEP_FILES_NAMED)}; set "
        f"data.params.range={suggested}, or other values of black and white",
    )


def check_copies(survey: DataSurvey, unreadable_paths: set[Path]) -> Iterator[Finding]:
    """Report readable images that occur more than once."""
    copies = _find_copies(survey, unreadable_paths)
    yield from _check_leaks(survey, copies)
    yield from _check_duplicates(survey, copies)


def _find_copies(survey: DataSurvey, unreadable_paths: set[Path]) -> CopiesByFingerprint:
    """Find fingerprints that occur more than once."""
    files = {path for split in survey.splits.values() for path in split.paths} - unreadable_paths
    fingerprints = _file_fingerprints(files)
    occurrences: dict[Fingerprint, dict[SplitRole, list[int]]] = defaultdict(lambda: defaultdict(list))
    for role, split in survey.splits.items():
        for index, fingerprint in enumerate(_split_fingerprints(split, fingerprints)):
            if fingerprint is not None:
                occurrences[fingerprint][role].append(index)
    return {key: roles for key, roles in occurrences.items() if sum(map(len, roles.values())) > 1}


def _split_fingerprints(
    split: SplitSurvey, fingerprints: Mapping[Path, Fingerprint]
) -> Iterator[Fingerprint | None]:
    """Yield a fingerprint per image; None for unreadable files."""
    if split.pixels is None:
        yield from (fingerprints.get(path) for path in split.paths)
    else:
        for image in (split.pixels[index] for index in range(len(split))):
            yield hashlib.blake2b(image.cpu().contiguous().numpy().tobytes(), digest_size=16).hexdigest()


def _file_fingerprints(files: Iterable[Path]) -> dict[Path, Fingerprint]:
    """Hash the bytes of files that share their length with another file."""
    lengths = {path: path.stat().st_size for path in files}
    length_counts = Counter(lengths.values())
    # A file with a unique length may still be listed twice, so its path serves as its fingerprint.
    fingerprints = {path: str(path) for path, length in lengths.items() if length_counts[length] == 1}
    same_length = [path for path in lengths if path not in fingerprints]
    with ThreadPoolExecutor() as threads:
        fingerprints.update(zip(same_length, threads.map(_hash, same_length), strict=True))
    return fingerprints


def _hash(path: Path) -> Fingerprint:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _check_leaks(survey: DataSurvey, copies: CopiesByFingerprint) -> Iterator[Finding]:
    """Report images that occur in two roles."""
    for first_role, second_role, severity, consequence in LEAK_CHECKS:
        if (first_role, second_role) == ("target", "test") and survey.target_is_test:
            yield Finding("note", "target and test are the same folder: labelled images are also evaluated")
            continue
        shared_copies = [roles for roles in copies.values() if first_role in roles and second_role in roles]
        if shared_copies:
            example = [
                survey.splits[role].names[shared_copies[0][role][0]] for role in (first_role, second_role)
            ]
            count = sum(len(roles[second_role]) for roles in shared_copies)
            yield Finding(
                "warning" if survey.expected_counts else severity,
                f"{count_images(count)} of the {second_role} {'is' if count == 1 else 'are'} also in the "
                f"{first_role}, such as {example[0]} and {example[1]}, {consequence}; "
                + _advice(survey, "remove them from one of the two"),
            )


def _check_duplicates(survey: DataSurvey, copies: CopiesByFingerprint) -> Iterator[Finding]:
    """Report duplicates within a role, and duplicates in different classes. Some benchmarks have them."""
    severity: Severity = "note" if survey.expected_counts else "warning"
    for role, split in survey.splits.items():
        duplicates = [roles[role] for roles in copies.values() if len(roles.get(role, ())) > 1]
        if duplicates:
            first, second = (split.names[index] for index in duplicates[0][:2])
            surplus = sum(len(indices) - 1 for indices in duplicates)
            yield Finding(
                severity,
                f"{count_images(surplus)} of the {role} {'is a copy' if surplus == 1 else 'are copies'} of "
                f"another image in it, such as {first} and {second}; " + _advice(survey, "keep one of each"),
            )
        contradictory = [indices for indices in duplicates if len({split.labels[i] for i in indices}) > 1]
        if contradictory:
            names_text = join_names([_describe_contradiction(split, indices) for indices in contradictory], 5)
            yield Finding(
                severity,
                f"{count_images(len(contradictory))} of the {role} "
                f"{'has' if len(contradictory) == 1 else 'have'} more than one class: {names_text}; "
                + _advice(survey, "keep the right one"),
            )


def _advice(survey: DataSurvey, own_data: str) -> str:
    """Return the advice for a user's own data, or for a benchmark."""
    published = "keep them if they are in the published data set, or results are not comparable"
    return published if survey.expected_counts else own_data


def _describe_contradiction(split: SplitSurvey, indices: Sequence[int]) -> str:
    """Describe one image that has several classes."""
    names_by_class = {split.labels[index]: split.names[index] for index in reversed(indices)}
    return " and ".join(f"{name} ({label!r})" for label, name in sorted(names_by_class.items()))


def completeness_warnings(config: Config) -> list[str]:
    """Return warnings about missing or surplus images of a benchmark; files are listed, not read."""
    benchmark = resolve_dataset(config.data.name).benchmark
    if benchmark is None or benchmark.list_files is None:
        return []
    findings = check_counts(survey_data(config))
    return [finding.message for finding in findings if finding.severity == "warning"]


def check_counts(survey: DataSurvey) -> Iterator[Finding]:
    """Yield one finding per domain of a benchmark."""
    for role, (name, published) in survey.expected_counts.items():
        if role in survey.splits:
            yield _compare_counts(name, survey.splits[role].class_counts(), published)


def _compare_counts(name: str, counts: Mapping[str, int], published: ImageCount) -> Finding:
    total = sum(counts.values())
    classes_text = published_classes_text = ""
    if published.classes is not None:
        classes_text = f" in {pluralise(len(counts), 'class')}"
        published_classes_text = f" in {pluralise(published.classes, 'class')}"
    differences = join_names(_count_differences(counts, published), MAX_CLASSES_NAMED)
    if total == published.total and classes_text == published_classes_text and not differences:
        return Finding("note", f"{name}: {count_images(total)}{classes_text}, as published")
    return Finding(
        "warning",
        f"{name}: {count_images(total)}{classes_text}, but {published.total}{published_classes_text} are "
        f"published{f' ({differences})' if differences else ''}, so results are not comparable with "
        "published ones; download or unpack it again",
    )


def _count_differences(counts: Mapping[str, int], published: ImageCount) -> list[str]:
    """Describe classes whose counts differ; empty if only the total is published."""
    if not published.per_class:
        return []
    return [
        f"{label!r} has {counts.get(label, 0)} instead of {published.per_class.get(label, 0)}"
        for label in sorted(counts.keys() | published.per_class.keys())
        if counts.get(label, 0) != published.per_class.get(label, 0)
    ]
