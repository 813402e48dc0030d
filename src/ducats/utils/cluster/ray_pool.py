"""Tasks on the nodes of a Ray cluster. Tasks of a lost worker or node are run again.

Uses Ray tasks, not actors: a task holds its CPUs only while it runs, so no task waits for resources held by
an idle one. Each task is assigned to a node here, and all tasks together hold at most half of a node's CPUs.
This leaves room for Ray itself and for other users.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ducats.utils.cluster.ray_connection import import_ray
from ducats.utils.cluster.versions import installed_versions, run_if_same_versions
from ducats.utils.errors import UserError

MAX_ATTEMPTS = 3  # per task if its worker is lost, as the task may be the cause; lost nodes are not counted
DEAD_NODE_SECONDS = 120.0  # seconds in which Ray may still list a dead node


class TaskLost(Exception):  # noqa: N818 - an outcome rather than an error
    """A task lost its worker at every attempt."""


class TaskResources(NamedTuple):
    """Resources of a node held by one task."""

    cpus: float
    gpus: int


class TaskResult(NamedTuple):
    """A finished task: its value or its exception, ``TaskLost`` if its worker was lost each time."""

    name: Any
    value: Any
    error: Exception | None


@dataclass
class _Task:
    name: Any
    arguments: tuple[Any, ...]
    node: str = ""
    losses: int = 0  # of its worker, not of its node


class TaskPool:
    """Runs tasks on the nodes of the connected Ray cluster.

    Nodes may join and leave at any time.

    Args:
        function: function to run, from a module installed on every node.
        cpus_per_task: per task; None: an even share of half of the node's CPUs.
        use_gpu: whether each task gets a GPU.
        max_tasks: concurrent tasks in the whole cluster; None: no limit besides the nodes' resources.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        cpus_per_task: float | None = 1.0,
        use_gpu: bool = False,
        max_tasks: int | None = None,
    ) -> None:
        self._ray = import_ray()
        self._remote_function = self._ray.remote(run_if_same_versions)
        self._function_name = f"{function.__module__}:{function.__name__}"
        self._cpus_per_task, self._use_gpu, self._max_tasks = cpus_per_task, use_gpu, max_tasks
        self._running: dict[Any, _Task] = {}
        self._to_retry: list[_Task] = []
        self._excluded_until: dict[str, float] = {}  # node -> time until which it gets no tasks, after a loss

    def free_slots(self) -> int:
        """Return how many more tasks can start."""
        return max(0, self._n_free() - len(self._to_retry))

    def submit(self, name: Any, *arguments: Any) -> str:
        """Start a task on the node with most free slots; return the node's address."""
        task = _Task(name, arguments)
        self._start(task)
        return self._node_address(task.node)

    def wait(self, timeout: float) -> list[TaskResult]:
        """Return finished tasks, waiting up to ``timeout`` for the first."""
        while self._to_retry and self._n_free() > 0:
            self._start(self._to_retry.pop(0))
        if not self._running:  # all tasks are lost and no node can run them
            time.sleep(timeout if self._to_retry else 0)
            return []
        ready, pending = self._ray.wait(list(self._running), timeout=timeout)
        ready += self._ray.wait(pending, num_returns=len(pending), timeout=0)[0] if ready and pending else []
        results = [self._result(reference, self._running.pop(reference)) for reference in ready]
        return [result for result in results if result is not None]

    def stop(self) -> None:
        """Kill all running tasks and their workers."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        self._to_retry.clear()

    def _result(self, reference: Any, task: _Task) -> TaskResult | None:
        """Return the outcome of a task; None if it was lost and will be retried."""
        errors = self._ray.exceptions
        try:
            return TaskResult(task.name, self._ray.get(reference), None)
        except errors.RayError as error:
            cause = error.cause if isinstance(error, errors.RayTaskError) else error
            if not isinstance(cause, errors.RayError):  # the function raised
                return TaskResult(
                    task.name, None, _explain_import_error(cause if isinstance(cause, Exception) else error)
                )
            if isinstance(cause, (errors.NodeDiedError, errors.TaskUnschedulableError)):
                self._excluded_until[task.node] = time.monotonic() + DEAD_NODE_SECONDS
            else:
                task.losses += 1
            if task.losses < MAX_ATTEMPTS:
                self._to_retry.append(task)
                return None
            reason = _LOSS_REASONS.get(type(cause).__name__) or str(cause).partition("\n")[0]
            return TaskResult(task.name, None, TaskLost(f"{reason}, {task.losses} times in a row"))

    def _n_free(self) -> int:
        free = sum(count for count, _ in self._free_slots().values())
        return free if self._max_tasks is None else min(free, self._max_tasks - len(self._running))

    def _start(self, task: _Task) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        free = self._free_slots()
        task.node = max(sorted(free), key=lambda node: free[node][0])  # balance the load
        resources = free[task.node][1]
        remote = self._remote_function.options(
            name=self._function_name.partition(":")[2],
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            max_retries=0,  # retried here: Ray would ignore the limit of half a node
            scheduling_strategy=NodeAffinitySchedulingStrategy(task.node, soft=False),
        )
        self._running[remote.remote(installed_versions(), self._function_name, *task.arguments)] = task

    def _free_slots(self) -> dict[str, tuple[int, TaskResources]]:
        """Return free slots and resources per task of each live node."""
        found = {}
        for node in self._ray.nodes():
            if node["Alive"] and time.monotonic() >= self._excluded_until.get(node["NodeID"], 0.0):
                count, resources = task_slots(
                    node["Resources"], cpus_per_task=self._cpus_per_task, use_gpu=self._use_gpu
                )
                taken = sum(task.node == node["NodeID"] for task in self._running.values())
                if count:
                    found[node["NodeID"]] = (max(0, count - taken), resources)
        return found

    def _node_address(self, node: str) -> str:
        names = {info["NodeID"]: info["NodeManagerAddress"] for info in self._ray.nodes()}
        return str(names.get(node, "?"))


_LOSS_REASONS = {
    "WorkerCrashedError": "its worker was killed",
    "OutOfMemoryError": "its node ran out of memory",
}


def _explain_import_error(error: Exception) -> Exception:
    """Convert an import error on a node to a UserError; return other errors unchanged."""
    if isinstance(error, ImportError):
        reason = str(error)
    elif "failed to import on the worker" in str(error):
        reason = "ducats is missing or outdated"
    else:
        return error
    return UserError(f"a node lacks a required package ({reason}); install the same packages on all nodes")


def task_slots(
    resources: Mapping[str, float], *, cpus_per_task: float | None, use_gpu: bool
) -> tuple[int, TaskResources]:
    """Return how many tasks fit on a node, and the resources of each; they use at most half of its CPUs.

    Args:
        resources: of the node, with Ray's names.
        cpus_per_task: per task, at most half of the node's; None: an even share.
        use_gpu: whether each task gets a GPU.

    >>> task_slots({"CPU": 9}, cpus_per_task=2, use_gpu=False)
    (2, TaskResources(cpus=2, gpus=0))
    >>> task_slots({"CPU": 1}, cpus_per_task=2, use_gpu=False)
    (1, TaskResources(cpus=0.5, gpus=0))
    >>> task_slots({"CPU": 64, "GPU": 8}, cpus_per_task=None, use_gpu=True)
    (8, TaskResources(cpus=4, gpus=1))
    """
    half = resources.get("CPU", 0.0) / 2
    if half == 0:
        return 0, TaskResources(0, 0)
    cpus = half if cpus_per_task is None else min(cpus_per_task, half)
    if not use_gpu:
        return int(half // cpus), TaskResources(_round_cpus(cpus), 0)
    count = int(resources.get("GPU", 0))
    return count, TaskResources(_round_cpus(min(cpus, half / count)), 1) if count else TaskResources(0, 0)


def _round_cpus(cpus: float) -> float:
    """Round down to a number that Ray accepts: whole CPUs, or a fraction of one."""
    return math.floor(cpus) if cpus > 1 else cpus
