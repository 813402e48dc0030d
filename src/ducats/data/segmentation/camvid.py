"""CARLA to CamVid, with the ten classes that both share. Nothing is downloaded."""

import re
from collections.abc import Mapping
from pathlib import Path

from ducats.data.decoding import ImageSize
from ducats.data.folders import check_disjoint
from ducats.data.segmentation.class_tables import (
    CAMVID_COLOURS,
    CAMVID_VOID,
    CARLA_IDS_BEFORE_0_9_14,
    CARLA_IDS_SINCE_0_9_14,
    CARLA_VOID,
    SEGNET_IDS,
    carla_camvid_encoding,
    names_by_colour_id,
)
from ducats.data.segmentation.file_pairs import FileLayout, SplitFiles, find_pairs
from ducats.data.segmentation.label_encoding import LabelEncoding
from ducats.data.segmentation.reader import SegmentationListing, SegmentationReader, VoidPixels
from ducats.utils.errors import UserError

_CARLA_LAYOUTS = (
    FileLayout("images", "labels"),
    FileLayout("CameraRGB", "CameraSeg"),
    FileLayout("rgb", "semantic_segmentation"),
)
_ORIGINAL_LAYOUT = FileLayout("701_StillsRaw_full", "LabeledApproved_full", ".png", "_L.png")


def find_camvid(root: str | Path, split: str) -> tuple[SplitFiles, LabelEncoding]:
    """Find a split of CamVid and the encoding of its label files.

    Args:
        root: A folder with ``train/`` and ``trainannot/`` (SegNet's copy, ids), or ``train/`` and
            ``train_labels/..._L.png`` (colours), or ``701_StillsRaw_full/`` and
            ``LabeledApproved_full/..._L.png`` (the original, colours). Label files may be missing.
        split: ``train``, ``val`` or ``test``, as defined by the authors of SegNet.
    """
    folder = Path(root).expanduser()
    id_encoding = carla_camvid_encoding(SEGNET_IDS, CAMVID_VOID, "ids")
    colour_encoding = carla_camvid_encoding(names_by_colour_id(CAMVID_COLOURS), CAMVID_VOID, "colours")
    segnet_layout = FileLayout(split, f"{split}annot")
    colour_copy_layout = FileLayout(split, f"{split}_labels", label_suffix="_L.png")
    for layout, encoding in ((segnet_layout, id_encoding), (colour_copy_layout, colour_encoding)):
        if layout.exists_in(folder) and layout.has_label_files(folder):
            return find_pairs(folder, layout), encoding

    def in_split(key: str) -> bool:
        return camvid_split(key) == split

    if _ORIGINAL_LAYOUT.exists_in(folder) and _ORIGINAL_LAYOUT.has_label_files(folder, in_split):
        return find_pairs(folder, _ORIGINAL_LAYOUT, predicate=in_split), colour_encoding
    if (folder / split).is_dir():
        return find_pairs(folder, segnet_layout, with_labels=False), id_encoding
    if (folder / _ORIGINAL_LAYOUT.images).is_dir():
        return find_pairs(folder, _ORIGINAL_LAYOUT, with_labels=False, predicate=in_split), colour_encoding
    raise UserError(
        f"CamVid: {folder} contains neither {split}/ and {split}annot/ (or {split}_labels/) nor"
        f" {_ORIGINAL_LAYOUT.images}/ and {_ORIGINAL_LAYOUT.labels}/; get them from"
        " http://mi.eng.cam.ac.uk/research/projects/VideoRec/CamVid (Brostow et al., 2008)"
    )


def camvid_split(key: str) -> str:
    """Return the split of a frame of the original data set, from its sequence and frame number.

    >>> [camvid_split(key) for key in ("0001TP_008520.png", "0001TP_008550.png", "0016E5_07959.png")]
    ['train', 'test', 'val']
    """
    match = re.search(r"(0001TP|0006R0|0016E5|Seq05VD)_f?(\d+)", key)
    if match is None:
        raise UserError(f"{key} is not a CamVid frame name such as 0001TP_006690.png; remove the file")
    sequence, frame = match[1], int(match[2])
    if sequence == "0016E5":
        return "val" if 7959 <= frame <= 8159 else "train"
    return "test" if sequence == "Seq05VD" or (sequence == "0001TP" and frame > 8520) else "train"


def find_carla(root: str | Path, carla_version: str = "0.9.14") -> tuple[SplitFiles, LabelEncoding]:
    """Find CARLA renderings and the encoding of the tags in the red channel of their label files.

    Args:
        root: A folder with ``images/`` and ``labels/``, or ``CameraRGB/`` and ``CameraSeg/``, or ``rgb/`` and
            ``semantic_segmentation/``.
        carla_version: The CARLA version that rendered the images. Tags were renumbered in 0.9.14.
    """
    if not re.fullmatch(r"\d+(\.\d+)*", str(carla_version)):
        raise UserError(
            f"data.params.carla_version={carla_version!r} is not a CARLA version; give the version that"
            " rendered the images, such as 0.9.14"
        )
    is_renumbered = tuple(int(number) for number in str(carla_version).split(".")) >= (0, 9, 14)
    folder = Path(root).expanduser()
    layout = next((layout for layout in _CARLA_LAYOUTS if layout.exists_in(folder)), None)
    if layout is None:
        pairs = " or ".join(f"{layout.images}/ and {layout.labels}/" for layout in _CARLA_LAYOUTS)
        raise UserError(f"CARLA: {folder} does not contain {pairs}; check data.params.source")
    id_names = CARLA_IDS_SINCE_0_9_14 if is_renumbered else CARLA_IDS_BEFORE_0_9_14
    return find_pairs(folder, layout), carla_camvid_encoding(id_names, CARLA_VOID, "red_channel")


@SegmentationReader
def carla_camvid(
    *,
    source: str | Path,
    target: str | Path,
    carla_version: str = "0.9.14",
    test: str | Path = "test",
    size: ImageSize = (360, 480),
    source_size: ImageSize | None = None,
    void_pixels: VoidPixels = "excluded",
    extra_ids: Mapping[int, str] | None = None,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> SegmentationListing:
    """Read CARLA to CamVid for segmentation, with ten classes and void.

    The classes are road, sidewalk, building (with walls), fence, pole, sign (with lights), vegetation (with
    terrain), sky, person (with riders) and car (with trucks and buses, which neither older CARLA versions nor
    SegNet's copy of CamVid distinguish). The pool is CamVid's train split. If the train split has no label
    files, there is no ground truth and human annotators label the pool. The test split may then lack label
    files as well, in which case nothing is evaluated.

    Args:
        source: The folder of CARLA; see ``find_carla``.
        target: The folder of CamVid; see ``find_camvid``.
        carla_version: See ``find_carla``.
        test: The split to evaluate on: ``test`` or ``val``.
        source_size: Height and width of source images. Defaults to ``size``.
        extra_ids: Names for tags that are missing from the tables, such as ``{255: void}``. Unknown ids
            raise.

    The other parameters are those of ``gtav_cityscapes``.
    """
    split = str(test)  # in other data sets this parameter is a folder, so it may be a Path
    if split not in ("test", "val"):
        raise UserError(f"data.params.test={split!r} is not a CamVid split to evaluate on; set test or val")
    source_files, source_encoding = find_carla(source, carla_version)
    pool_files, target_encoding = find_camvid(target, "train")
    test_files, target_encoding = _find_test_files(target, split, pool_files, target_encoding)
    check_disjoint(Path(source).expanduser(), Path(target).expanduser(), None)
    return SegmentationListing(
        source_files,
        pool_files,
        test_files,
        encodings=(source_encoding.with_ids(extra_ids), target_encoding),
        size=size,
        source_size=source_size,
        void_pixels=void_pixels,
        cache=cache,
        memory_gb=memory_gb,
    )


def _find_test_files(
    target: str | Path, split: str, pool_files: SplitFiles, pool_encoding: LabelEncoding
) -> tuple[SplitFiles | None, LabelEncoding]:
    """Return the evaluation split, if it has label files, and the encoding of the target's label files."""
    try:
        test_files, test_encoding = find_camvid(target, split)
    except UserError:
        if pool_files.labels is None:
            return None, pool_encoding
        raise
    if pool_files.labels is None:
        return (None, pool_encoding) if test_files.labels is None else (test_files, test_encoding)
    if test_files.labels is None:
        # Otherwise the run would silently evaluate on the pool.
        raise UserError(
            f"CamVid in {target}: the train split has label files, but the {split} split has none; add them, "
            "or evaluate on the other split (data.params.test: test or val)"
        )
    if test_encoding.label_format != pool_encoding.label_format:
        raise UserError(f"CamVid in {target}: one split has ids and another has colours; use a single copy")
    return test_files, test_encoding
