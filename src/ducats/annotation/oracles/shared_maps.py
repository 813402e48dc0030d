"""Label PNGs shared between runs: a pixel that a PNG answers is answered for every run that asks for it."""

import csv
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ducats.annotation.oracles.mask_files import LabelCodes, read_label_png
from ducats.annotation.shared_answers import AnswerBook
from ducats.data.domain import UNLABELLED, VOID
from ducats.data.segmentation.label_files import read_channels
from ducats.ledger import Request
from ducats.runfolder.question_names import ANSWER_MAPS, CLASSES, MASKS, QUESTIONS_TABLE, SHARED_MAPS
from ducats.utils.errors import UserError
from ducats.utils.files import write_atomically


def write_shared_maps(
    folder: Path,
    request: Request,
    names: Sequence[str],
    sizes: Tensor,
    classes: Sequence[str],
    book: AnswerBook,
) -> None:
    """Write the requested pixels that label PNGs of other runs answer as label PNGs of this round.

    Args:
        folder: of the round.
        names, sizes: as for ``LabelPngs``.
    """
    digests = {Path(row["answer"]): row.get("digest", "") for row in read_mask_table(folder)}
    rounds = [path.parent for store in book.stores() for path in store.folder.glob(f"round-*/{MASKS}")]
    found: dict[str, list[tuple[Path, dict[str, str]]]] = {}  # by digest
    for round_folder in rounds:
        for row in read_mask_table(round_folder):
            if row.get("digest") and (round_folder / row["answer"]).is_file():
                found.setdefault(row["digest"], []).append((round_folder, row))
    codes = LabelCodes(len(classes))
    for image, position, _ in request.by_image():
        sources = found.get(digests.get(Path(ANSWER_MAPS, names[image]), ""), [])
        height, width = sizes[image].tolist()
        known = torch.full((height * width,), UNLABELLED)
        for round_folder, row in sorted(sources, key=lambda each: _modified(each[0] / each[1]["answer"])):
            labels = _answered_pixels(round_folder, row, width, height, classes)
            if labels is not None:
                known = torch.where(labels != UNLABELLED, labels, known)
        values = np.full(height * width, codes.unanswered, np.uint8 if codes.void <= 255 else np.uint16)
        requested = known[position]
        answers = torch.where(requested == VOID, codes.void, requested)
        answers[requested == UNLABELLED] = codes.unanswered
        values[position.numpy()] = answers.numpy()
        path = folder / SHARED_MAPS / names[image]
        if path.exists() or bool((requested != UNLABELLED).any()):
            shared = Image.fromarray(values.reshape(height, width))
            write_atomically(path, partial(shared.save, format="PNG"))


def read_mask_table(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a round's table of masks; empty if it does not exist yet."""
    path = folder / QUESTIONS_TABLE
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row.get("answer")]


def read_map_classes(folder: Path) -> dict[int, str]:
    """Return the names of the classes in the label PNGs of a round, by value."""
    lines = (folder / CLASSES).read_text(encoding="utf-8").splitlines()
    return {int(code): name for code, _, name in (line.partition(" ") for line in lines[:-2])}


def _answered_pixels(
    folder: Path, row: dict[str, str], width: int, height: int, classes: Sequence[str]
) -> Tensor | None:
    """Return the classes in a label PNG of another run where its mask asked for them; UNLABELLED elsewhere.

    None if the PNG cannot be used: it has another grid or other classes, or is not valid yet.
    """
    names = read_map_classes(folder)
    if set(names.values()) != set(classes):
        return None
    try:
        values = read_label_png(folder / row["answer"], width, height)
        mask = torch.from_numpy(read_channels(folder / row["mask"]) > 0).flatten()
    except (UserError, OSError, SyntaxError, ValueError):
        return None  # the other run reports it
    if values is None or len(mask) != len(values):
        return None
    codes = LabelCodes(len(names))
    lookup = torch.full((max(int(values.max()), codes.void) + 1,), UNLABELLED)
    lookup[codes.void] = VOID
    for code, name in names.items():
        lookup[code] = list(classes).index(name)
    return torch.where(mask, lookup[values.clamp(min=0)], UNLABELLED)


def _modified(path: Path) -> int:
    return path.stat().st_mtime_ns
