"""Loggers get each record of a run once, and never stop the run."""

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from conftest import QUICK, Runner, quick
from ducats import loggers
from ducats.cli import main
from ducats.errors import AwaitingLabels, UserError
from ducats.loggers import Logs, Maker, TensorBoard, find, values_of
from ducats.progress import Event, together
from ducats.rundir import RunDir

STEPS = 6  # per epoch, see QUICK


class Recorder:
    """Stores what it is sent; fails at some steps."""

    def __init__(self, *, fails_at: tuple[int, ...] = (), starts: bool = True) -> None:
        self.fails_at, self.starts = set(fails_at), starts
        self.names: list[str] = []
        self.told: list[tuple[int, dict[str, float]]] = []
        self.tried: list[int] = []
        self.finished = 0

    def start(self, name: str, settings: Mapping[str, Any]) -> None:
        if not self.starts:
            raise ConnectionError("no server")
        assert settings["train"]["epochs"] == 4
        self.names.append(name)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.tried.append(step)
        if step in self.fails_at:
            raise OSError("no room")
        self.told.append((step, dict(values)))

    def finish(self) -> None:
        self.finished += 1


def expected(home: RunDir) -> list[tuple[int, dict[str, float]]]:
    """Return the records of metrics.jsonl as a logger should get them."""
    lines = [*home.lines("epoch"), *home.lines("stage")]
    return sorted(
        ((line["epoch"] * STEPS, values_of(line)) for line in lines), key=lambda one: (one[0], str(one))
    )


def in_order(recorder: Recorder) -> list[tuple[int, dict[str, float]]]:
    return sorted(recorder.told, key=lambda one: (one[0], str(one)))


def logs(folder: Path, said: list[str], **makers: Maker) -> Logs:
    return Logs(makers, folder, settings=quick().identity(), steps=STEPS, warn=said.append)


class Stop(Exception):  # noqa: N818 - not an error
    """Stands for a kill."""


def test_tensorboard_has_all_records(run_quickly: Runner, tmp_path: Path) -> None:
    with logs(tmp_path / "run", [], tensorboard=TensorBoard) as listen:
        home = run_quickly(listen=listen)
    events = EventAccumulator(str(home.folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    found: dict[int, dict[str, float]] = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            if not tag.startswith("over_labels/"):
                assert tag not in found.setdefault(event.step, {})
                found[event.step][tag] = event.value
    wanted: dict[int, dict[str, float]] = {}
    for step, values in expected(home):
        wanted.setdefault(step, {}).update(values)
    assert found.keys() == wanted.keys()
    for step, values in wanted.items():
        assert found[step] == pytest.approx(values, rel=1e-6)
    curve = [(event.step, event.value) for event in events.Scalars("over_labels/accuracy")]
    assert [labels for labels, _ in curve] == [0, 10, 20]
    assert [value for _, value in curve] == pytest.approx([one["accuracy"] for one in home.stages()])
    assert "over_labels/labels" not in events.Tags()["scalars"]


@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_records_of_a_resumed_run_are_sent_once(epoch: int, run_quickly: Runner, tmp_path: Path) -> None:
    folder, said, recorder = tmp_path / "run", list[str](), Recorder()

    def stop(event: Event) -> None:
        if event.phase == "train" and event.step == epoch * STEPS + 3:
            raise Stop

    with pytest.raises(Stop), logs(folder, said, mine=lambda _: recorder) as listen:
        run_quickly(listen=together(listen, stop))
    assert recorder.finished == 1
    before = len(recorder.told)
    with logs(folder, said, mine=lambda _: recorder) as listen:
        home = run_quickly(listen=listen)
    assert before < len(recorder.told)
    assert in_order(recorder) == expected(home)
    assert [step for step, _ in recorder.told] == sorted(step for step, _ in recorder.told)
    assert len(set(recorder.names)) == 1
    assert (recorder.finished, said) == (2, [])
    with logs(folder, said, mine=lambda _: recorder) as listen:
        run_quickly(listen=listen)  # finished: no new records
    assert (len(recorder.names), recorder.finished) == (2, 2)


def test_records_repeated_after_a_kill_are_not_sent_again(run_quickly: Runner, tmp_path: Path) -> None:
    folder, recorder = tmp_path / "run", Recorder()
    with logs(folder, [], mine=lambda _: recorder) as listen:
        home = run_quickly(listen=listen)
    wanted = expected(home)
    (folder / "model.safetensors").unlink()
    (folder / "checkpoint.pt").unlink()  # training is lost and repeated
    with logs(folder, [], mine=lambda _: recorder) as listen:
        run_quickly(listen=listen)
    assert in_order(recorder) == wanted


def test_a_logger_added_later_gets_all_records(run_quickly: Runner, tmp_path: Path) -> None:
    folder, first, second = tmp_path / "run", Recorder(), Recorder()
    with logs(folder, [], first=lambda _: first) as listen:
        home = run_quickly(listen=listen)
    with logs(folder, [], second=lambda _: second) as listen:
        run_quickly(listen=listen)
    assert in_order(second) == in_order(first) == expected(home)
    third = Recorder()
    with logs(folder, [], first=lambda _: third) as listen:
        run_quickly(listen=listen)
    assert third.told == []  # the records sent under this name are still known


def test_a_failing_logger_is_reported_once(run_quickly: Runner, tmp_path: Path) -> None:
    said, recorder, other = list[str](), Recorder(fails_at=(STEPS, 2 * STEPS)), Recorder()
    with logs(tmp_path / "run", said, broken=lambda _: recorder, other=lambda _: other) as listen:
        home = run_quickly(listen=listen)
    assert home.finished
    assert len(said) == 1
    assert "the logger 'broken' failed (OSError: no room); the run continues" in said[0]
    assert Counter(recorder.tried)[STEPS] > 1  # it is retried
    assert recorder.told == []  # records are sent in order or not at all
    assert in_order(other) == expected(home)
    recorder.fails_at = set()
    with logs(tmp_path / "run", said, broken=lambda _: recorder) as listen:
        run_quickly(listen=listen)
    assert in_order(recorder) == expected(home)  # all records are sent on the next start
    assert len(said) == 1


def test_a_logger_that_cannot_start_is_skipped(run_quickly: Runner, tmp_path: Path) -> None:
    said, recorder = list[str](), Recorder(starts=False)
    with logs(tmp_path / "run", said, absent=lambda _: recorder) as listen:
        home = run_quickly(listen=listen)
    assert home.finished
    assert (recorder.tried, recorder.finished) == ([], 0)
    assert len(said) == 1
    assert "the logger 'absent' could not start (ConnectionError: no server)" in said[0]


def test_records_are_sent_before_a_pause(run_quickly: Runner, tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.raises(AwaitingLabels), logs(tmp_path / "run", [], mine=lambda _: recorder) as listen:
        run_quickly("oracle.name=human", listen=listen)
    assert in_order(recorder) == expected(RunDir(tmp_path / "run"))
    assert [sorted(values)[0].split("/")[0] for _, values in recorder.told] == ["loss", "stage"]


def test_a_refused_run_is_not_logged(run_quickly: Runner, tmp_path: Path) -> None:
    home, recorder = run_quickly(), Recorder()
    with (
        pytest.raises(UserError, match="another config"),
        logs(home.folder, [], mine=lambda _: recorder) as listen,
    ):
        run_quickly("train.lr=0.1", listen=listen)
    assert recorder.names == []
    assert not (home.folder / loggers.KEPT).exists()


def test_a_corrupt_state_file_does_not_stop_the_run(run_quickly: Runner, tmp_path: Path) -> None:
    said, recorder = list[str](), Recorder()
    with logs(tmp_path / "run", said, mine=lambda _: recorder) as listen:
        home = run_quickly(listen=listen)
    (home.folder / loggers.KEPT).write_text("{")
    fresh = Recorder()
    with logs(home.folder, said, mine=lambda _: fresh) as listen:
        run_quickly(listen=listen)
    assert "logged again" in said[0]
    assert in_order(fresh) == expected(home)


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_calls_to_trackers(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[str, Any, Any]] = []
    module = ModuleType(name)
    fakes = {
        what: lambda *a, what=what, **k: calls.append((what, a, k)) for what in ("init", "log", "finish")
    }
    for what, fake in fakes.items():
        setattr(module, what, fake)
    monkeypatch.setitem(sys.modules, name, module)
    logger = find([name])[name](tmp_path)
    logger.start("duc 5%-a1", {"seed": 3})
    monkeypatch.setenv(f"{name.upper()}_PROJECT", "mine")
    logger.log({"loss/source/nll": 0.5}, 12)
    logger.finish()
    logger.start("b", {})
    more = {"id": "duc-5--a1"} if name == "wandb" else {}
    settings = {"name": "duc 5%-a1", "config": {"seed": 3}, "resume": "allow", **more}
    assert calls[0] == ("init", (), {"project": "ducats", **settings})
    assert calls[1] == ("log", ({"loss/source/nll": 0.5},), {"step": 12})
    assert calls[2] == ("finish", (), {})
    assert calls[3][2]["project"] == "mine"


def test_missing_and_unknown_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(UserError, match=r"engine.loggers names 'trackio'.*pip install 'ducats\[trackio\]'"):
        find(["trackio"])
    with pytest.raises(UserError, match="no logger 'tensorbord'"):
        find(["tensorbord"])


def test_a_custom_logger_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = SimpleNamespace(at=None, recorder=Recorder())

    def make(folder: Path) -> Recorder:
        made.at = folder
        return made.recorder  # type: ignore[no-any-return]

    module = ModuleType("my_loggers")
    module.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_loggers", module)
    arguments = [part for setting in QUICK for part in ("--set", setting)]
    where = ["--out", str(tmp_path / "run"), "--set", "engine.loggers=['my_loggers:make']"]
    with pytest.raises(SystemExit) as caught:
        main(["run", *arguments, *where])
    assert caught.value.code in (0, None)
    assert made.at == tmp_path / "run"
    assert in_order(made.recorder) == expected(RunDir(tmp_path / "run"))
    assert made.recorder.finished == 1


def test_loggers_are_not_part_of_the_identity() -> None:
    assert quick("engine.loggers=[tensorboard]").digest() == quick().digest()
