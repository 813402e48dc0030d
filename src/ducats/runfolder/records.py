"""Records of a run as JSON lines; reports read only these. Does not import torch."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ducats.runfolder import checksums
from ducats.utils.errors import UserError

Record = dict[str, Any]
METRICS_FILE = "metrics.jsonl"

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


def describe_pixels(records: Sequence[Mapping[str, Any]]) -> str:
    """Describe how many pixels were evaluated and at which resolution; empty for classification.

    >>> describe_pixels([{"pixels": 131072, "resolution": "256x512 (network)"}])
    '131,072 pixels at 256x512 (network)'
    """
    counts = sorted({int(record["pixels"]) for record in records if "pixels" in record})
    if not counts:
        return ""
    resolutions = {str(record["resolution"]) for record in records if "resolution" in record}
    at = " or ".join(sorted("their own size" if name == "original" else name for name in resolutions))
    count_text = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    return f"{count_text} pixels" + (f" at {at}" if at else "")


def read_records(path: Path) -> list[Record]:
    """Return all records, oldest first; an empty list if the file does not exist.

    Raises:
        UserError: the file is damaged, or a line is not a record.
    """
    checksums.verify(path)
    records = []
    for number, record in _parse_lines(path):
        if isinstance(record, str):
            raise UserError(f"{path} line {number} {record}; {checksums.remedy(path)}")
        records.append(record)
    return records


def read_valid_records(path: Path) -> tuple[list[Record], dict[int, str]]:
    """Return the records whose values reports can use, oldest first, and the errors of other lines by number.

    Raises:
        OSError: the file cannot be read.
    """
    records, errors = [], {}
    for number, record in _parse_lines(path):
        if isinstance(record, str):
            errors[number] = record
        elif message := _record_error(record):
            errors[number] = message
        else:
            records.append(record)
    return records, errors


def _parse_lines(path: Path) -> Iterator[tuple[int, Record | str]]:
    """Yield the number of each line and its record, or an error message."""
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], start=1):
        try:
            yield number, dict(json.loads(line))
        except (ValueError, TypeError) as error:
            yield number, f"is not a JSON record ({error})"


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
    checksums.write_text(path, "".join(json.dumps(record) + "\n" for record in records))


def finite_number(record: Mapping[str, Any], key: str) -> float | None:
    """Return a finite number, or None (e.g. a diverged loss, a class without samples)."""
    value: Any = record.get(key)
    return float(value) if _is_number(value) and abs(value) <= sys.float_info.max else None


def describe_timed(n_timed: int, n_answers: int) -> str:
    """Say how many answers have a known time; empty if all have.

    >>> describe_timed(20, 30), describe_timed(30, 30), describe_timed(0, 1)
    ('20 of 30 answers timed', '', '0 of 1 answer timed')
    """
    noun = "answer" if n_answers == 1 else "answers"
    return f"{n_timed:,} of {n_answers:,} {noun} timed" if n_timed < n_answers else ""


def describe_timed_record(record: Mapping[str, Any]) -> str:
    """Say how many answers up to a stage have a known time; empty if all have, or if it was not recorded."""
    n_timed, n_answers = finite_number(record, "timed_units"), finite_number(record, "annotation_units")
    return "" if n_timed is None or n_answers is None else describe_timed(int(n_timed), int(n_answers))


def audit_intervals(record: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the intervals of an audit by name, that of the headline metric first.

    >>> list(audit_intervals({"accuracy": 0.9, "low": 0.8, "high": 1.0}))
    ['accuracy']
    """
    accuracy = {"estimate": record["accuracy"], "low": record["low"], "high": record["high"]}
    if "miou" not in record:
        return {"accuracy": accuracy}
    return {"mIoU": record["miou"], "pixel accuracy": accuracy}


def describe_audit(record: Mapping[str, Any]) -> str:
    """Describe what an audit found: accuracy, or mIoU and pixel accuracy.

    >>> describe_audit({"accuracy": 0.9312, "low": 0.8821, "high": 0.97, "labels": 40})
    'accuracy 93.1 % (95 %: between 88.2 and 97.0), from 40 audit labels'
    """
    noun = "label" if record["labels"] == 1 else "labels"
    phrases = [
        f"{name} {100 * one['estimate']:.1f} % (95 %: between {100 * one['low']:.1f} and "
        f"{100 * one['high']:.1f})"
        for name, one in audit_intervals(record).items()
    ]
    return f"{', '.join(phrases)}, from {record['labels']} audit {noun}"


def describe_audited(record: Mapping[str, Any]) -> str:
    """Say to which images or pixels the figures of an audit refer.

    >>> describe_audited({"images": 2000}), describe_audited({"pixels": 1})
    ('2,000 images', '1 pixel')
    """
    noun = "pixel" if "pixels" in record else "image"
    count = record[f"{noun}s"]
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def describe_stop(record: Mapping[str, Any]) -> str:
    """Say from which round on nothing was queried, and why.

    >>> describe_stop({"round": 3, "reason": "accuracy is at least 96 %"})
    'no labels were queried from round 3 on: accuracy is at least 96 %'
    """
    return f"no labels were queried from round {record['round']} on: {record['reason']}"


def describe_random_gain(record: Mapping[str, Any]) -> str:
    """Describe the gain over random labels in one or two sentences.

    >>> describe_random_gain({"labels": 48, "all_labels": 60, "estimate": 0.06, "low": -0.01, "high": 0.1})
    'With 48 of 60 labels, accuracy is 6.0 points above that with 48 random ones (95 %: −1.0 to 10.0). Not \
significant.'
    >>> describe_random_gain({"unknown": "the audit is small"})
    'The gain over random labels is not known: the audit is small.'
    """
    if "unknown" in record:
        return f"The gain over random labels is not known: {record['unknown']}."
    count, total, estimate = record["labels"], record["all_labels"], 100 * record["estimate"]
    low, high = (f"{100 * record[name]:.1f}".replace("-", "−") for name in ("low", "high"))
    direction = "below" if estimate < 0 else "above"
    verdict = "Not significant."
    if record["low"] > 0 or record["high"] < 0:
        verdict = f"The selected labels were {'better' if record['low'] > 0 else 'worse'}."
    return (
        f"With {count if count == total else f'{count} of {total}'} labels, accuracy is {abs(estimate):.1f} "
        f"points {direction} that with {count} random ones (95 %: {low} to {high}). {verdict}"
    )


_REQUIRED_KEYS = {
    "stage": ("stage", "epoch", "labels", "seconds"),
    "interim": ("epoch", "seconds"),
    "epoch": ("epoch",),
    "pseudo_labels": ("stage", "epoch", "count"),
    "added_classes": ("stage", "epoch", "total"),
    "audit": ("stage", "epoch", "labels", "accuracy", "low", "high"),
    "stop": ("epoch", "round"),
    "random_gain": ("epoch",),
}
_MAX_EPOCH = 10**7  # readers list all epochs up to the last
_NUMBER_KEYS = (
    *("accuracy", "mean_class_accuracy", "mean_iou", "mean_iou_star", "ece", "nll", "brier", "aurc"),
    *("clicks", "images", "pixels", "peak_memory_bytes", "annotation_seconds"),
    *("annotation_units", "timed_units", "correct"),
)


def _record_error(record: Record) -> str:
    if not isinstance(record.get("kind"), str):
        return "is not a record with a string for 'kind'"
    for key in _REQUIRED_KEYS.get(record["kind"], ()):
        value = finite_number(record, key)
        if value is None:
            return f"has no number for {key!r}"
        if key in ("stage", "epoch") and not (0 <= value <= _MAX_EPOCH and value.is_integer()):
            return f"has an impossible value for {key!r}"
    for key in _NUMBER_KEYS:
        if record.get(key) is not None and not _is_number(record[key]):
            return f"has a value for {key!r} that is not a number"
    if record["kind"] == "stop" and not isinstance(record.get("reason"), str):
        return "has no text for 'reason'"
    if record["kind"] == "random_gain" and "unknown" not in record:
        for key in ("labels", "all_labels", "estimate", "low", "high"):
            if finite_number(record, key) is None:
                return f"has no number for {key!r}"
    if not isinstance(record.get("losses", {}), dict):
        return "has a value for 'losses' that is not a mapping"
    if headline_metric(record) not in HEADLINE_METRICS:
        known = ", ".join(HEADLINE_METRICS)
        return f"has the unknown headline metric {record['headline_metric']!r} (known: {known})"
    predicted = record.get("predicted", {})
    if not (isinstance(predicted, dict) and all(map(_is_number, predicted.values()))):
        return "has a value for 'predicted' that is not a mapping to numbers"
    for key in ("class_iou", "class_accuracy"):
        if key in record and not _is_per_class(record[key]):
            return f"has a value for {key!r} that is not a list of numbers"
    if "miou" in record and not _is_interval(record["miou"]):
        return "has a value for 'miou' without estimate, low or high"
    if "reliability" in record and not _is_reliability(record["reliability"]):
        return "has a value for 'reliability' that is not lists of equal length"
    if "temperature_scaled" in record and not _is_temperature_scaled(record["temperature_scaled"]):
        return "has a value for 'temperature_scaled' without temperature, labels or reliability"
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_per_class(value: Any) -> bool:
    return isinstance(value, list) and all(v is None or _is_number(v) for v in value)


def _is_interval(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_number(value.get(key)) for key in ("estimate", "low", "high"))


def _is_temperature_scaled(value: Any) -> bool:
    if not isinstance(value, dict) or not all(_is_number(value.get(k)) for k in ("temperature", "labels")):
        return False
    return _is_reliability(value.get("reliability"))


def _is_reliability(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    columns = [value.get(key) for key in ("upper", "count", "confidence", "accuracy")]
    return all(isinstance(c, list) and len(c) == len(value["upper"]) for c in columns)
