"""Images in folders: a source with one sub-folder per class, and an unlabelled target."""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ducats.data.class_labels import (
    ADD_CLASSES_REMEDY,
    check_not_empty,
    class_indices,
    source_classes,
    target_only,
)
from ducats.data.decoding import ImageSize, decode_image_sets, decode_images, parse_value_range
from ducats.data.domain import AdaptationData, Domain, Images, no_images, rows_of
from ducats.data.store import KeyedPaths
from ducats.utils.class_names import check_class_names
from ducats.utils.errors import UserError
from ducats.utils.findings import Finding, join_quoted, pluralise, raise_first_error
from ducats.utils.image_files import ValueRange, is_image_name


def folders(
    *,
    source: str | Path | None = None,
    target: str | Path,
    test: str | Path | None = None,
    classes: Sequence[str] | None = None,
    size: int = 256,
    range: Sequence[float] | None = None,
    ground_truth: bool = False,
    new_classes: bool = False,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> AdaptationData:
    """Read a labelled source, if there is one, and an unlabelled target from folders.

    The source's sub-folders are the classes; the target's sub-folders are ignored, unless ``ground_truth`` is
    set. Hidden files and folders, and files without an image suffix, are skipped. Classes are sorted in ASCII
    order (``TV`` before ``Table``). Keys are POSIX paths relative to the folder. Unreadable images are
    skipped.

    Args:
        source: Labelled images, ``class/...``, at any depth below the class; None: there are none, and the
            first labels are those of target images.
        target: Unlabelled images, with or without sub-folders.
        test: Labelled images of the target domain, laid out like ``source``; classes may be missing. It may
            be the target folder, as in published protocols; images labelled during the run are then included.
        classes: Names in the order of the model's outputs; default: those of the source, or of the target's
            folders with ``ground_truth``. Needed if there is neither.
        size: Height and width that images are resized to, ignoring the aspect ratio.
        range: The values of black and white, in images with more than 8 bits per value: ``[0, 4095]``.
        ground_truth: Whether the target's first-level folders are its true classes, for a simulated oracle.
        new_classes: Whether target and test may have classes that the source lacks. A run adds such a class
            with its first label; until then, its test images count as errors.
        cache: See ``decode_images``.
        memory_gb: See ``decode_images``; the memory is that of all images together.
    """
    value_range = parse_value_range(range)
    target = existing_folder("target", target)
    source, test = (
        None if folder is None else existing_folder(role, folder)
        for role, folder in (("source", source), ("test", test))
    )
    check_disjoint(source, target, test)
    source_files = list_class_images("source", source) if source is not None else []
    target_files = list_class_images("target", target) if ground_truth else _list_nonempty("target", target)
    test_files = list_class_images("test", test) if test is not None else []
    if classes is not None:
        classes = check_class_names(classes)
    elif source is not None:
        classes = source_classes(describe_folder("source", source), [class_of(k) for k, _ in source_files])
    else:
        classes = target_classes(target, [class_of(key) for key, _ in target_files] if ground_truth else [])
    # All checks come before decoding, which may take minutes.
    source_labels = None if source is None else _labels("source", source, source_files, classes)
    target_keys = [*(_keys(target_files) if ground_truth else ()), *_keys(test_files)]
    added = target_only([class_of(key) for key in target_keys], classes, allowed=new_classes)
    all_classes = (*classes, *added)
    target_labels, test_labels = (
        None if folder is None else _labels(role, folder, files, all_classes, remedy=ADD_CLASSES_REMEDY)
        for role, folder, files in (
            ("target", target if ground_truth else None, target_files),
            ("test", test, test_files),
        )
    )
    images = decode_image_sets(
        [source_files, target_files, test_files],
        size,
        value_range=value_range,
        cache=cache,
        memory_gb=memory_gb,
    )
    return AdaptationData(
        source=Domain(no_images(images[1]), torch.zeros(0, dtype=torch.int64), tuple(classes))
        if source_labels is None
        else _domain(images[0], source_files, source_labels, classes),
        pool=images[1],
        ground_truth=None
        if target_labels is None
        else rows_of(images[1], _keys(target_files), target_labels),
        test=None if test_labels is None else _domain(images[2], test_files, test_labels, all_classes),
        target_only_classes=added,
    )


def target_classes(target: Path, labels: Sequence[str]) -> tuple[str, ...]:
    """Return the classes of a target whose labels are known; raise if they are not."""
    if not any(labels):
        raise UserError(
            "the classes are not known; give labelled images with --source, or without any, the names of "
            'the classes: --classes "cat, dog, other"'
        )
    return source_classes(describe_folder("target", target), labels)


def read_labelled_folder(
    folder: Path,
    classes: Sequence[str],
    *,
    size: ImageSize = 256,
    channels: int = 3,
    value_range: ValueRange | None = None,
    memory_gb: float | None = None,
) -> Domain:
    """Read labelled images, ``class/...``, of known classes, some of which may be missing.

    See ``decode_images`` for the other parameters, here and below.
    """
    files = list_class_images("test", existing_folder("test", folder))
    labels = _labels("test", Path(folder), files, classes)
    images = decode_images(files, size, channels=channels, value_range=value_range, memory_gb=memory_gb)
    return _domain(images, files, labels, classes)


def _domain(images: Images, files: KeyedPaths, labels: Tensor, classes: Sequence[str]) -> Domain:
    """Return images with their labels, without those of unreadable files."""
    return Domain(images, rows_of(images, _keys(files), labels), tuple(classes))


def _keys(files: KeyedPaths) -> list[str]:
    return [key for key, _ in files]


def read_image_folder(
    folder: Path,
    *,
    size: ImageSize = 256,
    channels: int = 3,
    value_range: ValueRange | None = None,
    memory_gb: float | None = None,
) -> Images:
    """Read unlabelled images at any depth of a folder."""
    files = _list_nonempty("image", existing_folder("image", folder))
    return decode_images(files, size, channels=channels, value_range=value_range, memory_gb=memory_gb)


def list_images(folder: Path) -> list[tuple[str, Path]]:
    """List key and path of every image at any depth of a folder, sorted by key."""
    found = [(path.relative_to(folder).as_posix(), path) for path in _walk_images(folder)]
    for key, path in found:
        try:
            key.encode("utf-8")
        except UnicodeEncodeError:
            raise UserError(f"the name of {os.fsencode(path)!r} is not UTF-8; rename the file") from None
    return sorted(found)


def _walk_images(folder: Path) -> Iterator[Path]:
    """Yield every image file that is not hidden; links are followed, except to a parent folder."""
    for current, subfolders, names in os.walk(folder, onerror=_raise_unreadable, followlinks=True):
        resolved = Path(current).resolve()
        subfolders[:] = [
            name
            for name in subfolders
            if not name.startswith(".") and Path(current, name).resolve() not in (resolved, *resolved.parents)
        ]
        yield from (Path(current, name) for name in names if is_image_name(name))


def _raise_unreadable(error: OSError) -> None:
    """Raise for an unreadable folder, which ``os.walk`` would skip silently."""
    raise UserError(
        f"the folder {error.filename} cannot be read ({error.strerror}); fix its permissions or remove it"
    )


def existing_folder(role: str, folder: str | Path) -> Path:
    """Expand ``~`` and raise if the folder does not exist."""
    folder = Path(folder).expanduser()
    if not folder.exists():
        raise UserError(f"the {role} folder {folder} does not exist; check the path")
    if not folder.is_dir():
        raise UserError(f"the {role} folder {folder} is a file; give the folder that holds the images")
    return folder


def check_disjoint(source: Path | None, target: Path, test: Path | None) -> None:
    """Raise if two of the folders share images."""
    pairs = [] if source is None else [("source", source, "target", target)]
    if test is not None:
        pairs += [] if source is None else [("source", source, "test", test)]
        if test.resolve() != target.resolve():
            pairs.append(("target", target, "test", test))
    for role, folder, other_role, other in pairs:
        one, two = folder.resolve(), other.resolve()
        if one == two:
            raise UserError(f"{role} and {other_role} are the same folder, {folder}; give two folders")
        if one in two.parents or two in one.parents:
            raise UserError(
                f"the {role} folder {folder} and the {other_role} folder {other} overlap: one is inside"
                " the other; give two separate folders"
            )


def _list_nonempty(role: str, folder: Path) -> list[tuple[str, Path]]:
    """List the images of a folder; raise if there are none."""
    images = list_images(folder)
    check_not_empty(describe_folder(role, folder), len(images))
    return images


def list_class_images(role: str, folder: Path) -> list[tuple[str, Path]]:
    """List the images of a folder; raise if one is outside a class folder or a class folder is empty."""
    images = _list_nonempty(role, folder)
    raise_first_error(partial(check_class_folders, role, folder, images))
    return images


def check_class_folders(role: str, folder: Path, images: Sequence[tuple[str, Path]]) -> Iterator[Finding]:
    """Report images outside class folders, and class folders without images."""
    outside = [key for key, _ in images if "/" not in key]
    if outside:
        yield Finding(
            "error",
            f"{describe_folder(role, folder)} has {pluralise(len(outside), 'image')} outside class folders, "
            f"such as {outside[0]}; move each into a subfolder named after its class",
        )
    class_folders = {
        path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    }
    empty = sorted(class_folders - {class_of(key) for key, _ in images})
    if empty:
        yield Finding(
            "error",
            f"{describe_folder(role, folder)} has class folders without images: {join_quoted(empty)}; add "
            "images or remove the folders",
        )


def describe_folder(role: str, folder: Path) -> str:
    """Describe a folder in messages."""
    return f"the {role} folder {folder}"


def class_of(key: str) -> str:
    """Return the class folder of a key."""
    return key.split("/", 1)[0]


def _labels(
    role: str, folder: Path, images: Sequence[tuple[str, Path]], classes: Sequence[str], *, remedy: str = ""
) -> Tensor:
    """Return the class index of each image, from its folder: int64 (N,)."""
    labels, names = [class_of(key) for key, _ in images], [str(path) for _, path in images]
    return class_indices(describe_folder(role, folder), labels, names, classes, remedy=remedy)
