"""How long an epoch takes, as far as a run's files tell."""

from collections.abc import Collection, Sequence
from statistics import median

from ducats.records import Record

RECENT = 20  # epochs that are remembered


class Pace:
    """Remembers when epochs ended that ended while somebody watched."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._seen: list[float] = []

    def see(self, epoch: int, when: float | None, asks: Collection[int]) -> None:
        """Take note of how far a run is.

        Args:
            epoch: epochs that are done.
            when: its file of results was last written.
            asks: epochs after which it asks: there it may have waited for people.
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
        """Seconds of an epoch: as recorded, or else as seen, or else of all; None if nothing tells.

        Args:
            lines: what the run recorded.
            epoch: epochs that are done.
            begun: when it began. Good until the first question: later, pauses would count.
        """
        each = [float(line["seconds"]) for line in lines if line["kind"] == "epoch" and "seconds" in line]
        if each:
            return median(each[-RECENT:])
        if self._seen:
            return median(self._seen)
        measured = [line for line in lines if line["kind"] in ("stage", "check") and line["epoch"] > 0]
        if measured:
            return float(measured[-1]["seconds"]) / float(measured[-1]["epoch"])
        if begun is None or self._last is None or epoch == 0:
            return None
        return max(0.0, self._last[1] - begun) / epoch
