"""Estimate the time per epoch from a run's files."""

from collections.abc import Collection, Sequence
from statistics import median

from ducats.runfolder.records import Record

MAX_EPOCH_TIMES = 20  # to keep


class EtaEstimator:
    """Estimator that also times the epochs that end while it is watching."""

    def __init__(self) -> None:
        self._last_update: tuple[int, float] | None = None
        self._epoch_times: list[float] = []

    def update(self, epoch: int, modified_at: float | None, query_epochs: Collection[int]) -> None:
        """Record the progress of a run.

        Args:
            epoch: number of finished epochs.
            modified_at: modification time of metrics.jsonl.
            query_epochs: epochs with a query; the run may have waited for annotators after them.
        """
        if modified_at is None or (self._last_update is not None and epoch == self._last_update[0]):
            return
        if (
            self._last_update is not None
            and epoch > self._last_update[0]
            and not set(range(self._last_update[0], epoch)) & set(query_epochs)
        ):
            self._epoch_times.append((modified_at - self._last_update[1]) / (epoch - self._last_update[0]))
        del self._epoch_times[:-MAX_EPOCH_TIMES]
        self._last_update = (epoch, modified_at)

    def seconds_per_epoch(
        self, records: Sequence[Record], epoch: int, started_at: float | None
    ) -> float | None:
        """Return the seconds per epoch: as recorded, else as observed, else the mean; None if unknown.

        Args:
            records: records of the run.
            epoch: number of finished epochs.
            started_at: start time of the run. Valid until the first query: later it would include pauses.
        """
        epoch_seconds = [
            float(record["seconds"])
            for record in records
            if record["kind"] == "epoch" and "seconds" in record
        ]
        if epoch_seconds:
            return median(epoch_seconds[-MAX_EPOCH_TIMES:])
        if self._epoch_times:
            return median(self._epoch_times)
        evaluated = [
            record for record in records if record["kind"] in ("stage", "interim") and record["epoch"] > 0
        ]
        if evaluated:
            return float(evaluated[-1]["seconds"]) / float(evaluated[-1]["epoch"])
        if started_at is None or self._last_update is None or epoch == 0:
            return None
        return max(0.0, self._last_update[1] - started_at) / epoch
