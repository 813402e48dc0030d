"""Commands as a user types them."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
import yaml

from commands import Capture, ducats, error_of, output_of, read_csv, set_options, write_images
from conftest import PLAIN_VIEWS, QUICK
from ducats.acquisition.queries import QUERIES
from ducats.cli import shutdown
from ducats.cli.base import console
from ducats.config import configs_folder
from ducats.data.toy import toy
from ducats.runfolder.run_folder import RunFolder

QUICK_OPTIONS = set_options(*QUICK)
COMMANDS = (
    *("run", "demo", "sweep", "table", "tune", "evaluate", "predict", "report", "labels", "picks"),
    *("config", "doctor", "queries", "methods", "label", "answers", "push", "pull"),
    *("watch", "export", "triage", "score"),
)
SMALL_RUN_OPTIONS = (
    *set_options(
        "model.name=small_cnn", "model.params={width: 4, features: 16}", "data.params.size=8", PLAIN_VIEWS
    ),
    *set_options("train.batch_size=8", "train.steps_per_epoch=4"),
    *("--epochs", "3", "--rounds", "2", "--budget", "6", "--device", "cpu"),
)


def small_run(folders: Path, target: str | Path = "known", *options: object) -> tuple[object, ...]:
    """Return the options of a small run; the target `known` has ground truth."""
    given = ("--source", folders / "source", "--target", folders / target, *SMALL_RUN_OPTIONS, *options)
    return (*given, "--ground-truth") if target == "known" else given


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source, target and held-out image folders, plus the target sorted by class."""
    root = tmp_path_factory.mktemp("own")
    data = toy(n_source_per_class=6, n_pool=20, n_test=12)
    assert data.ground_truth is not None
    assert data.test is not None
    for name, pixels, labels in (
        ("source", data.source.images.pixels, data.source.labels),
        ("test", data.test.images.pixels, data.test.labels),
        ("known", data.pool.pixels, data.ground_truth),
    ):
        write_images(root / name, pixels[:], [data.classes[label] for label in labels[:].tolist()])
    write_images(root / "target", data.pool.pixels[:], [".", "camera 1"] * 10)
    return root


def test_help_imports_little() -> None:
    code = (
        "import sys\nfrom ducats.cli import main\n"
        f"for command in {('', *COMMANDS)!r}:\n"
        "    try: main([*([command] if command else []), '--help'])\n"
        "    except SystemExit as end: assert not end.code, command\n"
        "    heavy = {'torch', 'torchvision', 'timm', 'lightning_fabric', 'sklearn', 'numpy'}\n"
        "    heavy |= set() if command else {'asyncio', 'filelock', 'rich.markdown', 'importlib.metadata'}\n"
        "    assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    for command in COMMANDS:
        assert f"Usage: ducats {command}" in done.stdout


def test_own_folders_with_human_annotators_from_first_round_to_predictions(
    folders: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "run"
    command = ("run", *small_run(folders, "target", "--test", folders / "test"), "--out", out)
    data = toy(n_source_per_class=6, n_pool=20, n_test=12)
    assert data.ground_truth is not None
    for number in (1, 2):
        assert ducats(*command) == 3
        assert f"round {number} waits for 3 labels" in capsys.readouterr().err
        folder = out / "questions" / f"round-0{number}"
        rows = read_csv(folder / "questions.csv")
        for row in rows:
            assert Path(row["file"]).is_file()
            row["label"] = data.classes[int(data.ground_truth[int(Path(row["key"]).stem)])]
        with (folder / "answers.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    assert "6 labels acquired" in output_of(capsys, *command)

    header, *lines = output_of(capsys, "labels", out).splitlines()
    assert header == "round,key,label"
    assert [line.split(",")[0] for line in lines] == ["1"] * 3 + ["2"] * 3

    own = json.loads(output_of(capsys, "evaluate", out, "--device", "cpu"))
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    expected = {"images": 12, "evaluated_on": "held_out", "accuracy": last["accuracy"]}
    assert {name: own[name] for name in expected} == expected
    own = json.loads(output_of(capsys, "evaluate", out, "--data", folders / "known", "--device", "cpu"))
    assert own["images"] == 20

    options = ("--out", tmp_path / "p.csv", "--class-probabilities", "--device", "cpu")
    assert ducats("predict", out, folders / "target", *options) == 0
    rows = read_csv(tmp_path / "p.csv")
    assert len(rows) == 20
    for row in rows:
        probabilities = [float(row[f"p({name})"]) for name in data.classes]
        assert sum(probabilities) == pytest.approx(1, abs=1e-4)
        assert float(row["probability"]) == pytest.approx(max(probabilities))
        assert row["label"] == data.classes[probabilities.index(max(probabilities))]
        assert float(row["u_data"]) + float(row["u_dis"]) == pytest.approx(float(row["entropy"]), rel=1e-4)

    assert ducats("report", out, "--out", tmp_path / "report") == 0
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<svg" in page
    digest = json.loads((out / "environment.json").read_text())["source_digest"]
    assert len(digest) == 16
    assert f"<dt>source_digest</dt><dd>{digest}</dd>" in page
    assert json.loads((tmp_path / "report" / "summary.json").read_text())[0]["labels"] == 6


def test_benchmark_by_root_and_task(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    shutil.copytree(folders / "source", tmp_path / "office/amazon")
    shutil.copytree(folders / "known", tmp_path / "office/webcam/images")
    monkeypatch.chdir(tmp_path)
    small = ("--set", "acquisition.after_epochs=null", *SMALL_RUN_OPTIONS)
    office = ("-c", "data/office31", "--root", "office", *small, "--task")
    incomplete = "amazon: 24 images in 4 classes, but 2817 in 31 classes are published"
    output = output_of(capsys, "run", *office, "amazon->webcam")
    assert f"warning: {incomplete}" in output
    assert "ducats on office31 A-W: 24 source images, 20 target images, 4 classes" in output
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("office31-A-W-ducats-")
    data = yaml.safe_load((run / "config.yaml").read_text())["data"]
    assert (data["name"], data["params"]["task"]) == ("office31", "A-W")
    assert data["params"]["root"] == str(tmp_path / "office")
    # Another spelling of the same task is the same run; the reverse task is another run.
    output = output_of(capsys, "run", *office, "a2w")
    assert "already finished" in output
    assert incomplete not in output
    assert ducats("run", *office, "W-A") == 0
    assert {path.name[:12] for path in (tmp_path / "runs").iterdir()} == {"office31-A-W", "office31-W-A"}
    assert incomplete in output_of(capsys, "doctor", *office, "A-W")


def test_manifest(folders: Path, tmp_path: Path) -> None:
    lines = ["key,path,domain,label,split"]
    for part, domain, split in (
        ("source", "source", "train"),
        ("known", "target", "train"),
        ("test", "target", "test"),
    ):
        lines += [
            f"{part}/{p.stem},{p},{domain},{p.parent.name},{split}"
            for p in sorted((folders / part).rglob("*.png"))
        ]
    (tmp_path / "m.csv").write_text("\n".join(lines) + "\n")
    assert ducats("run", "--manifest", tmp_path / "m.csv", *SMALL_RUN_OPTIONS, "--out", tmp_path / "run") == 0
    assert len((tmp_path / "run" / "pool.json").read_text().splitlines()) == 20 + 2


def test_same_command_uses_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    for options, n_finished, n_folders in (((), 0, 1), ((), 1, 1), (("--seed", "1"), 0, 2)):
        assert ducats("run", *QUICK_OPTIONS, *options) == 0
        assert capsys.readouterr().out.count("already finished") == n_finished
        assert len(list((tmp_path / "runs").iterdir())) == n_folders


FOLDERS = ("--source", "{}/source", "--target", "{}/target")
OFFICE31 = ("-c", "data/office31", "--set", "acquisition.after_epochs=null")
STREETS = ("-c", "data/streets")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["'folders' needs --target"]),
        (("--sauce", "x"), ["Did you mean --source?"]),
        (("here", "there"), ["Too many arguments: here, there. See ducats run --help"]),
        ((*FOLDERS, "--method", "duk"), ["no config 'methods/duk': did you mean 'methods/duc'?"]),
        ((*FOLDERS, "--manifest", "m.csv"), ["either --manifest or"]),
        ((*FOLDERS, "--set", "train.lr=[1"), ["--set train.lr=[1", "not valid YAML"]),
        ((*FOLDERS, "--set", "views.source.ratio=[0, 1]"), ["must be increasing and positive"]),
        # Found when data or model are built
        ((*FOLDERS, "--set", "data.params.size=big"), ["must be a whole number of pixels", "not 'big'"]),
        ((*FOLDERS, "--set", "model.params.width=wide"), ["'small_cnn' does not accept the parameters"]),
        ((*FOLDERS, "--set", "model={name: 'commands:read_csv'}"), ["must accept the keyword arguments cl"]),
        ((*FOLDERS, "--set", "train.lr_multipliers={trunk: 0.1}"), ["prefixes ['trunk']", "backbone"]),
        # Benchmarks
        ((*OFFICE31, "--task", "A-W"), ["'office31' needs --root"]),
        ((*OFFICE31, "--root", "{}", "--task", "A-W"), ["images of amazon", "contains known, s"]),
        (("-c", "data/digits", "--root", "{}"), ["are for a benchmark", "data set is 'digits'"]),
        (("--root", "{}", "--task", "A-W"), ["--root and --task are for a benchmark"]),
        ((*FOLDERS, "--task", "A-W"), ["--root and --task are for a benchmark", "-c data/office31"]),
        # Segmentation
        (("-c", "segmentation"), ["'segmentation_folders' needs --source and --target and --classes"]),
        ((*STREETS, *FOLDERS), ["'segmentation_folders' needs --classes"]),
        ((*FOLDERS, "--classes", "c.txt"), ["c.txt", "does not exist"]),
        ((*FOLDERS, "--method", "ripu"), ["'folders' has one label per image", "choose another --method"]),
        ((*STREETS, "--set", "task.name=classification"), ["classification labels whole images, not pixels"]),
        ((*STREETS, "--set", "model.name=timm"), ["'timm' outputs one class per image", "deeplab_v2"]),
    ],
)
def test_bad_input_gives_a_message_and_exit_code_2(
    folders: Path,
    tmp_path: Path,
    capsys: Capture,
    arguments: tuple[str, ...],
    words: list[str],
) -> None:
    # Settings of the case come last and win; the small network is for images only.
    is_segmentation = {"segmentation", "data/streets"} & {*arguments}
    small = ("--device", "cpu") if is_segmentation else SMALL_RUN_OPTIONS
    own = [argument.replace("{}", str(folders)) for argument in arguments]
    output = error_of(capsys, "run", *small, *own, "--out", tmp_path / "run")
    for word in words:
        assert word in output
    assert "Traceback" not in output
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("role", ["source", "target"])
def test_the_run_folder_is_not_in_the_data(
    folders: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """Its thumbnails would be images of the pool, or classes, when the run is resumed."""
    monkeypatch.chdir(folders)
    data = ("--source", "source", "--target", "target")
    output = error_of(capsys, "run", *SMALL_RUN_OPTIONS, *data, "--out", Path(role) / "run")
    assert f"is in the {role} folder" in output
    assert "--out" in output
    assert not (folders / role / "run" / "requests").exists()


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (("predict", "a-run"), "ducats predict needs IMAGES."),
        (("score", "a-run", "images"), "ducats score needs --"),
    ],
)
def test_a_missing_argument_is_named(capsys: Capture, command: tuple[str, ...], missing: str) -> None:
    assert missing in error_of(capsys, *command)


def test_an_option_without_its_value(capsys: Capture) -> None:
    assert "--budget requires an argument" in error_of(capsys, "score", "a-run", "images", "--budget")


def test_options_are_applied_before_cross_validation_of_settings(capsys: Capture) -> None:
    # Epoch 60 is valid with 100 epochs, but not with the default of 50.
    assert ducats("config", "--set", "acquisition.after_epochs=[60]", "--epochs", "100") == 0
    assert yaml.safe_load(capsys.readouterr().out)["acquisition"]["after_epochs"] == [60]


def test_label_map_folders_by_options(tmp_path: Path, capsys: Capture) -> None:
    given = ("--source", tmp_path / "s", "--target", tmp_path / "t", "--classes", tmp_path / "c.txt")
    for config in ("segmentation", "data/streets"):  # the second one keeps its small network
        assert ducats("config", "-c", config, *given, "--ground-truth") == 0
        data = yaml.safe_load(capsys.readouterr().out)["data"]
        assert data["name"] == "segmentation_folders"
        assert data["params"] == {
            "source": str(tmp_path / "s"),
            "target": str(tmp_path / "t"),
            "classes": str(tmp_path / "c.txt"),
            "ground_truth": True,
        }
    assert ducats("config", "-c", "data/carla-camvid", *given[:4]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["data"]["name"] == "carla_camvid"


def test_small_images_without_a_gpu(folders: Path, tmp_path: Path) -> None:
    known = ("--source", folders / "source", "--target", folders / "known", "--ground-truth")
    quick = ("--set", "train.steps_per_epoch=1", "--epochs", "3", "--rounds", "2", "--budget", "6")
    assert ducats("run", "-c", "small", *known, *quick, "--device", "cpu", "--out", tmp_path / "run") == 0


def test_queries_lists_every_query(capsys: Capture) -> None:
    output = output_of(capsys, "queries")
    for name in QUERIES:
        assert name in output


def test_methods_lists_every_config_with_objective_and_query(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "width", 200)
    lines = output_of(capsys, "methods").splitlines()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
    listed = {row[0]: row[1:] for row in rows if row and row[0]}
    assert set(listed) == {path.stem for path in (configs_folder() / "methods").glob("*.yaml")}
    description = "DUC with the two query rounds swapped: U_data first, U_dis second."
    assert listed["duc-swapped"] == ["duc", "duc", description]
    assert listed["source-only"][1] == "–"


def test_config_prints_schema_and_descriptions(capsys: Capture) -> None:
    assert "train" in json.loads(output_of(capsys, "config", "--schema"))["properties"]
    output = output_of(capsys, "config", "--explain", "--method", "duc")
    assert 'acquisition.budget = "5%"' in output
    assert "parameters of two_round: kappa=10.0, order='dis_data'" in output
    assert "views.source.crop" in output


def test_folders_that_are_not_runs(tmp_path: Path, capsys: Capture) -> None:
    for command in (["evaluate"], ["predict", tmp_path], ["labels"], ["report"]):
        assert str(tmp_path) in error_of(capsys, *command, tmp_path)
    (tmp_path / "run").touch()
    assert "choose another folder" in error_of(capsys, "run", *QUICK_OPTIONS, "--out", tmp_path / "run")


def test_unreadable_images_are_named(folders: Path, tmp_path: Path, capsys: Capture) -> None:
    valid = output_of(capsys, "doctor", *small_run(folders, "target", "--test", folders / "test"))
    assert "error" not in valid.replace("No errors", "")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "zero.png").touch()
    options = small_run(folders, tmp_path / "target")
    assert "zero.png (empty file)" in error_of(capsys, "run", *options)
    assert ducats("doctor", *options) == 1
    assert "zero.png" in capsys.readouterr().out


def test_run_does_not_depend_on_the_working_directory(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folders)
    assert ducats("run", *small_run(Path(), "known", "--test", "test"), "--out", tmp_path / "run") == 0
    monkeypatch.chdir(tmp_path)
    assert ducats("evaluate", "run", "--device", "cpu") == 0


def test_wrong_commands_and_corrupt_files_of_a_run(tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    assert ducats("run", *QUICK_OPTIONS, "--out", run) == 0
    maps = ("predict", run, tmp_path, "--uncertainty-maps", "--device", "cpu")
    assert "--uncertainty-maps is for segmentation" in error_of(capsys, *maps)
    assert "whole images" in error_of(capsys, "picks", run)
    for file, command in (
        ("model.safetensors", ("evaluate", run, "--device", "cpu")),
        ("labels/round-01.npz", ("labels", run)),
        ("config.yaml", ("evaluate", run)),
    ):
        os.truncate(run / file, 0 if file == "config.yaml" else 40)
        assert f"{Path(file).name} is corrupt" in error_of(capsys, *command)


def test_ctrl_c_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    (tmp_path / "interrupted.py").write_text(
        "import signal, torch\n"
        "budgets = []\n"
        "def second(context):\n"
        "    budgets.append(context.budget)\n"
        "    if len(budgets) == 2: signal.raise_signal(signal.SIGINT)\n"
        "    return torch.arange(context.budget)\n"
    )
    monkeypatch.chdir(tmp_path)
    command = ("run", *QUICK_OPTIONS, "--set", "query.name=interrupted:second", "--out", tmp_path / "run")
    # Processes in the background of a shell ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert ducats(*command) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    output = capsys.readouterr().err
    assert "run the same command again to resume" in output
    assert "Traceback" not in output
    assert not RunFolder(tmp_path / "run").finished
    assert ducats(*command) == 0
    assert RunFolder(tmp_path / "run").finished


def test_other_ranks_wait_until_rank_zero_has_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = list[float]()
    for rank in (0, 1):
        monitor = SimpleNamespace(rank=rank, peer_exit=waited.append)
        monkeypatch.setattr(shutdown._ProcessState, "monitor", monitor)
        shutdown.wait_for_rank_zero(seconds=2.0)
    assert waited == [2.0]


def test_weights_file_is_needed_by_a_new_run_only(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("ducats.models.hub.fetch_pretrained", lambda *_, **__: pytest.fail("download"))
    file, out = tmp_path / "weights.pth", tmp_path / "run"
    torch.save(timm.create_model("resnet10t", num_classes=0).state_dict(), file)
    small = {use: {"crop": "center", "size": 32} for use in ("source", "unlabelled", "scoring", "test")}
    settings = set_options(
        "data.params.size=32",
        f"model={{name: timm, params: {{backbone: resnet10t, weights: {file}}}}}",
        f"views={json.dumps(small)}",
        "train={epochs: 2, steps_per_epoch: 1, batch_size: 4}",
        "acquisition={budget: 2, after_epochs: [1]}",
    )
    command = ("run", "--source", folders / "source", "--target", folders / "target", *settings)
    assert ducats(*command, "--device", "cpu", "--out", out) == 3
    file.unlink()
    questions = out / "questions" / "round-01"
    name = (questions / "classes.txt").read_text().splitlines()[0]
    answers = ["key,label", *(f"{row['key']},{name}" for row in read_csv(questions / "questions.csv"))]
    (questions / "answers.csv").write_text("\n".join(answers))
    assert ducats(*command, "--device", "cpu", "--out", out) == 0
    assert "already finished" in output_of(capsys, *command, "--device", "cpu", "--out", out)
    assert ducats("predict", out, folders / "target", "--out", tmp_path / "p.csv", "--device", "cpu") == 0
    assert ducats("evaluate", out, "--data", folders / "known", "--device", "cpu") == 0
    error = error_of(capsys, *command, "--device", "cpu", "--out", tmp_path / "new")
    assert "does not exist; check model.params.weights" in error


def test_evaluate_refuses_data_that_changed(folders: Path, tmp_path: Path, capsys: Capture) -> None:
    target, run = tmp_path / "target", tmp_path / "run"
    shutil.copytree(folders / "known", target)
    assert ducats("run", *small_run(folders, target, "--ground-truth"), "--out", run) == 0
    assert ducats("evaluate", run, "--device", "cpu") == 0
    first = next(target.rglob("*.png"))
    shutil.copy(first, first.with_name("000000.png"))
    error = error_of(capsys, "evaluate", run, "--device", "cpu")
    assert "the images or labels of the pool have changed" in error


def test_what_happens_is_reported_at_once(folders: Path, tmp_path: Path, capsys: Capture) -> None:
    options = small_run(folders, "known", "--test", folders / "test")
    assert ducats("run", *options, "--out", tmp_path / "run") == 0
    lines = capsys.readouterr().err.splitlines()
    expected = [
        *("loading libraries", "checking the settings", "reading 20 images", "building the model"),
        *("preparing the training", "stage 0/2, 0 labels, training, epoch 0/3, step 0/12"),
    ]
    positions = [next(i for i, line in enumerate(lines) if line.startswith(text)) for text in expected]
    assert positions == sorted(positions)


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_waiting_threads_sleep_unless_the_user_decides(
    given: str | None, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    assert ducats("queries") == 0
    assert os.environ["OMP_WAIT_POLICY"] == (given or "PASSIVE")


def test_run_without_a_method_is_ducats_and_a_resumed_run_keeps_its_method(
    tmp_path: Path, capsys: Capture
) -> None:
    default, duc = tmp_path / "default", tmp_path / "duc"
    assert ducats("run", *QUICK_OPTIONS, "--out", default) == 0
    identity = RunFolder(default).identity
    assert (identity["method"], identity["query"]["name"]) == ("ducats", "coverage")
    assert "segmentation" not in identity
    # The default may change between two versions; a run that was started keeps its own.
    assert ducats("run", "--method", "duc", *QUICK_OPTIONS, "--out", duc) == 0
    assert "already finished" in output_of(capsys, "run", *QUICK_OPTIONS, "--out", duc)
    changed = error_of(capsys, "run", *QUICK_OPTIONS, *set_options("query.name=random"), "--out", duc)
    assert "was created with another config" in changed
    changed = error_of(capsys, "run", "--method", "ducats", *QUICK_OPTIONS, "--out", duc)
    assert "was created with another config" in changed
