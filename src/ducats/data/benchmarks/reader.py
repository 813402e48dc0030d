"""Finding the files of a benchmark, from class folders or published lists."""

from collections.abc import Sequence
from pathlib import Path

from ducats.data.benchmarks.benchmark import DomainInfo, FileList, Split, normalise_name
from ducats.data.folders import list_images
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise


def list_class_folders(
    root: Path,
    domain: DomainInfo,
    split: Split,
    *,
    search_folders: Sequence[str] = ("",),
    class_parent: str = "",
) -> FileList | None:
    """List every image of a domain, ``domain/class/...``, sorted by key.

    Args:
        search_folders: Sub-folders of the root to search for the domain, in this order.
        class_parent: Sub-folder of the domain that may hold the class folders.
    """
    assert split == "all"
    domain_folder = find_domain_folder(root, domain, search_folders)
    if domain_folder is None:
        return None
    folder = domain_folder / class_parent
    folder = folder if folder.is_dir() else domain_folder
    images = list_images(folder)
    outside = [key for key, _ in images if "/" not in key]
    if outside:
        raise UserError(
            f"{folder} has {pluralise(len(outside), 'image')} outside of any class folder, such as "
            f"{outside[0]}; it should contain only class folders: move or remove these images"
        )
    prefix = _prefix(root, folder)
    files = [(prefix + key, path) for key, path in images]
    return FileList(f"the folder {folder}", files, [key.partition("/")[0] for key, _ in images])


def list_split_file(
    root: Path, domain: DomainInfo, split: Split, *, list_folders: Sequence[str] = ("",)
) -> FileList | None:
    """List the images of ``DOMAIN_train.txt`` or ``DOMAIN_test.txt``, in the order of the file.

    The file is searched for in sub-folders of the root, in this order, and then in the domain's folder.
    """
    domain_folder = find_domain_folder(root, domain)
    if domain_folder is None:
        return None
    file_name = f"{domain.name}_{split}.txt".lower()
    for folder in (*(root / name for name in list_folders), domain_folder):
        for file in _entries(folder):
            if file.name.lower() == file_name and file.is_file():
                return parse_list_file(root, file, domain_folder)
    return None


def parse_list_file(root: Path, file: Path, domain_folder: Path) -> FileList | None:
    """List the images of a file with lines ``class/image number``; None if none of the images exists.

    A path before the class comes from another machine and is ignored, but its last folder, if any, must be
    the domain's.
    """
    files, labels, numbers = [], [], dict[str, int]()
    prefix = _prefix(root, domain_folder)
    for line_number, line in enumerate(_read_lines(file), start=1):
        if not line.strip():
            continue
        path, number = (*line.rsplit(maxsplit=1), "")[:2]
        *parents, label, image = ("", *path.strip().split("/"))
        if not (label and image and number.isdecimal()):
            raise UserError(
                f"{file}, line {line_number}: {line.strip()!r} is not `class/image number`;"
                " download the published list again"
            )
        if parents and parents[-1] and normalise_name(parents[-1]) != normalise_name(domain_folder.name):
            raise UserError(
                f"{file}, line {line_number}: the image is in {parents[-1]!r}, not in {domain_folder.name!r};"
                " check that the list belongs to this domain"
            )
        if numbers.setdefault(label, int(number)) != int(number):
            raise UserError(
                f"{file}, line {line_number}: the class {label!r} has the number {number}, but"
                f" {numbers[label]} further up; download the published list again"
            )
        files.append((f"{prefix}{label}/{image}", domain_folder / label / image))
        labels.append(label)
    if not any(path.is_file() for _, path in files):
        return None
    return FileList(f"the list {file}", files, labels, numbers)


def find_domain_folder(root: Path, domain: DomainInfo, search_folders: Sequence[str] = ("",)) -> Path | None:
    """Find a domain's folder, ignoring case and separators in its name."""
    for subfolder in search_folders:
        found = [
            entry
            for entry in _entries(root / subfolder)
            if normalise_name(entry.name) == normalise_name(domain.name) and entry.is_dir()
        ]
        if len({entry.resolve() for entry in found}) > 1:
            raise UserError(
                f"{root / subfolder} has {len(found)} folders for {domain.name}:"
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


def _read_lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{file} is not a text file; download the published list again") from None
