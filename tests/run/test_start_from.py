"""Runs that start with the labels of an earlier run: `ducats run --start-from`."""

import shutil
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from commands import Capture, ducats, error_of, output_of, set_options, write_images
from ducats.annotation import AnnotationStore
from ducats.config import Config, query_epochs
from ducats.data.toy import toy
from ducats.ledger import load_ledger
from ducats.runfolder.run_folder import RunFolder

BUDGET = 4  # labels of the earlier run


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Target images in class folders, and a run without a source that labelled some of them."""
    folder = tmp_path_factory.mktemp("project")
    data = toy(n_source_per_class=3, n_pool=16, n_test=4)
    assert data.ground_truth is not None
    for name, pixels, labels in (
        ("target", data.pool.pixels[:], data.ground_truth[:].tolist()),
        ("source", data.source.images.pixels[:], data.source.labels[:].tolist()),
    ):
        write_images(folder / name, pixels, [data.classes[label] for label in labels])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(
            timm.create_model("test_resnet", num_classes=0).state_dict(), folder / "weights.safetensors"
        )
    options = ("--target", folder / "target", "--ground-truth", "--budget", BUDGET, "--rounds", 2)
    settings = set_options(
        f"model.params={{backbone: test_resnet, weights: {folder / 'weights.safetensors'}}}",
        "views.size=32",
        "train={epochs: 2, batch_size: 8}",
        "model.freeze=backbone",
    )
    assert ducats("run", *options, *settings, "--device", "cpu", "--out", folder / "earlier") == 0
    return folder


def start(project: Path, out: Path, *options: object) -> tuple[object, ...]:
    """Return the command of a run that starts from the earlier one."""
    fixed = ("--epochs", 4, "--device", "cpu", "--out", out)
    return ("run", "--start-from", project / "earlier", *fixed, *options)


def labels_by_key(folder: Path) -> dict[str, int]:
    return {entry.key: entry.label for entry in load_ledger(RunFolder(folder)).entries()}


def test_labels_data_and_model_are_those_of_the_earlier_run(
    project: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "run"
    printed = output_of(capsys, *start(project, out, "--finetune", "--rounds", 0))
    assert f"starts with {BUDGET} labels, asks for no more" in " ".join(printed.split())
    assert labels_by_key(out) == labels_by_key(project / "earlier")
    identity, earlier = RunFolder(out).identity, RunFolder(project / "earlier").identity
    assert identity["data"] == earlier["data"]
    assert identity["model"]["params"] == earlier["model"]["params"]
    assert "freeze" not in identity["model"]  # the whole network is trained
    stages = RunFolder(out).stages()
    assert [(stage["epoch"], stage["labels"]) for stage in stages] == [(4, BUDGET)]  # none before training


def test_further_labels_are_asked_within_the_budget(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = start(project, out, "--source", project / "source", "--budget", BUDGET + 3, "--rounds", 2)
    assert ducats(*command) == 0
    ledger = load_ledger(RunFolder(out))
    assert [ledger.spent(n) for n in (1, 2, 3)] == [BUDGET, BUDGET + 1, BUDGET + 3]
    assert labels_by_key(project / "earlier").items() < labels_by_key(out).items()
    assert ducats("report", out, "--out", tmp_path / "report.html") == 0


def test_the_run_resumes_without_the_earlier_one(project: Path, tmp_path: Path) -> None:
    earlier, out = tmp_path / "earlier", tmp_path / "run"
    shutil.copytree(project / "earlier", earlier)
    command = ("run", "--start-from", earlier, "--oracle", "human", "--budget", BUDGET + 1, "--rounds", 1)
    options = ("--epochs", 3, "--device", "cpu", "--out", out)
    assert ducats(*command, *options) == 3  # waits for an answer
    shutil.rmtree(earlier)
    store = AnnotationStore(RunFolder(out).questions_path)
    assert store.round_numbers() == [2]
    question = store.question_round(2).questions[0]
    assert question.key not in labels_by_key(project / "earlier")
    word = question.key.split("/")[0]
    store.receive([{"question": question.id, "word": word, "annotator": "Ada"}], channel="page")
    assert ducats(*command, *options) == 0
    assert len(load_ledger(RunFolder(out))) == BUDGET + 1


def test_classes_and_images_must_match(project: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(project / "target", tmp_path / "renamed" / "deeper")
    for options, message in (
        (("--classes", "cat, dog"), "add what is missing with --classes"),
        (
            ("--target", tmp_path / "renamed", "--classes", _classes(project)),
            "none of an image of the target",
        ),
    ):
        data = ("--set", "data.params.ground_truth=false", "--rounds", 1, *options)
        assert message in error_of(capsys, *start(project, tmp_path / "run", *data))
    (tmp_path / "empty").mkdir()
    command = ("run", "--start-from", tmp_path / "empty", "--target", project / "target")
    assert "not a run folder" in error_of(capsys, *command)


def _classes(project: Path) -> str:
    return ", ".join(sorted(path.name for path in (project / "target").iterdir()))


def test_doctor_counts_the_labels(project: Path, capsys: Capture) -> None:
    command = ("doctor", "--start-from", project / "earlier", "--budget", BUDGET + 2, "--rounds", 2)
    printed = " ".join(output_of(capsys, *command, "--device", "cpu").split())
    assert f"starts with {BUDGET} labels" in printed
    assert "the budget is 2 more labels" in printed


def test_rounds_follow_the_initial_one() -> None:
    def epochs(**acquisition: object) -> tuple[int, ...]:
        data = {"params": {"target": "t", "classes": ["a", "b"]}}
        settings = {"data": data, "acquisition": {"start_from": "runs/live", **acquisition}}
        return query_epochs(Config.model_validate(settings))

    assert epochs() == (0, 10, 12, 14, 16, 18)
    assert epochs(rounds=0) == (0,)
    assert epochs(after_epochs=[3, 5]) == (0, 3, 5)
    assert epochs(rounds=49) == tuple(range(50))
    with pytest.raises(ValueError, match="50 rounds do not fit"):
        epochs(rounds=50)
    with pytest.raises(ValueError, match="remove the 0"):
        epochs(after_epochs=[0, 5])
