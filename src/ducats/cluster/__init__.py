"""Execution on clusters: tasks on Ray, jobs on SLURM, and `ducats` commands as subprocesses.

Ray is an optional dependency, imported on use. Needs no torch.
"""

from ducats.cluster.crew import Crew, Ended, Lost
from ducats.cluster.errand import run_errand
from ducats.cluster.joining import connected, seconds_of

__all__ = ["Crew", "Ended", "Lost", "connected", "run_errand", "seconds_of"]
