"""Segmentation data in folders with images and label files, described by a class list."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ducats.data.decoding import ImageSize, parse_value_range
from ducats.data.domain import Domain
from ducats.data.folders import check_disjoint, existing_folder
from ducats.data.segmentation.class_list import encoding_from_class_list
from ducats.data.segmentation.file_pairs import FileLayout, concat_files, find_pairs
from ducats.data.segmentation.label_encoding import LabelEncoding, LabelFormat
from ducats.data.segmentation.reader import SegmentationListing, SegmentationReader, VoidPixels, load_labelled
from ducats.data.store import ArrayStore
from ducats.utils.errors import UserError
from ducats.utils.image_files import ValueRange

FOLDER_LAYOUT = FileLayout("images", "labels")
MASK_FOLDER = "masks"


@SegmentationReader
def segmentation_folders(
    *,
    source: str | Path | Sequence[str | Path],
    target: str | Path,
    classes: str | Path | Mapping[Any, str] | Sequence[str],
    test: str | Path | None = None,
    root: str | Path | None = None,
    ground_truth: bool = False,
    merge_classes: Mapping[str, Sequence[str]] | None = None,
    keep_classes: Sequence[str] | None = None,
    label_format: LabelFormat = "ids",
    size: ImageSize = (512, 1024),
    source_size: ImageSize | None = None,
    range: Sequence[float] | None = None,
    void_pixels: VoidPixels = "excluded",
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> SegmentationListing:
    """Read segmentation data from folders with ``images/`` and ``labels/``.

    An image and its label file have the same relative path, except for the suffix. Images are resized with a
    bicubic filter, label maps to the nearest pixel, both without keeping the aspect ratio. Keys are paths
    within ``images/``, prefixed with the name of the source folder if there are several.

    Args:
        source: One or several folders with ``images/`` and ``labels/``.
        target: A folder with ``images/``. Its ``labels/`` are read only with ``ground_truth``.
        classes: The class list: a file with lines ``id name`` (or ``r g b name``), or a mapping. Ids that are
            not in the list raise. Names such as void and ignore, and names that end with ``(void)``, stand
            for pixels without a class.
        test: A folder of the target domain with ``images/`` and ``labels/``. May be the target folder.
        root: Base of relative paths; None for the current folder.
        ground_truth: Use the target's ``labels/`` as ground truth for a simulated oracle.
        merge_classes: For a class, the names to merge into it: ``{building: [wall]}``.
        keep_classes: The classes to keep, in order; all others become void. None keeps all.
        label_format: ``ids`` in the single channel of the label files, or, with ``red_channel``, in the red
            one.
        size: Height and width of target images.
        source_size: Height and width of source images. Defaults to ``size``.
        range: The values of black and white, in images with more than 8 bits per value: ``[0, 4095]``.
        void_pixels: ``excluded``: void pixels of the pool are excluded beforehand and never queried. With
            ``ground_truth``, their positions (but no classes) are read from the target's label files. If the
            target has a folder ``masks/``, non-zero pixels in its files are excluded as well. ``queried``:
            void pixels are not excluded, and querying one costs budget.
        cache: See ``decode_images``.
        memory_gb: See ``decode_images``; the memory is that of images and label maps together.
    """
    base = Path("" if root is None else root).expanduser()
    source_paths = [source] if isinstance(source, str | Path) else list(source)
    if not source_paths:
        raise UserError("data.params.source is empty; give one or more folders")
    source_folders = [existing_folder("source", _join(base, folder)) for folder in source_paths]
    target_folder = existing_folder("target", _join(base, target))
    test_folder = existing_folder("test", _join(base, test)) if test is not None else None
    for position, folder in enumerate(source_folders):
        check_disjoint(folder, target_folder, test_folder)
        for other in source_folders[:position]:
            one, two = folder.resolve(), other.resolve()
            if one == two or one in two.parents or two in one.parents:
                raise UserError(f"the source folders {other} and {folder} overlap; give each folder once")
    encoding = _make_encoding(base, classes, merge_classes, keep_classes, label_format)
    names = [folder.name for folder in source_folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in source_paths]
    return SegmentationListing(
        concat_files(
            [
                (name, find_pairs(folder, FOLDER_LAYOUT))
                for name, folder in zip(names, source_folders, strict=True)
            ]
        ),
        find_pairs(
            target_folder,
            FOLDER_LAYOUT,
            with_labels=ground_truth,
            mask_folder=MASK_FOLDER if void_pixels == "excluded" else None,
        ),
        None if test_folder is None else find_pairs(test_folder, FOLDER_LAYOUT),
        encodings=(encoding, encoding),
        size=size,
        source_size=source_size,
        value_range=parse_value_range(range),
        void_pixels=void_pixels,
        cache=cache,
        memory_gb=memory_gb,
    )


def load_segmentation_folder(
    folder: str | Path,
    *,
    size: ImageSize,
    classes: str | Path | Mapping[Any, str] | Sequence[str],
    root: str | Path | None = None,
    merge_classes: Mapping[str, Sequence[str]] | None = None,
    keep_classes: Sequence[str] | None = None,
    label_format: LabelFormat = "ids",
    value_range: ValueRange | None = None,
    memory_gb: float | None = None,
) -> Domain:
    """Read images with label maps, from a folder with ``images/`` and ``labels/``.

    The parameters are those of ``segmentation_folders``; ``root`` is the base of the class list only.
    """
    base = Path("" if root is None else root).expanduser()
    encoding = _make_encoding(base, classes, merge_classes, keep_classes, label_format)
    store = ArrayStore(None, memory_gb)
    files = find_pairs(existing_folder("test", folder), FOLDER_LAYOUT).validated()
    domain = load_labelled(store, *files.read_sizes(), encoding, size, value_range)
    store.warn_if_on_demand()
    return domain


def _make_encoding(
    base: Path,
    classes: Any,
    merge_classes: Mapping[str, Sequence[str]] | None,
    keep_classes: Sequence[str] | None,
    label_format: LabelFormat,
) -> LabelEncoding:
    is_path = isinstance(classes, str | Path)
    return encoding_from_class_list(
        _join(base, classes) if is_path else classes,
        merge_classes=merge_classes,
        keep_classes=keep_classes,
        label_format=label_format,
    )


def _join(base: Path, path: Any) -> Path:
    return base / Path(path).expanduser()
