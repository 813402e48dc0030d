"""Select images for labelling from a pool of any size with a trained model, in bounded memory.

The pool is streamed in chunks, in one or several processes. Each chunk keeps its top candidates, and the
picks are selected from the merged candidates. The picks do not depend on the number of processes.
"""

from ducats.scoring.engines import ENGINES
from ducats.scoring.job import Job, Unfinished, Worker
from ducats.scoring.part import Result, score_part
from ducats.scoring.plan import QUERIES, Plan, choose, make_plan
from ducats.scoring.whole import Picks, score

__all__ = [
    "ENGINES",
    "QUERIES",
    "Job",
    "Picks",
    "Plan",
    "Result",
    "Unfinished",
    "Worker",
    "choose",
    "make_plan",
    "score",
    "score_part",
]
