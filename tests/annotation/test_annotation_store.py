"""The annotation store: accepted, rejected and final answers."""

import json
import multiprocessing
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ducats.annotation import AnnotationStore, QuestionRound
from ducats.runfolder.class_changes import ClassList
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError
from question_rounds import submit_answer, write_round


def test_answers_are_logged_with_annotator_time_and_channel(tmp_path: Path) -> None:
    store = write_round(tmp_path)
    assert submit_answer(store, "a", "CAT", "anna", seconds=2.5) is None
    line = json.loads((tmp_path / "answers.jsonl").read_text())
    assert (line.pop("received_at")[:2], line) == (
        "20",
        {"question": "a", "word": "cat", "kind": "class", "annotator": "anna"}
        | {"channel": "test", "round": 1, "seconds": 2.5},
    )


@pytest.mark.parametrize(
    ("answer", "reject_reason"),
    [
        ({"question": "elsewhere", "word": "cat"}, "unknown question"),
        ({"question": "a", "word": "horse"}, "unknown class"),
        ({"question": "a"}, "malformed"),
        ({"question": 7, "word": "cat"}, "malformed"),
        ({"question": "a", "word": "cat", "annotator": None}, "malformed"),
        ({"question": "a", "word": "cat", "seconds": "2"}, "malformed"),
        ({"question": "a", "word": "cat", "seconds": True}, "malformed"),
        ({"question": "a", "word": "c" * 501}, "malformed"),
        ({"question": "a", "word": "c" * 500}, "unknown class"),
        ("cat", "malformed"),
        (None, "malformed"),
        ({"question": "a", "word": "cat", "reject_reason": "duplicate"}, "duplicate"),
    ],
)
def test_refused_answers_are_logged_with_the_reason(tmp_path: Path, answer: Any, reject_reason: str) -> None:
    store = write_round(tmp_path)
    assert store.receive([answer], channel="test")[0].reject_reason == reject_reason
    assert [one.reject_reason for one in AnnotationStore(tmp_path).answers()] == [reject_reason]
    assert store.status("a").state == "open"


def test_lone_surrogates_and_implausible_seconds_are_cleaned(tmp_path: Path) -> None:
    store = write_round(tmp_path, allow_new_classes=True)
    store.receive(["\ud800"], channel="test")  # type: ignore[list-item]
    assert submit_answer(store, "a", "ho\ud800rse", "an\udfffna", seconds=float("nan")) is None
    assert submit_answer(store, "b", "cat", seconds=1e9) is None
    assert submit_answer(store, "c", "cat", seconds=-1) is None
    assert [one.seconds for one in store.answers()] == [None] * 4
    closed = store.close_round(1)
    assert closed is not None
    assert (closed.words["a"], closed.kinds["a"]) == ("ho?rse", "class")
    assert AnnotationStore(tmp_path).closed_round(1) == closed


def test_a_round_closes_when_all_questions_are_settled_and_never_changes(tmp_path: Path) -> None:
    store = write_round(tmp_path, rule="unanimous", min_annotators=2)
    for key in "abc":
        submit_answer(store, key, "cat", "anna", seconds=1.0)
    submit_answer(store, "a", "cat", "bob", seconds=2.0)
    submit_answer(store, "b", "dog", "bob")
    assert (store.close_round(1), store.status("b").state) == (None, "disputed")
    submit_answer(store, "b", "void", "anna")
    submit_answer(store, "b", "void", "bob")
    submit_answer(store, "c", "cat", "bob")
    closed = store.close_round(1)
    assert closed is not None
    assert (closed.reason, closed.words) == ("settled", {"a": "cat", "b": "void", "c": "cat"})
    assert closed.seconds == {"a": 3.0, "b": 1.0, "c": 1.0}
    assert submit_answer(AnnotationStore(tmp_path), "a", "dog", "anna") == "late"
    assert (AnnotationStore(tmp_path).close_round(1), store.open_round()) == (closed, None)


def test_a_round_closes_at_the_time_limit(tmp_path: Path) -> None:
    store = write_round(tmp_path, max_seconds=10.0)
    submit_answer(store, "a", "cat", seconds=6.0)
    assert store.close_round(1) is None
    submit_answer(store, "b", "skip", seconds=4.0)
    closed = store.close_round(1)
    assert closed is not None
    assert (closed.reason, closed.words, closed.seconds["b"]) == ("time_limit", {"a": "cat"}, 4.0)


def test_questions_answered_by_label_pngs_need_no_answer(tmp_path: Path) -> None:
    store = write_round(tmp_path)
    submit_answer(store, "a", "cat")
    assert store.close_round(1, answered_by_png=["b"]) is None
    closed = store.close_round(1, answered_by_png=["b", "c", "a"])
    assert closed is not None
    assert (closed.reason, closed.words) == ("settled", {"a": "cat"})


def test_a_question_that_is_asked_again_is_answered_in_its_new_round(tmp_path: Path) -> None:
    store = write_round(tmp_path, max_seconds=1.0, rule="unanimous", min_annotators=2)
    submit_answer(store, "a", "cat", "anna", seconds=5.0)
    assert store.close_round(1) is not None
    write_round(tmp_path, 2, ("a",))
    assert store.status("a").state == "open"  # answers of the first round no longer count
    assert submit_answer(store, "a", "dog", "bob") is None
    assert [(one.word, one.round) for one in store.answers("a")] == [("cat", 1), ("dog", 2)]
    second = store.close_round(2)
    assert second is not None
    assert (second.words, second.seconds) == ({"a": "dog"}, {"a": 0.0})


def test_copies_of_rounds_are_ignored_and_corrupt_files_are_reported(tmp_path: Path) -> None:
    store = write_round(tmp_path)
    shutil.copytree(store.round_folder(1), tmp_path / "round-01 copy")
    assert store.round_numbers() == [1]
    (store.round_folder(1) / "closed.json").write_text("{")
    with pytest.raises(UserError, match=r"closed\.json is corrupt"):
        store.close_round(1)
    (store.round_folder(1) / "questions.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"questions in .*round-01 are corrupt"):
        QuestionRound.read(store.round_folder(1))


def submit_all(folder: Path, annotator: str, keys: tuple[str, ...]) -> None:
    store = AnnotationStore(folder)
    for key in keys:
        store.receive([{"question": key, "word": "cat", "annotator": annotator}], channel=annotator)


def test_two_processes_write_concurrently_without_loss(tmp_path: Path) -> None:
    keys = tuple(f"image {i}" for i in range(30))
    write_round(tmp_path, keys=keys)
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=submit_all, args=(tmp_path, annotator, keys)) for annotator in ("anna", "bob")
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    store = AnnotationStore(tmp_path)
    for annotator in ("anna", "bob"):
        assert [one.question for one in store.answers() if one.annotator == annotator] == list(keys)
    assert len(store.answers()) == (tmp_path / "answers.jsonl").read_bytes().count(b"\n") == 60
    assert store.close_round(1) is not None


def test_a_renamed_class_is_found_by_its_former_name_in_any_case(tmp_path: Path) -> None:
    run_folder = RunFolder(tmp_path)
    store = write_round(run_folder.questions_path)
    question_round = store.question_round(1)
    guesses = [replace(question, guess="Cat") for question in question_round.questions]
    QuestionRound.write(question_round.folder, replace(question_round.rules, classes=("Cat", "dog")), guesses)
    submit_answer(store, "a", "cat")
    changes = ClassList(("Cat", "dog")).with_renamed("Cat", "lynx").changes
    run_folder.save_class_changes(changes)
    submit_answer(store, "b", "CAT")
    assert [one.word for one in store.answers()] == ["lynx", "lynx"]
    renamed = store.question_round(1)
    assert (renamed.rules.classes, renamed.questions[0].guess) == (("lynx", "dog"), "lynx")
    assert store.add_class(1, "cat") == "lynx"


def test_names_that_differ_in_spaces_or_encoding_are_one_class(tmp_path: Path) -> None:
    store = write_round(tmp_path / "questions", live=True)
    before = store.question_round(1).rules.classes
    added = [store.add_class(1, name) for name in (" sea\n cow ", "sea cow", "na\u00efve", "nai\u0308ve")]
    assert added == ["sea cow", "sea cow", "na\u00efve", "na\u00efve"]
    assert store.question_round(1).rules.classes == (*before, "sea cow", "na\u00efve")


@pytest.mark.parametrize("name", ["", " \n", "bell\a", "\u200b", "x" * 101, "Unsure"])
def test_names_that_no_class_can_have(tmp_path: Path, name: str) -> None:
    store = write_round(tmp_path / "questions", live=True)
    with pytest.raises(UserError, match="cannot be a class"):
        store.add_class(1, name)
