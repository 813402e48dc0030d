"""Scoring job, and the scorer that runs it in any process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ducats.data.streaming import PoolFormat, open_pool
from ducats.deploy import TrainedModel, load_trained_model, supported_precision
from ducats.deploy.scoring.chunk import ChunkResult, ProgressCallback, score_chunk
from ducats.deploy.scoring.files import chunk_file, save_chunk
from ducats.deploy.scoring.streaming_query import StreamingQuery
from ducats.ledger import load_ledger
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric

# Score the missing chunks of a job and save a file for each: (job, chunks, *, processes, trained,
# on_progress). `processes` is the maximum number of parallel processes; None: the backend decides. `trained`
# is the model, for a backend that scores in this process. Raise ScoringInterrupted if a process ends before
# its chunks are done, and UserError if a chunk cannot be scored.
ScoringBackend = Callable[..., None]


class ScoringInterrupted(Exception):  # noqa: N818 - not an error: finished chunks are saved
    """Scoring stopped before all chunks were done; it can be resumed."""


@dataclass(frozen=True)
class Job:
    """Everything needed to score a chunk in any process."""

    run_folder: Path
    pool_uri: str
    pool_format: PoolFormat
    streaming_query: StreamingQuery
    n_chunks: int
    batch_size: int
    exclude_labelled: bool
    device: str
    threads: int  # threads per process that read and decode
    out: Path  # output folder
    max_sample_mb: float  # see ``open_pool``

    def chunk_file(self, chunk: int) -> Path:
        """Return the file of a chunk."""
        return chunk_file(self.out, chunk, self.n_chunks)


class ChunkScorer:
    """Scores chunks of a job, one after the other.

    Args:
        trained: the model; None: load it from the run folder.
    """

    def __init__(self, job: Job, trained: TrainedModel | None = None) -> None:
        self._job = job
        # The process that made the job has loaded this run, and so decided whether to trust its code.
        self._trained = trained or load_trained_model(job.run_folder, trust_code=True)
        self._fabric = make_fabric(job.device, precision=supported_precision(self._trained, job.device))
        self._pool = open_pool(job.pool_uri, pool_format=job.pool_format, max_sample_mb=job.max_sample_mb)
        self._labelled_keys = labelled_keys(self._trained.run_folder) if job.exclude_labelled else frozenset()

    def score(self, chunk: int, on_progress: ProgressCallback | None = None) -> ChunkResult:
        """Score one chunk."""
        return score_chunk(
            self._trained,
            self._pool,
            chunk,
            self._job.n_chunks,
            streaming_query=self._job.streaming_query,
            fabric=self._fabric,
            batch_size=self._job.batch_size,
            threads=self._job.threads,
            excluded_keys=self._labelled_keys,
            on_progress=on_progress,
        )

    def score_and_save(self, chunks: Sequence[int], on_progress: ProgressCallback | None) -> None:
        """Score chunks and save each when it is done."""
        n_previous = 0

        def report(n_samples: int) -> None:
            if on_progress is not None:
                on_progress(n_previous + n_samples)

        for chunk in chunks:
            result = self.score(chunk, report)
            save_chunk(self._job.chunk_file(chunk), result)
            n_previous += result.n_samples


def labelled_keys(run_folder: RunFolder) -> frozenset[str]:
    """Return the keys of all samples that the run has queried, including those answered with void."""
    ledger = load_ledger(run_folder)
    is_labelled = (ledger.labels_per_image() > 0).tolist()
    return frozenset(key for key, labelled in zip(ledger.keys, is_labelled, strict=True) if labelled)
