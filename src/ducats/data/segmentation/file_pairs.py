"""Pair images with their label files, and report files without a partner."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from ducats.data.decoding import read_image_sizes
from ducats.data.domain import UnreadableFile
from ducats.data.folders import list_images
from ducats.data.segmentation.label_files import LOSSY_SUFFIXES
from ducats.data.store import KeyedPaths, ReadFailure, try_files
from ducats.utils.errors import UserError
from ducats.utils.findings import join_names
from ducats.utils.image_files import displayed_size

_MAX_FILES_NAMED = 3  # maximum number of files in a message


def _accept_all(_: str) -> bool:
    return True


@dataclass(frozen=True)
class FileLayout:
    """Subfolders and file name endings of images and label files."""

    images: str
    labels: str
    image_suffix: str = ""  # how image file names end; empty for any image suffix
    label_suffix: str = ""

    def exists_in(self, root: Path) -> bool:
        """Return whether a folder has this layout."""
        return (root / self.images).is_dir() and (root / self.labels).is_dir()

    def has_label_files(self, root: Path, predicate: Callable[[str], bool] = _accept_all) -> bool:
        """Return whether there are label files with accepted keys."""
        folder = root / self.labels
        return folder.is_dir() and any(predicate(key) for key, _ in list_images(folder))


@dataclass(frozen=True)
class SplitFiles:
    """Image, label and mask files of a source, pool or test set; nothing is decoded."""

    images: KeyedPaths  # keys are paths within the image folder
    labels: KeyedPaths | None = None  # with the same keys
    masks: KeyedPaths | None = None  # non-zero where a pixel is void
    problems: tuple[str, ...] = ()  # messages about missing, unpaired or invalid files
    unreadable: tuple[UnreadableFile, ...] = ()  # files that were dropped, with the files of the same key

    def filter_keys(self, predicate: Callable[[str], bool]) -> "SplitFiles":
        """Return the files with accepted keys."""
        return self._map_files(lambda files: tuple(file for file in files if predicate(file[0])))

    def with_key_prefix(self, prefix: str) -> "SplitFiles":
        """Return a copy with a prefix on every key."""
        return self._map_files(lambda files: tuple((prefix + key, path) for key, path in files))

    def read_sizes(self) -> tuple["SplitFiles", Tensor]:
        """Read height and width of every image from its header: int64 (N, 2).

        Images are dropped if their header or that of their label file cannot be read.

        Raises:
            UserError: A label or mask file differs in size from its image, or no image can be read.
        """
        readable = self._drop_unreadable()
        image_sizes = read_image_sizes([path for _, path in readable.images])
        for files, file_kind in ((readable.labels, "label maps"), (readable.masks, "masks")):
            if files is not None:
                _check_sizes(readable.images, image_sizes, files, file_kind)
        return readable, image_sizes

    def _drop_unreadable(self) -> "SplitFiles":
        """Drop every image whose header, or that of its label file, cannot be read."""
        failures: dict[str, UnreadableFile] = {}
        for files in (self.labels or (), self.images):
            outcomes = try_files(displayed_size, [path for _, path in files])
            for (key, path), outcome in zip(files, outcomes, strict=True):
                if isinstance(outcome, ReadFailure):
                    failures[key] = UnreadableFile(path, outcome.reason)
        if failures and len(failures) == len(self.images):
            path, reason = next(iter(failures.values()))
            raise UserError(f"none of {len(self.images)} images can be read; first: {path} ({reason})")
        kept = self.filter_keys(lambda key: key not in failures)
        return replace(kept, unreadable=tuple(failures.values()))

    def _map_files(self, transform: Callable[[KeyedPaths], KeyedPaths]) -> "SplitFiles":
        labels, masks = (None if files is None else transform(files) for files in (self.labels, self.masks))
        return SplitFiles(transform(self.images), labels, masks, self.problems)

    def validated(self) -> "SplitFiles":
        """Return self; raise the first problem if there is one."""
        if self.problems:
            raise UserError(self.problems[0])
        return self


def concat_files(named_files: Sequence[tuple[str, SplitFiles]]) -> SplitFiles:
    """Concatenate files of several folders. If there are several, the names become key prefixes."""
    if len(named_files) == 1:
        return named_files[0][1]
    prefixed = [split_files.with_key_prefix(f"{name}/") for name, split_files in named_files]
    labels = [files.labels for files in prefixed]
    return SplitFiles(
        images=tuple(file for files in prefixed for file in files.images),
        labels=tuple(file for label_files in labels for file in label_files or ()),
        problems=tuple(problem for files in prefixed for problem in files.problems),
    )


def find_pairs(
    root: Path,
    layout: FileLayout,
    *,
    with_labels: bool = True,
    mask_folder: str | None = None,
    predicate: Callable[[str], bool] = _accept_all,
) -> SplitFiles:
    """Find images and their label files; report files without a partner in ``problems`` instead of raising.

    Args:
        mask_folder: Subfolder of mask files, named like label files. Ignored if it does not exist.
        predicate: Filter for the keys of images and label files, for example those of a split.
    """
    image_folder, problems = root / layout.images, list[str]()
    images = _list_by_stem(image_folder, layout.image_suffix, problems, predicate)
    if not images and not problems:
        ending = f" that end with {layout.image_suffix}" if layout.image_suffix else ""
        problems.append(f"{image_folder} contains no images{ending}; add images or give another folder")
    partners: dict[str, _FilesByStem] = {}
    if with_labels:
        label_folder = root / layout.labels
        partners["label"] = _find_partners(
            images, image_folder, label_folder, layout.label_suffix, "label", problems, predicate
        )
    if mask_folder is not None and (root / mask_folder).is_dir():
        partners["mask"] = _find_partners(
            images, image_folder, root / mask_folder, "", "mask", problems, predicate
        )
    stems = [stem for stem in images if all(stem in others for others in partners.values())]
    stems.sort(key=lambda stem: images[stem])

    def paired_files(file_kind: str) -> KeyedPaths | None:
        others = partners.get(file_kind)
        return None if others is None else tuple((images[stem][0], others[stem][1]) for stem in stems)

    return SplitFiles(
        tuple(images[stem] for stem in stems), paired_files("label"), paired_files("mask"), tuple(problems)
    )


# Keys and paths, by the name that an image shares with its label file.
_FilesByStem = dict[str, tuple[str, Path]]


def _find_partners(
    images: _FilesByStem,
    image_folder: Path,
    partner_folder: Path,
    suffix: str,
    file_kind: str,
    problems: list[str],
    predicate: Callable[[str], bool],
) -> _FilesByStem:
    """Find the label or mask files that belong to images."""
    if not partner_folder.is_dir():
        problems.append(_missing_folder_message(partner_folder))
        return {}
    partners = _list_by_stem(partner_folder, suffix, problems, predicate)
    lossy = {stem for stem, (_, path) in partners.items() if path.suffix.lower() in LOSSY_SUFFIXES}
    if lossy:
        problems.append(
            f"{partner_folder} contains {file_kind} files in a lossy format, such as"
            f" {min(partners[stem][0] for stem in lossy)}, which changes the stored values; use PNG"
        )
    images_without_partner = sorted(images[stem][0] for stem in set(images) - set(partners))
    if images_without_partner:
        problems.append(
            f"{len(images_without_partner)} of {len(images)} images in {image_folder} have no {file_kind}"
            f" file in {partner_folder}: {join_names(images_without_partner, _MAX_FILES_NAMED)}; add the"
            " files or remove the images"
        )
    partners_without_image = sorted(partners[stem][0] for stem in set(partners) - set(images))
    if partners_without_image:
        problems.append(
            f"{len(partners_without_image)} of {len(partners)} {file_kind} files in {partner_folder} have no"
            f" image in {image_folder}: {join_names(partners_without_image, _MAX_FILES_NAMED)}; add the"
            f" images or remove the {file_kind} files"
        )
    return {stem: file for stem, file in partners.items() if stem not in lossy}


def _missing_folder_message(folder: Path) -> str:
    return f"there is no folder {folder}; check the path and the layout"


def _list_by_stem(
    folder: Path, suffix: str, problems: list[str], predicate: Callable[[str], bool]
) -> _FilesByStem:
    """List the image or label files of a folder by stem."""
    if not folder.is_dir():
        problems.append(_missing_folder_message(folder))
        return {}
    stems: _FilesByStem = {}
    for key, path in list_images(folder):
        if not key.endswith(suffix) or not predicate(key):
            continue  # for example other kinds of label files, which many data sets have
        stem = key[: -len(suffix)] if suffix else str(PurePosixPath(key).with_suffix(""))
        if stem in stems:
            problems.append(
                f"{folder} has two files that differ only in their suffix, {stems[stem][0]} and {key};"
                " remove one"
            )
            continue
        stems[stem] = (key, path)
    return stems


def _check_sizes(images: KeyedPaths, image_sizes: Tensor, files: KeyedPaths, file_kind: str) -> None:
    """Raise if files differ in size from their images."""
    file_sizes = read_image_sizes([path for _, path in files], file_kind)
    mismatched = torch.nonzero((image_sizes != file_sizes).any(1)).flatten().tolist()
    if mismatched:
        first, n_more = mismatched[0], len(mismatched) - 1
        image_size, file_size = (
            "x".join(map(str, sizes[first].tolist())) for sizes in (image_sizes, file_sizes)
        )
        raise UserError(
            f"{images[first][1]} is {image_size} (height x width), but {files[first][1]} is {file_size}"
            f"{f' ({n_more} more {file_kind} also differ)' if n_more else ''}; make both the same size, or"
            " remove both"
        )
