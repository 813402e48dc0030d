"""Who starts the processes of a run, and how many: this command, torchrun, or SLURM. Needs no torch."""

import os
from collections.abc import Mapping
from typing import Literal, NamedTuple

from ducats.errors import UserError

Launcher = Literal["own", "torchrun", "slurm"]
FIRST = "DUCATS_FIRST_PROCESS"  # what a command tells the processes that it starts: its own number
NEEDED = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")  # of each host, where nobody else starts the processes


class Group(NamedTuple):
    """How many processes compute a run, and who starts them."""

    processes: int  # on each host
    nodes: int
    launcher: Launcher

    @property
    def world(self) -> int:
        """Processes in all."""
        return self.processes * self.nodes


def launcher(environment: Mapping[str, str] = os.environ) -> Launcher:
    """Who starts the processes of a run.

    SLURM does so only through srun: a batch script by itself is one process, however many tasks its job has.
    A shell inside a job, which SLURM knows as bash or interactive, is no task either.

    >>> launcher({"SLURM_NTASKS": "2"}), launcher({"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"})
    ('own', 'slurm')
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        return "torchrun"
    task = "SLURM_STEP_ID" in environment and int(environment.get("SLURM_NTASKS", "1")) > 1
    return "slurm" if task and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive") else "own"


def place(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """This host's number, and this process's number on it."""
    names = {
        "own": ("NODE_RANK", "LOCAL_RANK"),
        "torchrun": ("GROUP_RANK", "LOCAL_RANK"),
        "slurm": ("SLURM_NODEID", "SLURM_LOCALID"),
    }
    node, local = names[launcher(environment)]
    return int(environment.get(node, "0")), int(environment.get(local, "0"))


def is_first(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is the first process of all, which speaks for the others."""
    return place(environment) == (0, 0)


def parent(environment: Mapping[str, str] = os.environ) -> int | None:
    """The number of the process that started this one as another of its own; None if none did."""
    mine = launcher(environment) == "own" and place(environment)[1] > 0
    return int(environment[FIRST]) if mine and FIRST in environment else None


def settle(processes: int | None, nodes: int | None, environment: Mapping[str, str] = os.environ) -> Group:
    """How many processes there are; a launcher knows it, and what a user says besides must agree.

    Args:
        processes: on each host, as asked for; None: what the launcher started, or one.
        nodes: hosts, likewise.
        environment: ours.

    Raises:
        UserError: the launcher started others than were asked for, or hosts cannot find each other.
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
                f"{option} {asked} was asked for, but {COMMAND[who]} started {group.processes} process(es) "
                f"on each of {group.nodes} host(s): leave {option} out, or start it with "
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
            f"torchrun started {world} processes on {group.nodes} hosts, {local} of them here: give each "
            "the same --nproc-per-node"
        )
    return group


def _slurm(environment: Mapping[str, str]) -> Group:
    tasks = int(environment["SLURM_NTASKS"])
    each = environment.get("SLURM_NTASKS_PER_NODE")
    if each is None or not each.isdigit() or tasks % int(each):
        raise UserError(
            f"srun started {tasks} tasks without saying that each host has as many: ask SLURM for --nodes "
            "and --ntasks-per-node instead of --ntasks"
        )
    group = Group(int(each), int(environment.get("SLURM_NNODES", tasks // int(each))), "slurm")
    if group.world != tasks:
        raise UserError(
            f"srun started {tasks} tasks, but SLURM speaks of {group.nodes} host(s) with {group.processes} "
            "task(s) each: let --nodes and --ntasks-per-node of job and srun agree"
        )
    return group


def _check_meeting(group: Group, environment: Mapping[str, str]) -> None:
    """Refuse several hosts that could not find each other."""
    missing = [name for name in NEEDED if name not in environment]
    if group.nodes > 1 and missing:
        raise UserError(
            f"--nodes {group.nodes} needs a launcher on each host, torchrun or srun; without one, set "
            f"{' and '.join(missing)} there (NODE_RANK counts the hosts from 0, MASTER_ADDR and MASTER_PORT "
            "are of the first)"
        )
    port = environment.get("MASTER_PORT", "0")
    if not port.isdigit() or int(port) > 65535:
        raise UserError(f"MASTER_PORT is {port!r}: set it to a free port of the first host, as 29500")
    node = environment.get("NODE_RANK", "0")
    if not node.isdigit() or int(node) >= group.nodes:
        raise UserError(
            f"NODE_RANK is {node!r}, but there are {group.nodes} host(s), counted from 0: set --nodes to how "
            "many there are, or NODE_RANK to this host's number"
        )
