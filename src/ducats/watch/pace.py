"""Estimate the time per epoch from a run's files."""

from collections.abc import Collection, Sequence
from statistics import median

from ducats.records import Record

RECENT = 20  # number of epoch times to keep


class Pace:
    """Estimator that also times the epochs that end while it is watching."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._seen: list[float] = []

    def see(self, epoch: int, when: float | None, asks: Collection[int]) -> None:
        """Record the progress of a run.

        Args:
            epoch: number of finished epochs.
            when: modification time of metrics.jsonl.
            asks: epochs with a query; the run may have waited for annotators after them.
        """
        if when is None or (self._last is not None and epoch == self._last[0]):
            return
        if (
            self._last is not None
            and epoch > self._last[0]
            and not set(range(self._last[0], epoch)) & set(asks)
        ):
            self._seen.append((when - self._last[1]) / (epoch - self._last[0]))
        del self._seen[:-RECENT]
        self._last = (epoch, when)

    def seconds(self, lines: Sequence[Record], epoch: int, begun: float | None) -> float | None:
        """Return the seconds per epoch: as recorded, else as observed, else the mean; None if unknown.

        Args:
            lines: records of the run.
            epoch: number of finished epochs.
            begun: start time of the run. Valid until the first query: later it would include pauses.
        """
        each = [float(line["seconds"]) for line in lines if line["kind"] == "epoch" and "seconds" in line]
        if each:
            return median(each[-RECENT:])
        if self._seen:
            return median(self._seen)
        measured = [line for line in lines if line["kind"] in ("stage", "interim") and line["epoch"] > 0]
        if measured:
            return float(measured[-1]["seconds"]) / float(measured[-1]["epoch"])
        if begun is None or self._last is None or epoch == 0:
            return None
        return max(0.0, self._last[1] - begun) / epoch
