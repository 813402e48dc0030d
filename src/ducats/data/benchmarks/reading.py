"""Finding the files of a benchmark, from class folders or published lists."""

from collections.abc import Sequence
from pathlib import Path

from ducats.data.benchmarks.benchmark import Listed, Place, Split, squash
from ducats.data.folders import list_images
from ducats.errors import UserError


def read_folders(
    root: Path, place: Place, split: Split, *, within: Sequence[str] = ("",), below: Sequence[str] = ("",)
) -> Listed | None:
    """List every image of a domain, ``domain/class/...``, sorted by key.

    Args:
        split: Must be "all".
        within: Sub-folders of the root to search for the domain, in this order.
        below: Sub-folders of the domain that may hold the class folders; the first that exists is used.
    """
    assert split == "all"
    domain = find_folder(root, place, within)
    if domain is None:
        return None
    folder = next(domain / part for part in (*below, "") if (domain / part).is_dir())
    images = list_images(folder)
    loose = [key for key, _ in images if "/" not in key]
    if loose:
        raise UserError(
            f"{folder} has {len(loose)} images outside of any class folder, such as {loose[0]};"
            " it should contain only class folders: move or remove these images"
        )
    prefix = _prefix(root, folder)
    files = [(prefix + key, path) for key, path in images]
    return Listed(f"the folder {folder}", files, [key.partition("/")[0] for key, _ in images])


def read_list(root: Path, place: Place, split: Split, *, lists: Sequence[str] = ("",)) -> Listed | None:
    """List the images of ``DOMAIN_train.txt`` or ``DOMAIN_test.txt``, in the order of the file.

    Args:
        lists: Sub-folders of the root to search for the file, in this order; the domain's folder comes last.
    """
    domain = find_folder(root, place)
    if domain is None:
        return None
    wanted = f"{place.name}_{split}.txt".lower()
    for folder in (*(root / part for part in lists), domain):
        for file in _entries(folder):
            if file.name.lower() == wanted and file.is_file():
                return from_list(root, file, domain)
    return None


def from_list(root: Path, file: Path, domain: Path) -> Listed | None:
    """List the images of a file with lines ``class/image number``; None if none of the images exists.

    A path before the class comes from another machine and is ignored, but its last folder, if any, must be
    the domain's.
    """
    files, labels, numbers = [], [], dict[str, int]()
    prefix = _prefix(root, domain)
    for place, line in enumerate(_lines(file), start=1):
        if not line.strip():
            continue
        path, number = (*line.rsplit(maxsplit=1), "")[:2]
        *before, label, image = ("", *path.strip().split("/"))
        if not (label and image and number.isdecimal()):
            raise UserError(
                f"{file}, line {place}: {line.strip()!r} is not `class/image number`;"
                " download the published list again"
            )
        if before and before[-1] and squash(before[-1]) != squash(domain.name):
            raise UserError(
                f"{file}, line {place}: the image is in {before[-1]!r}, not in {domain.name!r};"
                " check that the list belongs to this domain"
            )
        if numbers.setdefault(label, int(number)) != int(number):
            raise UserError(
                f"{file}, line {place}: the class {label!r} has the number {number}, but"
                f" {numbers[label]} further up; download the published list again"
            )
        files.append((f"{prefix}{label}/{image}", domain / label / image))
        labels.append(label)
    if not any(path.is_file() for _, path in files):
        return None
    return Listed(f"the list {file}", files, labels, numbers)


def find_folder(root: Path, place: Place, within: Sequence[str] = ("",)) -> Path | None:
    """Find a domain's folder, ignoring case and separators in its name."""
    for part in within:
        found = [
            entry
            for entry in _entries(root / part)
            if squash(entry.name) == squash(place.name) and entry.is_dir()
        ]
        if len({entry.resolve() for entry in found}) > 1:
            raise UserError(
                f"{root / part} has {len(found)} folders for {place.name}:"
                f" {', '.join(entry.name for entry in found)}; keep only one"
            )
        if found:
            return found[0]
    return None


def _entries(folder: Path) -> list[Path]:
    """Return the sorted entries of a folder; empty if it does not exist."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _prefix(root: Path, folder: Path) -> str:
    """Return the folder relative to the root, with a trailing slash."""
    return folder.relative_to(root).as_posix() + "/"


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{file} is not a text file; download the published list again") from None
