"""Launcher and size of a distributed run, from the environment: own, torchrun or SLURM. Needs no torch."""

import os
from collections.abc import Mapping
from typing import Literal, NamedTuple

from ducats.utils.errors import UserError

Launcher = Literal["own", "torchrun", "slurm"]
# Number of ranks that the command started on this host, passed to them.
STARTED_RANKS_VARIABLE = "DUCATS_STARTED_RANKS"
# To be set on each host without a launcher.
RENDEZVOUS_VARIABLES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


class World(NamedTuple):
    """Number of processes of a run, and their launcher."""

    processes_per_node: int
    nodes: int
    launcher: Launcher

    @property
    def size(self) -> int:
        """Total number of processes."""
        return self.processes_per_node * self.nodes


def detect_launcher(environment: Mapping[str, str] = os.environ) -> Launcher:
    """Detect the launcher of this process.

    SLURM launches processes only through srun: a batch script is one process, even if its job has many tasks.
    A shell inside a job, named bash or interactive by SLURM, is not a task either.

    >>> detect_launcher({"SLURM_NTASKS": "2"}), detect_launcher({"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"})
    ('own', 'slurm')
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        return "torchrun"
    is_task = "SLURM_STEP_ID" in environment and int(environment.get("SLURM_NTASKS", "1")) > 1
    return "slurm" if is_task and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive") else "own"


def node_and_local_rank(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return the node rank and the local rank of this process."""
    names = {
        "own": ("NODE_RANK", "LOCAL_RANK"),
        "torchrun": ("GROUP_RANK", "LOCAL_RANK"),
        "slurm": ("SLURM_NODEID", "SLURM_LOCALID"),
    }
    node, local = names[detect_launcher(environment)]
    return int(environment.get(node, "0")), int(environment.get(local, "0"))


def is_rank_zero(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this is rank 0, which reports for all ranks."""
    return node_and_local_rank(environment) == (0, 0)


def starts_local_ranks(world: World, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process has to start the ranks of its host, rather than being one of them."""
    return world.launcher == "own" and world.processes_per_node > 1 and "LOCAL_RANK" not in environment


def has_same_parent(rank: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the command that started this rank also started another; it then reports its death."""
    count = int(environment.get(STARTED_RANKS_VARIABLE, "0"))
    return count > 0 and rank // count == node_and_local_rank(environment)[0]


def resolve_world(
    processes: int | None, nodes: int | None, environment: Mapping[str, str] = os.environ
) -> World:
    """Return the number of processes, and check that launcher and options agree.

    Args:
        processes: requested per host; None: as many as the launcher started, or one.
        nodes: requested hosts; None: likewise.

    Raises:
        UserError: The launcher started other numbers than requested, or hosts cannot find each other.
    """
    launcher = detect_launcher(environment)
    if launcher == "own":
        world = World(processes or 1, nodes or 1, launcher)
        _check_rendezvous(world, environment)
        return world
    world = _torchrun_world(environment) if launcher == "torchrun" else _slurm_world(environment)
    for option, requested, found in (
        ("--devices", processes, world.processes_per_node),
        ("--nodes", nodes, world.nodes),
    ):
        if requested is not None and requested != found:
            raise UserError(
                f"{option} is {requested}, but {LAUNCHER_COMMANDS[launcher]} started "
                f"{world.processes_per_node} process(es) on each of {world.nodes} host(s); omit {option}, or "
                f"launch with {LAUNCHER_COMMANDS[launcher]} {LAUNCHER_OPTIONS[launcher, option]}={requested}"
            )
    return world


LAUNCHER_COMMANDS = {"torchrun": "torchrun", "slurm": "srun"}
LAUNCHER_OPTIONS = {
    ("torchrun", "--devices"): "--nproc-per-node",
    ("torchrun", "--nodes"): "--nnodes",
    ("slurm", "--devices"): "--ntasks-per-node",
    ("slurm", "--nodes"): "--nodes",
}


def _torchrun_world(environment: Mapping[str, str]) -> World:
    world_size, local = (int(environment[name]) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    world = World(local, int(environment.get("GROUP_WORLD_SIZE", "1")), "torchrun")
    if world.size != world_size:
        raise UserError(
            f"torchrun started {world_size} processes on {world.nodes} hosts, {local} of them on this one; "
            "use the same --nproc-per-node on every host"
        )
    return world


def _slurm_world(environment: Mapping[str, str]) -> World:
    tasks = int(environment["SLURM_NTASKS"])
    tasks_per_node = environment.get("SLURM_NTASKS_PER_NODE")
    if tasks_per_node is None or not tasks_per_node.isdigit() or tasks % int(tasks_per_node):
        raise UserError(
            f"srun started {tasks} tasks without a fixed number per host; use --nodes and --ntasks-per-node "
            "instead of --ntasks"
        )
    world = World(
        int(tasks_per_node), int(environment.get("SLURM_NNODES", tasks // int(tasks_per_node))), "slurm"
    )
    if world.size != tasks:
        raise UserError(
            f"srun started {tasks} tasks, but the SLURM job has {world.nodes} host(s) with "
            f"{world.processes_per_node} task(s) each; use the same --nodes and --ntasks-per-node for job "
            "and srun"
        )
    return world


def _check_rendezvous(world: World, environment: Mapping[str, str]) -> None:
    """Raise if several hosts could not find each other."""
    missing = [name for name in RENDEZVOUS_VARIABLES if name not in environment]
    if world.nodes > 1 and missing:
        raise UserError(
            f"--nodes {world.nodes} needs a launcher on each host, torchrun or srun; without one, set "
            f"{' and '.join(missing)} on each host (NODE_RANK is its number, from 0; MASTER_ADDR and "
            "MASTER_PORT are those of host 0)"
        )
    port = environment.get("MASTER_PORT", "0")
    if not port.isdigit() or int(port) > 65535:
        raise UserError(f"MASTER_PORT is {port!r}; set it to a free port of host 0, e.g. 29500")
    node = environment.get("NODE_RANK", "0")
    if not node.isdigit() or int(node) >= world.nodes:
        raise UserError(
            f"NODE_RANK is {node!r}, but there are {world.nodes} host(s), counted from 0; set --nodes to the "
            "number of hosts, or NODE_RANK to the number of this one"
        )
