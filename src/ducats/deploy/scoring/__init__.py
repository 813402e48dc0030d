"""Select images for labelling from a pool of any size with a trained model, in bounded memory.

The pool is streamed in chunks, in one or several processes. Each chunk keeps its top candidates, and the
picks are selected from the merged candidates. The picks do not depend on the number of processes.
"""

from ducats.deploy.scoring.api import SCORING_BACKENDS, ScoringResult, score_pool
from ducats.deploy.scoring.chunk import ChunkResult, score_chunk
from ducats.deploy.scoring.job import ChunkScorer, Job, ScoringInterrupted
from ducats.deploy.scoring.streaming_query import StreamingQuery, make_streaming_query, select_picks

__all__ = [
    "SCORING_BACKENDS",
    "ChunkResult",
    "ChunkScorer",
    "Job",
    "ScoringInterrupted",
    "ScoringResult",
    "StreamingQuery",
    "make_streaming_query",
    "score_chunk",
    "score_pool",
    "select_picks",
]
