"""CARLA's renderings to CamVid's streets, in the ten classes that both have; nothing is fetched."""

import re
from collections.abc import Mapping
from pathlib import Path

from ducats.data.decode import Size
from ducats.data.folders import check_apart
from ducats.data.maps.codes import Codes
from ducats.data.maps.loading import Listing, Reader, Void
from ducats.data.maps.pairs import Layout, Part, find_pairs
from ducats.data.maps.tables import (
    CAMVID_COLOURS,
    CAMVID_VOID,
    CARLA_NEW,
    CARLA_OLD,
    CARLA_VOID,
    SEGNET_IDS,
    colour_ids,
    shared_codes,
)
from ducats.errors import UserError

CARLA_LAYOUTS = (
    Layout("images", "labels"),
    Layout("CameraRGB", "CameraSeg"),
    Layout("rgb", "semantic_segmentation"),
)
_SPLITS = ("train", "val", "test")
_SEGNET = {split: Layout(split, f"{split}annot") for split in _SPLITS}
_COPY = {split: Layout(split, f"{split}_labels", label_end="_L.png") for split in _SPLITS}
_ORIGINAL = Layout("701_StillsRaw_full", "LabeledApproved_full", ".png", "_L.png")


def camvid(root: str | Path, split: str) -> tuple[Part, Codes]:
    """Find a split of CamVid, and what the numbers in its label files mean, if it has any.

    Args:
        root: A folder with ``train/`` and ``trainannot/`` (SegNet's copy, ids), or ``train/`` and
            ``train_labels/..._L.png`` (colours), or ``701_StillsRaw_full/`` and
            ``LabeledApproved_full/..._L.png`` (the original, colours). A split may be without label files.
        split: ``train``, ``val`` or ``test``, as SegNet's authors split it.

    Raises:
        UserError: There is none of these. Files that are not in pairs are the part's ``problems``.
    """
    folder = Path(root).expanduser()
    ids = shared_codes(SEGNET_IDS, CAMVID_VOID, "ids")
    colours = shared_codes(colour_ids(CAMVID_COLOURS), CAMVID_VOID, "colours")
    for layout, codes in ((_SEGNET[split], ids), (_COPY[split], colours)):
        if layout.there(folder) and layout.labelled(folder):
            return find_pairs(folder, layout), codes

    def wanted(key: str) -> bool:
        return camvid_split(key) == split

    if _ORIGINAL.there(folder) and _ORIGINAL.labelled(folder, wanted):
        return find_pairs(folder, _ORIGINAL, wanted=wanted), colours
    if (folder / split).is_dir():
        return find_pairs(folder, _SEGNET[split], labelled=False), ids
    if (folder / _ORIGINAL.images).is_dir():
        return find_pairs(folder, _ORIGINAL, labelled=False, wanted=wanted), colours
    raise UserError(
        f"CamVid: {folder} holds neither {split}/ and {split}annot/ (or {split}_labels/) nor"
        f" {_ORIGINAL.images}/ and {_ORIGINAL.labels}/; get them from"
        " http://mi.eng.cam.ac.uk/research/projects/VideoRec/CamVid (Brostow et al., 2008)"
    )


def camvid_split(key: str) -> str:
    """The split of a frame of the original, by its sequence and number.

    >>> [camvid_split(key) for key in ("0001TP_008520.png", "0001TP_008550.png", "0016E5_07959.png")]
    ['train', 'test', 'val']
    """
    found = re.search(r"(0001TP|0006R0|0016E5|Seq05VD)_f?(\d+)", key)
    if found is None:
        raise UserError(f"{key} is not named as a frame of CamVid is, such as 0001TP_006690.png; remove it")
    sequence, frame = found[1], int(found[2])
    if sequence == "0016E5":
        return "val" if 7959 <= frame <= 8159 else "train"
    return "test" if sequence == "Seq05VD" or (sequence == "0001TP" and frame > 8520) else "train"


def carla(root: str | Path, version: str = "0.9.14") -> tuple[Part, Codes]:
    """Find renderings of CARLA, and what the tags in the red channel of their label files mean.

    Args:
        root: A folder with ``images/`` and ``labels/``, or ``CameraRGB/`` and ``CameraSeg/``, or ``rgb/`` and
            ``semantic_segmentation/``.
        version: Of CARLA; its tags were numbered anew with 0.9.14.

    Raises:
        UserError: There is none of these. Files that are not in pairs are the part's ``problems``.
    """
    if not re.fullmatch(r"\d+(\.\d+)*", str(version)):
        raise UserError(f"{version!r} is no version of CARLA; give the one that rendered, such as 0.9.14")
    new = tuple(int(number) for number in str(version).split(".")) >= (0, 9, 14)
    folder = Path(root).expanduser()
    layout = next((layout for layout in CARLA_LAYOUTS if layout.there(folder)), None)
    if layout is None:
        pairs = " or ".join(f"{layout.images}/ and {layout.labels}/" for layout in CARLA_LAYOUTS)
        raise UserError(f"CARLA: {folder} does not hold {pairs}; check data.knobs.source")
    return find_pairs(folder, layout), shared_codes(CARLA_NEW if new else CARLA_OLD, CARLA_VOID, "red")


@Reader
def carla_camvid(
    *,
    source: str | Path,
    target: str | Path,
    version: str = "0.9.14",
    test: str | Path = "test",
    size: Size = (360, 480),
    source_size: Size | None = None,
    void: Void = "known",
    ids: Mapping[int, str] | None = None,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Listing:
    """Read CARLA to CamVid: every pixel has a label, of ten classes or of no class.

    Road, sidewalk, building (with walls), fence, pole, sign (with lights), vegetation (with terrain), sky,
    person (with riders) and car (with trucks and buses, which neither the older CARLA nor SegNet's copy of
    CamVid tells apart). The pool is CamVid's train split. Without any label file of it there is no truth, and
    people are asked; then the test split may lack label files, too, and nothing is measured.

    Args:
        source: Renderings and their tags; see ``carla``.
        target: The folder of CamVid; see ``camvid``.
        version: Of CARLA, for what its tags mean: they were numbered anew with 0.9.14.
        test: The split to measure on: ``test`` or ``val``.
        size: Height and width of target images.
        source_size: Height and width of source images; None for the same.
        void: ``known``: pixels of the pool whose true label is void are known beforehand and never asked.
            This reads which target pixels have no class, and nothing else of their labels. ``asked``:
            nobody knows, and asking about one is spent.
        ids: Names for CARLA's tags that the tables lack, as ``{255: void}``; unknown ids are refused.
        cache: Where decoded images and maps go that do not fit in memory; see ``decode``.
        memory_gb: Gigabytes of both to hold in memory, in all; None: see ``decode``.

    Raises:
        UserError: Files are missing, broken, or not in pairs of one size; an id has no name.
    """
    split = str(test)  # elsewhere a knob of this name is a folder, and may come as a path
    if split not in ("test", "val"):
        raise UserError(f"CamVid is measured on its test or val split, not on {split!r}; set data.knobs.test")
    rendered, tags = carla(source, version)
    pool, names = camvid(target, "train")
    held_out, names = _measured(target, split, pool, names)
    check_apart(Path(source).expanduser(), Path(target).expanduser(), None)
    return Listing(
        rendered,
        pool,
        held_out,
        codes=(tags.also(ids), names),
        size=size,
        source_size=source_size,
        void=void,
        cache=cache,
        memory_gb=memory_gb,
    )


def _measured(target: str | Path, split: str, pool: Part, codes: Codes) -> tuple[Part | None, Codes]:
    """The split to measure on, if it has label files, and what the numbers in the target's files mean."""
    try:
        found, own = camvid(target, split)
    except UserError:
        if pool.labels is None:
            return None, codes
        raise
    if pool.labels is None:
        return (None, codes) if found.labels is None else (found, own)
    if found.labels is None:
        # Without it, the pool would be measured on unasked.
        raise UserError(
            f"of CamVid in {target}, the train split has label files and the {split} split has none; add "
            "them, or measure on the other one (data.knobs.test: test or val)"
        )
    if own.coded != codes.coded:
        raise UserError(f"of CamVid in {target}, one split has ids and another colours; give one copy")
    return found, own
