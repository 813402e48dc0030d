"""Segmentation data in folders with images and label files, described by a class list."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ducats.data.decoding import ImageSize
from ducats.data.folders import check_disjoint, existing_folder
from ducats.data.maps.class_list import own_codes
from ducats.data.maps.codes import Codes, Coding
from ducats.data.maps.loading import Listing, Reader, Void, labelled
from ducats.data.maps.pairs import Layout, find_pairs, pair_up, together
from ducats.data.store import ArrayStore
from ducats.domain import Domain
from ducats.errors import UserError

LAYOUT = Layout("images", "labels")
MASKS = "masks"


@Reader
def map_folders(
    *,
    source: str | Path | Sequence[str | Path],
    target: str | Path,
    classes: str | Path | Mapping[Any, str] | Sequence[str],
    test: str | Path | None = None,
    root: str | Path | None = None,
    truth: bool = False,
    merge: Mapping[str, Sequence[str]] | None = None,
    keep: Sequence[str] | None = None,
    coded: Coding = "ids",
    size: ImageSize = (512, 1024),
    source_size: ImageSize | None = None,
    void: Void = "known",
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Listing:
    """Read segmentation data from folders with ``images/`` and ``labels/``.

    An image and its label file have the same relative path, except for the suffix. Images are resized with a
    bicubic filter, label maps to the nearest pixel, both without keeping the aspect ratio. Keys are paths
    within ``images/``, prefixed with the name of the source folder if there are several.

    Args:
        source: One or several folders with ``images/`` and ``labels/``.
        target: A folder with ``images/``. Its ``labels/`` are read only with ``truth``.
        classes: The class list: a file with lines ``id name`` (or ``r g b name``), or a mapping. Ids that are
            not in the list raise. Names such as void and ignore, and names that end with ``(void)``, stand
            for pixels without a class.
        test: A folder of the target domain with ``images/`` and ``labels/``. May be the target folder.
        root: Base of relative paths; None for the current folder.
        truth: Use the target's ``labels/`` as ground truth for a simulated oracle.
        merge: For a class, the names to merge into it: ``{building: [wall]}``.
        keep: The classes to keep, in order; all others become void. None keeps all.
        coded: ``ids`` in the single channel of the label files, or in the ``red`` channel.
        size: Height and width of target images.
        source_size: Height and width of source images. Defaults to ``size``.
        void: ``known``: void pixels of the pool are excluded beforehand and never queried. With ``truth``,
            their positions (but no classes) are read from the target's label files. If the target has a
            folder ``masks/``, non-zero pixels in its files are excluded as well. ``asked``: void pixels are
            not excluded, and querying one costs budget.
        cache: Folder for decoded images and label maps that do not fit in memory; see ``decode``.
        memory_gb: Memory for decoded images and label maps together, in gigabytes. None: see ``decode``.

    Raises:
        UserError: Folders or files are missing, corrupt, unpaired or of different sizes, or an id is unknown.
    """
    base = Path("" if root is None else root).expanduser()
    given = [source] if isinstance(source, str | Path) else list(source)
    if not given:
        raise UserError("data.params.source is empty; give one or more folders")
    sources = [existing_folder("source", _within(base, folder)) for folder in given]
    pool = existing_folder("target", _within(base, target))
    held_out = existing_folder("test", _within(base, test)) if test is not None else None
    for place, folder in enumerate(sources):
        check_disjoint(folder, pool, held_out)
        for other in sources[:place]:
            one, two = folder.resolve(), other.resolve()
            if one == two or one in two.parents or two in one.parents:
                raise UserError(f"the source folders {other} and {folder} overlap; give each folder once")
    codes = _codes(base, classes, merge, keep, coded)
    names = [folder.name for folder in sources]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in given]
    return Listing(
        together([(name, find_pairs(folder, LAYOUT)) for name, folder in zip(names, sources, strict=True)]),
        find_pairs(pool, LAYOUT, labelled=truth, masks=MASKS if void == "known" else None),
        None if held_out is None else find_pairs(held_out, LAYOUT),
        codes=(codes, codes),
        size=size,
        source_size=source_size,
        void=void,
        cache=cache,
        memory_gb=memory_gb,
    )


def labelled_maps(
    folder: str | Path,
    *,
    size: ImageSize,
    classes: str | Path | Mapping[Any, str] | Sequence[str],
    root: str | Path | None = None,
    merge: Mapping[str, Sequence[str]] | None = None,
    keep: Sequence[str] | None = None,
    coded: Coding = "ids",
    memory_gb: float | None = None,
) -> Domain:
    """Read images with label maps, from a folder with ``images/`` and ``labels/``.

    Args:
        size: Height and width to resize images and label maps to.
        classes: The class list. See ``map_folders`` for this, ``merge``, ``keep`` and ``coded``.
        root: Base of a relative path of the class list.
        memory_gb: Memory for decoded images and label maps together, in gigabytes. None: see ``decode``.

    Raises:
        UserError: Folders or files are missing, corrupt, unpaired or of different sizes, or an id is unknown.
    """
    base = Path("" if root is None else root).expanduser()
    codes, room = _codes(base, classes, merge, keep, coded), ArrayStore(None, memory_gb)
    part = pair_up(existing_folder("test", folder), LAYOUT)
    found = labelled(room, part, codes, size, part.sizes())
    room.warn_if_on_demand()
    return found


def _codes(
    base: Path,
    classes: Any,
    merge: Mapping[str, Sequence[str]] | None,
    keep: Sequence[str] | None,
    coded: Coding,
) -> Codes:
    listed = isinstance(classes, str | Path)
    return own_codes(_within(base, classes) if listed else classes, merge=merge, keep=keep, coded=coded)


def _within(base: Path, path: Any) -> Path:
    return base / Path(path).expanduser()
