"""Worker process that scores chunks of a pool."""

from collections.abc import Sequence
from multiprocessing.connection import Connection

from ducats.deploy.scoring.job import ChunkScorer, Job
from ducats.utils.errors import UserError


def score_chunks(job: str, chunks: Sequence[int], messages: Connection) -> None:
    """Score and save chunks; send the number of samples so far, or the message of a UserError.

    Args:
        job: JSON of the job.
    """
    try:
        ChunkScorer(Job.from_json(job)).score_and_save(chunks, messages.send)
    except UserError as error:
        messages.send(str(error))
        raise SystemExit(2) from None
