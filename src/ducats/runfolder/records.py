"""Records of a run as JSON lines; reports read only these. Does not import torch."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ducats.utils.errors import UserError
from ducats.utils.files import write_text_atomically

Record = dict[str, Any]

RUN_FORMAT = 2  # version of the files in a run folder; raise it when their names or keys change
ENVIRONMENT_FILE, FORMAT_KEY = "environment.json", "run_folder_format"


def check_format(folder: Path) -> None:
    """Raise if a run folder was written in another format; a folder without environment.json is accepted."""
    path = folder / ENVIRONMENT_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get(FORMAT_KEY, 1)
    except (OSError, ValueError, AttributeError):
        return
    if found != RUN_FORMAT:
        raise UserError(
            f"{folder} has run folder format {found}, but this version of ducats reads format {RUN_FORMAT}; "
            "run it again in a new folder"
        )


EVALUATED_ON_DESCRIPTIONS = {  # of the values of `evaluated_on` in stage records
    "held_out": "held-out target images, never selected for labelling",
    "unlabelled": "target images without the labelled ones",
    "target": "target images, including the labelled ones",
}

HEADLINE_METRICS = ("accuracy", "mean_iou")  # runs are ranked by these: classification, segmentation


def headline_metric(record: Mapping[str, Any]) -> str:
    """Return the metric that runs are ranked by; the default is accuracy.

    >>> headline_metric({"accuracy": 0.9}), headline_metric({"accuracy": 0.9, "headline_metric": "mean_iou"})
    ('accuracy', 'mean_iou')
    """
    return str(record.get("headline_metric", "accuracy"))


_RESOLUTION_DESCRIPTIONS = {"original": "their own size"}  # the others are shown verbatim


def describe_pixels(records: Sequence[Mapping[str, Any]]) -> str:
    """Describe how many pixels were evaluated and at which resolution; empty for classification.

    >>> describe_pixels([{"pixels": 131072, "resolution": "256x512 (network)"}])
    '131,072 pixels at 256x512 (network)'
    """
    counts = sorted({int(record["pixels"]) for record in records if "pixels" in record})
    if not counts:
        return ""
    at = " or ".join(
        sorted(
            {
                _RESOLUTION_DESCRIPTIONS.get(record["resolution"], str(record["resolution"]))
                for record in records
                if "resolution" in record
            }
        )
    )
    count_text = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    return f"{count_text} pixels" + (f" at {at}" if at else "")


def read_records(path: Path) -> list[Record]:
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


def upsert_record(path: Path, record: Mapping[str, Any], *, key_fields: tuple[str, ...]) -> None:
    """Add a record, replacing one with equal values in ``key_fields``; repeated steps leave one line.

    The file is small (a line per epoch), so it is rewritten as a whole: a kill never leaves a partial line.
    """
    others = [
        old for old in read_records(path) if any(old.get(field) != record[field] for field in key_fields)
    ]
    _write(path, [*others, dict(record)])


def filter_records(path: Path, predicate: Callable[[Record], bool]) -> None:
    """Keep only the records for which ``predicate`` is true; rewrite the file only if that removes any."""
    records = read_records(path)
    remaining = [record for record in records if predicate(record)]
    if len(remaining) < len(records):
        _write(path, remaining)


def _write(path: Path, records: list[Record]) -> None:
    write_text_atomically(path, "".join(json.dumps(record) + "\n" for record in records))
