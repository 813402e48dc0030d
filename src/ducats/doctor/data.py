"""Check the images of a classification data set: readability, duplicates and classes."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ducats.data.decoding import find_unreadable
from ducats.doctor.finding import Finding, Severity, gather, images, quoted, some
from ducats.doctor.found import Part, Role, Survey

NAMED = 20  # maximum number of unreadable files in a message
IMBALANCE = 50  # largest class over smallest that is reported
LEAKS: tuple[tuple[Role, Role, Severity, str], ...] = (
    ("source", "test", "error", "so the model is evaluated on training images"),
    ("target", "test", "error", "so the model is evaluated on images it may be trained on"),
    ("source", "target", "warning", "so budget may be spent on images that are already labelled"),
)

PUBLISHED = "keep them if they are in the published data set, or results are not comparable"

Print = str  # equal for images with equal bytes
Copies = Mapping[Print, Mapping[Role, Sequence[int]]]  # role and index of every occurrence


def check_data(found: Survey) -> list[Finding]:
    """Run all checks of the images of a survey."""
    findings = [finding for part in found.parts.values() for finding in gather(_count(part))]
    source = found.parts.get("source")
    if source is not None and len(source):
        findings += gather(_check_source(source))
        for role in ("target", "test"):
            part = found.parts.get(role)
            if part is not None and part.classes():
                findings += gather(_check_against(source, part, found.classes))
    broken: set[Path] = set()
    for part in found.parts.values():
        findings += gather(_check_readable(part, broken))
    return findings + gather(check_copies(found, broken))


def _count(part: Part) -> Iterator[Finding]:
    """Report the number of images per class."""
    if not len(part):
        yield Finding("error", f"{part.where} contains no images; add images or give another path")
        return
    classes = part.classes()
    if not classes:
        yield Finding("note", f"{part.role}: {images(len(part))} without labels")
        return
    (largest, most), (smallest, least) = next(iter(classes.items())), list(classes.items())[-1]
    spread = f"{least} each" if most == least else f"from {least} ({smallest!r}) to {most} ({largest!r})"
    number = f"{len(classes)} classes" if len(classes) > 1 else "1 class"
    yield Finding("note", f"{part.role}: {images(len(part))} in {number}, {spread}")
    if most > IMBALANCE * least:
        yield Finding(
            "note",
            f"{part.role}: the class {largest!r} is {most / least:.0f} times as large as {smallest!r}, "
            "so also look at the accuracy per class",
        )
    few = sorted(name for name, count in classes.items() if count < 2)
    if few and part.role != "target":
        yield Finding(
            "warning", f"{part.where} has only one image of {quoted(few)}; add images of each class"
        )


def _check_source(source: Part) -> Iterator[Finding]:
    classes = list(source.classes())
    if len(classes) < 2:
        yield Finding(
            "error",
            f"{source.where} has {f'only one class, {classes[0]!r}' if classes else 'no classes'}; "
            "give images of at least two classes",
        )


def _check_against(source: Part, part: Part, classes: Sequence[str]) -> Iterator[Finding]:
    """Compare classes with those of the source, or of the benchmark, whose lists may be incomplete."""
    known, here = set(classes or source.classes()), set(part.classes())
    unknown, lacking = sorted(here - known), sorted(known - here)
    if unknown:
        yield Finding(
            "error",
            f"{part.where} has classes that are not in the source: {quoted(unknown)}; "
            f"the source has {quoted(sorted(known))}; rename or remove them",
        )
    if lacking:
        yield Finding(
            "warning",
            f"{part.where} has no images of the source classes {quoted(lacking)}; "
            "these cannot be evaluated: add images, or check the names",
        )


def _check_readable(part: Part, broken: set[Path]) -> Iterator[Finding]:
    """Decode every file in full; add those that fail to ``broken``."""
    unreadable = find_unreadable([(str(path), path) for path in part.paths])
    broken |= {path for path, _ in unreadable}
    if unreadable:
        named = some([f"{path} ({reason})" for path, reason in unreadable], NAMED)
        yield Finding(
            "error",
            f"{len(unreadable)} of {images(len(part))} of the {part.role} cannot be read: {named}; "
            "remove or replace them",
        )


def check_copies(found: Survey, broken: set[Path]) -> Iterator[Finding]:
    """Report readable images that occur more than once."""
    copies = _find_copies(found, broken)
    yield from _check_across(found, copies)
    yield from _check_within(found, copies)


def _find_copies(found: Survey, broken: set[Path]) -> Copies:
    """Find fingerprints that occur more than once."""
    files = {path for part in found.parts.values() for path in part.paths} - broken
    printed = _fingerprints(files)
    places: dict[Print, dict[Role, list[int]]] = defaultdict(lambda: defaultdict(list))
    for role, part in found.parts.items():
        for index, value in enumerate(_prints(part, printed)):
            if value is not None:
                places[value][role].append(index)
    return {value: roles for value, roles in places.items() if sum(map(len, roles.values())) > 1}


def _prints(part: Part, printed: Mapping[Path, Print]) -> Iterator[Print | None]:
    """Yield a fingerprint per image; None for unreadable files."""
    if part.pixels is None:
        yield from (printed.get(path) for path in part.paths)
    else:
        for image in (part.pixels[row] for row in range(len(part))):
            yield hashlib.blake2b(image.cpu().contiguous().numpy().tobytes(), digest_size=16).hexdigest()


def _fingerprints(files: Iterable[Path]) -> dict[Path, Print]:
    """Hash the bytes of files that share their length with another file."""
    lengths = {path: path.stat().st_size for path in files}
    shared = Counter(lengths.values())
    # A file with a unique length may still be listed twice, so its path serves as its fingerprint.
    prints = {path: str(path) for path, length in lengths.items() if shared[length] == 1}
    others = [path for path in lengths if path not in prints]
    with ThreadPoolExecutor() as threads:
        prints.update(zip(others, threads.map(_hash, others), strict=True))
    return prints


def _hash(path: Path) -> Print:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _check_across(found: Survey, copies: Copies) -> Iterator[Finding]:
    """Report images that occur in two roles."""
    for one, two, severity, consequence in LEAKS:
        if (one, two) == ("target", "test") and found.target_is_test:
            yield Finding("note", "target and test are the same folder: labelled images are also evaluated")
            continue
        shared = [roles for roles in copies.values() if one in roles and two in roles]
        if shared:
            first = [found.parts[role].names[shared[0][role][0]] for role in (one, two)]
            count = sum(len(roles[two]) for roles in shared)
            yield Finding(
                "warning" if found.expected else severity,
                f"{images(count)} of the {two} {'is' if count == 1 else 'are'} also in the {one}, "
                f"such as {first[0]} and {first[1]}, {consequence}; "
                + (PUBLISHED if found.expected else "remove them from one of the two"),
            )


def _check_within(found: Survey, copies: Copies) -> Iterator[Finding]:
    """Report duplicates within a role, and duplicates in different classes. Some benchmarks have them."""
    severity: Severity = "note" if found.expected else "warning"
    for role, part in found.parts.items():
        doubled = [roles[role] for roles in copies.values() if len(roles.get(role, ())) > 1]
        if doubled:
            first, second = (part.names[index] for index in doubled[0][:2])
            surplus = sum(len(indices) - 1 for indices in doubled)
            yield Finding(
                severity,
                f"{images(surplus)} of the {role} {'is a copy' if surplus == 1 else 'are copies'} of "
                f"another image in it, such as {first} and {second}; "
                + (PUBLISHED if found.expected else "keep one of each"),
            )
        torn = [indices for indices in doubled if len({part.labels[i] for i in indices}) > 1]
        if torn:
            named = some([_contradiction(part, indices) for indices in torn], 5)
            yield Finding(
                severity,
                f"{images(len(torn))} of the {role} {'has' if len(torn) == 1 else 'have'} more than one "
                f"class: {named}; " + (PUBLISHED if found.expected else "keep the right one"),
            )


def _contradiction(part: Part, indices: Sequence[int]) -> str:
    """Describe one image that has several classes."""
    by_class = {part.labels[index]: part.names[index] for index in reversed(indices)}
    return " and ".join(f"{name} ({label!r})" for label, name in sorted(by_class.items()))
