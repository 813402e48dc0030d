"""Live labelling in a run folder, and runs without a source."""

import shutil
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from commands import Capture, ducats, set_options, write_images
from ducats.annotation.change_classes import merge_class, rename_class
from ducats.config import Config, query_epochs
from ducats.config.options import RunOptions
from ducats.data.toy import toy
from ducats.deploy import load_trained_model
from ducats.ledger import load_ledger
from ducats.run.factory import resolve_for_machine
from ducats.run.live_run import LiveRun
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError

WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images in class folders, and a file of weights that makes the backbone a pretrained one."""
    folder = tmp_path_factory.mktemp("project")
    data = toy(n_source_per_class=1, n_pool=16, n_test=4)
    assert data.ground_truth is not None
    write_images(
        folder / "target",
        data.pool.pixels[:],
        [data.classes[label] for label in data.ground_truth[:].tolist()],
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(
            timm.create_model("test_resnet", num_classes=0).state_dict(), folder / "weights.safetensors"
        )
    return folder


def settings(project: Path) -> tuple[str, ...]:
    return (
        f"model.params={{backbone: test_resnet, weights: {project / 'weights.safetensors'}}}",
        "views.size=32",
        "train={epochs: 2, batch_size: 8}",
        "engine.device=cpu",
        "model.freeze=backbone",
    )


def classes_of(project: Path) -> list[str]:
    return sorted(path.name for path in (project / "target").iterdir())


def open_live(project: Path, out: Path, audit_every: int = 0) -> LiveRun:
    options = RunOptions(
        set=["acquisition.rounds=0", *settings(project)],
        target=project / "target",
        classes=", ".join(classes_of(project)),
    )
    config = resolve_for_machine(options.load())
    return LiveRun.open(config, RunFolder(out), audit_every=audit_every)


def answer_some(live_run: LiveRun, count: int, word: str | None = None) -> list[str]:
    """Answer the questions that the session chooses, with the class folder unless a word is given."""
    keys = []
    with live_run.session() as session:
        for _ in range(count):
            session.wait_until_current(WAIT_SECONDS)
            question_round = live_run.store.open_round()
            assert question_round is not None
            key = question_round.questions[session.first_questions()[0]].key
            keys.append(key)
            one = {"question": key, "word": word or key.split("/")[0], "annotator": "Ada", "external_id": key}
            live_run.store.receive([one], channel="page")
            session.notify()
        session.wait_until_current(WAIT_SECONDS)
    return keys


def test_labels_of_all_sessions_are_trained_in_one_run(
    project: Path, tmp_path: Path, capsys: Capture
) -> None:
    out, answered = tmp_path / "live", []
    for n_rounds, count in ((1, 3), (2, 2)):
        live_run = open_live(project, out)
        answered += answer_some(live_run, count)
        assert live_run.finish()
        run_folder = RunFolder(out)
        assert run_folder.finished
        ledger = load_ledger(run_folder)
        assert (ledger.n_rounds, len(ledger)) == (n_rounds, len(answered))
        labelled = {live_run.data.pool.keys[i] for i in (ledger.targets() >= 0).nonzero().squeeze(1).tolist()}
        assert labelled == set(answered)
    assert ducats("report", out, "--out", tmp_path / "report.html") == 0
    assert ducats("predict", out, project / "target", "--out", tmp_path / "predictions.csv") == 0
    assert "budget" not in capsys.readouterr().err


def test_classes_of_live_labelling_are_added_renamed_and_merged(project: Path, tmp_path: Path) -> None:
    out, (first, second, *_) = tmp_path / "live", classes_of(project)
    live_run = open_live(project, out)
    answered = answer_some(live_run, 2)
    (new,) = answer_some(live_run, 1, "bat")
    with pytest.raises(UserError, match="another process"):
        rename_class(RunFolder(out), "bat", "owl")
    assert live_run.finish()
    run_folder = RunFolder(out)
    rename_class(run_folder, "bat", "owl")
    assert load_trained_model(out).classes[-1] == "owl"
    merge_class(run_folder, first, second, "Ada")
    assert first not in load_trained_model(out).classes

    live_run = open_live(project, out)
    open_round = live_run.store.open_round()
    assert open_round is not None
    assert open_round.rules.classes == (*classes_of(project)[1:], "owl")
    answered += answer_some(live_run, 1)
    assert live_run.finish()
    names = RunFolder(out).classes.resolved_names
    labels = {entry.key: names[entry.label] for entry in load_ledger(RunFolder(out)).entries()}
    assert labels.pop(new) == "owl"
    assert labels == {key: key.split("/")[0].replace(first, second) for key in answered}
    assert load_trained_model(out).classes == open_round.rules.classes


def test_forward_passes_leave_no_tensors_behind(project: Path, tmp_path: Path) -> None:
    live_run = open_live(project, tmp_path / "live")
    session = live_run.session()
    learner = session.learner
    learner.add_classes(["new"])
    learner.add_classes(["newer"])
    learner.predict(learner.pool)
    assert not any(module._forward_hooks for module in learner.network.modules())
    live_run.run_folder.release()


def test_many_labels_of_a_session_are_all_trained_on(project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    for number in range(70):
        copy = folder / f"{number:02d}.png"
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(sorted((project / "target").rglob("*.png"))[number % 16], copy)
    options = RunOptions(
        set=["acquisition.rounds=0", *settings(project)],
        target=folder,
        classes=", ".join(classes_of(project)),
    )
    live_run = LiveRun.open(resolve_for_machine(options.load()), RunFolder(tmp_path / "live"))
    answers = [
        {"question": f"{number:02d}.png", "word": classes_of(project)[number % 2], "annotator": "Ada"}
        for number in range(65)
    ]
    live_run.store.receive(answers, channel="page")
    assert live_run.finish()
    assert int((load_ledger(live_run.run_folder).targets() >= 0).sum()) == 65
    assert not live_run.run_folder.read_records("audit")


def test_a_killed_session_is_resumed(project: Path, tmp_path: Path) -> None:
    live_run = open_live(project, tmp_path / "live")
    answered = answer_some(live_run, 2)
    live_run.run_folder.release()  # without `finish`, as after a kill
    live_run = open_live(project, tmp_path / "live")
    assert live_run.count_new_labels() == 2
    with live_run.session() as session:
        assert session.learner.n_labels == 2
    assert live_run.finish()
    assert len(load_ledger(live_run.run_folder)) == len(answered)


def test_without_labels_nothing_is_trained(project: Path, tmp_path: Path) -> None:
    live_run = open_live(project, tmp_path / "live")
    assert not live_run.finish()
    assert not live_run.run_folder.finished


def test_a_folder_of_another_run_is_refused(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert ducats("run", *cold_options(project, out)) == 0
    with pytest.raises(UserError, match="folder of another run"):
        open_live(project, out)


def cold_options(project: Path, out: Path) -> tuple[object, ...]:
    folders = ("--target", project / "target", "--ground-truth", "--budget", "6", "--rounds", "2")
    return (*folders, "--out", out, *set_options(*settings(project)))


def test_a_run_without_a_source_asks_before_it_trains(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert ducats("run", *cold_options(project, out)) == 0
    ledger = load_ledger(RunFolder(out))
    assert (ledger.n_rounds, len(ledger)) == (2, 6)
    assert list(RunFolder(out).data_summary["classes"]) == classes_of(project)
    assert ducats("report", out, "--out", tmp_path / "report.html") == 0


def test_without_a_source_the_first_round_is_at_the_start() -> None:
    config = Config.model_validate({"data": {"params": {"target": "t", "classes": ["a", "b"]}}})
    assert query_epochs(config) == (0, 4, 9, 14, 18)


@pytest.mark.parametrize(
    ("classes", "message"),
    [("cat", "only one class"), ("cat, Cat", "cannot be told apart"), ("cat, void", "an answer of its own")],
)
def test_class_names_are_checked(project: Path, classes: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        RunOptions(target=project / "target", classes=classes).load()
