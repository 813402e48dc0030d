"""Check the images of a classification data set: readability, duplicates and classes."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ducats.data.decoding import find_unreadable
from ducats.doctor.finding import Finding, Severity, collect_findings, count_images, join_names, join_quoted
from ducats.doctor.survey_result import DataSurvey, SplitRole, SplitSurvey

MAX_FILES_NAMED = 20  # maximum number of unreadable files in a message
MAX_CLASS_IMBALANCE = 50  # largest class over smallest that is reported
LEAK_CHECKS: tuple[tuple[SplitRole, SplitRole, Severity, str], ...] = (
    ("source", "test", "error", "so the model is evaluated on training images"),
    ("target", "test", "error", "so the model is evaluated on images it may be trained on"),
    ("source", "target", "warning", "so budget may be spent on images that are already labelled"),
)

PUBLISHED_ADVICE = "keep them if they are in the published data set, or results are not comparable"

Fingerprint = str  # equal for images with equal bytes
# Role and index of every occurrence.
CopiesByFingerprint = Mapping[Fingerprint, Mapping[SplitRole, Sequence[int]]]


def check_images(survey: DataSurvey) -> list[Finding]:
    """Run all checks of the images of a survey."""
    findings = [
        finding for split in survey.splits.values() for finding in collect_findings(_report_counts(split))
    ]
    source = survey.splits.get("source")
    if source is not None and len(source):
        findings += collect_findings(_check_source(source))
        for role in ("target", "test"):
            other = survey.splits.get(role)
            if other is not None and other.class_counts():
                findings += collect_findings(_check_classes(source, other, survey.classes))
    unreadable_paths: set[Path] = set()
    for split in survey.splits.values():
        findings += collect_findings(_check_readable(split, unreadable_paths))
    return findings + collect_findings(check_copies(survey, unreadable_paths))


def _report_counts(split: SplitSurvey) -> Iterator[Finding]:
    """Report the number of images per class."""
    if not len(split):
        yield Finding("error", f"{split.description} contains no images; add images or give another path")
        return
    classes = split.class_counts()
    if not classes:
        yield Finding("note", f"{split.role}: {count_images(len(split))} without labels")
        return
    (largest, max_count), (smallest, min_count) = next(iter(classes.items())), list(classes.items())[-1]
    range_text = (
        f"{min_count} each"
        if max_count == min_count
        else f"from {min_count} ({smallest!r}) to {max_count} ({largest!r})"
    )
    class_count = f"{len(classes)} classes" if len(classes) > 1 else "1 class"
    yield Finding("note", f"{split.role}: {count_images(len(split))} in {class_count}, {range_text}")
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


def _check_source(source: SplitSurvey) -> Iterator[Finding]:
    classes = list(source.class_counts())
    if len(classes) < 2:
        yield Finding(
            "error",
            f"{source.description} has {f'only one class, {classes[0]!r}' if classes else 'no classes'}; "
            "give images of at least two classes",
        )


def _check_classes(source: SplitSurvey, split: SplitSurvey, classes: Sequence[str]) -> Iterator[Finding]:
    """Compare classes with those of the source, or of the benchmark, whose lists may be incomplete."""
    known_classes, split_classes = set(classes or source.class_counts()), set(split.class_counts())
    unknown, missing = sorted(split_classes - known_classes), sorted(known_classes - split_classes)
    if unknown:
        yield Finding(
            "error",
            f"{split.description} has classes that are not in the source: {join_quoted(unknown)}; "
            f"the source has {join_quoted(sorted(known_classes))}; rename or remove them",
        )
    if missing:
        yield Finding(
            "warning",
            f"{split.description} has no images of the source classes {join_quoted(missing)}; "
            "these cannot be evaluated: add images, or check the names",
        )


def _check_readable(split: SplitSurvey, unreadable_paths: set[Path]) -> Iterator[Finding]:
    """Decode every file in full; add those that fail to ``unreadable_paths``."""
    unreadable = find_unreadable([(str(path), path) for path in split.paths])
    unreadable_paths |= {path for path, _ in unreadable}
    if unreadable:
        names_text = join_names([f"{path} ({reason})" for path, reason in unreadable], MAX_FILES_NAMED)
        yield Finding(
            "error",
            f"{len(unreadable)} of {count_images(len(split))} of the {split.role} cannot be read: "
            f"{names_text}; remove or replace them",
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
                + (PUBLISHED_ADVICE if survey.expected_counts else "remove them from one of the two"),
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
                f"another image in it, such as {first} and {second}; "
                + (PUBLISHED_ADVICE if survey.expected_counts else "keep one of each"),
            )
        contradictory = [indices for indices in duplicates if len({split.labels[i] for i in indices}) > 1]
        if contradictory:
            names_text = join_names([_describe_contradiction(split, indices) for indices in contradictory], 5)
            yield Finding(
                severity,
                f"{count_images(len(contradictory))} of the {role} "
                f"{'has' if len(contradictory) == 1 else 'have'} more than one class: {names_text}; "
                + (PUBLISHED_ADVICE if survey.expected_counts else "keep the right one"),
            )


def _describe_contradiction(split: SplitSurvey, indices: Sequence[int]) -> str:
    """Describe one image that has several classes."""
    names_by_class = {split.labels[index]: split.names[index] for index in reversed(indices)}
    return " and ".join(f"{name} ({label!r})" for label, name in sorted(names_by_class.items()))
