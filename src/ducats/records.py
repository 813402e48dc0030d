"""Records of a run as JSON lines; reports read only these. Does not import torch."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ducats.errors import UserError
from ducats.files import write_text_atomically

Record = dict[str, Any]

MEASURED_ON = {  # descriptions of the values of `measured_on` in stage records
    "held_out": "held-out target images, never selected for labelling",
    "unlabelled": "target images without the labelled ones",
    "target": "target images, including the labelled ones",
}

HEADLINES = ("accuracy", "mean_iou")  # runs are ranked by these: classification, segmentation


def headline_of(record: Mapping[str, Any]) -> str:
    """Return the metric that runs are ranked by; the default is accuracy.

    >>> headline_of({"accuracy": 0.9}), headline_of({"accuracy": 0.9, "headline": "mean_iou"})
    ('accuracy', 'mean_iou')
    """
    return str(record.get("headline", "accuracy"))


AT = {"original": "their own size"}  # descriptions of resolutions that are not shown verbatim


def pixels_in_words(records: Sequence[Mapping[str, Any]]) -> str:
    """Describe how many pixels were evaluated and at which resolution; empty for classification.

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
    """Return all records, oldest first; an empty list if the file does not exist."""
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            records.append(dict(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{path} line {number} is not a JSON record ({error}); restore the file from a backup"
            ) from error
    return records


def put(path: Path, record: Mapping[str, Any], *, same: tuple[str, ...]) -> None:
    """Add a record, replacing one with equal values in the fields ``same``; repeated steps leave one line.

    The file is small (a line per epoch), so it is rewritten as a whole: a kill never leaves a partial line.
    """
    kept = [old for old in read(path) if any(old.get(field) != record[field] for field in same)]
    _write(path, [*kept, dict(record)])


def keep(path: Path, wanted: Callable[[Record], bool]) -> None:
    """Keep only the records for which ``wanted`` is true; rewrite the file only if that removes any."""
    records = read(path)
    kept = [record for record in records if wanted(record)]
    if len(kept) < len(records):
        _write(path, kept)


def _write(path: Path, records: list[Record]) -> None:
    write_text_atomically(path, "".join(json.dumps(record) + "\n" for record in records))
