"""Loggers get each record of a run once, and never stop the run."""

import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from commands import ducats, set_options
from conftest import QUICK, make_runner, quick
from ducats.run.loggers import LoggerDispatcher, LoggerFactory, TensorBoard, extract_scalars, find_loggers
from ducats.runfolder import records
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import AwaitingLabels, UserError
from ducats.utils.progress import Event, EventListener, combine_listeners

STEPS = 2  # per epoch


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
    lines = records.read_records(run_folder.metrics_path)
    return [(line["epoch"] * STEPS, extract_scalars(line)) for line in lines]


def as_factory(logger: Recorder | LoggerFactory) -> LoggerFactory:
    return (lambda _: logger) if isinstance(logger, Recorder) else logger


class LoggedRuns:
    """Run a config with few steps, again and again in one folder, with loggers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.warnings = folder, list[str]()

    def __call__(
        self, *settings: str, on_event: EventListener = lambda _: None, **loggers: Recorder | LoggerFactory
    ) -> RunFolder:
        factories = {name: as_factory(logger) for name, logger in loggers.items()}
        steps = f"train.steps_per_epoch={STEPS}"
        dispatcher = LoggerDispatcher(
            factories,
            self.folder,
            settings=quick().identity(),
            steps_per_epoch=STEPS,
            warn=self.warnings.append,
        )
        run = make_runner(self.folder.parent, quick)
        with dispatcher as dispatch:
            return run(
                steps, *settings, folder=self.folder.name, on_event=combine_listeners(dispatch, on_event)
            )


@pytest.fixture
def run_logged(tmp_path: Path) -> LoggedRuns:
    return LoggedRuns(tmp_path / "run")


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Recorder]:
    """A finished run and its logger, 'mine'."""
    recorder = Recorder()
    return LoggedRuns(tmp_path_factory.mktemp("first") / "run")(mine=recorder), recorder


@pytest.fixture
def run_again(first_run: tuple[RunFolder, Recorder], tmp_path: Path) -> LoggedRuns:
    """Run in a copy of the folder of the first run."""
    return LoggedRuns(shutil.copytree(first_run[0].path, tmp_path / "run"))


def test_tensorboard_added_later_has_all_records(run_again: LoggedRuns) -> None:
    run_folder = run_again(tensorboard=TensorBoard)
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
    curve = {event.step: event.value for event in events.Scalars("over_labels/accuracy")}
    assert curve == pytest.approx({stage["labels"]: stage["accuracy"] for stage in run_folder.stages()})
    assert "over_labels/labels" not in events.Tags()["scalars"]


@pytest.mark.parametrize("epoch", [0, 3])
def test_records_of_a_resumed_run_are_sent_once(epoch: int, run_logged: LoggedRuns) -> None:
    recorder = Recorder()

    class Stop(Exception):  # noqa: N818 - not an error
        """Stands for a kill."""

    def stop(event: Event) -> None:
        if event.phase == "train" and event.step == epoch * STEPS + 1:
            raise Stop

    with pytest.raises(Stop):
        run_logged(on_event=stop, mine=recorder)
    assert recorder.finished == 1
    before = len(recorder.logged)
    run_folder = run_logged(mine=recorder)
    assert before < len(recorder.logged)
    assert recorder.logged == expected(run_folder)
    assert len(set(recorder.names)) == 1
    assert (recorder.finished, run_logged.warnings) == (2, [])


def test_all_records_are_sent_once(first_run: tuple[RunFolder, Recorder], run_again: LoggedRuns) -> None:
    run_folder, first = first_run
    assert first.logged == expected(run_folder)
    for name in ("model.safetensors", "checkpoint.pt"):  # training is lost and repeated
        (run_again.folder / name).unlink()
    again, later = Recorder(), Recorder()
    run_again(mine=again)
    assert again.logged == []  # the records sent under this name are still known
    repeated = run_again(mine=again, other=later)
    assert later.logged == expected(repeated)
    names = list(again.names)
    run_again(mine=again)  # no new records: not even started
    assert (again.logged, again.names) == ([], names)


def test_a_failing_logger_is_reported_once(run_logged: LoggedRuns) -> None:
    recorder, other, warnings = Recorder(fails_at=(STEPS, 2 * STEPS)), Recorder(), run_logged.warnings
    run_folder = run_logged(broken=recorder, other=other)
    assert run_folder.finished
    assert len(warnings) == 1
    assert "the logger 'broken' failed (OSError: no room); the run continues" in warnings[0]
    assert Counter(recorder.tried)[STEPS] > 1  # it is retried
    assert recorder.logged == []  # records are sent in order or not at all
    assert other.logged == expected(run_folder)
    recorder.fails_at = set()
    run_logged(broken=recorder)
    assert recorder.logged == expected(run_folder)  # all records are sent on the next start
    assert len(warnings) == 1


def test_a_logger_that_cannot_start_is_skipped(run_logged: LoggedRuns) -> None:
    recorder = Recorder(starts=False)
    assert run_logged(absent=recorder).finished
    assert (recorder.tried, recorder.finished) == ([], 0)
    (warning,) = run_logged.warnings
    assert "the logger 'absent' could not start (ConnectionError: no server)" in warning


def test_records_are_sent_before_a_pause(run_logged: LoggedRuns) -> None:
    recorder = Recorder()
    with pytest.raises(AwaitingLabels):
        run_logged("oracle.name=human", mine=recorder)
    assert recorder.logged == expected(RunFolder(run_logged.folder))
    assert [sorted(values)[0].split("/")[0] for _, values in recorder.logged] == ["loss", "stage"]


def test_a_refused_run_is_not_logged(run_again: LoggedRuns) -> None:
    recorder, path = Recorder(), RunFolder(run_again.folder).loggers_path
    path.unlink()
    with pytest.raises(UserError, match="another config"):
        run_again("train.lr=0.1", mine=recorder)
    assert recorder.names == []
    assert not path.exists()


def test_a_corrupt_state_file_does_not_stop_the_run(run_again: LoggedRuns) -> None:
    RunFolder(run_again.folder).loggers_path.write_text("{")
    recorder = Recorder()
    run_folder = run_again(mine=recorder)
    assert "logged again" in run_again.warnings[0]
    assert recorder.logged == expected(run_folder)


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_calls_to_trackers(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[str, Any, Any]] = []
    module = ModuleType(name)
    for function in ("init", "log", "finish"):
        fake = partial(lambda function, *a, **k: calls.append((function, a, k)), function)
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


def test_a_custom_logger_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(at=None, recorder=Recorder())

    def make(folder: Path) -> Recorder:
        made.at = folder
        return made.recorder  # type: ignore[no-any-return]

    module = ModuleType("my_loggers")
    module.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_loggers", module)
    settings = (*QUICK, f"train.steps_per_epoch={STEPS}", "engine.loggers=['my_loggers:make']")
    assert ducats("run", *set_options(*settings), "--out", tmp_path / "run") == 0
    assert made.at == tmp_path / "run"
    assert made.recorder.logged == expected(RunFolder(tmp_path / "run"))
    assert made.recorder.finished == 1


def test_loggers_are_not_part_of_the_identity() -> None:
    assert quick("engine.loggers=[tensorboard]").digest() == quick().digest()
