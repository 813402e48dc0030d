"""`ducats watch`: running, finished, waiting, killed and corrupt runs."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from page_parser import present
from rich.console import Console

from commands import Capture, error_of, output_of
from conftest import Runner
from ducats.annotation import AnnotationStore
from ducats.report.watch.dashboard import Dashboard, status_line
from ducats.report.watch.reader import RunWatcher
from ducats.report.watch.run_state import RunState
from ducats.report.watch.text_plots import braille_plot, sparkline
from ducats.runfolder.run_folder import RunFolder
from ducats.runfolder.search import find_run_folders
from ducats.utils.errors import AwaitingLabels, UserError
from ducats.utils.progress import Event, EventListener
from synthetic_runs import write_run

NEEDS_PROC_LOCKS = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs /proc/locks")


class Stop(Exception):  # noqa: N818 - not an error
    """Stands in for a kill."""


def stop_after(epoch: int) -> EventListener:
    def listener(event: Event) -> None:
        if event.phase == "train" and event.epoch == epoch:
            raise Stop

    return listener


def render(states: Sequence[RunState], width: int = 140) -> str:
    text = io.StringIO()
    Console(width=width, file=text).print(Dashboard(states))
    return text.getvalue()


def test_a_finished_run(run_quickly: Runner, capsys: Capture) -> None:
    run_folder = run_quickly()
    state = RunWatcher().read_state(run_folder.path)
    stages = run_folder.stages()
    assert (state.phase, state.epoch, state.epochs, state.n_rounds) == ("finished", 4, 4, 2)
    assert state.seconds_left is None
    assert (state.method, state.labels_spent, state.problems) == ("duc", 20, ())
    assert state.learning_curve() == [(stage["labels"], stage["accuracy"]) for stage in stages]
    assert state.learning_curve("ece") == [(stage["labels"], stage["ece"]) for stage in stages]
    assert state.compute_seconds == stages[-1]["seconds"]
    assert list(state.losses) == [record["losses"] for record in run_folder.read_records("epoch")]

    text = render([state])
    assert "finished, 4 epochs" in text
    assert "2 of 2 rounds labelled" in text
    assert f"{100 * stages[-1]['accuracy']:.1f}" in text
    assert "accuracy % over labels" in text
    assert f"source/nll         {run_folder.read_records('epoch')[-1]['losses']['source/nll']:.4f}" in text

    assert "finished, 4 epochs" in output_of(capsys, "watch", run_folder.path, "--once")
    # Not a terminal, and the run is finished.
    output = output_of(capsys, "watch", run_folder.path).splitlines()
    accuracy, ece = (100 * stages[-1][name] for name in ("accuracy", "ece"))
    assert output == [f"run: finished, 4 epochs, accuracy {accuracy:.1f} %, ECE {ece:.1f} % with 20 labels"]


def test_a_run_waiting_for_annotators(run_quickly: Runner, tmp_path: Path) -> None:
    with pytest.raises(AwaitingLabels):
        run_quickly("oracle.name=human")
    store = AnnotationStore(tmp_path / "run" / "questions")
    question_round = present(store.open_round())
    answer = {"word": question_round.rules.classes[0], "annotator": "anna", "seconds": 30.0}
    answers = [{"question": question.id, **answer} for question in question_round.questions[:3]]
    store.receive(answers, channel="test")
    watcher = RunWatcher()
    state = watcher.read_state(tmp_path / "run")
    assert (state.phase, state.epoch, state.annotation_seconds) == ("waiting", 1, 90.0)
    open_round = present(state.open_round)
    assert (open_round.number, open_round.questions, open_round.settled, open_round.open) == (1, 10, 3, 7)
    text = render([state])
    assert "waiting for annotators: round 1, 3 of 10 questions settled" in text
    assert "1.5 min of annotation" in text
    assert f"ducats label {tmp_path / 'run'}" in text.replace("\n", "")

    store.receive([{**answers[0], "question": question_round.questions[3].id}], channel="test")
    untimed = {"question": question_round.questions[4].id, "word": answer["word"]}
    store.receive([untimed], channel="round-01/answers.csv")
    (store.round_folder(1) / "answers-anna.csv").write_text("key,label\n")
    again = watcher.read_state(tmp_path / "run")  # the same watcher reads the new answers
    assert str(again.open_round) == "round 1, 5 of 10 questions settled, 1 answer file"
    assert "2.0 min of annotation (4 of 5 answers timed)" in render([again])
    assert "≥ 2.0 min" in render([again, again])


def test_segmentation_runs_show_miou(run_pixels: Runner, tmp_path: Path) -> None:
    run_folder = run_pixels()
    state = RunWatcher().read_state(run_folder.path)
    assert state.headline == "mean_iou"
    assert state.learning_curve() == [(stage["labels"], stage["mean_iou"]) for stage in run_folder.stages()]
    assert f"mIoU {100 * run_folder.stages()[-1]['mean_iou']:.1f} %" in status_line(state)


@NEEDS_PROC_LOCKS
def test_a_running_and_a_killed_run(run_quickly: Runner, tmp_path: Path) -> None:
    watcher, observed = RunWatcher(), []

    def listener(event: Event) -> None:
        if event.phase != "train" or event.step % 3 == 1:
            observed.append((event.phase, event.epoch, watcher.read_state(tmp_path / "run")))
        if event.epoch == 3:
            raise Stop

    with pytest.raises(Stop):
        run_quickly(on_event=listener)
    assert all(state.is_active for _, _, state in observed)
    assert all(state.epoch == epoch for _, epoch, state in observed)
    assert [state.phase for phase, _, state in observed if phase == "train"] == ["training"] * 3
    assert {state.phase for phase, _, state in observed if phase == "query"} == {"querying"}
    assert all(state.seconds_left is not None for _, epoch, state in observed if epoch)

    state = watcher.read_state(tmp_path / "run")
    assert (state.phase, state.is_active, state.epoch) == ("training", False, 3)
    assert "stopped while training, 3 of 4 epochs" in render([state])
    assert "run the same command again" in render([state])


def test_an_empty_folder(tmp_path: Path, capsys: Capture) -> None:
    state = RunWatcher().read_state(tmp_path)
    assert (state.phase, state.epochs, state.seconds_left) == ("empty", None, None)
    text = output_of(capsys, "watch", tmp_path, "--once")
    assert "no run here yet" in text
    assert "config.yaml is missing" in text


def test_corrupt_files_are_reported(run_quickly: Runner, tmp_path: Path) -> None:
    run_folder = run_quickly()
    stages = len(run_folder.stages())
    lines = run_folder.metrics_path.read_text().splitlines()
    corrupted = [*lines, '{"kind": "stage", "epoch": 4}', "[1]", '{"kind": "st']
    run_folder.metrics_path.write_text("\n".join(corrupted))
    (run_folder.path / "config.yaml").write_text("a: [")
    (run_folder.path / "questions" / "round-01").mkdir(parents=True)
    (run_folder.path / "questions" / "round-01" / "rules.json").write_text("{")
    (run_folder.path / "model.safetensors").unlink()
    (run_folder.path / "labels" / "round-01.npz").unlink()
    (run_folder.path / "labels" / "round-02.npz").unlink()
    state = RunWatcher().read_state(run_folder.path)
    text = " ".join(render([state]).split())
    assert len(state.stages) == stages
    first = len(lines) + 1
    assert f"metrics.jsonl is corrupt in line {first}, {first + 1}, {first + 2}" in text
    assert "config.yaml cannot be read" in text
    assert "questions cannot be read" in text
    assert state.phase == "waiting"
    assert state.epochs is None
    assert status_line(state).startswith("run: ")

    plan = {"plan": {"epochs": 9, "query_epochs": [1, 2, 3], "seed": 0}}  # of a run of the Python API
    (run_folder.path / "config.yaml").write_text(json.dumps(plan))
    (run_folder.path / "checksums.jsonl").unlink()
    state = RunWatcher().read_state(run_folder.path)
    assert (state.method, state.epochs, state.n_rounds) == ("run", 9, 3)

    strange = {"kind": "stage", "stage": 0, "epoch": 1, "labels": 0, "seconds": 1.0, "accuracy": "good"}
    run_folder.metrics_path.write_text(json.dumps(strange | {"ece": None, "headline_metric": "charm"}) + "\n")
    assert "corrupt in line 1" in render([RunWatcher().read_state(run_folder.path)])


@pytest.mark.parametrize("width", [45, 60, 80, 140])
def test_a_table_that_is_too_wide_loses_columns_but_cuts_none(tmp_path: Path, width: int) -> None:
    names = ("source-only-0", "source-only-1")
    folders = [write_run(tmp_path / name, rounds=2, snapshots=False, seconds_per_label=3.0) for name in names]
    lines = render([RunWatcher().read_state(folder) for folder in folders], width).splitlines()
    assert {line[-1] for line in lines} <= set("┓┃┩│┘")
    titles = [title.strip() for title in lines[1].strip("┃").split("┃")]
    every_title = ["run", "status", "labels", "acc %", "ECE %", "over labels", "computing", "annotation"]
    assert titles == [title for title in every_title if title in titles]
    assert ("acc %" in titles, "computing" in titles) == (True, width == 140)


def test_several_runs_in_a_table(run_quickly: Runner, tmp_path: Path) -> None:
    run_folder = run_quickly(folder="all/of/first")
    with pytest.raises(AwaitingLabels):
        run_quickly("oracle.name=human", folder="all/second")
    folders = find_run_folders([tmp_path / "all", tmp_path / "all" / "second"], include_incomplete=True)
    assert [folder.name for folder in folders] == ["first", "second"]
    watcher = RunWatcher()
    states = [watcher.read_state(folder) for folder in folders]
    rows = [row for row in render(states).splitlines() if row.startswith("│")]
    assert len(rows) == 2
    assert f"{100 * run_folder.stages()[-1]['accuracy']:.1f}" in rows[0]
    assert "0 of 10 questions settled" in rows[1]
    assert max(map(len, render(states, width=80).splitlines())) <= 80
    (tmp_path / "all" / "second" / "config.yaml").write_text("a: [")
    assert "second: config.yaml cannot be read" in render(
        [RunWatcher().read_state(folder) for folder in folders]
    )
    with pytest.raises(UserError, match="is not a folder"):
        find_run_folders([tmp_path / "none"], include_incomplete=True)


def test_bad_options_are_rejected(tmp_path: Path, capsys: Capture) -> None:
    assert "--poll must be a positive number" in error_of(capsys, "watch", tmp_path, "--poll", "0")
    assert "at least one folder" in error_of(capsys, "watch")


def test_time_left(run_quickly: Runner, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        run_quickly(on_event=stop_after(3))
    folder = tmp_path / "run"
    epoch_seconds = [record["seconds"] for record in RunFolder(folder).read_records("epoch")]
    state = RunWatcher().read_state(folder)
    assert len(epoch_seconds) == 3
    assert state.seconds_left == pytest.approx(sorted(epoch_seconds)[1])  # the median of the three
    assert state.compute_seconds == RunFolder(folder).stages()[-1]["seconds"]  # of the run, not of an epoch
    newest = max((folder / name).stat().st_mtime for name in ("metrics.jsonl", "checkpoint.pt"))
    assert RunWatcher().read_state(folder, now=newest + 90).seconds_since_write == pytest.approx(90)


def test_curves_in_text() -> None:
    assert sparkline(list(range(100)), max_points=4) == "▁▃▆█"
    top, bottom = braille_plot([(0, 0), (1, 0), (2, 1)], width=4, height=2)
    assert bottom[:2] == "⣀⣀"  # flat at the start
    assert top[-1] != "\u2800"  # high at the end
    assert top[:2] == "\u2800\u2800"
