"""GTAV and SYNTHIA to Cityscapes, in the layouts of their authors. Nothing is downloaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ducats.data.decoding import ImageSize
from ducats.data.segmentation.class_tables import (
    CITYSCAPES_IDS,
    CITYSCAPES_VOID,
    CLASSES_13,
    CLASSES_16,
    CLASSES_19,
    GTAV_IDS,
    SYNTHIA_IDS,
    SYNTHIA_VOID,
)
from ducats.data.segmentation.file_pairs import FileLayout, SplitFiles, find_pairs
from ducats.data.segmentation.label_encoding import LabelEncoding, LabelFormat
from ducats.data.segmentation.reader import SegmentationListing, SegmentationReader, VoidPixels
from ducats.utils.errors import UserError


@dataclass(frozen=True)
class StreetDataset:
    """Layout and label encoding of a street-scene data set."""

    title: str
    download_from: str  # URL and reference
    id_names: Mapping[int, str]
    void_names: tuple[str, ...]
    layouts: Mapping[str, FileLayout]  # by split
    label_format: LabelFormat = "ids"

    def find_files(
        self, folder: str | Path, split: str, param: str, *, with_labels: bool = True
    ) -> SplitFiles:
        """Return the images of a split, with or without label files."""
        root, layout = Path(folder).expanduser(), self.layouts[split]
        if not (layout.exists_in(root) if with_labels else (root / layout.images).is_dir()):
            raise UserError(
                f"{self.title}: {root} does not contain the folders {layout.images} and {layout.labels}; get"
                f" them from {self.download_from}, and set data.params.{param} to the folder that contains"
                " them"
            )
        return find_pairs(root, layout, with_labels=with_labels)

    def encoding(self, classes: tuple[str, ...], extra_ids: Mapping[int, str] | None) -> LabelEncoding:
        """Return the label encoding for the given classes; others of the nineteen become void."""
        members = {name: (name,) for name in classes}
        void_names = frozenset(self.void_names) | (frozenset(CLASSES_19) - frozenset(classes))
        encoding = LabelEncoding(classes, self.id_names, members, void_names, self.label_format)
        return encoding.with_ids(extra_ids)


GTAV_DATASET = StreetDataset(
    "GTAV",
    "https://download.visinf.tu-darmstadt.de/data/from_games (Richter et al., ECCV 2016)",
    GTAV_IDS,
    CITYSCAPES_VOID,
    {"all": FileLayout("images", "labels")},
)
SYNTHIA_DATASET = StreetDataset(
    "SYNTHIA-RAND-CITYSCAPES",
    "https://synthia-dataset.net (Ros et al., CVPR 2016)",
    SYNTHIA_IDS,
    SYNTHIA_VOID,
    {"all": FileLayout("RGB", "GT/LABELS")},
    "red_channel",
)
CITYSCAPES_DATASET = StreetDataset(
    "Cityscapes",
    "https://www.cityscapes-dataset.com (Cordts et al., CVPR 2016), leftImg8bit and gtFine",
    CITYSCAPES_IDS,
    CITYSCAPES_VOID,
    {
        split: FileLayout(
            f"leftImg8bit/{split}", f"gtFine/{split}", "_leftImg8bit.png", "_gtFine_labelIds.png"
        )
        for split in ("train", "val")
    },
)
_CLASSES_BY_COUNT = {19: CLASSES_19, 16: CLASSES_16, 13: CLASSES_13}
# These images do not match their label files in the published GTAV.
_MISMATCHED_GTAV_KEYS = ("15188.png", "17705.png")


@SegmentationReader
def gtav_cityscapes(
    *,
    source: str | Path,
    target: str | Path,
    classes: int = 19,
    size: ImageSize = (640, 1280),
    source_size: ImageSize = (720, 1280),
    void_pixels: VoidPixels = "excluded",
    extra_ids: Mapping[int, str] | None = None,
    skip_keys: Sequence[str] = _MISMATCHED_GTAV_KEYS,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> SegmentationListing:
    """Read GTAV to Cityscapes for segmentation, with 19 classes and void.

    The pool is Cityscapes' train split, the test set its val split. Sizes are as published. Images are
    resized with a bicubic filter, label maps to the nearest pixel, both without keeping the aspect ratio.
    Keys are paths within the image folders. If the train split has no label files, there is no ground truth
    and human annotators label the pool. The val split may then lack label files as well, in which case
    nothing is evaluated.

    Args:
        source: The folder of GTAV: ``images/00001.png``, ``labels/00001.png``.
        target: The folder of Cityscapes: ``leftImg8bit/train/CITY/..._leftImg8bit.png``,
            ``gtFine/train/CITY/..._gtFine_labelIds.png``, and ``val`` likewise.
        classes: 19, or the subset of 16 or 13 that SYNTHIA is evaluated on. All other classes become void.
        size: Height and width of target images.
        source_size: Height and width of source images.
        void_pixels: ``excluded``: void pixels of the pool (the bonnet, a border, all classes that are not
            used) are excluded beforehand and never queried. This reads their positions, but no classes, from
            the target's label files, so results are not comparable with published ones. ``queried``
            (published): void pixels are not excluded, and querying one costs budget.
        extra_ids: Names for ids that are missing from the published lists, such as ``{255: void}``. Unknown
            ids raise.
        skip_keys: Keys of source images to exclude. The two defaults do not match their label files.
        cache, memory_gb: See ``decode_images``; the memory is that of images and label maps together.
    """
    files = _find_files(GTAV_DATASET, source, target)
    skipped = set(skip_keys)
    files = (files[0].filter_keys(lambda key: key not in skipped), *files[1:])
    return SegmentationListing(
        *files,
        encodings=_encodings(GTAV_DATASET, classes, (19, 16, 13), extra_ids),
        size=size,
        source_size=source_size,
        void_pixels=void_pixels,
        cache=cache,
        memory_gb=memory_gb,
    )


@SegmentationReader
def synthia_cityscapes(
    *,
    source: str | Path,
    target: str | Path,
    classes: int = 16,
    size: ImageSize = (640, 1280),
    source_size: ImageSize = (720, 1280),
    void_pixels: VoidPixels = "excluded",
    extra_ids: Mapping[int, str] | None = None,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> SegmentationListing:
    """Read SYNTHIA to Cityscapes for segmentation, with 16 classes and void.

    The rest, including the other parameters, is as in ``gtav_cityscapes``.

    Args:
        source: The folder of SYNTHIA-RAND-CITYSCAPES: ``RGB/0000000.png``, ``GT/LABELS/0000000.png``.
        classes: 16, or 13 without wall, fence and pole. All other classes become void.
    """
    return SegmentationListing(
        *_find_files(SYNTHIA_DATASET, source, target),
        encodings=_encodings(SYNTHIA_DATASET, classes, (16, 13), extra_ids),
        size=size,
        source_size=source_size,
        void_pixels=void_pixels,
        cache=cache,
        memory_gb=memory_gb,
    )


def _find_files(
    source_dataset: StreetDataset, source: str | Path, target: str | Path
) -> tuple[SplitFiles, SplitFiles, SplitFiles | None]:
    source_files = source_dataset.find_files(source, "all", "source")
    has_labels = {
        split: layout.has_label_files(Path(target).expanduser())
        for split, layout in CITYSCAPES_DATASET.layouts.items()
    }
    pool_files = CITYSCAPES_DATASET.find_files(target, "train", "target", with_labels=has_labels["train"])
    # With labels only in the train split, the copy is incomplete and the run would evaluate on the pool.
    has_test = any(has_labels.values())
    test_files = CITYSCAPES_DATASET.find_files(target, "val", "target") if has_test else None
    return source_files, pool_files, test_files


def _encodings(
    source_dataset: StreetDataset, classes: int, allowed: tuple[int, ...], extra_ids: Mapping[int, str] | None
) -> tuple[LabelEncoding, LabelEncoding]:
    """Return the label encodings of source and target."""
    if classes not in allowed:
        raise UserError(
            f"{source_dataset.title} to Cityscapes has {' or '.join(map(str, allowed))} classes, not"
            f" {classes!r}; set data.params.classes to one of these"
        )
    names = _CLASSES_BY_COUNT[classes]
    return source_dataset.encoding(names, extra_ids), CITYSCAPES_DATASET.encoding(names, extra_ids)
