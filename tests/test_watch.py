"""`ducats watch`: running, finished, waiting, killed and corrupt runs."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from conftest import Runner
from ducats.annotation import AnnotationStore
from ducats.cli import main
from ducats.errors import AwaitingLabels, UserError
from ducats.progress import Event, EventListener
from ducats.run_folder import RunFolder
from ducats.watch import Picture, State, Watcher, line, run_folders
from ducats.watch.draw import plot, spark
from ducats.watch.pace import Pace

TELLS_LOCKS = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs /proc/locks")


class Stop(Exception):  # noqa: N818 - not an error
    """Stands in for a kill."""


def stop_after(epoch: int) -> EventListener:
    def listen(event: Event) -> None:
        if event.phase == "train" and event.epoch == epoch:
            raise Stop

    return listen


def drawn(states: Sequence[State], width: int = 140) -> str:
    text = io.StringIO()
    Console(width=width, file=text).print(Picture(states))
    return text.getvalue()


def watch(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["watch", *map(str, arguments)])
    return int(str(caught.value.code or 0))


def test_a_finished_run(run_quickly: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    home = run_quickly()
    state = Watcher().look(home.path)
    stages = home.stages()
    assert (state.phase, state.epoch, state.epochs, state.rounds, state.left) == ("finished", 4, 4, 2, None)
    assert (state.method, state.labels, state.wrong) == ("duc", 20, ())
    assert state.curve() == [(one["labels"], one["accuracy"]) for one in stages]
    assert state.curve("ece") == [(one["labels"], one["ece"]) for one in stages]
    assert state.seconds == stages[-1]["seconds"]
    assert list(state.losses) == [one["losses"] for one in home.read_records("epoch")]

    text = drawn([state])
    assert "finished, 4 epochs" in text
    assert "2 of 2 rounds labelled" in text
    assert f"{100 * stages[-1]['accuracy']:.1f}" in text
    assert "accuracy % over labels" in text
    assert f"source/nll         {home.read_records('epoch')[-1]['losses']['source/nll']:.4f}" in text

    assert watch(home.path, "--once") == 0
    assert "finished, 4 epochs" in capsys.readouterr().out
    assert watch(home.path) == 0  # not a terminal, and the run is finished
    said = capsys.readouterr().out.splitlines()
    accuracy, ece = (100 * stages[-1][name] for name in ("accuracy", "ece"))
    assert said == [f"run: finished, 4 epochs, accuracy {accuracy:.1f} %, ECE {ece:.1f} % with 20 labels"]


def test_a_run_waiting_for_annotators(run_quickly: Runner, tmp_path: Path) -> None:
    with pytest.raises(AwaitingLabels):
        run_quickly("oracle.name=human")
    desk = AnnotationStore(tmp_path / "run" / "questions")
    sheet = desk.open_round()
    assert sheet is not None
    said = [
        {"question": one.id, "word": sheet.rules.classes[0], "who": "anna", "seconds": 30.0}
        for one in sheet.questions[:3]
    ]
    desk.receive(said, channel="test")
    watcher = Watcher()
    state = watcher.look(tmp_path / "run")
    assert (state.phase, state.epoch, state.people_seconds) == ("waiting", 1, 90.0)
    assert state.round is not None
    assert (state.round.number, state.round.asked, state.round.settled, state.round.open) == (1, 10, 3, 7)
    text = drawn([state])
    assert "waiting for annotators: round 1, 3 of 10 questions settled" in text
    assert "1.5 min of annotation" in text
    assert f"ducats label {tmp_path / 'run'}" in text.replace("\n", "")

    desk.receive([{**said[0], "question": sheet.questions[3].id}], channel="test")
    (desk.round_folder(1) / "answers-anna.csv").write_text("key,label\n")
    again = watcher.look(tmp_path / "run")  # the same watcher reads the new answers
    assert str(again.round) == "round 1, 4 of 10 questions settled, 1 answer file"


def test_segmentation_runs_show_miou(run_pixels: Runner, tmp_path: Path) -> None:
    home = run_pixels()
    state = Watcher().look(home.path)
    assert state.headline == "mean_iou"
    assert state.curve() == [(one["labels"], one["mean_iou"]) for one in home.stages()]
    assert f"mIoU {100 * home.stages()[-1]['mean_iou']:.1f} %" in line(state)


@TELLS_LOCKS
def test_a_running_and_a_killed_run(run_quickly: Runner, tmp_path: Path) -> None:
    watcher, seen = Watcher(), []

    def listen(event: Event) -> None:
        if event.phase != "train" or event.step % 6 == 1:
            seen.append((event.phase, event.epoch, watcher.look(tmp_path / "run")))
        if event.epoch == 3:
            raise Stop

    with pytest.raises(Stop):
        run_quickly(on_event=listen)
    assert all(state.at_work for _, _, state in seen)
    assert all(state.epoch == epoch for _, epoch, state in seen)
    assert [state.phase for phase, _, state in seen if phase == "train"] == ["training"] * 4
    assert {state.phase for phase, _, state in seen if phase == "query"} == {"asking"}
    assert all(state.left is not None for _, epoch, state in seen if epoch)

    state = watcher.look(tmp_path / "run")
    assert (state.phase, state.at_work, state.epoch) == ("training", False, 3)
    assert "stopped while training, 3 of 4 epochs" in drawn([state])
    assert "run the same command again" in drawn([state])


def test_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = Watcher().look(tmp_path)
    assert (state.phase, state.epochs, state.left) == ("nothing", None, None)
    assert watch(tmp_path, "--once") == 0
    text = capsys.readouterr().out
    assert "no run here yet" in text
    assert "config.yaml is missing" in text


def test_corrupt_files_are_reported(run_quickly: Runner, tmp_path: Path) -> None:
    home = run_quickly()
    stages = len(home.stages())
    lines = home.metrics_path.read_text().splitlines()
    spoilt = [*lines, '{"kind": "stage", "epoch": 4}', "[1]", '{"kind": "st']
    home.metrics_path.write_text("\n".join(spoilt))
    (home.path / "config.yaml").write_text("a: [")
    (home.path / "questions" / "round-01").mkdir(parents=True)
    (home.path / "questions" / "round-01" / "terms.json").write_text("{")
    (home.path / "model.safetensors").unlink()
    (home.path / "labels" / "round-01.npz").unlink()
    (home.path / "labels" / "round-02.npz").unlink()
    state = Watcher().look(home.path)
    text = " ".join(drawn([state]).split())
    assert len(state.stages) == stages
    first = len(lines) + 1
    assert f"metrics.jsonl is corrupt in line {first}, {first + 1}, {first + 2}" in text
    assert "config.yaml cannot be read" in text
    assert "questions cannot be read" in text
    assert state.phase == "waiting"
    assert state.epochs is None
    assert line(state).startswith("run: ")

    strange = {"kind": "stage", "stage": 0, "epoch": 1, "labels": 0, "seconds": 1.0, "accuracy": "good"}
    home.metrics_path.write_text(json.dumps(strange | {"ece": None, "headline": "charm"}) + "\n")
    assert "epoch" in drawn([Watcher().look(home.path)])


def test_several_runs_in_a_table(run_quickly: Runner, tmp_path: Path) -> None:
    home = run_quickly(folder="all/of/first")
    with pytest.raises(AwaitingLabels):
        run_quickly("oracle.name=human", folder="all/second")
    folders = run_folders([tmp_path / "all", tmp_path / "all" / "second"])
    assert [folder.name for folder in folders] == ["first", "second"]
    watcher = Watcher()
    states = [watcher.look(folder) for folder in folders]
    rows = [row for row in drawn(states).splitlines() if row.startswith("│")]
    assert len(rows) == 2
    assert f"{100 * home.stages()[-1]['accuracy']:.1f}" in rows[0]
    assert "0 of 10 questions settled" in rows[1]
    assert max(map(len, drawn(states, width=80).splitlines())) <= 80
    (tmp_path / "all" / "second" / "config.yaml").write_text("a: [")
    assert "second: config.yaml cannot be read" in drawn([Watcher().look(folder) for folder in folders])
    with pytest.raises(UserError, match="is not a folder"):
        run_folders([tmp_path / "none"])


def test_bad_options_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert watch(tmp_path, "--poll", 0) == 2
    assert "--poll must be a positive number" in capsys.readouterr().err
    assert watch() == 2
    assert "at least one folder" in capsys.readouterr().err


def test_a_run_of_the_python_api(run_quickly: Runner, tmp_path: Path) -> None:
    home = run_quickly()
    plan = {"plan": {"epochs": 9, "ask_after": [1, 2, 3], "seed": 0}}
    (home.path / "config.yaml").write_text(json.dumps(plan))
    state = Watcher().look(home.path)
    assert (state.method, state.epochs, state.rounds) == ("run", 9, 3)


def test_seconds_per_epoch_are_recorded_or_observed() -> None:
    stage = {"kind": "stage", "epoch": 4, "seconds": 10.0}
    pace = Pace()
    assert pace.seconds([], 0, begun=100.0) is None
    pace.see(1, 103.0, asks=())
    assert pace.seconds([], 1, begun=100.0) == 3.0
    assert pace.seconds([stage], 1, begun=100.0) == 2.5  # recorded times contain no pauses
    pace.see(1, 109.0, asks=())  # an evaluation wrote to the file
    pace.see(2, 107.0, asks=())
    pace.see(3, 113.0, asks=(3,))
    assert pace.seconds([stage], 3, begun=100.0) == 5.0  # the median of 4 and 6
    pace.see(4, 10_000.0, asks=(3,))  # the run waited for annotators
    assert pace.seconds([stage], 4, begun=100.0) == 5.0
    timed = [{"kind": "epoch", "epoch": n, "seconds": s} for n, s in ((1, 9.0), (2, 1.0), (3, 2.0))]
    assert pace.seconds([stage, *timed], 4, begun=100.0) == 2.0  # recorded epoch times come first
    assert (
        pace.seconds([stage, {"kind": "epoch", "epoch": 1}], 4, begun=100.0) == 5.0
    )  # a run of an older version


def test_time_left(run_quickly: Runner, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        run_quickly(on_event=stop_after(3))
    folder = tmp_path / "run"
    each = [line["seconds"] for line in RunFolder(folder).read_records("epoch")]
    state = Watcher().look(folder)
    assert len(each) == 3
    assert state.left == pytest.approx(sorted(each)[1])  # one epoch, the median of the first three
    assert state.seconds == RunFolder(folder).stages()[-1]["seconds"]  # of the whole run, not of an epoch
    newest = max((folder / name).stat().st_mtime for name in ("metrics.jsonl", "checkpoint.pt"))
    assert Watcher().look(folder, now=newest + 90).silent == pytest.approx(90)


def test_curves_in_text() -> None:
    assert spark(list(range(100)), most=4) == "▁▃▆█"
    top, bottom = plot([(0, 0), (1, 0), (2, 1)], width=4, height=2)
    assert bottom[:2] == "⣀⣀"  # flat at the start
    assert top[-1] != "\u2800"  # high at the end
    assert top[:2] == "\u2800\u2800"
