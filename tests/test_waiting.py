"""A run that people answer: what it notes for them, and how it waits."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import QUICK, Runner
from ducats.answers import Desk
from ducats.cli import main, training
from ducats.errors import AwaitingLabels, UserError
from ducats.run import story
from ducats.rundir import RunDir
from ranks import run_in_ranks

SETTINGS = [part for setting in QUICK for part in ("--set", setting)]


def answer_all(folder: Path, seconds: float | None = None) -> int:
    """Answer what is open on a run's desk; return how many questions that were."""
    desk = Desk(folder / "questions")
    sheet = desk.current()
    if sheet is None:
        return 0
    words = sheet.terms.classes
    said = [
        {"question": q.id, "word": words[q.number % len(words)], "who": "anna", "seconds": seconds}
        for q in sheet.questions
        if desk.standing(q.id).state == "open"
    ]
    desk.receive(said, via="test")
    return len(said)


def test_the_model_is_asked_what_it_thinks_before_people_are(run_quickly: Runner, tmp_path: Path) -> None:
    with pytest.raises(AwaitingLabels):
        run_quickly("oracle.name=people")
    home = RunDir(tmp_path / "run")
    notes, path = home.notes(1), tmp_path / "run" / "requests" / "round-01-notes.npz"
    request = home.request(1)
    assert notes is not None
    assert request is not None
    assert len(notes) == len(request) == 10
    # duc asks what lies high in both: each lies above most of the pool in one of them.
    assert bool((notes.u_dis_above > 0.5).all() or (notes.u_data_above > 0.5).all())
    first = path.read_bytes()
    path.unlink()  # as if it were killed between the two
    with pytest.raises(AwaitingLabels):
        run_quickly("oracle.name=people")
    assert path.read_bytes() == first
    path.unlink()
    answer_all(home.folder)  # and they answer all the same
    with pytest.raises(AwaitingLabels, match="round 2 waits for 10"):
        run_quickly("oracle.name=people")
    assert (home.bought().rounds, home.notes(2) is not None) == (1, True)


def test_the_truth_wants_no_notes(run_quickly: Runner) -> None:
    home = run_quickly()
    assert home.notes(1) is None
    assert sorted(p.name for p in (home.folder / "requests").glob("*")) == ["round-01.npz", "round-02.npz"]


def test_pixels_have_notes_for_each_unit(run_pixels: Runner, tmp_path: Path) -> None:
    with pytest.raises(AwaitingLabels):
        run_pixels("oracle.name=people", "task.unit=region")
    home = RunDir(tmp_path / "run")
    notes, request = home.notes(1), home.request(1)
    assert notes is not None
    assert request is not None
    assert len(notes) == request.units < len(request)
    assert int(notes.segment.min()) >= 1
    sheet = Desk(home.questions).current()
    assert sheet is not None
    assert [q.segment for q in sheet.questions] == notes.segment.tolist()


def test_a_run_waits_as_long_as_it_is_told_to(
    run_quickly: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    genuine = time.monotonic

    def wait(number: int, pause: AwaitingLabels | UserError) -> None:
        seen.append(number)  # each look comes a day later
        assert f"round {number} waits for" in str(pause)
        if len(seen) > 2:
            answer_all(tmp_path / "run")

    clock = SimpleNamespace(monotonic=lambda: genuine() + 86400 * len(seen))
    monkeypatch.setattr(story, "time", clock)
    home = run_quickly("oracle.name=people", wait=wait)
    assert seen == [1, 1, 1, 2]
    assert [r["labels"] for r in home.stages()] == [0, 10, 20]
    assert home.stages()[-1]["seconds"] < 86400  # what people took is not the run's own time


def test_a_slip_in_an_answer_does_not_end_the_waiting(run_quickly: Runner, tmp_path: Path) -> None:
    answers, said = tmp_path / "run/questions/round-01/answers.csv", list[str]()

    def wait(number: int, pause: AwaitingLabels | UserError) -> None:
        said.append(str(pause))
        if len(said) == 1:
            answers.write_text("key,label\npool/99,blob-1\n")  # not among what was asked
        else:
            answers.unlink(missing_ok=True)
            answer_all(tmp_path / "run")

    home = run_quickly("oracle.name=people", wait=wait)
    assert home.finished
    assert "'pool/99'" in said[1]
    # Without anyone who waits, a slip ends the run as it always did.
    with pytest.raises(AwaitingLabels):
        run_quickly("oracle.name=people", folder="other")
    shutil.copytree(tmp_path / "other", tmp_path / "third")
    (tmp_path / "third/questions/round-01/answers.csv").write_text("key,label\npool/99,blob-1\n")
    with pytest.raises(UserError, match="pool/99"):
        run_quickly("oracle.name=people", folder="third")


def test_a_run_that_begins_leaves_alone_what_a_tool_is_writing(run_quickly: Runner, tmp_path: Path) -> None:
    with pytest.raises(AwaitingLabels):
        run_quickly("oracle.name=people")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    desk = tmp_path / "run" / "questions"
    alive, dead = (desk / f".tool.json.{number}.part" for number in (os.getppid(), gone.pid))
    elsewhere = tmp_path / "run" / f".model.safetensors.{os.getppid()}.part"
    for draft in (alive, dead, elsewhere):
        draft.write_text("half")
    with pytest.raises(AwaitingLabels):
        run_quickly("oracle.name=people")
    assert [draft.exists() for draft in (alive, dead, elsewhere)] == [True, False, False]


AWAITED = "with a look every 0.1 s"  # what the command says once in a round


def waiting_run(folder: Path, *arguments: str) -> list[str]:
    more = ("--oracle", "people", "--budget", "2min", "--wait", "--poll", "0.1", "--out", str(folder))
    return ["run", "--method", "duc", *SETTINGS, *more, *arguments]


def test_the_command_waits_while_people_answer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def people(_: float) -> None:
        """They answer while the run sleeps, and not at its first look."""
        looks.append(len(looks))
        if len(looks) % 3 == 0:
            answer_all(tmp_path / "run", 6.0)

    monkeypatch.setattr(training, "time", SimpleNamespace(sleep=people))
    with pytest.raises(SystemExit) as end:
        main(waiting_run(tmp_path / "run"))
    out, err = capfd.readouterr()
    assert end.value.code == 0, err
    assert "2 min of people in 2 rounds, about 12 labels each at 5 s" in out
    assert err.count(AWAITED) == 2  # once in a round
    assert len(looks) == 6
    # 12 at 6 s are 72 s; the 48 s that are left are 8 more.
    assert "20 labels spent, 2.0 minutes of people" in out
    assert [r["labels"] for r in RunDir(tmp_path / "run").stages()] == [0, 12, 20]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_processes_wait_together(tmp_path: Path) -> None:
    def before(rank: int) -> None:
        """People answer while the first process sleeps."""
        if rank == 0:
            people = SimpleNamespace(sleep=lambda _: answer_all(tmp_path / "run", 6.0))
            training.time = people  # type: ignore[assignment,attr-defined]  # in a process of its own

    both = run_in_ranks(waiting_run(tmp_path / "run", "--devices", "2"), tmp_path / "said", before=before)
    assert both.codes == [0, 0], both.said
    assert [said.count(AWAITED) for said in both.said] == [2, 0]
    assert "20 labels spent, 2.0 minutes of people" in both.said[0]


def test_ctrl_c_ends_the_waiting_and_the_same_command_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "time", SimpleNamespace(sleep=lambda _: signal.raise_signal(signal.SIGINT)))
    # Tests that run in the background of a shell ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as end:
            main(waiting_run(tmp_path / "run"))
    finally:
        signal.signal(signal.SIGINT, before)
    err = capfd.readouterr().err
    assert end.value.code == 130
    assert err.index(AWAITED) < err.index("the same command goes on")
    with pytest.raises(SystemExit) as end:
        main([part for part in waiting_run(tmp_path / "run") if part != "--wait"])
    assert end.value.code == 3  # the folder is free, and its questions are as they were


def test_no_time_between_two_looks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", *SETTINGS, "--wait", "--poll", "0", "--out", str(tmp_path / "run")])
    assert end.value.code == 2
    assert "--poll 0 is no time between two looks" in capsys.readouterr().err
