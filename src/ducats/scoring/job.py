"""Serialisable scoring job, the worker that runs it, and the interface of backends."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from ducats.domain import UNLABELLED
from ducats.inference import Trained, load_trained, usable_precision
from ducats.pool import Kind, open_pool
from ducats.run_folder import RunFolder
from ducats.scoring.keeping import keep_part, part_file
from ducats.scoring.part import Result, Tell, score_part
from ducats.scoring.plan import Plan
from ducats.training.distributed import make_fabric


class Unfinished(Exception):  # noqa: N818 - not an error: finished chunks are saved, and the command can resume
    """Scoring stopped before all chunks were done; it can be resumed."""


@dataclass(frozen=True)
class Job:
    """Everything needed to score a chunk in any process."""

    run: str  # run folder
    pool: str
    kind: Kind
    plan: Plan
    parts: int  # number of chunks
    batch: int
    exclude_bought: bool
    device: str
    threads: int  # threads per process that read and decode
    out: str  # output folder

    def file(self, rank: int) -> Path:
        """Return the file of a chunk."""
        return part_file(Path(self.out), rank, self.parts)

    def to_json(self) -> str:
        """Serialise to one line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Job":
        """Parse the output of ``to_json``."""
        said = json.loads(text)
        return Job(**{**said, "plan": Plan(**said["plan"])})


class Worker:
    """Scores chunks of a job, one after the other.

    Args:
        trained: the model; None: load it from the run folder.
    """

    def __init__(self, job: Job, trained: Trained | None = None) -> None:
        self._job = job
        self._trained = load_trained(Path(job.run)) if trained is None else trained
        self._fabric = make_fabric(job.device, precision=usable_precision(self._trained, job.device))
        self._pool = open_pool(job.pool, kind=job.kind)
        self._bought = bought_keys(self._trained.home) if job.exclude_bought else frozenset()

    def result(self, rank: int, tell: Tell | None = None) -> Result:
        """Score one chunk."""
        return score_part(
            self._trained,
            self._pool,
            rank,
            self._job.parts,
            keep=self._job.plan,
            fabric=self._fabric,
            batch=self._job.batch,
            threads=self._job.threads,
            exclude=self._bought,
            tell=tell,
        )

    def do(self, ranks: Sequence[int], tell: Tell | None) -> None:
        """Score chunks and save each when it is done."""
        before = 0
        for rank in ranks:
            result = self.result(rank, None if tell is None else _beyond(before, tell))
            keep_part(self._job.file(rank), result)
            before += result.seen


def _beyond(before: int, tell: Tell) -> Tell:
    return lambda seen: tell(before + seen)


def bought_keys(home: RunFolder) -> frozenset[str]:
    """Return the keys of all samples that the run has queried, including those answered with void."""
    ledger = home.load_ledger()
    asked = (ledger.targets() != UNLABELLED).tolist()
    return frozenset(key for key, was in zip(ledger.keys, asked, strict=True) if was)


class Engine(Protocol):
    """Scores the missing chunks of a job and writes a file for each."""

    def __call__(
        self, job: Job, ranks: Sequence[int], *, processes: int | None, trained: Trained, tell: Tell | None
    ) -> None:
        """Score chunks.

        Args:
            ranks: missing chunks.
            processes: maximum number of parallel processes; None: the backend decides.
            trained: the model, for a backend that scores in this process.
            tell: called regularly with the number of samples so far.

        Raises:
            Unfinished: A process ended before its chunks were done.
            UserError: A chunk cannot be scored.
        """
