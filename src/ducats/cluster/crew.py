"""Pieces of work on the nodes of a Ray cluster; what a lost worker or node takes with it is done again.

Tasks, not actors: a task holds its CPUs only while it works, so nothing ever waits for a place that something
idle holds. And each has a node, chosen here, so that all of ours together hold at most half of its CPUs: a
node always has room for what Ray itself, or somebody else, must do there.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ducats.cluster.joining import import_ray
from ducats.cluster.same import only_among_equals, versions
from ducats.errors import UserError

TRIES = 3  # of a piece whose worker is lost each time: it may be what kills it; nodes go by themselves
AWAY = 120.0  # seconds in which Ray may still list a node that is gone


class Lost(Exception):  # noqa: N818 - what happened, not what is wrong
    """A piece was lost with its worker as often as it was tried."""


class Place(NamedTuple):
    """What a piece of work holds of a node."""

    cpus: float
    gpus: int


class Ended(NamedTuple):
    """A piece that ended: what came of it, or what it raised; ``Lost`` if nothing did."""

    name: Any
    value: Any
    error: Exception | None


@dataclass
class _Piece:
    name: Any
    arguments: tuple[Any, ...]
    node: str = ""
    losses: int = 0  # that may have been its own fault


class Crew:
    """Workers on the nodes of the cluster that this process is connected to.

    Nodes may go and come: those that are there are used.

    Args:
        work: what a worker does with a piece: a function of a module that every node has.
        cpus: that a piece wants to itself; None: all that its place has.
        gpus: whether each piece has a GPU, on nodes that have some.
        most: pieces at once, in the whole cluster; None: as many as there are places.
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
        self._away: dict[str, float] = {}  # nodes that took a piece with them, and until when they get none

    def room(self) -> int:
        """How many more pieces can begin."""
        free = sum(count for count, _ in self._free().values())
        most = free if self._most is None else min(free, self._most - len(self._running))
        return max(0, most - len(self._lost))

    def begin(self, name: Any, *arguments: Any) -> str:
        """Begin a piece, where there is room; return the node's address."""
        piece = _Piece(name, arguments)
        self._submit(piece)
        return self._address(piece.node)

    def wait(self, seconds: float) -> list[Ended]:
        """Pieces that ended, once there are some or the time is over."""
        while self._lost and self._may_submit():
            self._submit(self._lost.pop(0))
        if not self._running:  # all of it is lost, and no node is there that could do it
            time.sleep(seconds if self._lost else 0)
            return []
        ready, others = self._ray.wait(list(self._running), timeout=seconds)
        ready += self._ray.wait(others, num_returns=len(others), timeout=0)[0] if ready and others else []
        ended = [self._end(reference, self._running.pop(reference)) for reference in ready]
        return [one for one in ended if one is not None]

    def stop(self) -> None:
        """End all that is at work, with its workers."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        self._lost.clear()

    def _end(self, reference: Any, piece: _Piece) -> Ended | None:
        """What came of a piece; None if it is lost, and will be done again."""
        errors = self._ray.exceptions
        try:
            return Ended(piece.name, self._ray.get(reference), None)
        except errors.RayError as error:
            cause = error.cause if isinstance(error, errors.RayTaskError) else error
            if not isinstance(cause, errors.RayError):  # the work itself failed, and was not lost
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
        piece.node = max(sorted(free), key=lambda node: free[node][0])  # evenly
        place = free[piece.node][1]
        task = self._task.options(
            name=self._name.partition(":")[2],
            num_cpus=place.cpus,
            num_gpus=place.gpus,
            max_retries=0,  # Ray would do it again anywhere, beyond the half; here it is done again, counted
            scheduling_strategy=NodeAffinitySchedulingStrategy(piece.node, soft=False),
        )
        self._running[task.remote(versions(), self._name, *piece.arguments)] = piece

    def _free(self) -> dict[str, tuple[int, Place]]:
        """Free places on each node that is there."""
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
    """A node lacks a module: what a user can mend, in a sentence; of this package Ray says it in many."""
    if isinstance(error, ImportError):
        why = str(error)
    elif "failed to import on the worker" in str(error):
        why = "it has no ducats, or an old one"
    else:
        return error
    return UserError(f"a node cannot import what it needs ({why}): install the same packages on all nodes")


def places(resources: Mapping[str, float], *, cpus: float | None, gpus: bool) -> tuple[int, Place]:
    """How many pieces a node takes at once, and what each holds: together at most half of its CPUs.

    Args:
        resources: of the node, as Ray names them.
        cpus: that a piece wants; it gets fewer where half of the node is less. None: an even share.
        gpus: whether each piece has a GPU.

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
    """Ray counts CPUs in whole ones, or in parts of one."""
    return math.floor(cpus) if cpus > 1 else cpus
