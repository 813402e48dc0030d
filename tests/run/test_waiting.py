"""Runs with human annotators: model hints and waiting."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from commands import ducats, set_options
from conftest import QUICK, Runner
from ducats.annotation import AnnotationStore
from ducats.cli import run
from ducats.ledger import load_ledger, load_request
from ducats.run import loop
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import AwaitingLabels, UserError
from present import present
from ranks import run_in_ranks


def answer_all(folder: Path, seconds: float | None = None) -> int:
    """Answer the open questions of a run; return their number."""
    store = AnnotationStore(folder / "questions")
    question_round = store.open_round()
    if question_round is None:
        return 0
    words = question_round.rules.classes
    answers = [
        {"question": q.id, "word": words[q.number % len(words)], "annotator": "anna", "seconds": seconds}
        for q in question_round.questions
        if store.status(q.id).state == "open"
    ]
    store.receive(answers, channel="test")
    return len(answers)


def test_model_hints_are_saved_before_annotators_are_asked(run_quickly: Runner, tmp_path: Path) -> None:
    with pytest.raises(AwaitingLabels):
        run_quickly("oracle.name=human")
    run_folder = RunFolder(tmp_path / "run")
    hints, path = present(run_folder.load_hints(1)), tmp_path / "run" / "requests" / "round-01-hints.npz"
    assert len(hints) == len(present(load_request(run_folder, 1))) == 10
    # duc selects samples with high values of both: each is above most of the pool in one of them.
    assert bool((hints.u_dis_quantile > 0.5).all() or (hints.u_data_quantile > 0.5).all())
    first = path.read_bytes()
    path.unlink()  # as if the run were killed between the two writes
    with pytest.raises(AwaitingLabels):
        run_quickly("oracle.name=human")
    assert path.read_bytes() == first
    path.unlink()
    answer_all(run_folder.path)  # the questions can still be answered
    with pytest.raises(AwaitingLabels, match="round 2 waits for 10"):
        run_quickly("oracle.name=human")
    assert (load_ledger(run_folder).n_rounds, run_folder.load_hints(2) is not None) == (1, True)


def test_each_unit_of_pixels_has_hints(run_pixels: Runner, tmp_path: Path) -> None:
    with pytest.raises(AwaitingLabels):
        run_pixels("oracle.name=human", "task.unit=region")
    run_folder = RunFolder(tmp_path / "run")
    hints, request = present(run_folder.load_hints(1)), present(load_request(run_folder, 1))
    assert len(hints) == request.n_units < len(request)
    assert int(hints.segment.min()) >= 1
    question_round = present(AnnotationStore(run_folder.questions_path).open_round())
    assert [q.segment for q in question_round.questions] == hints.segment.tolist()


def test_a_run_waits_until_the_questions_are_answered(
    run_quickly: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    genuine = time.monotonic

    def wait(number: int, pause: AwaitingLabels | UserError) -> None:
        rounds.append(number)  # each poll comes a day later
        assert f"round {number} waits for" in str(pause)
        if len(rounds) > 2:
            answer_all(tmp_path / "run")

    clock = SimpleNamespace(monotonic=lambda: genuine() + 86400 * len(rounds))
    monkeypatch.setattr(loop, "time", clock)
    run_folder = run_quickly("oracle.name=human", wait=wait)
    assert rounds == [1, 1, 1, 2]
    assert [r["labels"] for r in run_folder.stages()] == [0, 10, 20]
    assert run_folder.stages()[-1]["seconds"] < 86400  # annotation time is not run time


def test_an_invalid_answer_does_not_end_the_wait(run_quickly: Runner, tmp_path: Path) -> None:
    answers, messages = tmp_path / "run/questions/round-01/answers.csv", list[str]()

    def wait(number: int, pause: AwaitingLabels | UserError) -> None:
        messages.append(str(pause))
        if len(messages) == 1:
            answers.write_text("key,label\npool/99,blob-1\n")  # not a question of this round
        else:
            answers.unlink(missing_ok=True)
            answer_all(tmp_path / "run")

    run_folder = run_quickly("oracle.name=human", wait=wait)
    assert run_folder.finished
    assert "'pool/99'" in messages[1]
    # Without ``wait``, a wrong answer ends the run.
    with pytest.raises(AwaitingLabels):
        run_quickly("oracle.name=human", folder="other")
    (tmp_path / "other/questions/round-01/answers.csv").write_text("key,label\npool/99,blob-1\n")
    with pytest.raises(UserError, match="pool/99"):
        run_quickly("oracle.name=human", folder="other")


def test_a_starting_run_keeps_the_temporary_files_of_live_tools(run_quickly: Runner, tmp_path: Path) -> None:
    with pytest.raises(AwaitingLabels):
        run_quickly("oracle.name=human")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    questions = tmp_path / "run" / "questions"
    alive, dead = (questions / f".tool.json.{number}.part" for number in (os.getppid(), gone.pid))
    elsewhere = tmp_path / "run" / f".model.safetensors.{os.getppid()}.part"
    for draft in (alive, dead, elsewhere):
        draft.write_text("half")
    with pytest.raises(AwaitingLabels):
        run_quickly("oracle.name=human")
    assert [draft.exists() for draft in (alive, dead, elsewhere)] == [True, False, False]


WAIT_MESSAGE = "checking every 0.1 s"  # printed once per round


def waiting_run(folder: Path, *more: str) -> list[str]:
    options = ("--oracle", "human", "--budget", "2min", "--wait", "--poll", "0.1", "--out", str(folder))
    return ["run", "--method", "duc", *set_options(*QUICK), *options, *more]


def test_the_command_waits_while_annotators_answer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[int] = []

    def answer_some(_: float) -> None:
        """Answer while the run sleeps, but not at its first poll."""
        polls.append(len(polls))
        if len(polls) % 3 == 0:
            answer_all(tmp_path / "run", 6.0)

    monkeypatch.setattr(run, "time", SimpleNamespace(sleep=answer_some))
    code = ducats(*waiting_run(tmp_path / "run"))
    out, err = capfd.readouterr()
    assert code == 0, err
    assert "2 min of annotation in 2 rounds, about 12 labels each at 5 s" in out
    assert err.count(WAIT_MESSAGE) == 2  # once in a round
    assert len(polls) == 6
    # 12 labels at 6 s take 72 s; the remaining 48 s allow 8 more.
    assert "20 labels acquired, 2.0 minutes of annotation" in out
    assert [r["labels"] for r in RunFolder(tmp_path / "run").stages()] == [0, 12, 20]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_processes_wait_together(tmp_path: Path) -> None:
    def before(rank: int) -> None:
        """Answer while rank 0 sleeps."""
        if rank == 0:
            annotators = SimpleNamespace(sleep=lambda _: answer_all(tmp_path / "run", 6.0))
            run.time = annotators  # type: ignore[assignment,attr-defined]  # in a process of its own

    both = run_in_ranks(waiting_run(tmp_path / "run", "--devices", "2"), tmp_path / "outputs", setup=before)
    assert both.codes == [0, 0], both.outputs
    assert [output.count(WAIT_MESSAGE) for output in both.outputs] == [2, 0]
    assert "20 labels acquired, 2.0 minutes of annotation" in both.outputs[0]


def test_ctrl_c_ends_the_wait_and_the_same_command_resumes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "time", SimpleNamespace(sleep=lambda _: signal.raise_signal(signal.SIGINT)))
    # Tests in the background of a shell ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = ducats(*waiting_run(tmp_path / "run"))
    finally:
        signal.signal(signal.SIGINT, before)
    err = capfd.readouterr().err
    assert code == 130
    assert err.index(WAIT_MESSAGE) < err.index("stopped; run the same command again")
    # The folder is unlocked and its questions are unchanged.
    assert ducats(*(part for part in waiting_run(tmp_path / "run") if part != "--wait")) == 3


def test_a_poll_interval_of_zero_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ducats("run", *set_options(*QUICK), "--wait", "--poll", "0", "--out", tmp_path / "run") == 2
    assert "--poll must be a positive number of seconds" in capsys.readouterr().err
