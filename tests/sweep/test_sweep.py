"""Sweep files, checks before the first run, and slots."""

import math
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from commands import ducats
from ducats.cli.base import app
from ducats.config.options import DataOptions, default_run_folder
from ducats.sweep import (
    SweepFilter,
    check_sweep_runs,
    expand_sweep,
    make_slots,
    packaged_sweeps,
    read_sweep,
)
from ducats.utils.errors import UserError
from sweep_helpers import QUICK_SWEEP_SETTINGS, make_runs, write_sweep

# ---- sweep files


def test_every_method_on_every_task_with_every_seed(tmp_path: Path) -> None:
    tasks = [{"name": "easy"}, {"name": "hard", "settings": "data={name: digits, params: {size: 8}}"}]
    runs = make_runs(tmp_path, methods=["random", "duc"], tasks=tasks, seeds=[3, 4])
    assert [(run.method, run.task, run.config.seed) for run in runs] == [
        (method, task, seed) for seed in (3, 4) for task in ("easy", "hard") for method in ("random", "duc")
    ]
    assert [run.config.data.params for run in runs[:4]] == [{}, {}, {"size": 8}, {"size": 8}]
    assert len({run.name for run in runs}) == 8
    for run in runs:
        data = {"easy": "toy", "hard": "digits"}[run.task]
        assert run.name == default_run_folder(run.config).name == f"{data}-{run.method}-{run.config.digest()}"
        assert run.config.engine.precision == "32-true"  # resolved as in a run


def test_grid_expands_to_one_method_per_combination(tmp_path: Path) -> None:
    grid = {"objective.params.beta": [0.1, 1.0], "objective.params.lambda_": [0.05]}
    runs = make_runs(tmp_path, methods=[{"config": "methods/duc", "grid": grid}])
    for run, beta in zip(runs, (0.1, 1.0), strict=True):
        assert run.method == run.config.method == f"duc-beta-{beta}-lambda-0.05"
        assert run.config.objective.params == {"beta": beta, "lambda_": 0.05}


def test_command_line_overrides_settings_and_names_stay(tmp_path: Path) -> None:
    method = {"name": "mine", "config": "duc", "settings": ["train.lr=0.2", "query.name=random"]}
    sweep_filter = SweepFilter(settings=["train.lr=0.3"], seeds=[7])
    (run,) = make_runs(tmp_path, sweep_filter, methods=[method])
    assert (run.config.train.lr, run.config.seed) == (0.3, 7)
    assert (run.config.method, run.config.query.name) == ("mine", "random")  # not renamed to duc+random


def test_a_sweep_takes_the_data_options_of_a_run(tmp_path: Path) -> None:
    def names(command: str) -> dict[str, str]:
        arguments = app[command].assemble_argument_collection()
        return {argument.names[0]: argument.parameter.help or "" for argument in arguments}

    of_run, of_sweep = names("run"), names("sweep")
    for option in (*(f"--{each.name.replace('_', '-')}" for each in fields(DataOptions)), "--config"):
        assert of_sweep[option].partition(".")[0] == of_run[option].partition(".")[0], option
    data = DataOptions(source=tmp_path, target=tmp_path, test=tmp_path / "held-out")
    sweep_filter = SweepFilter(data=data, config=["small"], methods=["ducats-random"])
    (run,) = expand_sweep(read_sweep("folders"), sweep_filter, "cpu")
    assert run.config.data.params["test"] == str(tmp_path / "held-out")
    assert run.config.model.name == "small_cnn"
    with pytest.raises(UserError, match=r"held-out does not exist: check --test"):
        check_sweep_runs([run])


def test_budget_in_the_folder_name(tmp_path: Path) -> None:
    (run,) = make_runs(tmp_path, methods=[{"config": "duc", "grid": {"acquisition.budget": ["5%"]}}])
    assert run.name.startswith("toy-duc-budget-5%-")
    assert run.config.acquisition.budget == "5%"


def test_sweep_extends_another(tmp_path: Path) -> None:
    write_sweep(tmp_path / "a.yaml", methods=["random"], seeds=[5])
    (tmp_path / "b.yaml").write_text(f"extends: {tmp_path / 'a.yaml'}\nmethods: [duc]\n")
    sweep = read_sweep(tmp_path / "b.yaml")
    assert (sweep.methods[0].config, sweep.seeds) == (("methods/duc",), (5,))
    assert len(sweep.settings) == len(QUICK_SWEEP_SETTINGS)


def test_files_next_to_the_sweep_are_found_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    write_sweep(folder / "a.yaml", base=["base.yaml"], methods=["random"], seeds=[5])
    (folder / "base.yaml").write_text("train: {momentum: 0.5}\n")
    (folder / "task.yaml").write_text("train: {weight_decay: 0.25}\n")
    (folder / "slow.yaml").write_text("extends: duc\nmethod: slow\ntrain: {nesterov: false}\n")
    methods = '[slow.yaml, {name: too, config: slow.yaml, settings: "train.nesterov=true"}, duc]'
    (folder / "b.yaml").write_text(f"extends: a.yaml\nmethods: {methods}\ntasks: [{{config: task.yaml}}]\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.yaml").write_text("no: config\n")  # the file next to the sweep takes precedence
    runs = expand_sweep(read_sweep("mine/b.yaml"), SweepFilter(), "cpu")
    assert [(run.method, run.config.train.nesterov, run.config.seed) for run in runs] == [
        ("slow", False, 5),
        ("too", True, 5),
        ("duc", True, 5),
    ]
    assert {(run.config.train.momentum, run.config.train.weight_decay) for run in runs} == {(0.5, 0.25)}


def test_select_methods_and_tasks(tmp_path: Path) -> None:
    grid = {"query.params.kappa": [1, 5, 10]}
    methods = ["random", {"config": "duc", "grid": grid}]
    runs = make_runs(tmp_path, SweepFilter(methods=["duc-kappa-1*"]), methods=methods)
    assert [run.method for run in runs] == ["duc-kappa-1", "duc-kappa-10"]
    with pytest.raises(UserError, match="no method 'entropy'; available: random, duc-kappa-1"):
        make_runs(tmp_path, SweepFilter(methods=["entropy"]), methods=methods)
    with pytest.raises(UserError, match="no task 'A-W'"):
        make_runs(tmp_path, SweepFilter(tasks=["A-W"]), methods=methods)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("methods: [duc", "not valid YAML"),
        ("- duc", "must be a mapping"),
        ("seeds: [0]", "methods: Field required"),
        ("methods: [duc]\nmethod: duc", "method: Extra inputs are not permitted; known fields: base"),
        ("methods: []", "methods: Tuple should have at least 1 item"),
        ("methods: [{nam: duc}]", "methods.0.nam: Extra inputs"),
        ("methods: [duc]\nseeds: [a]", "seeds.0"),
        ("methods: [duc]\nseeds: [0, -1]", "seeds.1: Input should be greater than or equal to 0"),
        ("extends: 3\nmethods: [duc]", "`extends` must name another sweep"),
        ("extends: s.yaml\nmethods: [duc]", "`extends` must name another sweep"),
        ("methods: [duk]", "no config 'methods/duk'"),
        ("methods: [duc, duc]", "two methods of the sweep have the same name"),
        ("methods: [duc]\ntasks: [A-W, A-W]", "two tasks of the sweep have the same name"),
        ("methods: [duc]\nsettings: [train.lrr=1]", "unknown setting 'train.lrr'"),
        (
            "methods: [duc]\nsettings: [query.name=random]",
            "the sweep's settings: query.name=random would make all methods of the sweep the same",
        ),
        (
            "methods: [duc]\ntasks: [{name: a, settings: 'objective={name: softmax}'}]",
            "settings of task 'a': objective={name: softmax} would make all",
        ),
        (
            "methods: [duc]\nbase: [data/digits]\n"
            "tasks: [{name: a}, {name: b, settings: data.params.size=8}]",
            "the tasks 'a' and 'b' would share one column of the table (digits)",
        ),
        (
            "methods: [duc]\nbase: [data/office31]\ntasks: [A-W, {name: b, task: A2W, settings: train.lr=1}]",
            "the tasks 'A-W' and 'b' would share one column of the table (office31 A-W)",
        ),
    ],
)
def test_errors_in_a_sweep_file_are_one_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        expand_sweep(read_sweep(tmp_path / "s.yaml"), SweepFilter(), "cpu")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "setting", ["query.name=random", "objective.name=softmax", "method=mine", "query={}"]
)
def test_settings_that_define_a_method_are_rejected(tmp_path: Path, setting: str) -> None:
    with pytest.raises(UserError, match="select methods with --methods"):
        make_runs(tmp_path, SweepFilter(settings=[setting]), methods=["duc", "random"])
    (run,) = make_runs(tmp_path, SweepFilter(settings=["query.params.kappa=3"]), methods=["duc"])
    assert run.config.query.params["kappa"] == 3


def test_negative_seed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--seeds must be 0 or more, not -1"):
        make_runs(tmp_path, SweepFilter(seeds=[0, -1]), methods=["duc"])


def test_unknown_sweep_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="no sweep 'digit'; did you mean 'digits'"):
        read_sweep("digit")
    assert read_sweep("configs/sweeps/digits.yaml") == read_sweep("digits")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ({"config": "duc", "name": "a", "settings": "query.name=duk"}, "a: no query 'duk'"),
        ({"config": "duc", "name": "a", "settings": "query.params.kapa=3"}, "has no parameter 'kapa'"),
        ({"config": "ripu", "name": "a"}, "'toy' has one label per image"),
        ({"config": "duc", "name": "a", "settings": "data.name=office31"}, "'office31' needs --root"),
        (
            {"config": "duc", "settings": "data={name: office31, params: {root: /none, task: A-W}}"},
            "/none does not exist: check --root",
        ),
    ],
)
def test_runs_are_checked_before_the_first_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: dict[str, str], words: str
) -> None:
    file = write_sweep(tmp_path / "s.yaml", methods=["random", method])
    assert ducats("sweep", file, "--devices", "cpu", "--out", tmp_path / "out") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


ROOT = Path(__file__).parents[2]


def test_docs_list_every_packaged_sweep_with_its_number_of_runs() -> None:
    page = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    counts = {
        name: int(count.replace(" ", ""))
        for name, count in re.findall(r"^\| `([\w-]+)` .*\| ([\d ]+) \|$", page, re.M)
    }
    assert set(counts) == set(packaged_sweeps())
    for name in packaged_sweeps():
        sweep = read_sweep(name)
        methods = sum(math.prod(map(len, entry.grid.values())) for entry in sweep.methods)
        assert counts[name] == methods * len(sweep.tasks) * len(sweep.seeds), name


@pytest.mark.parametrize("name", packaged_sweeps())
def test_packaged_sweeps_pass_the_checks(name: str, tmp_path: Path) -> None:
    sweep = read_sweep(name)
    folder = tmp_path if "cityscapes" in name or name == "folders" else None
    root = None if folder or name.startswith("digits") else tmp_path
    data = DataOptions(root=root, source=folder, target=folder)
    sweep_filter = SweepFilter(data=data, seeds=[0], tasks=[sweep.tasks[0].display_name])
    runs = expand_sweep(sweep, sweep_filter, "cpu")
    check_sweep_runs(runs)
    assert len({run.name for run in runs}) == len(runs)


@pytest.mark.parametrize("name", ["gtav-cityscapes", "synthia-cityscapes"])
def test_no_run_of_a_segmentation_table_reads_void_from_label_files(name: str, tmp_path: Path) -> None:
    runs = expand_sweep(
        read_sweep(name), SweepFilter(data=DataOptions(source=tmp_path, target=tmp_path)), "cpu"
    )
    assert len(runs) == 45
    for run in runs:
        assert run.config.data.params["void_pixels"] == "queried", run.name
        if run.config.objective.name == "duc":
            assert run.config.objective.params["void"] == "unlabelled", run.name


def test_no_run_of_the_camvid_table_reads_void_from_label_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    table = import_module("carla_camvid")
    configs = [table.make_config(row) for row in table.table()]
    assert {config.data.params["void_pixels"] for config in configs} == {"queried"}


VISDA_SETTINGS = {"eada": ("objective", "align", 0.0005), "euq": ("objective", "eu", 10)}
VISDA_SETTINGS["las"] = ("query", "M", 5)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("visda2017", VISDA_SETTINGS),
        ("office31", {"las": ("query", "K", 5)}),
    ],
)
def test_published_settings_per_data_set(
    name: str, own: dict[str, tuple[str, str, float]], tmp_path: Path
) -> None:
    sweep, common = read_sweep(name), read_sweep("office-home")
    sweep_filter = SweepFilter(
        data=DataOptions(root=tmp_path), seeds=[0], tasks=[sweep.tasks[0].display_name]
    )
    runs = {run.method: run.config for run in expand_sweep(sweep, sweep_filter, "cpu")}
    for method, (section, param, value) in own.items():
        assert getattr(runs[method], section).params[param] == value
    assert [entry.config for entry in sweep.methods] == [entry.config for entry in common.methods]
    others = [entry for entry in sweep.methods if entry.config[0].removeprefix("methods/") not in own]
    assert not any(entry.settings for entry in others)


# ---- slots


def test_cpu_workers_share_the_cores() -> None:
    slots = make_slots("cpu", 3, 8, {})
    threads = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
    assert [(slot.device_type, slot.environment) for slot in slots] == [("cpu", threads)] * 3
    assert len(make_slots("cpu", None, 8, {})) == 8
    assert make_slots("cpu", 9, 4, {})[0].environment == {"OMP_NUM_THREADS": "1"}
    environment = {"OMP_NUM_THREADS": "2"}
    assert make_slots("cpu", 1, 4, environment)[0].environment == {}  # inherited by the run
    environment = {"OMP_WAIT_POLICY": "ACTIVE"}
    assert make_slots("cpu", 1, 4, environment)[0].environment == {"OMP_NUM_THREADS": "4"}


def test_gpus_are_assigned_round_robin() -> None:
    slots = make_slots("cuda:0,cuda:1", 3, 8, {})
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["0", "1", "0"]
    assert {slot.device_type for slot in slots} == {"cuda"}
    assert len(make_slots("cuda:0,cuda:1", None, 8, {})) == 2
    assert {slot.environment["OMP_NUM_THREADS"] for slot in slots} == {"2"}  # 8 cores for 3 runs
    hidden = make_slots("cuda:1", None, 8, {"CUDA_VISIBLE_DEVICES": "4,6"})
    assert hidden[0].environment == {"CUDA_VISIBLE_DEVICES": "6"}


def test_invalid_devices_and_workers() -> None:
    for devices in ("gpu", "cuda:0,cpu", "cuda:x", "cuda:2"):
        with pytest.raises(UserError, match="--devices"):
            make_slots(devices, None, 2, {"CUDA_VISIBLE_DEVICES": "0,1"})
    with pytest.raises(UserError, match="at least 1"):
        make_slots("cpu", 0, 2, {})


@pytest.mark.parametrize(("base", "method"), [([], "ducats"), (["parity"], "duc")])
def test_an_entry_without_a_method_has_that_of_the_base_or_the_default(
    tmp_path: Path, base: list[str], method: str
) -> None:
    methods = [{"grid": {"train.lr": [0.1]}}]
    (run,) = make_runs(tmp_path, base=base, settings=["data.name=toy"], methods=methods)
    assert run.method == f"{method}-lr-0.1"
    assert run.config.query.name == ("coverage" if method == "ducats" else "duc")
