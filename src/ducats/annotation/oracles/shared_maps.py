"""Label PNGs shared between runs: a pixel that a PNG answers is answered for every run that asks for it."""

import csv
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ducats.annotation.oracles.mask_files import CODE_NAMES, LabelCodes, read_label_png, read_labels_at
from ducats.annotation.shared_answers import AnswerBook
from ducats.data.segmentation.label_files import read_channels
from ducats.runfolder.question_names import ANSWER_MAPS, CLASSES, MASKS, QUESTIONS_TABLE, SHARED_MAPS
from ducats.runfolder.rounds import rounds_in
from ducats.utils.errors import UserError
from ducats.utils.files import write_atomically
from ducats.utils.npz_columns import AnyArray

MaskRow = Mapping[str, str]  # of the table of masks, see ``mask_files.MASK_TABLE_COLUMNS``


def read_mask_table(folder: Path) -> list[MaskRow]:
    """Return the rows of a round's table of masks; empty if there is none."""
    path = folder / QUESTIONS_TABLE
    if not path.exists() or not (folder / MASKS).is_dir():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_map_classes(folder: Path) -> list[str]:
    """Return the classes of a round's label PNGs, in the order of their values."""
    lines = (folder / CLASSES).read_text(encoding="utf-8").splitlines()
    names = [line.partition(" ")[2] for line in lines]
    return [name for name in names if name not in CODE_NAMES]


def write_shared_maps(folder: Path, book: AnswerBook) -> None:
    """Write the pixels of a round that label PNGs of other runs answer as label PNGs of this round.

    The newest PNG counts. Pixels outside its mask do not: nobody was asked for them.
    """
    sources: dict[str, list[tuple[Path, MaskRow]]] = {}  # by digest of the image
    for store in book.stores(besides=folder.parent):
        for number in rounds_in(store.folder, f"*/{MASKS}"):
            source = store.round_folder(number)
            for row in read_mask_table(source):
                if row.get("digest") and (source / row["answer"]).is_file():
                    sources.setdefault(row["digest"], []).append((source, row))
    classes = read_map_classes(folder) if sources else []
    codes = LabelCodes(len(classes))
    for row in read_mask_table(folder):
        found = sorted(sources.get(row.get("digest", ""), []), key=lambda source: _modified(*source))
        if not found:
            continue
        mask = read_mask(folder, row)
        values = np.full(mask.shape, codes.unanswered, np.uint8 if codes.void <= 255 else np.uint16)
        for source, source_row in found:
            known = _answers_in(source, source_row, classes, mask.shape)
            if known is not None:
                values = np.where(mask & (known != codes.unanswered), known.astype(values.dtype), values)
        path = folder / SHARED_MAPS / _name(row)
        before = _read_values(path, mask.shape)
        if (values != (codes.unanswered if before is None else before)).any():
            write_atomically(path, partial(Image.fromarray(values).save, format="PNG"))


def unanswered_pixels(folder: Path, row: MaskRow) -> AnyArray:
    """Return a ``(height, width)`` mask of the requested pixels of an image that no label PNG answers yet."""
    mask = read_mask(folder, row)
    unanswered = LabelCodes(len(read_map_classes(folder))).unanswered
    for subfolder in (ANSWER_MAPS, SHARED_MAPS):
        values = _read_values(folder / subfolder / _name(row), mask.shape)
        if values is not None:
            mask = mask & (values == unanswered)
    return mask


def invalid_maps(folder: Path) -> list[str]:
    """Return one message for each label PNG of a round that is not valid where pixels are requested."""
    problems = []
    for row in read_mask_table(folder):
        if not (folder / row["answer"]).exists():
            continue
        mask, codes = read_mask(folder, row), LabelCodes(len(read_map_classes(folder)))
        position = torch.from_numpy(np.flatnonzero(mask))
        try:
            read_labels_at(folder / row["answer"], position, mask.shape, codes, folder / CLASSES)
        except UserError as error:
            problems.append(str(error))
    return problems


def _answers_in(
    folder: Path, row: MaskRow, classes: Sequence[str], shape: tuple[int, ...]
) -> AnyArray | None:
    """Return what a label PNG of another run answers, as ids of ``classes``; None if it cannot be used."""
    names = read_map_classes(folder)
    values = _read_values(folder / row["answer"], shape)
    if values is None or set(names) != set(classes):
        return None
    mask = read_mask(folder, row)
    codes = LabelCodes(len(classes))
    lookup = np.full(max(codes.void, int(values.max())) + 1, codes.unanswered)
    lookup[codes.void] = codes.void
    lookup[: len(names)] = [classes.index(name) for name in names]
    return np.where(mask, lookup[values], codes.unanswered) if mask.shape == shape else None


def _read_values(path: Path, shape: tuple[int, ...]) -> AnyArray | None:
    """Return the values of a label PNG; None if it is missing or not valid, see ``invalid_maps``."""
    if not path.exists():
        return None
    try:
        values = read_label_png(path, shape[1], shape[0])
    except UserError:
        return None
    return None if bool((values < 0).any()) else values.numpy().reshape(shape)


def read_mask(folder: Path, row: MaskRow) -> AnyArray:
    """Return the requested pixels of an image, bool ``(height, width)``."""
    values: AnyArray = read_channels(folder / row["mask"])
    return values > 0


def _name(row: MaskRow) -> str:
    return row["answer"].removeprefix(f"{ANSWER_MAPS}/")


def _modified(folder: Path, row: MaskRow) -> int:
    return (folder / row["answer"]).stat().st_mtime_ns
