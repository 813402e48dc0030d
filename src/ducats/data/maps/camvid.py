"""CARLA to CamVid, with the ten classes that both share. Nothing is downloaded."""

import re
from collections.abc import Mapping
from pathlib import Path

from ducats.data.decoding import ImageSize
from ducats.data.folders import check_disjoint
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
    """Find a split of CamVid and the encoding of its label files.

    Args:
        root: A folder with ``train/`` and ``trainannot/`` (SegNet's copy, ids), or ``train/`` and
            ``train_labels/..._L.png`` (colours), or ``701_StillsRaw_full/`` and
            ``LabeledApproved_full/..._L.png`` (the original, colours). Label files may be missing.
        split: ``train``, ``val`` or ``test``, as defined by the authors of SegNet.

    Raises:
        UserError: The folder has none of these layouts. Unpaired files do not raise; they are listed in
            ``problems``.
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
        f"CamVid: {folder} contains neither {split}/ and {split}annot/ (or {split}_labels/) nor"
        f" {_ORIGINAL.images}/ and {_ORIGINAL.labels}/; get them from"
        " http://mi.eng.cam.ac.uk/research/projects/VideoRec/CamVid (Brostow et al., 2008)"
    )


def camvid_split(key: str) -> str:
    """Return the split of a frame of the original data set, from its sequence and frame number.

    >>> [camvid_split(key) for key in ("0001TP_008520.png", "0001TP_008550.png", "0016E5_07959.png")]
    ['train', 'test', 'val']
    """
    found = re.search(r"(0001TP|0006R0|0016E5|Seq05VD)_f?(\d+)", key)
    if found is None:
        raise UserError(f"{key} is not a CamVid frame name such as 0001TP_006690.png; remove the file")
    sequence, frame = found[1], int(found[2])
    if sequence == "0016E5":
        return "val" if 7959 <= frame <= 8159 else "train"
    return "test" if sequence == "Seq05VD" or (sequence == "0001TP" and frame > 8520) else "train"


def carla(root: str | Path, version: str = "0.9.14") -> tuple[Part, Codes]:
    """Find CARLA renderings and the encoding of the tags in the red channel of their label files.

    Args:
        root: A folder with ``images/`` and ``labels/``, or ``CameraRGB/`` and ``CameraSeg/``, or ``rgb/`` and
            ``semantic_segmentation/``.
        version: The CARLA version that rendered the images. Tags were renumbered in 0.9.14.

    Raises:
        UserError: The folder has none of these layouts. Unpaired files do not raise; they are listed in
            ``problems``.
    """
    if not re.fullmatch(r"\d+(\.\d+)*", str(version)):
        raise UserError(
            f"data.params.version={version!r} is not a CARLA version; give the version that rendered the"
            " images, such as 0.9.14"
        )
    new = tuple(int(number) for number in str(version).split(".")) >= (0, 9, 14)
    folder = Path(root).expanduser()
    layout = next((layout for layout in CARLA_LAYOUTS if layout.there(folder)), None)
    if layout is None:
        pairs = " or ".join(f"{layout.images}/ and {layout.labels}/" for layout in CARLA_LAYOUTS)
        raise UserError(f"CARLA: {folder} does not contain {pairs}; check data.params.source")
    return find_pairs(folder, layout), shared_codes(CARLA_NEW if new else CARLA_OLD, CARLA_VOID, "red")


@Reader
def carla_camvid(
    *,
    source: str | Path,
    target: str | Path,
    version: str = "0.9.14",
    test: str | Path = "test",
    size: ImageSize = (360, 480),
    source_size: ImageSize | None = None,
    void: Void = "known",
    ids: Mapping[int, str] | None = None,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Listing:
    """Read CARLA to CamVid for segmentation, with ten classes and void.

    The classes are road, sidewalk, building (with walls), fence, pole, sign (with lights), vegetation (with
    terrain), sky, person (with riders) and car (with trucks and buses, which neither older CARLA versions nor
    SegNet's copy of CamVid distinguish). The pool is CamVid's train split. If the train split has no label
    files, there is no ground truth and human annotators label the pool. The test split may then lack label
    files as well, in which case nothing is evaluated.

    Args:
        source: The folder of CARLA; see ``carla``.
        target: The folder of CamVid; see ``camvid``.
        version: The CARLA version that rendered the images. Tags were renumbered in 0.9.14.
        test: The split to evaluate on: ``test`` or ``val``.
        size: Height and width of target images.
        source_size: Height and width of source images. Defaults to ``size``.
        void: ``known``: void pixels of the pool are excluded beforehand and never queried. This reads the
            positions of void pixels from the target's label files, but no classes. ``asked``: void pixels
            are not excluded, and querying one costs budget.
        ids: Names for tags that are missing from the tables, such as ``{255: void}``. Unknown ids raise.
        cache: Folder for decoded images and label maps that do not fit in memory; see ``decode``.
        memory_gb: Memory for decoded images and label maps together, in gigabytes. None: see ``decode``.

    Raises:
        UserError: Files are missing, corrupt, unpaired or of different sizes, or an id is unknown.
    """
    split = str(test)  # in other data sets this parameter is a folder, so it may be a Path
    if split not in ("test", "val"):
        raise UserError(f"data.params.test={split!r} is not a CamVid split to evaluate on; set test or val")
    rendered, tags = carla(source, version)
    pool, names = camvid(target, "train")
    held_out, names = _measured(target, split, pool, names)
    check_disjoint(Path(source).expanduser(), Path(target).expanduser(), None)
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
    """Return the evaluation split, if it has label files, and the encoding of the target's label files."""
    try:
        found, own = camvid(target, split)
    except UserError:
        if pool.labels is None:
            return None, codes
        raise
    if pool.labels is None:
        return (None, codes) if found.labels is None else (found, own)
    if found.labels is None:
        # Otherwise the run would silently evaluate on the pool.
        raise UserError(
            f"CamVid in {target}: the train split has label files, but the {split} split has none; add them, "
            "or evaluate on the other split (data.params.test: test or val)"
        )
    if own.coded != codes.coded:
        raise UserError(f"CamVid in {target}: one split has ids and another has colours; use a single copy")
    return found, own
