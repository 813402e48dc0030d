"""The files of a benchmark: class folders, or the lists that its authors publish."""

from collections.abc import Sequence
from pathlib import Path

from ducats.data.benchmarks.benchmark import Listed, Place, Split, squash
from ducats.data.folders import list_images
from ducats.errors import UserError


def read_folders(
    root: Path, place: Place, split: Split, *, within: Sequence[str] = ("",), below: Sequence[str] = ("",)
) -> Listed | None:
    """Every image of a domain, ``domain/class/...``, sorted by key; its class is its folder.

    Args:
        root: The benchmark's folder.
        place: The domain.
        split: All of it; folders know no other.
        within: Folders of the root that may hold the domains, the first that does.
        below: Folders of the domain that may hold the classes, the first that there is.
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
            " it should hold class folders alone: move or remove these"
        )
    prefix = _prefix(root, folder)
    files = [(prefix + key, path) for key, path in images]
    return Listed(f"the folder {folder}", files, [key.partition("/")[0] for key, _ in images])


def read_list(root: Path, place: Place, split: Split, *, lists: Sequence[str] = ("",)) -> Listed | None:
    """The images of ``DOMAIN_train.txt`` or ``DOMAIN_test.txt``, in the list's order.

    Args:
        root: The benchmark's folder.
        place: The domain.
        split: Which of its two lists.
        lists: Folders of the root that may hold the lists, the first that does; else the domain's own.
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
    """The images of one list with lines ``class/image number``; None if none of the images is there.

    What comes before the class is some other machine's path, but for the folder right before it: if
    given, it is the domain's.
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
                " get the list anew, as it is published"
            )
        if before and before[-1] and squash(before[-1]) != squash(domain.name):
            raise UserError(
                f"{file}, line {place}: the image lies in {before[-1]!r}, not in {domain.name!r};"
                " is this another domain's list?"
            )
        if numbers.setdefault(label, int(number)) != int(number):
            raise UserError(
                f"{file}, line {place}: the class {label!r} has the number {number}, but"
                f" {numbers[label]} further up; get the list anew, as it is published"
            )
        files.append((f"{prefix}{label}/{image}", domain / label / image))
        labels.append(label)
    if not any(path.is_file() for _, path in files):
        return None
    return Listed(f"the list {file}", files, labels, numbers)


def find_folder(root: Path, place: Place, within: Sequence[str] = ("",)) -> Path | None:
    """A domain's folder, however its name is written."""
    for part in within:
        found = [
            entry
            for entry in _entries(root / part)
            if squash(entry.name) == squash(place.name) and entry.is_dir()
        ]
        if len({entry.resolve() for entry in found}) > 1:
            raise UserError(
                f"{root / part} has {len(found)} folders of {place.name}:"
                f" {', '.join(entry.name for entry in found)}; keep one"
            )
        if found:
            return found[0]
    return None


def _entries(folder: Path) -> list[Path]:
    """What lies in a folder, sorted; nothing if there is none."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _prefix(root: Path, folder: Path) -> str:
    """What a path within the root starts with, in this folder."""
    return folder.relative_to(root).as_posix() + "/"


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{file} is no text; get the list anew, as it is published") from None
