"""Detection of launcher and world size from the environment."""

import pytest

import ranks
from ducats.training.launch_environment import (
    STARTED_RANKS_VARIABLE,
    World,
    detect_launcher,
    has_same_parent,
    is_rank_zero,
    node_and_local_rank,
    resolve_world,
    starts_local_ranks,
)
from ducats.utils.errors import UserError


def test_single_process_without_launcher() -> None:
    assert resolve_world(None, None, {}) == World(1, 1, "own")
    assert resolve_world(3, None, {}) == World(3, 1, "own")
    assert is_rank_zero({})


@pytest.mark.parametrize("started_by", [ranks.torchrun, ranks.slurm])
def test_world_size_comes_from_the_launcher(started_by: ranks.Environment) -> None:
    name = "torchrun" if started_by is ranks.torchrun else "slurm"
    for rank in range(3):
        environment = started_by(rank, 3, 29500)
        assert detect_launcher(environment) == name
        assert resolve_world(None, None, environment) == resolve_world(1, 3, environment) == World(1, 3, name)
        assert node_and_local_rank(environment) == (rank, 0)
        assert is_rank_zero(environment) == (rank == 0)
    assert resolve_world(None, None, environment).size == 3


@pytest.mark.parametrize(
    ("started_by", "requested", "words"),
    [
        (
            ranks.torchrun,
            (2, None),
            "--devices is 2, but torchrun started 1 process.es. on each of 3 .* torchrun --nproc-per-node=2",
        ),
        (ranks.torchrun, (None, 1), "--nodes is 1.*torchrun --nnodes=1"),
        (ranks.slurm, (2, 3), "--devices is 2, but srun.*srun --ntasks-per-node=2"),
        (ranks.slurm, (1, 2), "--nodes is 2.*srun --nodes=2"),
    ],
)
def test_options_must_agree_with_the_launcher(
    started_by: ranks.Environment, requested: tuple[int | None, int | None], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        resolve_world(*requested, started_by(0, 3, 29500))


def test_different_process_counts_per_host_raise() -> None:
    uneven = {**ranks.torchrun(0, 3, 29500), "GROUP_WORLD_SIZE": "2"}
    with pytest.raises(UserError, match="3 processes on 2 hosts, 1 of them on this one"):
        resolve_world(None, None, uneven)
    unspecified = ranks.slurm(0, 3, 29500)
    del unspecified["SLURM_NTASKS_PER_NODE"]
    with pytest.raises(UserError, match="--ntasks-per-node instead of --ntasks"):
        resolve_world(None, None, unspecified)
    inconsistent = {**ranks.slurm(0, 4, 29500), "SLURM_NNODES": "2"}
    with pytest.raises(UserError, match=r"4 tasks, but the SLURM job has 2 host.s. with 1 task"):
        resolve_world(None, None, inconsistent)


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_STEP_ID": None},  # a batch script that does not use srun
        {"SLURM_NTASKS": "1"},
        {"SLURM_JOB_NAME": "interactive"},
    ],
)
def test_single_process_inside_a_slurm_job_ignores_slurm(change: dict[str, str | None]) -> None:
    environment = {**ranks.slurm(1, 2, 29500), **change}
    inside = {name: value for name, value in environment.items() if value is not None}
    assert resolve_world(None, None, inside) == World(1, 1, "own")
    assert resolve_world(4, None, inside) == World(4, 1, "own")
    assert is_rank_zero(inside)


def test_hosts_without_a_launcher_need_rendezvous_variables() -> None:
    with pytest.raises(UserError, match="set NODE_RANK and MASTER_ADDR and MASTER_PORT on each host"):
        resolve_world(None, 2, {})
    with pytest.raises(UserError, match="set MASTER_PORT on each host"):
        resolve_world(None, 2, {"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"})
    for port in ("http", "70000"):
        with pytest.raises(UserError, match=f"MASTER_PORT is '{port}'"):
            resolve_world(None, 2, {**ranks.hosts_by_hand(1, 2, 29500), "MASTER_PORT": port})
    assert resolve_world(2, 2, ranks.hosts_by_hand(1, 2, 29500)) == World(2, 2, "own")
    assert not is_rank_zero(ranks.hosts_by_hand(1, 2, 29500))


def test_node_rank_beyond_the_number_of_nodes_raises() -> None:
    with pytest.raises(UserError, match="NODE_RANK is '2', but there are 2 host"):
        resolve_world(None, 2, ranks.hosts_by_hand(2, 3, 29500))


def test_only_the_command_itself_starts_ranks() -> None:
    assert starts_local_ranks(World(2, 1, "own"), {})
    assert not starts_local_ranks(World(2, 1, "own"), {"LOCAL_RANK": "0"})
    assert not starts_local_ranks(World(1, 2, "own"), ranks.hosts_by_hand(1, 2, 29500))
    assert not starts_local_ranks(World(2, 1, "torchrun"), {})


def test_the_command_reports_the_death_of_the_ranks_that_it_started() -> None:
    second_host = {STARTED_RANKS_VARIABLE: "2", "NODE_RANK": "1", "LOCAL_RANK": "0"}
    assert [has_same_parent(rank, second_host) for rank in range(4)] == [False, False, True, True]
    assert not has_same_parent(0, {"LOCAL_RANK": "1"})  # started by something else
