"""GTAV and SYNTHIA to Cityscapes, each as its authors lay it out; nothing is fetched."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ducats.data.decode import Size
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
    """One data set of street scenes."""

    title: str
    published: str  # where to get it
    ids: Mapping[int, str]
    void: tuple[str, ...]
    layouts: Mapping[str, Layout]  # by split
    coded: Coding = "ids"

    def labelled(self, folder: str | Path, split: str) -> bool:
        """Whether a split has label files."""
        return self.layouts[split].labelled(Path(folder).expanduser())

    def part(self, folder: str | Path, split: str, option: str, *, labelled: bool = True) -> Part:
        """The images of a split, with their label files or without."""
        root, layout = Path(folder).expanduser(), self.layouts[split]
        if not (layout.there(root) if labelled else (root / layout.images).is_dir()):
            raise UserError(
                f"{self.title}: {root} does not hold the folders {layout.images} and {layout.labels}; get"
                f" them from {self.published}, and give the folder that holds them as data.knobs.{option}"
            )
        return find_pairs(root, layout, labelled=labelled)

    def codes(self, classes: tuple[str, ...], ids: Mapping[int, str] | None) -> Codes:
        """What its numbers mean, for these classes."""
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
_NO_PAIRS = ("15188.png", "17705.png")  # in the copy of GTAV that its authors offer


@Reader
def gtav_cityscapes(
    *,
    source: str | Path,
    target: str | Path,
    classes: int = 19,
    size: Size = (640, 1280),
    source_size: Size = (720, 1280),
    void: Void = "known",
    ids: Mapping[int, str] | None = None,
    skip: Sequence[str] = _NO_PAIRS,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Listing:
    """Read GTAV to Cityscapes: every pixel has a label, of 19 classes or of no class.

    The pool is Cityscapes' train split, the test its val split. Sizes are as published. Images are squashed
    with a bicubic filter, label maps to the nearest pixel. Keys are paths within the folders of images.
    Without any label file of the train split there is no truth, and people are asked; then val may lack label
    files, too, and nothing is measured.

    Args:
        source: The folder of GTAV: ``images/00001.png``, ``labels/00001.png``.
        target: The folder of Cityscapes: ``leftImg8bit/train/CITY/..._leftImg8bit.png``,
            ``gtFine/train/CITY/..._gtFine_labelIds.png``, and ``val`` likewise.
        classes: 19; or the 16, or the 13 of them, that SYNTHIA is measured on. The others become void.
        size: Height and width of target images.
        source_size: Height and width of source images.
        void: ``known``: pixels of the pool whose true label is void (a bonnet, a border) are known
            beforehand and never asked. This reads which target pixels have no class, and nothing else of
            their labels. ``asked``, as published: nobody knows, and asking about one is spent.
        ids: Names for ids that the authors' lists lack, as ``{255: void}``; unknown ids are refused.
        skip: Keys of source images to leave out. The two of the default do not fit their label files.
        cache: Where decoded images and maps go that do not fit in memory; see ``decode``.
        memory_gb: Gigabytes of both to hold in memory, in all; None: see ``decode``.

    Raises:
        UserError: Files are missing, broken, or not in pairs of one size; an id has no name.
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
    size: Size = (640, 1280),
    source_size: Size = (720, 1280),
    void: Void = "known",
    ids: Mapping[int, str] | None = None,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Listing:
    """Read SYNTHIA to Cityscapes: every pixel has a label, of 16 classes or of no class.

    The pool is Cityscapes' train split, the test its val split. Sizes are as published. Images are squashed
    with a bicubic filter, label maps to the nearest pixel. Keys are paths within the folders of images.

    Args:
        source: The folder of SYNTHIA-RAND-CITYSCAPES: ``RGB/0000000.png``, ``GT/LABELS/0000000.png``.
        target: The folder of Cityscapes; see ``gtav_cityscapes``.
        classes: 16, or 13 without wall, fence and pole. The others become void.
        size: Height and width of target images.
        source_size: Height and width of source images.
        void: ``known`` or ``asked``; see ``gtav_cityscapes``.
        ids: Names for ids that the authors' lists lack, as ``{255: void}``; unknown ids are refused.
        cache: Where decoded images and maps go that do not fit in memory; see ``decode``.
        memory_gb: Gigabytes of both to hold in memory, in all; None: see ``decode``.

    Raises:
        UserError: Files are missing, broken, or not in pairs of one size; an id has no name.
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
    # A copy whose train split alone has labels is not whole, and would be measured on the pool unasked.
    measured = known or CITYSCAPES.labelled(target, "val")
    return rendered, pool, CITYSCAPES.part(target, "val", "target") if measured else None


def _codes(
    streets: Streets, classes: int, known: tuple[int, ...], ids: Mapping[int, str] | None
) -> tuple[Codes, Codes]:
    """The codes of source and target."""
    if classes not in known:
        raise UserError(
            f"{streets.title} to Cityscapes has {' or '.join(map(str, known))} classes, not {classes!r};"
            " give one of these as data.knobs.classes"
        )
    return streets.codes(_CLASSES[classes], ids), CITYSCAPES.codes(_CLASSES[classes], ids)
