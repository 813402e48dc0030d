"""Execution on clusters: tasks on Ray, jobs on SLURM.

Ray is an optional dependency, imported on use. Needs no torch.
"""

from ducats.utils.cluster.ray_pool import TaskLost, TaskPool, TaskResult

__all__ = ["TaskLost", "TaskPool", "TaskResult"]
