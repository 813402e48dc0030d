"""Who starts the processes of a run, and how many there are."""

import pytest

import ranks
from ducats.engine.hosts import FIRST, Group, is_first, launcher, parent, place, settle
from ducats.errors import UserError


def test_one_process_by_itself() -> None:
    assert settle(None, None, {}) == Group(1, 1, "own")
    assert settle(3, None, {}) == Group(3, 1, "own")
    assert is_first({})


@pytest.mark.parametrize("started_by", [ranks.torchrun, ranks.slurm])
def test_a_launcher_says_how_many_there_are(started_by: ranks.Environment) -> None:
    name = "torchrun" if started_by is ranks.torchrun else "slurm"
    for rank in range(3):
        environment = started_by(rank, 3, 29500)
        assert launcher(environment) == name
        assert settle(None, None, environment) == settle(1, 3, environment) == Group(1, 3, name)
        assert place(environment) == (rank, 0)
        assert is_first(environment) == (rank == 0)
    assert settle(None, None, environment).world == 3


@pytest.mark.parametrize(
    ("started_by", "asked", "words"),
    [
        (
            ranks.torchrun,
            (2, None),
            "--devices 2 was asked for, but torchrun started 1 process.es. on each of 3 host.s.: leave "
            "--devices out, or start it with torchrun --nproc-per-node=2",
        ),
        (ranks.torchrun, (None, 1), "--nodes 1 was asked for.*or start it with torchrun --nnodes=1"),
        (ranks.slurm, (2, 3), "--devices 2 was asked for, but srun.*srun --ntasks-per-node=2"),
        (ranks.slurm, (1, 2), "--nodes 2 was asked for.*srun --nodes=2"),
    ],
)
def test_what_is_asked_for_besides_must_agree(
    started_by: ranks.Environment, asked: tuple[int | None, int | None], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        settle(*asked, started_by(0, 3, 29500))


def test_hosts_with_different_numbers_of_processes_are_refused() -> None:
    uneven = {**ranks.torchrun(0, 3, 29500), "GROUP_WORLD_SIZE": "2"}
    with pytest.raises(UserError, match="3 processes on 2 hosts, 1 of them here: give each the same"):
        settle(None, None, uneven)
    unsaid = ranks.slurm(0, 3, 29500)
    del unsaid["SLURM_NTASKS_PER_NODE"]
    with pytest.raises(UserError, match="ask SLURM for --nodes and --ntasks-per-node instead of --ntasks"):
        settle(None, None, unsaid)
    crooked = {**ranks.slurm(0, 4, 29500), "SLURM_NNODES": "2"}
    with pytest.raises(UserError, match=r"4 tasks, but SLURM speaks of 2 host.s. with 1 task"):
        settle(None, None, crooked)


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_STEP_ID": None},  # a batch script that does not use srun
        {"SLURM_NTASKS": "1"},
        {"SLURM_JOB_NAME": "interactive"},
    ],
)
def test_one_process_inside_of_a_slurm_job_is_its_own_master(change: dict[str, str | None]) -> None:
    environment = {**ranks.slurm(1, 2, 29500), **change}
    inside = {name: value for name, value in environment.items() if value is not None}
    assert settle(None, None, inside) == Group(1, 1, "own")
    assert settle(4, None, inside) == Group(4, 1, "own")
    assert is_first(inside)


def test_hosts_without_a_launcher_must_find_each_other() -> None:
    with pytest.raises(UserError, match="set NODE_RANK and MASTER_ADDR and MASTER_PORT there"):
        settle(None, 2, {})
    with pytest.raises(UserError, match="set MASTER_PORT there"):
        settle(None, 2, {"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"})
    for port in ("http", "70000"):
        with pytest.raises(UserError, match=f"MASTER_PORT is '{port}': set it to a free port"):
            settle(None, 2, {**ranks.hosts_by_hand(1, 2, 29500), "MASTER_PORT": port})
    assert settle(2, 2, ranks.hosts_by_hand(1, 2, 29500)) == Group(2, 2, "own")
    assert not is_first(ranks.hosts_by_hand(1, 2, 29500))


def test_a_host_that_is_not_counted_is_refused() -> None:
    with pytest.raises(UserError, match="NODE_RANK is '2', but there are 2 host"):
        settle(None, 2, ranks.hosts_by_hand(2, 3, 29500))


def test_who_started_a_process() -> None:
    assert parent({FIRST: "123"}) is None  # the first one itself
    assert parent({FIRST: "123", "LOCAL_RANK": "1"}) == 123
    assert parent({"LOCAL_RANK": "1"}) is None  # somebody else did
    assert parent({**ranks.torchrun(0, 2, 29500), "LOCAL_RANK": "1", FIRST: "123"}) is None
