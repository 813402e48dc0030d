"""What a run reports, as JSON lines: the one door between runs and reports. Needs no torch."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ducats.errors import UserError
from ducats.files import write_text_atomically

Record = dict[str, Any]

MEASURED_ON = {  # what a stage says in `measured_on`, in words
    "held_out": "held-out target images, never asked about",
    "unlabelled": "target images without those bought so far",
    "target": "target images: all of them, bought ones included",
}

HEADLINES = ("accuracy", "mean_iou")  # what runs are ranked by: of images, and of pixels


def headline_of(record: Mapping[str, Any]) -> str:
    """The measure that a stage's run is ranked by; a record that does not say so is about images.

    >>> headline_of({"accuracy": 0.9}), headline_of({"accuracy": 0.9, "headline": "mean_iou"})
    ('accuracy', 'mean_iou')
    """
    return str(record.get("headline", "accuracy"))


AT = {"original": "their own size"}  # resolutions in words, where the record has none


def pixels_in_words(records: Sequence[Mapping[str, Any]]) -> str:
    """How many pixels were measured, and at which resolution; nothing for runs about whole images.

    >>> pixels_in_words([{"pixels": 131072, "resolution": "256x512 (network)"}])
    '131,072 pixels at 256x512 (network)'
    """
    counts = sorted({int(record["pixels"]) for record in records if "pixels" in record})
    if not counts:
        return ""
    at = " or ".join(
        sorted(
            {
                AT.get(record["resolution"], str(record["resolution"]))
                for record in records
                if "resolution" in record
            }
        )
    )
    many = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    return f"{many} pixels" + (f" at {at}" if at else "")


def read(path: Path) -> list[Record]:
    """All records, oldest first; none if the file is not there."""
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            records.append(dict(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{path} line {number} is no JSON record ({error}): it was edited; undo that"
            ) from error
    return records


def put(path: Path, record: Mapping[str, Any], *, same: tuple[str, ...]) -> None:
    """Add a record; one that agrees in the fields ``same`` is replaced, so a repeated step leaves one line.

    The file is small (a line per epoch), so it is written anew as a whole: a kill leaves no torn line.
    """
    kept = [old for old in read(path) if any(old.get(field) != record[field] for field in same)]
    _write(path, [*kept, dict(record)])


def keep(path: Path, wanted: Callable[[Record], bool]) -> None:
    """Drop the records that are not wanted; a file without such records is left alone."""
    records = read(path)
    kept = [record for record in records if wanted(record)]
    if len(kept) < len(records):
        _write(path, kept)


def _write(path: Path, records: list[Record]) -> None:
    write_text_atomically(path, "".join(json.dumps(record) + "\n" for record in records))
