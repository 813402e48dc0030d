"""Loggers get each record of a run once, and never stop the run."""

import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from conftest import QUICK, Runner, make_runner, quick
from ducats.cli import main
from ducats.run.loggers import LoggerDispatcher, LoggerFactory, TensorBoard, extract_scalars, find_loggers
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import AwaitingLabels, UserError
from ducats.utils.progress import Event, combine_listeners

STEPS = 2  # per epoch


@pytest.fixture
def run_quickly(tmp_path: Path) -> Runner:
    """Run a config with few steps."""
    return make_runner(tmp_path, partial(quick, f"train.steps_per_epoch={STEPS}"))


class Recorder:
    """Logger that stores the values; fails at some steps."""

    def __init__(self, *, fails_at: tuple[int, ...] = (), starts: bool = True) -> None:
        self.fails_at, self.starts = set(fails_at), starts
        self.names: list[str] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
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
        self.logged.append((step, dict(values)))

    def finish(self) -> None:
        self.finished += 1


def expected(run_folder: RunFolder) -> list[tuple[int, dict[str, float]]]:
    """Return the records of metrics.jsonl as a logger should get them."""
    lines = [*run_folder.read_records("epoch"), *run_folder.read_records("stage")]
    return sorted(
        ((line["epoch"] * STEPS, extract_scalars(line)) for line in lines),
        key=lambda item: (item[0], str(item)),
    )


def in_order(recorder: Recorder) -> list[tuple[int, dict[str, float]]]:
    return sorted(recorder.logged, key=lambda item: (item[0], str(item)))


def make_dispatcher(folder: Path, warnings: list[str], **factories: LoggerFactory) -> LoggerDispatcher:
    return LoggerDispatcher(
        factories, folder, settings=quick().identity(), steps_per_epoch=STEPS, warn=warnings.append
    )


class Stop(Exception):  # noqa: N818 - not an error
    """Stands for a kill."""


def test_tensorboard_has_all_records(run_quickly: Runner, tmp_path: Path) -> None:
    with make_dispatcher(tmp_path / "run", [], tensorboard=TensorBoard) as on_event:
        run_folder = run_quickly(on_event=on_event)
    events = EventAccumulator(str(run_folder.path / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    found: dict[int, dict[str, float]] = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            if not tag.startswith("over_labels/"):
                assert tag not in found.setdefault(event.step, {})
                found[event.step][tag] = event.value
    expected_values: dict[int, dict[str, float]] = {}
    for step, values in expected(run_folder):
        expected_values.setdefault(step, {}).update(values)
    assert found.keys() == expected_values.keys()
    for step, values in expected_values.items():
        assert found[step] == pytest.approx(values, rel=1e-6)
    curve = [(event.step, event.value) for event in events.Scalars("over_labels/accuracy")]
    assert [labels for labels, _ in curve] == [0, 10, 20]
    assert [value for _, value in curve] == pytest.approx(
        [stage["accuracy"] for stage in run_folder.stages()]
    )
    assert "over_labels/labels" not in events.Tags()["scalars"]


@pytest.mark.parametrize("epoch", [0, 3])
def test_records_of_a_resumed_run_are_sent_once(epoch: int, run_quickly: Runner, tmp_path: Path) -> None:
    folder, warnings, recorder = tmp_path / "run", list[str](), Recorder()

    def stop(event: Event) -> None:
        if event.phase == "train" and event.step == epoch * STEPS + 1:
            raise Stop

    with pytest.raises(Stop), make_dispatcher(folder, warnings, mine=lambda _: recorder) as on_event:
        run_quickly(on_event=combine_listeners(on_event, stop))
    assert recorder.finished == 1
    before = len(recorder.logged)
    with make_dispatcher(folder, warnings, mine=lambda _: recorder) as on_event:
        run_folder = run_quickly(on_event=on_event)
    assert before < len(recorder.logged)
    assert in_order(recorder) == expected(run_folder)
    assert [step for step, _ in recorder.logged] == sorted(step for step, _ in recorder.logged)
    assert len(set(recorder.names)) == 1
    assert (recorder.finished, warnings) == (2, [])
    with make_dispatcher(folder, warnings, mine=lambda _: recorder) as on_event:
        run_quickly(on_event=on_event)  # finished: no new records
    assert (len(recorder.names), recorder.finished) == (2, 2)


def test_records_repeated_after_a_kill_are_not_sent_again(run_quickly: Runner, tmp_path: Path) -> None:
    folder, recorder = tmp_path / "run", Recorder()
    with make_dispatcher(folder, [], mine=lambda _: recorder) as on_event:
        run_folder = run_quickly(on_event=on_event)
    expected_values = expected(run_folder)
    (folder / "model.safetensors").unlink()
    (folder / "checkpoint.pt").unlink()  # training is lost and repeated
    with make_dispatcher(folder, [], mine=lambda _: recorder) as on_event:
        run_quickly(on_event=on_event)
    assert in_order(recorder) == expected_values


def test_a_logger_added_later_gets_all_records(run_quickly: Runner, tmp_path: Path) -> None:
    folder, first, second = tmp_path / "run", Recorder(), Recorder()
    with make_dispatcher(folder, [], first=lambda _: first) as on_event:
        run_folder = run_quickly(on_event=on_event)
    with make_dispatcher(folder, [], second=lambda _: second) as on_event:
        run_quickly(on_event=on_event)
    assert in_order(second) == in_order(first) == expected(run_folder)
    third = Recorder()
    with make_dispatcher(folder, [], first=lambda _: third) as on_event:
        run_quickly(on_event=on_event)
    assert third.logged == []  # the records sent under this name are still known


def test_a_failing_logger_is_reported_once(run_quickly: Runner, tmp_path: Path) -> None:
    warnings, recorder, other = list[str](), Recorder(fails_at=(STEPS, 2 * STEPS)), Recorder()
    with make_dispatcher(
        tmp_path / "run", warnings, broken=lambda _: recorder, other=lambda _: other
    ) as on_event:
        run_folder = run_quickly(on_event=on_event)
    assert run_folder.finished
    assert len(warnings) == 1
    assert "the logger 'broken' failed (OSError: no room); the run continues" in warnings[0]
    assert Counter(recorder.tried)[STEPS] > 1  # it is retried
    assert recorder.logged == []  # records are sent in order or not at all
    assert in_order(other) == expected(run_folder)
    recorder.fails_at = set()
    with make_dispatcher(tmp_path / "run", warnings, broken=lambda _: recorder) as on_event:
        run_quickly(on_event=on_event)
    assert in_order(recorder) == expected(run_folder)  # all records are sent on the next start
    assert len(warnings) == 1


def test_a_logger_that_cannot_start_is_skipped(run_quickly: Runner, tmp_path: Path) -> None:
    warnings, recorder = list[str](), Recorder(starts=False)
    with make_dispatcher(tmp_path / "run", warnings, absent=lambda _: recorder) as on_event:
        run_folder = run_quickly(on_event=on_event)
    assert run_folder.finished
    assert (recorder.tried, recorder.finished) == ([], 0)
    assert len(warnings) == 1
    assert "the logger 'absent' could not start (ConnectionError: no server)" in warnings[0]


def test_records_are_sent_before_a_pause(run_quickly: Runner, tmp_path: Path) -> None:
    recorder = Recorder()
    with (
        pytest.raises(AwaitingLabels),
        make_dispatcher(tmp_path / "run", [], mine=lambda _: recorder) as on_event,
    ):
        run_quickly("oracle.name=human", on_event=on_event)
    assert in_order(recorder) == expected(RunFolder(tmp_path / "run"))
    assert [sorted(values)[0].split("/")[0] for _, values in recorder.logged] == ["loss", "stage"]


def test_a_refused_run_is_not_logged(run_quickly: Runner, tmp_path: Path) -> None:
    run_folder, recorder = run_quickly(), Recorder()
    with (
        pytest.raises(UserError, match="another config"),
        make_dispatcher(run_folder.path, [], mine=lambda _: recorder) as on_event,
    ):
        run_quickly("train.lr=0.1", on_event=on_event)
    assert recorder.names == []
    assert not run_folder.loggers_path.exists()


def test_a_corrupt_state_file_does_not_stop_the_run(run_quickly: Runner, tmp_path: Path) -> None:
    warnings, recorder = list[str](), Recorder()
    with make_dispatcher(tmp_path / "run", warnings, mine=lambda _: recorder) as on_event:
        run_folder = run_quickly(on_event=on_event)
    run_folder.loggers_path.write_text("{")
    fresh = Recorder()
    with make_dispatcher(run_folder.path, warnings, mine=lambda _: fresh) as on_event:
        run_quickly(on_event=on_event)
    assert "logged again" in warnings[0]
    assert in_order(fresh) == expected(run_folder)


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_calls_to_trackers(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[str, Any, Any]] = []
    module = ModuleType(name)
    fakes = {
        function: lambda *a, function=function, **k: calls.append((function, a, k))
        for function in ("init", "log", "finish")
    }
    for function, fake in fakes.items():
        setattr(module, function, fake)
    monkeypatch.setitem(sys.modules, name, module)
    logger = find_loggers([name])[name](tmp_path)
    logger.start("duc 5%-a1", {"seed": 3})
    monkeypatch.setenv(f"{name.upper()}_PROJECT", "mine")
    logger.log({"loss/source/nll": 0.5}, 12)
    logger.finish()
    logger.start("b", {})
    run_id = {"id": "duc-5--a1"} if name == "wandb" else {}
    settings = {"name": "duc 5%-a1", "config": {"seed": 3}, "resume": "allow", **run_id}
    assert calls[0] == ("init", (), {"project": "ducats", **settings})
    assert calls[1] == ("log", ({"loss/source/nll": 0.5},), {"step": 12})
    assert calls[2] == ("finish", (), {})
    assert calls[3][2]["project"] == "mine"


def test_missing_and_unknown_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(UserError, match=r"engine.loggers names 'trackio'.*pip install 'ducats\[trackio\]'"):
        find_loggers(["trackio"])
    with pytest.raises(UserError, match="no logger 'tensorbord'"):
        find_loggers(["tensorbord"])


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
    arguments = [
        part for setting in (*QUICK, f"train.steps_per_epoch={STEPS}") for part in ("--set", setting)
    ]
    where = ["--out", str(tmp_path / "run"), "--set", "engine.loggers=['my_loggers:make']"]
    with pytest.raises(SystemExit) as caught:
        main(["run", *arguments, *where])
    assert caught.value.code in (0, None)
    assert made.at == tmp_path / "run"
    assert in_order(made.recorder) == expected(RunFolder(tmp_path / "run"))
    assert made.recorder.finished == 1


def test_loggers_are_not_part_of_the_identity() -> None:
    assert quick("engine.loggers=[tensorboard]").digest() == quick().digest()
