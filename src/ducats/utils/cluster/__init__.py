"""Execution on clusters: tasks on Ray, jobs on SLURM, and `ducats` commands as subprocesses.

Ray is an optional dependency, imported on use. Needs no torch.
"""

from ducats.utils.cluster.ray_connection import parse_duration, ray_session
from ducats.utils.cluster.ray_pool import TaskLost, TaskPool, TaskResult
from ducats.utils.cluster.subcommand import run_subcommand

__all__ = ["TaskLost", "TaskPool", "TaskResult", "parse_duration", "ray_session", "run_subcommand"]
