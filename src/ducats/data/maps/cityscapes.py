"""GTAV and SYNTHIA to Cityscapes, in the layouts of their authors. Nothing is downloaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ducats.data.decoding import ImageSize
from ducats.data.maps.codes import Codes, Coding
from ducats.data.maps.loading import Listing, Reader, Void
from ducats.data.maps.pairs import Layout, Part, find_pairs
from ducats.data.maps.tables import (
    CITYSCAPES_IDS,
    CITYSCAPES_VOID,
    CLASSES_13,
    CLASSES_16,
    CLASSES_19,
    GTAV_IDS,
    SYNTHIA_IDS,
    SYNTHIA_VOID,
    street_codes,
)
from ducats.errors import UserError


@dataclass(frozen=True)
class Streets:
    """Layout and label encoding of a street-scene data set."""

    title: str
    published: str  # URL and reference
    ids: Mapping[int, str]
    void: tuple[str, ...]
    layouts: Mapping[str, Layout]  # by split
    coded: Coding = "ids"

    def labelled(self, folder: str | Path, split: str) -> bool:
        """Return whether a split has label files."""
        return self.layouts[split].labelled(Path(folder).expanduser())

    def part(self, folder: str | Path, split: str, option: str, *, labelled: bool = True) -> Part:
        """Return the images of a split, with or without label files."""
        root, layout = Path(folder).expanduser(), self.layouts[split]
        if not (layout.there(root) if labelled else (root / layout.images).is_dir()):
            raise UserError(
                f"{self.title}: {root} does not contain the folders {layout.images} and {layout.labels}; get"
                f" them from {self.published}, and set data.params.{option} to the folder that contains them"
            )
        return find_pairs(root, layout, labelled=labelled)

    def codes(self, classes: tuple[str, ...], ids: Mapping[int, str] | None) -> Codes:
        """Return the label encoding for the given classes."""
        return street_codes(self.ids, self.void, classes, self.coded).also(ids)


GTAV = Streets(
    "GTAV",
    "https://download.visinf.tu-darmstadt.de/data/from_games (Richter et al., ECCV 2016)",
    GTAV_IDS,
    CITYSCAPES_VOID,
    {"all": Layout("images", "labels")},
)
SYNTHIA = Streets(
    "SYNTHIA-RAND-CITYSCAPES",
    "https://synthia-dataset.net (Ros et al., CVPR 2016)",
    SYNTHIA_IDS,
    SYNTHIA_VOID,
    {"all": Layout("RGB", "GT/LABELS")},
    "red",
)
CITYSCAPES = Streets(
    "Cityscapes",
    "https://www.cityscapes-dataset.com (Cordts et al., CVPR 2016), leftImg8bit and gtFine",
    CITYSCAPES_IDS,
    CITYSCAPES_VOID,
    {
        split: Layout(f"leftImg8bit/{split}", f"gtFine/{split}", "_leftImg8bit.png", "_gtFine_labelIds.png")
        for split in ("train", "val")
    },
)
_CLASSES = {19: CLASSES_19, 16: CLASSES_16, 13: CLASSES_13}
_NO_PAIRS = ("15188.png", "17705.png")  # these images do not match their label files in the published GTAV


@Reader
def gtav_cityscapes(
    *,
    source: str | Path,
    target: str | Path,
    classes: int = 19,
    size: ImageSize = (640, 1280),
    source_size: ImageSize = (720, 1280),
    void: Void = "known",
    ids: Mapping[int, str] | None = None,
    skip: Sequence[str] = _NO_PAIRS,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Listing:
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
        void: ``known``: void pixels of the pool (the bonnet, a border) are excluded beforehand and never
            queried. This reads the positions of void pixels from the target's label files, but no classes.
            ``asked`` (published): void pixels are not excluded, and querying one costs budget.
        ids: Names for ids that are missing from the published lists, such as ``{255: void}``. Unknown ids
            raise.
        skip: Keys of source images to exclude. The two defaults do not match their label files.
        cache: Folder for decoded images and label maps that do not fit in memory; see ``decode``.
        memory_gb: Memory for decoded images and label maps together, in gigabytes. None: see ``decode``.

    Raises:
        UserError: Files are missing, corrupt, unpaired or of different sizes, or an id is unknown.
    """
    parts = _parts(GTAV, source, target)
    skipped = set(skip)
    parts = (parts[0].only(lambda key: key not in skipped), *parts[1:])
    return Listing(
        *parts,
        codes=_codes(GTAV, classes, (19, 16, 13), ids),
        size=size,
        source_size=source_size,
        void=void,
        cache=cache,
        memory_gb=memory_gb,
    )


@Reader
def synthia_cityscapes(
    *,
    source: str | Path,
    target: str | Path,
    classes: int = 16,
    size: ImageSize = (640, 1280),
    source_size: ImageSize = (720, 1280),
    void: Void = "known",
    ids: Mapping[int, str] | None = None,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Listing:
    """Read SYNTHIA to Cityscapes for segmentation, with 16 classes and void.

    The pool is Cityscapes' train split, the test set its val split. Sizes are as published. Images are
    resized with a bicubic filter, label maps to the nearest pixel, both without keeping the aspect ratio.
    Keys are paths within the image folders.

    Args:
        source: The folder of SYNTHIA-RAND-CITYSCAPES: ``RGB/0000000.png``, ``GT/LABELS/0000000.png``.
        target: The folder of Cityscapes; see ``gtav_cityscapes``.
        classes: 16, or 13 without wall, fence and pole. All other classes become void.
        size: Height and width of target images.
        source_size: Height and width of source images.
        void: ``known`` or ``asked``; see ``gtav_cityscapes``.
        ids: Names for ids that are missing from the published lists, such as ``{255: void}``. Unknown ids
            raise.
        cache: Folder for decoded images and label maps that do not fit in memory; see ``decode``.
        memory_gb: Memory for decoded images and label maps together, in gigabytes. None: see ``decode``.

    Raises:
        UserError: Files are missing, corrupt, unpaired or of different sizes, or an id is unknown.
    """
    return Listing(
        *_parts(SYNTHIA, source, target),
        codes=_codes(SYNTHIA, classes, (16, 13), ids),
        size=size,
        source_size=source_size,
        void=void,
        cache=cache,
        memory_gb=memory_gb,
    )


def _parts(streets: Streets, source: str | Path, target: str | Path) -> tuple[Part, Part, Part | None]:
    rendered = streets.part(source, "all", "source")
    known = CITYSCAPES.labelled(target, "train")
    pool = CITYSCAPES.part(target, "train", "target", labelled=known)
    # With labels only in the train split, the copy is incomplete and the run would evaluate on the pool.
    measured = known or CITYSCAPES.labelled(target, "val")
    return rendered, pool, CITYSCAPES.part(target, "val", "target") if measured else None


def _codes(
    streets: Streets, classes: int, known: tuple[int, ...], ids: Mapping[int, str] | None
) -> tuple[Codes, Codes]:
    """Return the label encodings of source and target."""
    if classes not in known:
        raise UserError(
            f"{streets.title} to Cityscapes has {' or '.join(map(str, known))} classes, not {classes!r};"
            " set data.params.classes to one of these"
        )
    return streets.codes(_CLASSES[classes], ids), CITYSCAPES.codes(_CLASSES[classes], ids)
