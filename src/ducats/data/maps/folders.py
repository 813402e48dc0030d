"""The common case: folders of images with label files, a folder of images to be labelled, a class list."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ducats.data.decode import Size
from ducats.data.folders import check_apart, existing_folder
from ducats.data.maps.class_list import own_codes
from ducats.data.maps.codes import Codes, Coding
from ducats.data.maps.loading import Listing, Reader, Void, labelled
from ducats.data.maps.pairs import Layout, find_pairs, pair_up, together
from ducats.data.store import Room
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
    size: Size = (512, 1024),
    source_size: Size | None = None,
    void: Void = "known",
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Listing:
    """Read a shift whose pixels have labels, from folders with ``images/`` and ``labels/``.

    An image and its label file have the same path below these, up to the suffix. Images are squashed with a
    bicubic filter, label maps to the nearest pixel. Keys are paths within ``images/``; with several sources,
    the source's name comes first.

    Args:
        source: A folder with ``images/`` and ``labels/``, or several.
        target: A folder with ``images/``. Its ``labels/`` are read with ``truth`` alone.
        classes: The class list: a file with lines ``id name`` (or ``r g b name``), or a mapping in place.
            An id that occurs and is not in it is refused. Names such as void and ignore, and those marked
            ``(void)``, mean that no class applies.
        test: A folder like ``source``, of the target domain. It may be the target folder itself.
        root: Where relative paths begin; None for the current folder.
        truth: The target's ``labels/`` are its true labels: for a simulated oracle.
        merge: For a class, names of the list that become part of it: ``{building: [wall]}``.
        keep: The classes, in their order; all others become void. None for all.
        coded: ``ids`` in the label files' one channel, or in the ``red`` one.
        size: Height and width of target images.
        source_size: Height and width of source images; None for the same.
        void: ``known``: with ``truth``, pixels of the pool whose true label is void are known beforehand and
            never asked: this reads which target pixels have no class, and nothing else of their labels. With
            a folder ``masks/`` in the target, so are the pixels where its files are not zero. ``asked``:
            neither is looked at, and asking about such a pixel is spent.
        cache: Where decoded images and maps go that do not fit in memory; see ``decode``.
        memory_gb: Gigabytes of both to hold in memory, in all; None: see ``decode``.

    Raises:
        UserError: Folders or files are missing, broken, or not in pairs of one size; an id has no name.
    """
    base = Path("" if root is None else root).expanduser()
    given = [source] if isinstance(source, str | Path) else list(source)
    if not given:
        raise UserError("data.knobs.source names no folder; give one or more")
    sources = [existing_folder("source", _within(base, folder)) for folder in given]
    pool = existing_folder("target", _within(base, target))
    held_out = existing_folder("test", _within(base, test)) if test is not None else None
    for place, folder in enumerate(sources):
        check_apart(folder, pool, held_out)
        for other in sources[:place]:
            one, two = folder.resolve(), other.resolve()
            if one == two or one in two.parents or two in one.parents:
                raise UserError(f"the source folders {other} and {folder} share images; give each once")
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
    size: Size,
    classes: str | Path | Mapping[Any, str] | Sequence[str],
    root: str | Path | None = None,
    merge: Mapping[str, Sequence[str]] | None = None,
    keep: Sequence[str] | None = None,
    coded: Coding = "ids",
    memory_gb: float | None = None,
) -> Domain:
    """Read images with label maps, from a folder with ``images/`` and ``labels/``.

    Args:
        folder: Where these are.
        size: Height and width that both are squashed to.
        classes: The class list; see ``map_folders``, also for what follows.
        root: Where a relative path of the class list begins.
        merge: Names that become part of a class.
        keep: The classes, in their order.
        coded: Where ids are in label files.
        memory_gb: Gigabytes of images and maps to hold in memory; None: see ``decode``.

    Raises:
        UserError: Folders or files are missing, broken, or not in pairs of one size; an id has no name.
    """
    base = Path("" if root is None else root).expanduser()
    codes, room = _codes(base, classes, merge, keep, coded), Room(None, memory_gb)
    part = pair_up(existing_folder("test", folder), LAYOUT)
    found = labelled(room, part, codes, size, part.sizes())
    room.warn()
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
    """A path that may begin at the base."""
    return base / Path(path).expanduser()
