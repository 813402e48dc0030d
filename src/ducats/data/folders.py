"""The common case: one folder per class with labelled images, one folder with images to be labelled."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ducats.data.decode import Size, decode, decode_each
from ducats.domain import Domain, Images, Shift
from ducats.errors import UserError
from ducats.pictures import SUFFIXES, is_image


def folders(
    *,
    source: str | Path,
    target: str | Path,
    test: str | Path | None = None,
    size: int = 256,
    truth: bool = False,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Shift:
    """Read a shift from folders: the source's sub-folders are the classes, the target's mean nothing.

    Hidden files and folders and files that are no images by their suffix are passed over. Classes are
    sorted as ASCII (``TV`` before ``Table``). Keys are paths within their folder, with ``/``.

    Args:
        source: Labelled images: ``class/...``, at any depth below the class.
        target: Images without labels, in any sub-folders or none.
        test: Labelled images of the target domain, like ``source``; may lack classes. It may be the
            target folder itself, as in published protocols; then images are tested that were also asked.
        size: Height and width that images are squashed to.
        truth: The target's first-level folders are its true classes: for a simulated oracle.
        cache: Where decoded images go that do not fit in memory; see ``decode``.
        memory_gb: Gigabytes of decoded images to hold in memory, all folders together; None: see ``decode``.

    Raises:
        UserError: A folder is missing, empty, not as described, or inside another; an image is broken.
    """
    source, target = existing_folder("source", source), existing_folder("target", target)
    test = existing_folder("test", test) if test is not None else None
    check_apart(source, target, test)
    labelled = _images_of_classes("source", source)
    classes = tuple(sorted({_class_of(key) for key, _ in labelled}))
    if len(classes) < 2:
        raise UserError(
            f"the source folder {source} has one class only, {classes[0]!r};"
            " give a folder with a sub-folder for each of two classes or more"
        )
    pool = _images_of_classes("target", target) if truth else _images("target", target)
    held_out = _images_of_classes("test", test) if test is not None else []
    # Before decoding, which may take minutes, everything that may be wrong is known.
    truths = _labels("target", target, pool, classes) if truth else None
    labels = _labels("test", test, held_out, classes) if test is not None else None
    images = decode_each([labelled, pool, held_out], size, cache=cache, memory_gb=memory_gb)
    return Shift(
        source=Domain(images[0], _labels("source", source, labelled, classes), classes),
        pool=images[1],
        truth=truths,
        test=Domain(images[2], labels, classes) if labels is not None else None,
    )


def labelled_folder(
    folder: Path,
    classes: Sequence[str],
    *,
    size: Size = 256,
    channels: int = 3,
    memory_gb: float | None = None,
) -> Domain:
    """Read labelled images, ``class/...``, of classes that are known already.

    Args:
        folder: A sub-folder per class; classes may be missing.
        classes: Their names, in their order.
        size: Height and width that images are squashed to.
        channels: 3 for RGB, 1 for grey.
        memory_gb: Gigabytes of decoded images to hold in memory; None: see ``decode``.
    """
    files = _images_of_classes("test", existing_folder("test", folder))
    labels = _labels("test", Path(folder), files, classes)
    images = decode(files, size, channels=channels, memory_gb=memory_gb)
    return Domain(images, labels, tuple(classes))


def image_folder(
    folder: Path, *, size: Size = 256, channels: int = 3, memory_gb: float | None = None
) -> Images:
    """Read images without labels, in any sub-folders or none.

    Args:
        folder: Where they are.
        size: Height and width that images are squashed to.
        channels: 3 for RGB, 1 for grey.
        memory_gb: Gigabytes of decoded images to hold in memory; None: see ``decode``.
    """
    files = _images("image", existing_folder("image", folder))
    return decode(files, size, channels=channels, memory_gb=memory_gb)


def list_images(folder: Path) -> list[tuple[str, Path]]:
    """Key and path of every image at any depth of a folder, sorted by key."""
    found = [(path.relative_to(folder).as_posix(), path) for path in _walk(folder)]
    for key, path in found:
        try:
            key.encode("utf-8")
        except UnicodeEncodeError:
            raise UserError(f"the name of {os.fsencode(path)!r} is not UTF-8; rename the file") from None
    return sorted(found)


def _walk(folder: Path) -> Iterator[Path]:
    """Every visible image file; links to folders are followed, unless they lead back up."""
    for here, inner, names in os.walk(folder, onerror=_refuse, followlinks=True):
        above = Path(here).resolve()
        inner[:] = [
            name
            for name in inner
            if not name.startswith(".") and Path(here, name).resolve() not in (above, *above.parents)
        ]
        yield from (Path(here, name) for name in names if is_image(name))


def _refuse(error: OSError) -> None:
    """A folder that may not be read would silently be an empty one."""
    raise UserError(f"the folder {error.filename} cannot be read ({error.strerror}); allow it or remove it")


def existing_folder(role: str, folder: str | Path) -> Path:
    """The folder, its ``~`` replaced, if there is one."""
    folder = Path(folder).expanduser()
    if not folder.exists():
        raise UserError(f"the {role} folder {folder} does not exist; check the path")
    if not folder.is_dir():
        raise UserError(f"the {role} folder {folder} is a file; give the folder that holds the images")
    return folder


def check_apart(source: Path, target: Path, test: Path | None) -> None:
    """Refuse folders that share images."""
    pairs = [("source", source, "target", target)]
    if test is not None:
        pairs.append(("source", source, "test", test))
        if test.resolve() != target.resolve():
            pairs.append(("target", target, "test", test))
    for role, folder, other_role, other in pairs:
        one, two = folder.resolve(), other.resolve()
        if one == two:
            raise UserError(f"{role} and {other_role} are the same folder, {folder}; give two folders")
        if one in two.parents or two in one.parents:
            raise UserError(
                f"of the {role} folder {folder} and the {other_role} folder {other} one is inside"
                " the other, so images would be in both; give two separate folders"
            )


def _images(role: str, folder: Path) -> list[tuple[str, Path]]:
    """The images of a folder, at least one."""
    images = list_images(folder)
    if not images:
        raise UserError(
            f"the {role} folder {folder} holds no image ({', '.join(sorted(SUFFIXES))});"
            " put images there or give another folder"
        )
    return images


def _images_of_classes(role: str, folder: Path) -> list[tuple[str, Path]]:
    """The images of a folder, each in a class folder; no class folder is empty."""
    images = _images(role, folder)
    loose = [key for key, _ in images if "/" not in key]
    if loose:
        raise UserError(
            f"the {role} folder {folder} has {len(loose)} images outside of any class folder,"
            f" such as {loose[0]}; move each into a sub-folder named after its class"
        )
    inside = {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}
    empty = sorted(inside - {_class_of(key) for key, _ in images})
    if empty:
        raise UserError(
            f"the {role} folder {folder} has class folders without an image: {_listed(empty)};"
            " put images there or remove them"
        )
    return images


def _class_of(key: str) -> str:
    """The class folder in a key."""
    return key.split("/", 1)[0]


def _labels(role: str, folder: Path, images: Sequence[tuple[str, Path]], classes: Sequence[str]) -> Tensor:
    """The class of each image by its folder: int64 (N,)."""
    index = {name: i for i, name in enumerate(classes)}
    unknown = sorted({_class_of(key) for key, _ in images} - set(index))
    if unknown:
        raise UserError(
            f"the {role} folder {folder} has classes that the source lacks: {_listed(unknown)};"
            f" the source has {_listed(classes)}; rename or remove the folders"
        )
    return torch.tensor([index[_class_of(key)] for key, _ in images], dtype=torch.int64)


def _listed(names: Sequence[str], most: int = 10) -> str:
    """Names for a sentence.

    >>> _listed(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
