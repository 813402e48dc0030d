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

from ducats.cluster.joining import import_ray
from ducats.cluster.same import only_among_equals, versions
from ducats.errors import UserError

TRIES = 3  # per task if its worker is lost, as the task may be the cause; lost nodes are not counted
AWAY = 120.0  # seconds in which Ray may still list a dead node


class Lost(Exception):  # noqa: N818 - an outcome rather than an error
    """A task lost its worker at every attempt."""


class Place(NamedTuple):
    """Resources of a node held by one task."""

    cpus: float
    gpus: int


class Ended(NamedTuple):
    """A finished task: its value or its exception, ``Lost`` if its worker was lost each time."""

    name: Any
    value: Any
    error: Exception | None


@dataclass
class _Piece:
    name: Any
    arguments: tuple[Any, ...]
    node: str = ""
    losses: int = 0  # of its worker, not of its node


class Crew:
    """Runs tasks on the nodes of the connected Ray cluster.

    Nodes may join and leave at any time.

    Args:
        work: function to run, from a module installed on every node.
        cpus: per task; None: an even share of half of the node's CPUs.
        gpus: whether each task gets a GPU.
        most: concurrent tasks in the whole cluster; None: no limit besides the nodes' resources.
    """

    def __init__(
        self,
        work: Callable[..., Any],
        *,
        cpus: float | None = 1.0,
        gpus: bool = False,
        most: int | None = None,
    ) -> None:
        self._ray = import_ray()
        self._task = self._ray.remote(only_among_equals)
        self._name = f"{work.__module__}:{work.__name__}"
        self._cpus, self._gpus, self._most = cpus, gpus, most
        self._running: dict[Any, _Piece] = {}
        self._lost: list[_Piece] = []
        self._away: dict[str, float] = {}  # node -> time until which it gets no tasks, after a loss

    def room(self) -> int:
        """Return how many more tasks can start."""
        free = sum(count for count, _ in self._free().values())
        most = free if self._most is None else min(free, self._most - len(self._running))
        return max(0, most - len(self._lost))

    def begin(self, name: Any, *arguments: Any) -> str:
        """Start a task on the node with most free slots; return the node's address."""
        piece = _Piece(name, arguments)
        self._submit(piece)
        return self._address(piece.node)

    def wait(self, seconds: float) -> list[Ended]:
        """Return finished tasks, waiting up to ``seconds`` for the first."""
        while self._lost and self._may_submit():
            self._submit(self._lost.pop(0))
        if not self._running:  # all tasks are lost and no node can run them
            time.sleep(seconds if self._lost else 0)
            return []
        ready, others = self._ray.wait(list(self._running), timeout=seconds)
        ready += self._ray.wait(others, num_returns=len(others), timeout=0)[0] if ready and others else []
        ended = [self._end(reference, self._running.pop(reference)) for reference in ready]
        return [one for one in ended if one is not None]

    def stop(self) -> None:
        """Kill all running tasks and their workers."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        self._lost.clear()

    def _end(self, reference: Any, piece: _Piece) -> Ended | None:
        """Return the outcome of a task; None if it was lost and will be retried."""
        errors = self._ray.exceptions
        try:
            return Ended(piece.name, self._ray.get(reference), None)
        except errors.RayError as error:
            cause = error.cause if isinstance(error, errors.RayTaskError) else error
            if not isinstance(cause, errors.RayError):  # the function raised
                return Ended(piece.name, None, _understood(cause if isinstance(cause, Exception) else error))
            if isinstance(cause, (errors.NodeDiedError, errors.TaskUnschedulableError)):
                self._away[piece.node] = time.monotonic() + AWAY
            else:
                piece.losses += 1
            if piece.losses < TRIES:
                self._lost.append(piece)
                return None
            why = _WHY.get(type(cause).__name__) or str(cause).partition("\n")[0]
            return Ended(piece.name, None, Lost(f"{why}, {piece.losses} times in a row"))

    def _may_submit(self) -> bool:
        return any(count for count, _ in self._free().values()) and (
            self._most is None or len(self._running) < self._most
        )

    def _submit(self, piece: _Piece) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        free = self._free()
        piece.node = max(sorted(free), key=lambda node: free[node][0])  # balance the load
        place = free[piece.node][1]
        task = self._task.options(
            name=self._name.partition(":")[2],
            num_cpus=place.cpus,
            num_gpus=place.gpus,
            max_retries=0,  # retried here: Ray would ignore the limit of half a node
            scheduling_strategy=NodeAffinitySchedulingStrategy(piece.node, soft=False),
        )
        self._running[task.remote(versions(), self._name, *piece.arguments)] = piece

    def _free(self) -> dict[str, tuple[int, Place]]:
        """Return free slots and resources per task of each live node."""
        found = {}
        for node in self._ray.nodes():
            if node["Alive"] and time.monotonic() >= self._away.get(node["NodeID"], 0.0):
                count, place = places(node["Resources"], cpus=self._cpus, gpus=self._gpus)
                taken = sum(piece.node == node["NodeID"] for piece in self._running.values())
                if count:
                    found[node["NodeID"]] = (max(0, count - taken), place)
        return found

    def _address(self, node: str) -> str:
        names = {each["NodeID"]: each["NodeManagerAddress"] for each in self._ray.nodes()}
        return str(names.get(node, "?"))


_WHY = {
    "WorkerCrashedError": "its worker was killed",
    "OutOfMemoryError": "its node ran out of memory",
}


def _understood(error: Exception) -> Exception:
    """Convert an import error on a node to a UserError; return other errors unchanged."""
    if isinstance(error, ImportError):
        why = str(error)
    elif "failed to import on the worker" in str(error):
        why = "ducats is missing or outdated"
    else:
        return error
    return UserError(f"a node lacks a required package ({why}); install the same packages on all nodes")


def places(resources: Mapping[str, float], *, cpus: float | None, gpus: bool) -> tuple[int, Place]:
    """Return how many tasks fit on a node, and the resources of each; they use at most half of its CPUs.

    Args:
        resources: of the node, with Ray's names.
        cpus: per task, at most half of the node's; None: an even share.
        gpus: whether each task gets a GPU.

    >>> places({"CPU": 9}, cpus=2, gpus=False), places({"CPU": 1}, cpus=2, gpus=False)
    ((2, Place(cpus=2, gpus=0)), (1, Place(cpus=0.5, gpus=0)))
    >>> places({"CPU": 64, "GPU": 8}, cpus=None, gpus=True)
    (8, Place(cpus=4, gpus=1))
    """
    half = resources.get("CPU", 0.0) / 2
    if half == 0:
        return 0, Place(0, 0)
    wanted = half if cpus is None else min(cpus, half)
    if not gpus:
        return int(half // wanted), Place(_whole(wanted), 0)
    count = int(resources.get("GPU", 0))
    return count, Place(_whole(min(wanted, half / count)), 1) if count else Place(0, 0)


def _whole(cpus: float) -> float:
    """Round down to a number that Ray accepts: whole CPUs, or a fraction of one."""
    return math.floor(cpus) if cpus > 1 else cpus
