"""Estimate the time per epoch from a run's records."""

from collections.abc import Sequence
from statistics import median

from ducats.runfolder.records import Record

MAX_EPOCH_TIMES = 20  # last epochs that count


def seconds_per_epoch(records: Sequence[Record]) -> float | None:
    """Return the median seconds of the last epochs; None before the first epoch ends.

    >>> seconds_per_epoch([{"kind": "epoch", "epoch": 1, "seconds": seconds} for seconds in (9.0, 1.0, 2.0)])
    2.0
    """
    epoch_seconds = [
        float(record["seconds"]) for record in records if record["kind"] == "epoch" and "seconds" in record
    ]
    return median(epoch_seconds[-MAX_EPOCH_TIMES:]) if epoch_seconds else None
