"""Commands as a user types them."""

import csv
import json
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

import tiny_segmentation_data
from commands import ducats, read_csv, set_options, write_images
from conftest import QUICK
from ducats.cli import shutdown
from ducats.cli.base import console
from ducats.config import configs_folder
from ducats.data.toy import toy
from ducats.ledger import load_ledger
from ducats.runfolder.run_folder import RunFolder

QUICK_OPTIONS = set_options(*QUICK)
COMMANDS = (
    *("run", "demo", "sweep", "table", "tune", "evaluate", "predict", "report", "labels", "picks"),
    *("config", "doctor", "queries", "methods", "label", "answers", "push", "pull"),
    *("watch", "export", "triage", "score"),
)
VIEWS = "views={source: {crop: none}, unlabelled: {crop: none}, scoring: {crop: none}, test: {crop: none}}"
SMALL_RUN_OPTIONS = (
    *set_options(
        "model.name=small_cnn", "model.params={width: 4, features: 16}", "data.params.size=8", VIEWS
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


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom ducats.cli import main\n"
        f"for command in {('', *COMMANDS)!r}:\n"
        "    try: main([*([command] if command else []), '--help'])\n"
        "    except SystemExit as end: assert not end.code, command\n"
        "heavy = {'torch', 'torchvision', 'timm', 'lightning_fabric', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    for command in COMMANDS:
        assert f"Usage: ducats {command}" in done.stdout


def test_own_folders_with_human_annotators_from_first_round_to_predictions(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    assert ducats(*command) == 0
    assert "6 labels acquired" in capsys.readouterr().out

    assert ducats("labels", out) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "round,key,label"
    assert [line.split(",")[0] for line in lines[1:]] == ["1"] * 3 + ["2"] * 3

    assert ducats("evaluate", out, "--device", "cpu") == 0
    own = json.loads(capsys.readouterr().out)
    assert (own["images"], own["evaluated_on"]) == (12, "held_out")
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert own["accuracy"] == last["accuracy"]
    assert ducats("evaluate", out, "--data", folders / "known", "--device", "cpu") == 0
    assert json.loads(capsys.readouterr().out)["images"] == 20

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
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folders / "source", tmp_path / "office/amazon")
    shutil.copytree(folders / "known", tmp_path / "office/webcam/images")
    monkeypatch.chdir(tmp_path)
    small = ("--set", "acquisition.after_epochs=null", *SMALL_RUN_OPTIONS)
    office = ("-c", "data/office31", "--root", "office", *small, "--task")
    assert ducats("run", *office, "amazon->webcam") == 0
    assert "duc on office31 A-W: 24 source images, 20 target images, 4 classes" in capsys.readouterr().out
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("office31-A-W-duc-")
    data = yaml.safe_load((run / "config.yaml").read_text())["data"]
    assert (data["name"], data["params"]["task"]) == ("office31", "A-W")
    assert data["params"]["root"] == str(tmp_path / "office")
    # Another spelling of the same task is the same run; the reverse task is another run.
    assert ducats("run", *office, "a2w") == 0
    assert "already finished" in capsys.readouterr().out
    assert ducats("run", *office, "W-A") == 0
    assert {path.name[:12] for path in (tmp_path / "runs").iterdir()} == {"office31-A-W", "office31-W-A"}
    assert ducats("doctor", *office, "A-W") == 0
    assert "amazon: 24 images in 4 classes, but 2817 in 31 classes are published" in capsys.readouterr().out


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for options, n_finished, n_folders in (((), 0, 1), ((), 1, 1), (("--seed", "1"), 0, 2)):
        assert ducats("run", *QUICK_OPTIONS, *options) == 0
        assert capsys.readouterr().out.count("already finished") == n_finished
        assert len(list((tmp_path / "runs").iterdir())) == n_folders


FOLDERS = ("--source", "{}/source", "--target", "{}/target")
OFFICE31 = ("-c", "data/office31", "--set", "acquisition.after_epochs=null")
STREETS = ("-c", "data/streets")
BAD_INPUTS = [
    ((), ["needs --source and --target"]),
    ((*FOLDERS, "--method", "duk"), ["no config 'methods/duk'", "did you mean"]),
    ((*FOLDERS, "--set", "query.name=duk"), ["no query 'duk'; choose from: random"]),
    ((*FOLDERS, "--set", "query.params.kapa=3"), ["has no parameter 'kapa'; it has: kappa, order"]),
    ((*FOLDERS, "--set", "objective.params.beta=high"), ["objective 'duc' does not accept the parameters"]),
    ((*FOLDERS, "--manifest", "m.csv"), ["either --manifest or"]),
    ((*FOLDERS, "--set", "train.lr=[1"), ["--set train.lr=[1", "not valid YAML"]),
    ((*FOLDERS, "--set", "model.params.width=wide"), ["model 'small_cnn' does not accept the parameters"]),
    ((*FOLDERS, "--set", "data.params.size=big"), ["must be a whole number of pixels", "not 'big'"]),
    ((*FOLDERS, "--set", "train.schedule.params.gain=high"), ["schedule 'inverse_decay' does not accept"]),
    (
        (*FOLDERS, "--set", "views.source.ratio=[0, 1]"),
        ["views.source.ratio", "must be increasing and positive"],
    ),
    ((*FOLDERS, "--set", "oracle.params.speed=3"), ["has no parameter 'speed'", "rule, min_annotators"]),
    ((*FOLDERS, "--set", "train.lr_multipliers={trunk: 0.1}"), ["prefixes ['trunk']", "backbone"]),
    (("--sauce", "x"), ["Did you mean --source?"]),
    ((*OFFICE31, "--root", "{}"), ["needs --task", "its tasks are A-W, A-D"]),
    ((*OFFICE31, "--task", "A-W"), ["'office31' needs --root"]),
    ((*OFFICE31, "--root", "{}", "--task", "A-W"), ["images of amazon", "contains known, s"]),
    (("-c", "data/digits", "--root", "{}"), ["are for a benchmark", "data set is 'digits'"]),
    (("--root", "{}", "--task", "A-W"), ["--root and --task are for a benchmark"]),
    ((*FOLDERS, "--task", "A-W"), ["--root and --task are for a benchmark", "-c data/office31"]),
    (("--set", "query.name=nowhere:q", "-c", "data/digits"), ["no query 'nowhere:q'", "PYTHONPATH"]),
]


FEW_STREETS = (*STREETS, "--set", "data.params={n_source: 2, n_pool: 2, n_test: 1}")
TASK_MISMATCHES = [
    (("-c", "segmentation"), ["'segmentation_folders' needs --source and --target and --classes"]),
    (("-c", "segmentation", *FOLDERS), ["'segmentation_folders' needs --classes"]),
    (("-c", "segmentation", *FOLDERS, "--classes", "{}/none.txt"), ["class list", "none.txt cannot be read"]),
    ((*FOLDERS, "--classes", "c.txt"), ["--classes is for segmentation"]),
    ((*FOLDERS, "--method", "ripu"), ["'folders' has one label per image", "choose another --method"]),
    (("-c", "data/digits", "--method", "ripu-points"), ["'digits' has one label per image"]),
    (
        ("-c", "data/digits", "--set", "query.name=ripu"),
        ["'impurity', which is defined for pixels only"],
    ),
    ((*STREETS, "--set", "task.name=classification"), ["classification labels whole images, not pixels"]),
    ((*STREETS, "--set", "model.name=timm"), ["'timm' outputs one class per image", "deeplab_v2"]),
    ((*FEW_STREETS, "--set", "views.test.crop=center"), ["views.test must", "crop=none"]),
    ((*STREETS, "--set", "task.unit=region", "--set", "task.region_side=4"), ["must be odd"]),
    ((*STREETS, *FOLDERS), ["'segmentation_folders' needs --classes"]),
    ((*FOLDERS, "--set", "model.params.backbone=5"), ["the model 'timm' does not accept the parameters"]),
    ((*FOLDERS, "--set", "model.params.weights=5"), ["the model 'timm' does not accept the parameters"]),
    ((*STREETS, "--root", "{}"), ["--root and --task are for a benchmark", "'streets'"]),
    (("-c", "data/gtav-cityscapes", *FOLDERS), ["GTAV", "does not contain the folders images and labels"]),
]


def test_superpixels_without_scikit_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "skimage", None)
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    assert ducats("run", *STREETS, "--set", "task.unit=superpixel", "--out", tmp_path / "run") == 2
    assert (
        "scikit-image, which is not installed: pip install 'ducats[superpixels]'" in capsys.readouterr().err
    )


def test_options_are_applied_before_cross_validation_of_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Epoch 60 is valid with 100 epochs, but not with the default of 50.
    assert ducats("config", "--set", "acquisition.after_epochs=[60]", "--epochs", "100") == 0
    assert yaml.safe_load(capsys.readouterr().out)["acquisition"]["after_epochs"] == [60]


def test_label_map_folders_by_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_uncertainty_option_is_for_segmentation_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ducats("run", *QUICK_OPTIONS, "--out", tmp_path / "run") == 0
    assert ducats("predict", tmp_path / "run", tmp_path, "--uncertainty-maps", "--device", "cpu") == 2
    assert "--uncertainty-maps is for segmentation" in capsys.readouterr().err
    assert ducats("picks", tmp_path / "run") == 2
    assert "whole images" in capsys.readouterr().err


def test_picks_reads_only_the_images_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, run = tiny_segmentation_data.write_tree(tmp_path / "data"), tmp_path / "run"
    held_out = ("--set", "evaluation={split: held_out, test_fraction: 0.25}")
    options = tiny_segmentation_data.folder_options(root, test=False)
    assert ducats("run", *options, "--ground-truth", "--budget", "10%", *held_out, "--out", run) == 0
    keys = load_ledger(RunFolder(run)).keys
    assert len(keys) == 3  # of four: one was held out
    for path in [*root.glob("*/*/*.png")]:
        if path != root / "target" / "images" / keys[1]:
            path.write_bytes(b"not to be read")
    capsys.readouterr()
    assert ducats("picks", run, "--images", keys[1]) == 0
    assert "picks.png" in capsys.readouterr().out
    assert (run / "picks.png").exists()
    (held,) = {f"10{number}.png" for number in range(4)} - set(keys)
    assert ducats("picks", run, "--images", held) == 2
    assert f"no image '{held}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "arguments", "words"),
    [
        *((SMALL_RUN_OPTIONS, *case) for case in BAD_INPUTS),  # the settings of the case come last and win
        *((("--device", "cpu"), *case) for case in TASK_MISMATCHES),
    ],
)
def test_bad_input_gives_a_message_and_exit_code_2(
    folders: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    arguments: tuple[str, ...],
    words: list[str],
) -> None:
    own = [argument.replace("{}", str(folders)) for argument in arguments]
    assert ducats("run", *options, *own, "--out", tmp_path / "run") == 2
    output = capsys.readouterr().err
    for word in words:
        assert word in output
    assert "Traceback" not in output
    if options != SMALL_RUN_OPTIONS:
        assert output.count("\n") == 1
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_unreadable_images_are_named(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "zero.png").touch()
    options = small_run(folders, tmp_path / "target")
    assert ducats("run", *options) == 2
    output = " ".join(capsys.readouterr().err.split())
    assert "zero.png" in output
    assert "empty file" in output
    assert ducats("doctor", *options) == 1
    assert "zero.png" in capsys.readouterr().out


def test_doctor_finds_no_errors_in_good_data(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ducats("doctor", *small_run(folders, "target", "--test", folders / "test")) == 0
    assert "error" not in capsys.readouterr().out.replace("No errors", "")


def test_user_query_and_model_by_name(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "def last(context, *, step: int = 1):\n"
        '    """The last ones."""\n'
        "    return len(context.candidates) - 1 - step * torch.arange(context.budget)\n"
        "def net(*, classes, channels, width=8):\n"
        "    first = nn.Linear(channels * 64, width)\n"
        "    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(width, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    query, model = "{name: 'mine:last', params: {step: 2}}", "{name: 'mine:net', params: {width: 4}}"
    own = set_options(f"query={query}", f"model={model}")
    assert ducats("run", *small_run(folders), *own, "--out", tmp_path / "run") == 0


def test_user_query_on_logits_with_a_model_without_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain_components.py").write_text(
        "from torch import nn\n"
        "def first(context):\n"
        "    return context.candidates.z[:, 0].argsort()[: context.budget]\n"
        "def conv(*, classes, channels):\n"
        "    return nn.Sequential(nn.Conv2d(channels, classes, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    )
    monkeypatch.chdir(tmp_path)
    own = set_options(
        "query.name=plain_components:first", "model={name: 'plain_components:conv', params: {}}"
    )
    assert ducats("run", *QUICK_OPTIONS, *own, "--out", tmp_path / "run") == 0


def test_typos_in_the_name_of_a_user_component(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_components.py").write_text("def between(context): ...\ndef net(classes): ...\n")
    monkeypatch.chdir(tmp_path)  # the working directory is searched
    for setting, words in (
        ("query.name=own_components:betwen", "own_components has no 'betwen'; did you mean 'between'?"),
        (
            "model={name: 'own_components:net', params: {}}",
            "must accept the keyword arguments classes= and channels=",
        ),
    ):
        assert ducats("run", *QUICK_OPTIONS, "--set", setting, "--out", tmp_path / "run") == 2
        assert words in capsys.readouterr().err


def test_small_images_without_a_gpu(folders: Path, tmp_path: Path) -> None:
    known = ("--source", folders / "source", "--target", folders / "known", "--ground-truth")
    quick = ("--set", "train.steps_per_epoch=1", "--epochs", "3", "--rounds", "2", "--budget", "6")
    assert ducats("run", "-c", "small", *known, *quick, "--device", "cpu", "--out", tmp_path / "run") == 0


def test_queries_lists_every_query(capsys: pytest.CaptureFixture[str]) -> None:
    from ducats.acquisition.queries import QUERIES

    assert ducats("queries") == 0
    output = capsys.readouterr().out
    for name in QUERIES:
        assert name in output


def test_methods_lists_every_config_with_objective_and_query(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "width", 200)
    assert ducats("methods") == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    listed = {row[0]: row[1:] for row in rows if row and row[0]}
    assert set(listed) == {path.stem for path in (configs_folder() / "methods").glob("*.yaml")}
    assert listed["duc-swapped"] == [
        "duc",
        "duc",
        "DUC with the two query rounds swapped: U_data first, U_dis second.",
    ]
    assert listed["source-only"][1] == "–"


def test_config_prints_schema_and_descriptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert ducats("config", "--schema") == 0
    assert "train" in json.loads(capsys.readouterr().out)["properties"]
    assert ducats("config", "--explain") == 0
    output = capsys.readouterr().out
    assert 'acquisition.budget = "5%"' in output
    assert "parameters of two_round: kappa=10.0, order='dis_data'" in output
    assert "views.source.crop" in output


def test_folders_that_are_not_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["evaluate"], ["predict", tmp_path], ["labels"], ["report"]):
        assert ducats(*command, tmp_path) == 2
        assert str(tmp_path) in "".join(capsys.readouterr().err.split("\n"))


def test_file_in_place_of_the_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").touch()
    assert ducats("run", *QUICK_OPTIONS, "--out", tmp_path / "run") == 2
    assert "system error" in capsys.readouterr().err


def test_run_does_not_depend_on_the_working_directory(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folders)
    assert ducats("run", *small_run(Path(), "known", "--test", "test"), "--out", tmp_path / "run") == 0
    monkeypatch.chdir(tmp_path)
    assert ducats("evaluate", "run", "--device", "cpu") == 0


def test_corrupt_files_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert ducats("run", *QUICK_OPTIONS, "--out", run) == 0
    (run / "model.safetensors").write_bytes(b"x" * 40)
    assert ducats("evaluate", run, "--device", "cpu") == 2
    assert "model.safetensors is corrupt" in capsys.readouterr().err
    rounds = (run / "labels" / "round-01.npz").read_bytes()
    (run / "labels" / "round-01.npz").write_bytes(rounds[:100])
    assert ducats("labels", run) == 2
    assert "round-01.npz is corrupt" in capsys.readouterr().err
    (run / "config.yaml").write_text("")
    assert ducats("evaluate", run) == 2
    assert "config.yaml is corrupt" in capsys.readouterr().err


def test_ctrl_c_and_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


def from_weights(folders: Path, file: Path, *settings: str) -> list[object]:
    """Return the command of a small timm run that starts from a weights file, which is created."""
    torch.save(timm.create_model("resnet10t", num_classes=0).state_dict(), file)
    small = {use: {"crop": "center", "size": 32} for use in ("source", "unlabelled", "scoring", "test")}
    given = (
        "data.params.size=32",
        f"model={{name: timm, params: {{backbone: resnet10t, weights: {file}}}}}",
        f"views={json.dumps(small)}",
        *settings,
    )
    command = ("run", "--source", folders / "source", "--target", folders / "target")
    return [*command, "--device", "cpu", *set_options(*given)]


def test_trained_model_needs_neither_weights_file_nor_hub(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing must be downloaded")

    monkeypatch.setattr("ducats.models.hub.fetch_pretrained", refuse)
    file, out = tmp_path / "weights.pth", tmp_path / "run"
    train = "train={epochs: 1, steps_per_epoch: 1, batch_size: 4}"
    command = from_weights(folders, file, train, "acquisition.rounds=0")
    assert ducats(*command, "--out", out) == 0
    file.unlink()
    assert ducats(*command, "--out", out) == 0  # uses the weights in the run folder
    assert "already finished" in capsys.readouterr().out
    assert ducats("predict", out, folders / "target", "--out", tmp_path / "p.csv", "--device", "cpu") == 0
    assert ducats("evaluate", out, "--data", folders / "known", "--device", "cpu") == 0


def test_run_warns_about_an_incomplete_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for shade, domain in enumerate(("amazon", "webcam")):
        pixels = [torch.full((3, 8, 8), 20 * number + shade, dtype=torch.uint8) for number in range(8)]
        write_images(tmp_path / "o31" / domain, pixels, ["back_pack", "bike"] * 4)
    settings = (
        *("data.params.size=8", "model.name=small_cnn", VIEWS, "acquisition={rounds: 0, after_epochs: null}"),
        "train={epochs: 1, steps_per_epoch: 1, batch_size: 4}",
    )
    office = ("-c", "data/office31", "--root", tmp_path / "o31", "--task", "A-W", "--device", "cpu")
    assert ducats("run", *office, *set_options(*settings), "--out", tmp_path / "run") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "warning: amazon: 8 images in 2 classes, but 2817 in 31 classes are published" in output
    assert "without the labelled ones" in output


def test_paused_run_resumes_without_its_weights_file(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "weights.pth", tmp_path / "run"
    train = "train={epochs: 2, steps_per_epoch: 1, batch_size: 4}"
    command = from_weights(folders, file, train, "acquisition={budget: 2, after_epochs: [1]}")
    assert ducats(*command, "--out", out) == 3
    file.unlink()
    questions = out / "questions" / "round-01"
    name = (questions / "classes.txt").read_text().splitlines()[0]
    answers = ["key,label", *(f"{row['key']},{name}" for row in read_csv(questions / "questions.csv"))]
    (questions / "answers.csv").write_text("\n".join(answers))
    assert ducats(*command, "--out", out) == 0
    assert (out / "model.safetensors").exists()
    assert ducats(*command, "--out", tmp_path / "new") == 2  # a new run needs the file
    assert "does not exist; check model.params.weights" in capsys.readouterr().err


def test_evaluate_refuses_data_that_changed(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "target"
    shutil.copytree(folders / "known", target)
    options = small_run(folders, target, "--ground-truth")
    assert ducats("run", *options, "--out", tmp_path / "run") == 0
    assert ducats("evaluate", tmp_path / "run", "--device", "cpu") == 0
    first = next(target.rglob("*.png"))
    shutil.copy(first, first.with_name("000000.png"))
    assert ducats("evaluate", tmp_path / "run", "--device", "cpu") == 2
    assert "the images or labels of the pool have changed" in capsys.readouterr().err
