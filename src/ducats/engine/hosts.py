"""Launcher and size of a distributed run, from the environment: own, torchrun or SLURM. Needs no torch."""

import os
from collections.abc import Mapping
from typing import Literal, NamedTuple

from ducats.errors import UserError

Launcher = Literal["own", "torchrun", "slurm"]
FIRST = "DUCATS_FIRST_PROCESS"  # PID of the command, passed to the processes it starts
NEEDED = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")  # to be set on each host without a launcher


class Group(NamedTuple):
    """Number of processes of a run, and their launcher."""

    processes: int  # per host
    nodes: int
    launcher: Launcher

    @property
    def world(self) -> int:
        """Total number of processes."""
        return self.processes * self.nodes


def launcher(environment: Mapping[str, str] = os.environ) -> Launcher:
    """Detect the launcher of this process.

    SLURM launches processes only through srun: a batch script is one process, even if its job has many tasks.
    A shell inside a job, named bash or interactive by SLURM, is not a task either.

    >>> launcher({"SLURM_NTASKS": "2"}), launcher({"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"})
    ('own', 'slurm')
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        return "torchrun"
    task = "SLURM_STEP_ID" in environment and int(environment.get("SLURM_NTASKS", "1")) > 1
    return "slurm" if task and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive") else "own"


def place(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return the node rank and the local rank of this process."""
    names = {
        "own": ("NODE_RANK", "LOCAL_RANK"),
        "torchrun": ("GROUP_RANK", "LOCAL_RANK"),
        "slurm": ("SLURM_NODEID", "SLURM_LOCALID"),
    }
    node, local = names[launcher(environment)]
    return int(environment.get(node, "0")), int(environment.get(local, "0"))


def is_first(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this is rank 0, which reports for all ranks."""
    return place(environment) == (0, 0)


def parent(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the PID of the command that started this process as one of its ranks; None if none did."""
    mine = launcher(environment) == "own" and place(environment)[1] > 0
    return int(environment[FIRST]) if mine and FIRST in environment else None


def settle(processes: int | None, nodes: int | None, environment: Mapping[str, str] = os.environ) -> Group:
    """Return the number of processes, and check that launcher and options agree.

    Args:
        processes: requested per host; None: as many as the launcher started, or one.
        nodes: requested hosts; None: likewise.

    Raises:
        UserError: The launcher started other numbers than requested, or hosts cannot find each other.
    """
    who = launcher(environment)
    if who == "own":
        group = Group(processes or 1, nodes or 1, who)
        _check_meeting(group, environment)
        return group
    group = _torchrun(environment) if who == "torchrun" else _slurm(environment)
    for option, asked, found in (("--devices", processes, group.processes), ("--nodes", nodes, group.nodes)):
        if asked is not None and asked != found:
            raise UserError(
                f"{option} is {asked}, but {COMMAND[who]} started {group.processes} process(es) on each of "
                f"{group.nodes} host(s); omit {option}, or launch with "
                f"{COMMAND[who]} {OPTION[who, option]}={asked}"
            )
    return group


COMMAND = {"torchrun": "torchrun", "slurm": "srun"}
OPTION = {
    ("torchrun", "--devices"): "--nproc-per-node",
    ("torchrun", "--nodes"): "--nnodes",
    ("slurm", "--devices"): "--ntasks-per-node",
    ("slurm", "--nodes"): "--nodes",
}


def _torchrun(environment: Mapping[str, str]) -> Group:
    world, local = (int(environment[name]) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    group = Group(local, int(environment.get("GROUP_WORLD_SIZE", "1")), "torchrun")
    if group.world != world:
        raise UserError(
            f"torchrun started {world} processes on {group.nodes} hosts, {local} of them on this one; use "
            "the same --nproc-per-node on every host"
        )
    return group


def _slurm(environment: Mapping[str, str]) -> Group:
    tasks = int(environment["SLURM_NTASKS"])
    each = environment.get("SLURM_NTASKS_PER_NODE")
    if each is None or not each.isdigit() or tasks % int(each):
        raise UserError(
            f"srun started {tasks} tasks without a fixed number per host; use --nodes and --ntasks-per-node "
            "instead of --ntasks"
        )
    group = Group(int(each), int(environment.get("SLURM_NNODES", tasks // int(each))), "slurm")
    if group.world != tasks:
        raise UserError(
            f"srun started {tasks} tasks, but the SLURM job has {group.nodes} host(s) with {group.processes} "
            "task(s) each; use the same --nodes and --ntasks-per-node for job and srun"
        )
    return group


def _check_meeting(group: Group, environment: Mapping[str, str]) -> None:
    """Raise if several hosts could not find each other."""
    missing = [name for name in NEEDED if name not in environment]
    if group.nodes > 1 and missing:
        raise UserError(
            f"--nodes {group.nodes} needs a launcher on each host, torchrun or srun; without one, set "
            f"{' and '.join(missing)} on each host (NODE_RANK is its number, from 0; MASTER_ADDR and "
            "MASTER_PORT are those of host 0)"
        )
    port = environment.get("MASTER_PORT", "0")
    if not port.isdigit() or int(port) > 65535:
        raise UserError(f"MASTER_PORT is {port!r}; set it to a free port of host 0, e.g. 29500")
    node = environment.get("NODE_RANK", "0")
    if not node.isdigit() or int(node) >= group.nodes:
        raise UserError(
            f"NODE_RANK is {node!r}, but there are {group.nodes} host(s), counted from 0; set --nodes to the "
            "number of hosts, or NODE_RANK to the number of this one"
        )
