"""Classes that appear, through the commands: folders, CSV answers, `ducats classes`, and a finished run."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from commands import Capture, ducats, error_of, output_of, set_options, write_images
from conftest import PLAIN_VIEWS
from ducats.data.toy import toy
from ducats.runfolder.run_folder import RunFolder

SETTINGS = (
    "model={name: small_cnn, params: {width: 4, features: 16}}",
    "train={epochs: 4, batch_size: 16, steps_per_epoch: 20, lr: 0.05}",
    "data.params.size=16",
    PLAIN_VIEWS,
)
NEW = "zebra"  # the class that the source lacks


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source without a class, target with it; file names in `flat` tell the class to this test only."""
    folder = tmp_path_factory.mktemp("project")
    data = toy(n_source_per_class=10, n_pool=60, n_test=4)
    assert data.ground_truth is not None
    names = [*data.classes[:-1], NEW]
    truth = [names[label] for label in data.ground_truth[:].tolist()]
    write_images(folder / "target", data.pool.pixels[:], truth)
    source = [names[label] for label in data.source.labels[:].tolist()]
    known = [index for index, name in enumerate(source) if name != NEW]
    write_images(folder / "source", data.source.images.pixels[:][known], [source[index] for index in known])
    return folder


def folders(project: Path) -> tuple[object, ...]:
    return ("--source", project / "source", "--target", project / "target", "--device", "cpu")


def options(project: Path) -> tuple[object, ...]:
    return (*folders(project), "--budget", 24, "--rounds", 2, *set_options(*SETTINGS))


def answer(run: Path, round_number: int, **spelling: str) -> None:
    """Fill in the table of a round with the class folders."""
    folder = RunFolder(run).questions_path / f"round-{round_number:02d}"
    with (folder / "questions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with (folder / "answers.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("key", "label"))
        for row in rows:
            name = row["key"].split("/")[0]
            writer.writerow((row["key"], spelling.get(name, name)))


def test_from_a_csv_file_to_the_exported_model(
    project: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    command = ("run", *options(project), "--audit", 0, "--out", run)
    assert ducats(*command) == 3
    answer(run, 1)
    output_of(capsys, "classes", run, "--add", "[bold]tapri")
    output_of(capsys, "classes", run, "--rename", "[bold]tapri=[bold]tapir")  # it has no label yet
    assert "[bold]tapri" in error_of(capsys, "classes", run, "--merge", f"{toy().classes[0]}=[bold]tapri")
    output_of(capsys, "classes", run, "--merge", f"[bold]tapir={toy().classes[0]}")
    assert "[bold]tapri, [bold]tapir" in output_of(capsys, "classes", run)
    assert "can now choose 'okapi'" in output_of(capsys, "classes", run, "--add", "okapi")
    capsys.readouterr()
    assert ducats(*command) == 3
    assert f"added the class '{NEW}'" in capsys.readouterr().out
    assert NEW in output_of(capsys, "classes", run)
    assert "okapi" not in output_of(capsys, "classes", run)  # nobody used it
    output_of(capsys, "classes", run, "--rename", f"{NEW}=quagga")
    answer(run, 2)  # with the former name
    assert ducats(*command) == 0

    assert "quagga" in output_of(capsys, "watch", run, "--once")
    assert ",quagga" in output_of(capsys, "labels", run)
    predictions = tmp_path / "predictions.csv"
    assert ducats("predict", run, project / "target", "--out", predictions, "--class-probabilities") == 0
    assert predictions.read_text().splitlines()[0].endswith("p(quagga)")
    report = tmp_path / "report.html"
    assert ducats("report", run, "--out", report) == 0
    assert "Classes added during the run" in report.read_text(encoding="utf-8")

    into = RunFolder(run).classes.current[0]
    assert ducats("triage", run, "--acquired-labels", "--risk", "0.9") == 0
    assert f"part of {into!r}" in output_of(capsys, "classes", run, "--merge", f"quagga={into}")
    assert not RunFolder(run).triage_path.exists()
    assert "quagga" not in output_of(capsys, "labels", run)
    assert ducats("export", run, "--out", tmp_path / "exported") == 0
    names = RunFolder(run).classes.current
    assert (tmp_path / "exported" / "classes.txt").read_text().split() == list(names)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "exported")
        code = Path("MODEL_CARD.md").read_text().partition("```python\n")[2].partition("```")[0]
        exec(code, variables := dict[str, Any]())
    assert variables["model"](torch.rand(2, 3, 16, 16)).z.shape[1] == len(names)
    assert ducats("score", run, project / "target", "--budget", 3, "--out", tmp_path / "scores") == 0
    report.unlink()
    assert ducats("report", run, "--out", report) == 0


def test_a_simulated_run_is_evaluated_with_the_new_class(
    project: Path, tmp_path: Path, capsys: Capture
) -> None:
    run = tmp_path / "run"
    command = ("run", *options(project), "--ground-truth", "--out", run)
    assert f"'{NEW}'" in error_of(capsys, *command)
    assert "--new-classes" in error_of(capsys, *command)
    assert ducats(*command, "--new-classes") == 0
    evaluated = json.loads(output_of(capsys, "evaluate", run))
    assert evaluated["accuracy"] == pytest.approx(RunFolder(run).stages()[-1]["accuracy"])
    doctor = output_of(capsys, "doctor", *options(project), "--ground-truth", "--new-classes")
    assert f"classes that the source lacks: '{NEW}'" in " ".join(doctor.split())
    assert "no open round" in error_of(capsys, "classes", run, "--add", "okapi")
    assert "NAME=INTO" in error_of(capsys, "classes", run, "--merge", NEW)


def test_where_new_classes_are_refused(project: Path, capsys: Capture) -> None:
    given = (*folders(project), "--new-classes")
    assert "--classes" in error_of(capsys, "run", "-c", "segmentation", *given)
    assert "cannot be compared" in error_of(capsys, "tune", *given)
