"""A run without a test set, from the questions to report, model card, watch and triage."""

from dataclasses import replace
from pathlib import Path

import pytest

from commands import Capture, ducats, error_of, output_of, set_options, write_images
from conftest import PLAIN_VIEWS, Runner, quick_pixels
from ducats.annotation import AnnotationStore
from ducats.cli.run import print_results
from ducats.data.toy import toy
from ducats.report.run_reader import read_run
from ducats.report.run_section.verdict import make_verdict
from ducats.run import run
from ducats.run.factory import build_run
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric

SETTINGS = (
    "model={name: small_cnn, params: {width: 4, features: 16}}",
    "train={epochs: 3, batch_size: 16, steps_per_epoch: 20, lr: 0.05}",
    "data.params.size=16",
    PLAIN_VIEWS,
)


def options(project: Path) -> tuple[object, ...]:
    folders = ("--source", project / "source", "--target", project / "target", "--device", "cpu")
    return (*folders, "--budget", 66, "--rounds", 2, *set_options(*SETTINGS))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of a source and of an unlabelled target, whose file names tell the class to this test only."""
    folder = tmp_path_factory.mktemp("project")
    data = toy(n_source_per_class=10, n_pool=120, n_test=4)
    assert data.ground_truth is not None
    names = [data.classes[label] for label in data.ground_truth[:].tolist()]
    write_images(folder / "target", data.pool.pixels[:], names)
    source_names = [data.classes[label] for label in data.source.labels[:].tolist()]
    write_images(folder / "source", data.source.images.pixels[:], source_names)
    return folder


@pytest.fixture(scope="module")
def finished(project: Path) -> Path:
    """A finished run whose questions were answered with the truth."""
    out = project / "run"
    command = ("run", *options(project), "--out", out)
    for round_number in (1, 2):
        assert ducats(*command) == 3
        store = AnnotationStore(RunFolder(out).questions_path)
        question_round = store.question_round(round_number)
        assert len(question_round.questions) == 33
        answers = [
            {"question": question.id, "word": question.key.split("/")[0], "annotator": "Ada"}
            for question in question_round.questions
        ]
        store.receive(answers, channel="page")
    assert ducats(*command) == 0
    return out


def test_the_default_sets_labels_aside_and_says_so(project: Path, finished: Path, capsys: Capture) -> None:
    printed = " ".join(output_of(capsys, "run", *options(project), "--out", finished).split())
    assert "66 labels in 2 rounds, 20 of them for the audit" in printed
    assert "on images that were not trained on: accuracy" in printed
    assert "not evaluated" not in printed
    assert "gain over random labels is not known" in printed
    listed = output_of(capsys, "labels", finished).splitlines()
    assert listed[0] == "round,key,label,audit"
    assert sum(line.endswith(",True") for line in listed) == 20
    doctor = " ".join(output_of(capsys, "doctor", *options(project)).split())
    assert "20 of them are for the audit" in doctor
    few = error_of(capsys, "run", *options(project), "--audit", 65, "--out", project / "none")
    assert "without one to train on" in few
    for option, value in (("--audit", "many"), ("--until", "soon")):
        assert option in error_of(capsys, "run", *options(project), option, value, "--out", project / "none")


def test_the_report_states_the_accuracy_with_its_interval(
    finished: Path, tmp_path: Path, capsys: Capture
) -> None:
    run = read_run(finished)
    last = run.audits[-1]
    assert 0 <= last["low"] <= last["accuracy"] <= last["high"] <= 1
    verdict = make_verdict(run, [])
    assert f"between {100 * last['low']:.1f} and {100 * last['high']:.1f}" in verdict.sentence
    page = tmp_path / "report.html"
    assert ducats("report", finished, "--out", page) == 0
    text = page.read_text(encoding="utf-8")
    assert "Accuracy over labels, by the audit" in text
    assert "Set aside a test set" not in text
    assert "gain over random labels is not known" in text
    assert "from 20 audit labels" in " ".join(output_of(capsys, "watch", finished, "--once").split())


def test_triage_uses_the_audit(finished: Path, capsys: Capture) -> None:
    printed = " ".join(output_of(capsys, "triage", finished, "--risk", 0.9, "--confidence", 0.5).split())
    assert "the audit labels of the run" in printed


def test_a_stopped_run_says_so_and_shows_no_empty_round(
    run_quickly: Runner, tmp_path: Path, capsys: Capture
) -> None:
    settings = "acquisition={budget: 24, rounds: 3, after_epochs: [1, 2, 3], audit: 6, until: gain<99}"
    folder = run_quickly(settings).path
    shown = " ".join(output_of(capsys, "watch", folder, "--once").split())
    assert "1 of 3 rounds labelled" in shown
    assert "no labels were queried from round 2 on: the last round gained at most" in shown
    page = tmp_path / "report.html"
    assert ducats("report", folder, "--out", page) == 0
    text = page.read_text(encoding="utf-8")
    assert "stopped asking for labels" in text
    assert "pending" not in text
    assert "The labels of the last round raised" not in text  # the last two models have the same labels
    assert ducats("export", folder, "--out", tmp_path / "model") == 0
    card = (tmp_path / "model" / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "8 target images in 1 round; 2 of them for the audit, not trained on" in card


def test_released_labels_are_not_called_untrained(
    run_quickly: Runner, tmp_path: Path, capsys: Capture
) -> None:
    run_folder = run_quickly("acquisition={budget: 16, rounds: 2, audit: 6, release_audit: true}")
    capsys.readouterr()
    print_results(run_folder, has_test=True)
    assert "before training on the audit labels: accuracy" in " ".join(capsys.readouterr().out.split())
    assert "also trained on the audit labels" in " ".join(make_verdict(read_run(run_folder.path), []).remarks)
    assert ducats("export", run_folder.path, "--out", tmp_path / "model") == 0
    card = (tmp_path / "model" / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "The figures are those before" in card
    assert "not trained on." not in card.split("## Evaluation")[0]


def test_pixels_have_miou_and_pixel_accuracy(tmp_path: Path, capsys: Capture) -> None:
    config, folder = quick_pixels("acquisition={budget: 20%, audit: 100}"), tmp_path / "run"
    components, plan = build_run(config, RunFolder(folder))
    fabric = make_fabric("cpu")
    fabric.launch()
    run(replace(components, test=None), plan, folder, fabric=fabric, identity=config.identity())
    last = read_run(folder).audits[-1]
    page = tmp_path / "report.html"
    assert ducats("report", folder, "--out", page) == 0
    text = page.read_text(encoding="utf-8")
    for name in ("mIoU", "Pixel accuracy"):
        assert f"{name} over" in text
        assert f"{name} by audit" in text
    assert "random sample of the" in text
    assert f"{last['pixels']:,} pixels" in text
    assert "IoU %" in text
    shown = " ".join(output_of(capsys, "watch", folder, "--once").split())
    assert f"pixel accuracy {100 * last['accuracy']:.1f} %" in shown
    listed = output_of(capsys, "labels", folder).splitlines()
    assert listed[0] == "round,key,y,x,label,audit"
    assert sum(line.endswith(",True") for line in listed) == 100
