"""Pair images with their label files, and report files without a partner."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from ducats.data.decoding import read_image_sizes
from ducats.data.folders import list_images
from ducats.data.maps.raw import LOSSY
from ducats.data.store import KeyedPaths
from ducats.errors import UserError

_NAMED = 3  # maximum number of files in a message


def _all(_: str) -> bool:
    return True


@dataclass(frozen=True)
class Layout:
    """Subfolders and file name endings of images and label files."""

    images: str
    labels: str
    image_end: str = ""  # how image file names end; empty for any image suffix
    label_end: str = ""

    def there(self, root: Path) -> bool:
        """Return whether a folder has this layout."""
        return (root / self.images).is_dir() and (root / self.labels).is_dir()

    def labelled(self, root: Path, wanted: Callable[[str], bool] = _all) -> bool:
        """Return whether there are label files with accepted keys."""
        folder = root / self.labels
        return folder.is_dir() and any(wanted(key) for key, _ in list_images(folder))


@dataclass(frozen=True)
class Part:
    """Image, label and mask files of a source, pool or test set; nothing is decoded."""

    images: KeyedPaths  # keys are paths within the image folder
    labels: KeyedPaths | None = None  # with the same keys
    masks: KeyedPaths | None = None  # non-zero where a pixel is void
    problems: tuple[str, ...] = ()  # messages about missing, unpaired or invalid files

    def only(self, wanted: Callable[[str], bool]) -> "Part":
        """Return the files with accepted keys."""
        return self._each(lambda files: tuple(file for file in files if wanted(file[0])))

    def named(self, prefix: str) -> "Part":
        """Return a copy with a prefix on every key."""
        return self._each(lambda files: tuple((prefix + key, path) for key, path in files))

    def sizes(self) -> Tensor:
        """Read the height and width of every image from its header: int64 (N, 2).

        Raises:
            UserError: A label or mask file differs in size from its image.
        """
        found = read_image_sizes([path for _, path in self.images])
        for files, what in ((self.labels, "label maps"), (self.masks, "masks")):
            if files is not None:
                _check_sizes(self.images, found, files, what)
        return found

    def _each(self, change: Callable[[KeyedPaths], KeyedPaths]) -> "Part":
        labels, masks = (None if files is None else change(files) for files in (self.labels, self.masks))
        return Part(change(self.images), labels, masks, self.problems)

    def sound(self) -> "Part":
        """Return self if there are no problems.

        Raises:
            UserError: The first problem.
        """
        if self.problems:
            raise UserError(self.problems[0])
        return self


def together(parts: Sequence[tuple[str, Part]]) -> Part:
    """Concatenate parts. If there are several, their names become key prefixes."""
    if len(parts) == 1:
        return parts[0][1]
    named = [part.named(f"{name}/") for name, part in parts]
    labels = [part.labels for part in named]
    return Part(
        images=tuple(file for part in named for file in part.images),
        labels=tuple(file for files in labels for file in files or ()),
        problems=tuple(problem for part in named for problem in part.problems),
    )


def pair_up(root: Path, layout: Layout, *, labelled: bool = True, masks: str | None = None) -> Part:
    """Find images and their label files.

    Args:
        labelled: Whether to look for label files.
        masks: Subfolder of mask files, named like label files. Ignored if it does not exist.

    Raises:
        UserError: A folder is missing or empty, or an image or label file has no partner.
    """
    return find_pairs(root, layout, labelled=labelled, masks=masks).sound()


def find_pairs(
    root: Path,
    layout: Layout,
    *,
    labelled: bool = True,
    masks: str | None = None,
    wanted: Callable[[str], bool] = _all,
) -> Part:
    """Find images and their label files; report files without a partner in ``problems`` instead of raising.

    Args:
        labelled: Whether to look for label files.
        masks: Subfolder of mask files, named like label files. Ignored if it does not exist.
        wanted: Filter for the keys of images and label files, for example those of a split.
    """
    folder, problems = root / layout.images, list[str]()
    images = _by_stem(folder, layout.image_end, problems, wanted)
    if not images and not problems:
        ending = f" that end with {layout.image_end}" if layout.image_end else ""
        problems.append(f"{folder} contains no images{ending}; add images or give another folder")
    found: dict[str, _ByStem] = {}
    if labelled:
        labels = root / layout.labels
        found["label"] = _partners(images, folder, labels, layout.label_end, "label", problems, wanted)
    if masks is not None and (root / masks).is_dir():
        found["mask"] = _partners(images, folder, root / masks, "", "mask", problems, wanted)
    stems = [stem for stem in images if all(stem in others for others in found.values())]
    stems.sort(key=lambda stem: images[stem])

    def files(what: str) -> KeyedPaths | None:
        others = found.get(what)
        return None if others is None else tuple((images[stem][0], others[stem][1]) for stem in stems)

    return Part(tuple(images[stem] for stem in stems), files("label"), files("mask"), tuple(problems))


_ByStem = dict[str, tuple[str, Path]]  # keys and paths, by the name that an image shares with its label file


def _partners(
    images: _ByStem,
    folder: Path,
    other: Path,
    end: str,
    what: str,
    problems: list[str],
    wanted: Callable[[str], bool],
) -> _ByStem:
    """Find the label or mask files that belong to images."""
    if not other.is_dir():
        problems.append(_no_folder(other))
        return {}
    found = _by_stem(other, end, problems, wanted)
    lossy = {stem for stem, (_, path) in found.items() if path.suffix.lower() in LOSSY}
    if lossy:
        problems.append(
            f"{other} contains {what} files in a lossy format, such as"
            f" {min(found[stem][0] for stem in lossy)}, which changes the stored values; use PNG"
        )
    without = sorted(images[stem][0] for stem in set(images) - set(found))
    if without:
        problems.append(
            f"{len(without)} of {len(images)} images in {folder} have no {what} file in {other}:"
            f" {_some(without)}; add the files or remove the images"
        )
    alone = sorted(found[stem][0] for stem in set(found) - set(images))
    if alone:
        problems.append(
            f"{len(alone)} of {len(found)} {what} files in {other} have no image in {folder}:"
            f" {_some(alone)}; add the images or remove the {what} files"
        )
    return {stem: file for stem, file in found.items() if stem not in lossy}


def _no_folder(folder: Path) -> str:
    return f"there is no folder {folder}; check the path and the layout"


def _by_stem(folder: Path, end: str, problems: list[str], wanted: Callable[[str], bool]) -> _ByStem:
    """List the image or label files of a folder by stem."""
    if not folder.is_dir():
        problems.append(_no_folder(folder))
        return {}
    stems: _ByStem = {}
    for key, path in list_images(folder):
        if not key.endswith(end) or not wanted(key):
            continue  # for example other kinds of label files, which many data sets have
        stem = key[: -len(end)] if end else str(PurePosixPath(key).with_suffix(""))
        if stem in stems:
            problems.append(
                f"{folder} has two files that differ only in their suffix, {stems[stem][0]} and {key};"
                " remove one"
            )
            continue
        stems[stem] = (key, path)
    return stems


def _check_sizes(images: KeyedPaths, found: Tensor, files: KeyedPaths, what: str) -> None:
    """Raise if files differ in size from their images."""
    others = read_image_sizes([path for _, path in files], what)
    wrong = torch.nonzero((found != others).any(1)).flatten().tolist()
    if wrong:
        (one, other), more = (images[wrong[0]][1], files[wrong[0]][1]), len(wrong) - 1
        shown, labelled = ("x".join(map(str, size[wrong[0]].tolist())) for size in (found, others))
        raise UserError(
            f"{one} is {shown} (height x width), but {other} is {labelled}"
            f"{f' ({more} more {what} also differ)' if more else ''}; make both the same size, or remove both"
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
