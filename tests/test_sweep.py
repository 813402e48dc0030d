"""Sweeps: what a file means, what is refused before anything runs, and runs that fail, wait or are killed."""

import fcntl
import io
import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from conftest import QUICK
from ducats.cli import main
from ducats.errors import UserError
from ducats.options import folder_of
from ducats.sweep import (
    Cell,
    Slot,
    Wanted,
    cells_of,
    check,
    listing,
    make_slots,
    read_sweep,
    ready,
    run_all,
    workers,
)

HERE = [Slot("cpu", "cpu"), Slot("cpu", "cpu")]
QUICK_ONES = [setting for setting in QUICK if not setting.startswith("engine.device")]


def write(path: Path, **sweep: object) -> Path:
    path.write_text(yaml.safe_dump({"settings": QUICK_ONES, "seeds": [0], **sweep}))
    return path


def plan(path: Path, wanted: Wanted | None = None, **sweep: object) -> list[Cell]:
    return cells_of(read_sweep(write(path / "s.yaml", **sweep)), wanted or Wanted(), "cpu")


def ducats(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    return int(caught.value.code or 0)


# ---- what a file means


def test_every_method_on_every_task_with_every_seed(tmp_path: Path) -> None:
    tasks = [{"name": "easy"}, {"name": "hard", "settings": "data.knobs.pool=50"}]
    cells = plan(tmp_path, methods=["random", "duc"], tasks=tasks, seeds=[3, 4])
    assert [(cell.method, cell.task, cell.config.seed) for cell in cells] == [
        (method, task, seed) for seed in (3, 4) for task in ("easy", "hard") for method in ("random", "duc")
    ]
    assert [cell.config.data.knobs for cell in cells[:4]] == [{}, {}, {"pool": 50}, {"pool": 50}]
    assert len({cell.name for cell in cells}) == 8
    for cell in cells:
        assert cell.name == folder_of(cell.config).name == f"toy-{cell.method}-{cell.config.digest()}"
        assert cell.config.engine.precision == "32-true"  # settled, as a run settles it


def test_a_grid_is_a_method_for_each_combination(tmp_path: Path) -> None:
    grid = {"objective.knobs.beta": [0.1, 1.0], "objective.knobs.lambda_": [0.05]}
    cells = plan(tmp_path, methods=[{"config": "methods/duc", "grid": grid}])
    assert [(cell.method, cell.config.method) for cell in cells] == [
        ("duc-beta-0.1-lambda-0.05",) * 2,
        ("duc-beta-1.0-lambda-0.05",) * 2,
    ]
    assert [cell.config.objective.knobs for cell in cells] == [
        {"beta": 0.1, "lambda_": 0.05},
        {"beta": 1.0, "lambda_": 0.05},
    ]


def test_later_settings_win_and_names_stay(tmp_path: Path) -> None:
    method = {"name": "mine", "config": "duc", "settings": ["train.lr=0.2", "query.name=random"]}
    wanted = Wanted(settings=["train.lr=0.3"], seeds=[7])
    (cell,) = plan(tmp_path, wanted, methods=[method])
    assert (cell.config.train.lr, cell.config.seed) == (0.3, 7)
    assert (cell.config.method, cell.config.query.name) == ("mine", "random")  # not renamed to duc+random


def test_a_budget_in_a_name_is_a_folder(tmp_path: Path) -> None:
    (cell,) = plan(tmp_path, methods=[{"config": "duc", "grid": {"ask.budget": ["5%"]}}])
    assert cell.name.startswith("toy-duc-budget-5%-")
    assert cell.config.ask.budget == "5%"


def test_one_is_like_another(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", methods=["random"], seeds=[5])
    (tmp_path / "b.yaml").write_text(f"like: {tmp_path / 'a.yaml'}\nmethods: [duc]\n")
    sweep = read_sweep(tmp_path / "b.yaml")
    assert (sweep.methods[0].config, sweep.seeds, len(sweep.settings)) == (
        ("methods/duc",),
        (5,),
        len(QUICK_ONES),
    )


def test_only_what_is_wanted(tmp_path: Path) -> None:
    grid = {"query.knobs.kappa": [1, 5, 10]}
    methods = ["random", {"config": "duc", "grid": grid}]
    cells = plan(tmp_path, Wanted(methods=["duc-kappa-1*"]), methods=methods)
    assert [cell.method for cell in cells] == ["duc-kappa-1", "duc-kappa-10"]
    with pytest.raises(UserError, match="no method 'entropy'; there are: random, duc-kappa-1"):
        plan(tmp_path, Wanted(methods=["entropy"]), methods=methods)
    with pytest.raises(UserError, match="no task 'A-W'"):
        plan(tmp_path, Wanted(tasks=["A-W"]), methods=methods)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("methods: [duc", "not valid YAML"),
        ("- duc", "must hold base, methods"),
        ("seeds: [0]", "methods: Field required"),
        ("methods: [duc]\nmethod: duc", "method: Extra inputs are not permitted; a sweep has: base"),
        ("methods: []", "methods: Tuple should have at least 1 item"),
        ("methods: [{nam: duc}]", "methods.0.nam: Extra inputs"),
        ("methods: [duc]\nseeds: [a]", "seeds.0"),
        ("like: 3\nmethods: [duc]", "`like` must name another sweep"),
        ("methods: [duk]", "no config 'methods/duk'"),
        ("methods: [duc, duc]", "two methods of the sweep have one name"),
        ("methods: [duc]\ntasks: [A-W, A-W]", "two tasks of the sweep have one name"),
        ("methods: [duc]\nsettings: [train.lrr=1]", "there is no setting 'train.lrr'"),
    ],
)
def test_a_slip_in_a_sweep_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        cells_of(read_sweep(tmp_path / "s.yaml"), Wanted(), "cpu")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_sweep_that_is_like_itself(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"like: {tmp_path / 's.yaml'}\nmethods: [duc]\n")
    with pytest.raises(UserError, match="must name another sweep"):
        read_sweep(tmp_path / "s.yaml")


def test_an_unknown_sweep_names_the_nearest() -> None:
    with pytest.raises(UserError, match="no sweep 'digit': did you mean 'digits'"):
        read_sweep("digit")
    assert read_sweep("configs/sweeps/digits.yaml") == read_sweep("digits")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ({"config": "duc", "name": "a", "settings": "query.name=duk"}, "a: no query 'duk'"),
        ({"config": "duc", "name": "a", "settings": "query.knobs.kapa=3"}, "has no knob 'kapa'"),
        ({"config": "ripu", "name": "a"}, "'toy' has a label for each image"),
        ({"config": "duc", "name": "a", "settings": "data.name=office31"}, "'office31' needs --root"),
        (
            {
                "config": "duc",
                "name": "a",
                "settings": "data={name: office31, knobs: {root: /none, task: A-W}}",
            },
            "/none does not exist: check --root",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_anything_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: dict[str, str], words: str
) -> None:
    file = write(tmp_path / "s.yaml", methods=["random", method])
    assert ducats("sweep", file, "--devices", "cpu", "--out", tmp_path / "out") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


ROOT = Path(__file__).parent.parent


def test_the_page_lists_every_ready_sweep_with_its_runs() -> None:
    page = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    told = {
        name: int(count.replace(" ", ""))
        for name, count in re.findall(r"^\| `([\w-]+)` .*\| ([\d ]+) \|$", page, re.M)
    }
    assert set(told) == set(ready())
    for name in ready():
        sweep = read_sweep(name)
        methods = sum(math.prod(map(len, entry.grid.values())) for entry in sweep.methods)
        assert told[name] == methods * len(sweep.tasks) * len(sweep.seeds), name


@pytest.mark.parametrize("name", ready())
def test_ready_sweeps_could_start(name: str, tmp_path: Path) -> None:
    sweep = read_sweep(name)
    folder = tmp_path if "cityscapes" in name else None
    root = None if folder or name.startswith("digits") else tmp_path
    wanted = Wanted(root=root, source=folder, target=folder, seeds=[0], tasks=[sweep.tasks[0].called])
    cells = cells_of(sweep, wanted, "cpu")
    check(cells)
    assert len({cell.name for cell in cells}) == len(cells)


# ---- where runs are computed


def test_workers_on_a_cpu_share_its_cores() -> None:
    slots = make_slots("cpu", 3, 8, {})
    assert [(slot.kind, slot.environment) for slot in slots] == [("cpu", {"OMP_NUM_THREADS": "2"})] * 3
    assert len(make_slots("cpu", None, 8, {})) == 8
    assert make_slots("cpu", 9, 4, {})[0].environment == {"OMP_NUM_THREADS": "1"}


def test_workers_take_gpus_in_turn() -> None:
    slots = make_slots("cuda:0,cuda:1", 3, 8, {})
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["0", "1", "0"]
    assert {slot.kind for slot in slots} == {"cuda"}
    assert len(make_slots("cuda:0,cuda:1", None, 8, {})) == 2
    hidden = make_slots("cuda:1", None, 8, {"CUDA_VISIBLE_DEVICES": "4,6"})
    assert hidden[0].environment == {"CUDA_VISIBLE_DEVICES": "6"}


@pytest.mark.parametrize("devices", ["gpu", "cuda:0,cpu", "cuda:x", "cuda:2"])
def test_devices_that_cannot_be(devices: str) -> None:
    with pytest.raises(UserError, match="--devices"):
        make_slots(devices, None, 2, {"CUDA_VISIBLE_DEVICES": "0,1"})


def test_no_workers() -> None:
    with pytest.raises(UserError, match="at least 1"):
        make_slots("cpu", 0, 2, {})


# ---- at work; runs are played by small scripts

DO = "import os, pathlib, sys, time\nout = pathlib.Path(sys.argv[2])\nout.mkdir(exist_ok=True)\n"
DONE = "(out / 'model.safetensors').touch()\n"


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let a script stand for a run: by a word in the run's name, else the one named `others`."""

    def use(others: str = DONE, **scripts: str) -> None:
        def command(config: Path, folder: Path) -> list[str]:
            script = next((code for word, code in scripts.items() if word in folder.name), others)
            return [sys.executable, "-c", DO + script, str(config), str(folder), str(os.getpid())]

        monkeypatch.setattr(workers, "_command", command)

    return use


def go(cells: list[Cell], out: Path, slots: list[Slot] | None = None) -> tuple[workers.Outcome, str]:
    text = io.StringIO()
    return run_all(cells, out, slots or HERE, Console(file=text, width=200)), text.getvalue()


def test_a_run_that_fails_or_waits_does_not_stop_the_rest(tmp_path: Path, play: Callable[..., None]) -> None:
    play(
        random="print('ducats: it broke\\n')\nsys.exit(2)",
        entropy="sys.exit(3)",
        margin="os.kill(os.getpid(), 9)",
    )
    cells = plan(tmp_path, methods=["random", "entropy", "margin", "duc", "spread"])
    outcome, said = go(cells, tmp_path / "out")
    names = {cell.method: cell.name for cell in cells}
    assert sorted(outcome.done) == sorted([names["duc"], names["spread"]])
    assert outcome.waiting == [names["entropy"]]
    assert outcome.failed == {
        names["random"]: "ducats: it broke",
        names["margin"]: "ended by SIGKILL (is there enough memory?)",
    }
    assert outcome.code == 1
    assert (
        f"failed: {names['random']}: ducats: it broke (log: {tmp_path}/out/logs/{names['random']}.txt)"
        in said
    )
    assert "5 runs: 2 done, 1 waiting for people's answers, 2 failed; the same command tries again" in said
    assert sum(f"/5 {name}, " in said for name in names.values()) == 5


def test_what_is_done_is_skipped_and_what_failed_is_tried_again(
    tmp_path: Path, play: Callable[..., None]
) -> None:
    cells = plan(tmp_path, methods=["random", "duc"])
    play(random="sys.exit('it broke')")
    assert list(go(cells, tmp_path / "out")[0].failed.values()) == ["it broke"]
    play(random="sys.exit(1)", duc="sys.exit('it is done already')")
    assert list(go(cells, tmp_path / "out")[0].failed.values()) == ["exit code 1"]  # not what it said before
    play(random=DONE, duc="sys.exit('it is done already')")
    outcome, said = go(cells, tmp_path / "out")
    assert ([len(outcome.skipped), len(outcome.done)], outcome.code) == ([1, 1], 0)
    assert "2 runs, 1 of them done before" in said
    assert go(cells, tmp_path / "out")[0].skipped == [cell.name for cell in cells]
    assert listing(cells, tmp_path / "out").splitlines()[-1] == "2 runs: 2 done, 0 begun, 0 new"


def test_waiting_alone_is_exit_code_3(tmp_path: Path, play: Callable[..., None]) -> None:
    play("sys.exit(3)")
    outcome, said = go(plan(tmp_path, methods=["duc"]), tmp_path / "out")
    assert outcome.code == 3
    assert "/questions" in said


def test_two_run_at_a_time(tmp_path: Path, play: Callable[..., None]) -> None:
    """Each ends only once the other has begun: one after the other, they would give up."""
    meet = (
        "(out / 'begun').touch()\nuntil = time.monotonic() + 30\n"
        "while len(list(out.parent.glob('*/begun'))) < 2 and time.monotonic() < until: time.sleep(0.02)\n"
        "sys.exit(time.monotonic() >= until)"
    )
    play(meet)
    assert go(plan(tmp_path, methods=["random", "duc"]), tmp_path / "out")[0].code == 0


def test_runs_see_their_device_and_their_config(tmp_path: Path, play: Callable[..., None]) -> None:
    play("print(os.environ['CUDA_VISIBLE_DEVICES'], end='', file=open(out / 'gpu', 'w'))\n" + DONE)
    cells = plan(tmp_path, methods=["random", "duc", "entropy"])
    assert go(cells, tmp_path / "out", make_slots("cuda:0,cuda:1", 2, 2, {}))[0].code == 0
    assert {(cell.folder(tmp_path / "out") / "gpu").read_text() for cell in cells} == {"0", "1"}
    for cell in cells:
        config = yaml.safe_load((tmp_path / "out" / "configs" / f"{cell.name}.yaml").read_text())
        assert config == cell.config.model_dump(mode="json")


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path, play: Callable[..., None]) -> None:
    play()
    cells = plan(tmp_path, methods=["duc"])
    with workers._hold(tmp_path / "out"), pytest.raises(UserError, match="another sweep is at work"):
        go(cells, tmp_path / "out")
    assert go(cells, tmp_path / "out")[0].code == 0


STAY = (  # until somebody ends it; as long as it lives it holds a lock
    "import fcntl, threading\nfrom ducats.cli.child import end_with\n"
    "threading.Thread(target=end_with, args=(int(sys.argv[3]),), daemon=True).start()\n"
    "held = open(out / 'alive', 'w')\nfcntl.flock(held, fcntl.LOCK_EX)\n(out / 'begun').touch()\n"
    "time.sleep(600)"
)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_sweep_takes_its_runs_with_it_and_goes_on(
    tmp_path: Path, play: Callable[..., None], how: signal.Signals
) -> None:
    play(STAY)
    cells, out = plan(tmp_path, methods=["random", "duc"]), tmp_path / "out"
    parent = os.fork()
    if parent == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            go(cells, out)
        finally:
            os._exit(5)
    try:
        wait_for(lambda: len(list(out.glob("*/begun"))) == 2)
    finally:
        os.kill(parent, how)
        os.waitpid(parent, 0)
    for cell in cells:
        wait_for(lambda cell=cell: is_free(cell.folder(out) / "alive"))  # type: ignore[misc]
    play()
    outcome, _ = go(cells, out)
    assert (len(outcome.done), outcome.code) == (2, 0)


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.02)


def is_free(path: Path) -> bool:
    """Whether nobody holds a lock on a file any more: who held it is gone."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


# ---- as a user does it


def test_a_real_sweep_is_killed_goes_on_and_becomes_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {"name": "broken", "config": "random", "settings": "data.knobs.pool=2"}
    file, out = write(tmp_path / "s.yaml", methods=["random", broken]), tmp_path / "out"
    command = ("sweep", file, "--devices", "cpu", "--workers", "2", "--out", out)
    assert ducats(*command, "--dry-run") == 0
    assert capsys.readouterr().out.endswith("2 runs: 0 done, 0 begun, 2 new\n")
    parent = os.fork()
    if parent == 0:
        try:
            main([str(argument) for argument in command])
        finally:
            os._exit(5)
    try:
        wait_for(lambda: any(out.glob("toy-random-*/config.yaml")))
    finally:
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
    (run,) = out.glob("toy-random-*")
    wait_for(lambda: is_free(run / ".lock"))
    assert ducats(*command) == 1
    said = capsys.readouterr().out
    assert re.search(r"2 runs: 1 done, (1 of them before, )?1 failed", said)
    assert "the pool holds 2 images: lower ask.budget (log: " in said
    assert ducats(*command, "--methods", "random") == 0
    assert "1 run: 1 done, 1 of them before" in capsys.readouterr().out
    assert ducats("table", out) == 0
    assert "| random | " in capsys.readouterr().out
