"""A finished model looks at a pool of any size, in bounded memory, and says which images are worth a label.

The pool streams by, in one process or in many; each part keeps its best, and the best of all parts are the
picks: the same ones on any number of processes.
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
