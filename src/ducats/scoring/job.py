"""A scoring as plain values, so that other processes and other machines can do parts of it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from ducats.domain import UNLABELLED
from ducats.engine.processes import make_fabric
from ducats.inference import Trained, load_trained, usable_precision
from ducats.pool import Kind, open_pool
from ducats.rundir import RunDir
from ducats.scoring.keeping import keep_part, part_file
from ducats.scoring.part import Result, Tell, score_part
from ducats.scoring.plan import Plan


class Unfinished(Exception):  # noqa: N818 - what is done is kept, and the same command goes on
    """A process ended before its parts were done."""


@dataclass(frozen=True)
class Job:
    """All that whoever scores a part must know."""

    run: str  # folder
    pool: str
    kind: Kind
    plan: Plan
    parts: int  # in all
    batch: int
    exclude_bought: bool
    device: str
    threads: int  # that read and decode, in each process
    out: str  # folder

    def file(self, rank: int) -> Path:
        """Where a part is kept."""
        return part_file(Path(self.out), rank, self.parts)

    def to_json(self) -> str:
        """On one line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Job":
        """What ``to_json`` wrote."""
        said = json.loads(text)
        return Job(**{**said, "plan": Plan(**said["plan"])})


class Worker:
    """Scores parts of a job, one after the other.

    Args:
        job: what to do.
        trained: the model, if it is loaded already.
    """

    def __init__(self, job: Job, trained: Trained | None = None) -> None:
        self._job = job
        self._trained = load_trained(Path(job.run)) if trained is None else trained
        self._fabric = make_fabric(job.device, precision=usable_precision(self._trained, job.device))
        self._pool = open_pool(job.pool, kind=job.kind)
        self._bought = bought_keys(self._trained.home) if job.exclude_bought else frozenset()

    def result(self, rank: int, tell: Tell | None = None) -> Result:
        """Score a part."""
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
        """Score some parts and keep each when it is done."""
        before = 0
        for rank in ranks:
            result = self.result(rank, None if tell is None else _beyond(before, tell))
            keep_part(self._job.file(rank), result)
            before += result.seen


def _beyond(before: int, tell: Tell) -> Tell:
    return lambda seen: tell(before + seen)


def bought_keys(home: RunDir) -> frozenset[str]:
    """Keys of what a run asked about, whatever the answer."""
    ledger = home.bought()
    asked = (ledger.targets() != UNLABELLED).tolist()
    return frozenset(key for key, was in zip(ledger.keys, asked, strict=True) if was)


class Engine(Protocol):
    """Who scores the parts of a job that are missing, and leaves a file for each."""

    def __call__(
        self, job: Job, ranks: Sequence[int], *, processes: int | None, trained: Trained, tell: Tell | None
    ) -> None:
        """Score these parts.

        Args:
            job: all there is to know.
            ranks: parts that are missing.
            processes: that may work at once; None: as the engine sees fit.
            trained: the model, for whoever works in this very process.
            tell: called from time to time with the number of samples so far, if it is there.

        Raises:
            Unfinished: A process ended before its parts were done.
            UserError: A part cannot be scored at all.
        """
