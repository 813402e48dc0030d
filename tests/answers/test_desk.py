"""The annotation store: accepted, refused and final answers."""

import json
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pytest
from laid_out import lay, say

from ducats.answers import Desk, Sheet
from ducats.errors import UserError


def test_answers_are_logged_with_annotator_time_and_channel(tmp_path: Path) -> None:
    desk = lay(tmp_path)
    assert say(desk, "a", "CAT", "anna", seconds=2.5) is None
    line = json.loads((tmp_path / "received.jsonl").read_text())
    assert (line.pop("when")[:2], line) == (
        "20",
        {"question": "a", "word": "cat", "kind": "class", "who": "anna"}
        | {"via": "test", "round": 1, "seconds": 2.5},
    )


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ({"question": "elsewhere", "word": "cat"}, "foreign"),
        ({"question": "a", "word": "horse"}, "no class"),
        ({"question": "a"}, "malformed"),
        ({"question": 7, "word": "cat"}, "malformed"),
        ({"question": "a", "word": "cat", "who": None}, "malformed"),
        ({"question": "a", "word": "cat", "seconds": "2"}, "malformed"),
        ({"question": "a", "word": "cat", "seconds": True}, "malformed"),
        ({"question": "a", "word": "c" * 501}, "malformed"),
        ("cat", "malformed"),
        (None, "malformed"),
        ({"question": "a", "word": "cat", "refused": "doubled"}, "doubled"),
    ],
)
def test_refused_answers_are_logged_with_the_reason(tmp_path: Path, answer: Any, refused: str) -> None:
    desk = lay(tmp_path)
    assert desk.receive([answer], via="test")[0].refused == refused
    assert [one.refused for one in Desk(tmp_path).answers()] == [refused]
    assert desk.standing("a").state == "open"


def test_lone_surrogates_and_implausible_seconds_are_cleaned(tmp_path: Path) -> None:
    desk = lay(tmp_path, new_classes=True)
    desk.receive(["\ud800"], via="test")  # type: ignore[list-item]
    assert say(desk, "a", "ho\ud800rse", "an\udfffna", seconds=float("nan")) is None
    assert say(desk, "b", "cat", seconds=1e9) is None
    assert say(desk, "c", "cat", seconds=-1) is None
    assert [one.seconds for one in desk.answers()] == [None] * 4
    taken = desk.take(1)
    assert taken is not None
    assert (taken.words["a"], taken.kinds["a"]) == ("ho?rse", "new")
    assert Desk(tmp_path).taken(1) == taken


def test_a_new_class_is_refused_unless_allowed(tmp_path: Path) -> None:
    strict, open_ = lay(tmp_path / "strict"), lay(tmp_path / "open", new_classes=True)
    assert [say(strict, "a", "horse"), say(open_, "a", "horse")] == ["no class", None]
    assert [strict.standing("a").word, open_.standing("a").word] == [None, "horse"]


def test_an_external_id_is_logged_once(tmp_path: Path) -> None:
    desk, other = lay(tmp_path), Desk(tmp_path)
    assert say(desk, "a", "cat", ref="7") is None
    again = {"question": "a", "word": "Cat", "ref": "7"}
    assert other.receive([again, again], via="test") == []
    assert [one.word for one in desk.answers()] == ["cat"]


def test_a_changed_answer_with_a_known_external_id_does_not_count(tmp_path: Path) -> None:
    desk, other = lay(tmp_path), Desk(tmp_path)
    say(desk, "a", "cat", ref="7")
    changed = {"question": "a", "word": "dog", "ref": "7"}
    assert [one.refused for one in other.receive([changed, changed], via="test")] == ["doubled"]
    assert desk.receive([changed], via="test") == []
    assert [one.word for one in desk.answers()] == ["cat", "dog"]
    assert desk.standing("a").word == "cat"


def test_a_round_closes_when_all_questions_are_settled_and_never_changes(tmp_path: Path) -> None:
    desk = lay(tmp_path, rule="agree", people=2)
    for key in "abc":
        say(desk, key, "cat", "anna", seconds=1.0)
    say(desk, "a", "cat", "bob", seconds=2.0)
    say(desk, "b", "dog", "bob")
    assert (desk.take(1), desk.standing("b").state) == (None, "disputed")
    say(desk, "b", "void", "anna")
    say(desk, "b", "void", "bob")
    say(desk, "c", "cat", "bob")
    taken = desk.take(1)
    assert taken is not None
    assert (taken.because, taken.words) == ("settled", {"a": "cat", "b": "void", "c": "cat"})
    assert taken.seconds == {"a": 3.0, "b": 1.0, "c": 1.0}
    assert say(Desk(tmp_path), "a", "dog", "anna") == "late"
    assert (Desk(tmp_path).take(1), desk.current()) == (taken, None)


def test_a_round_closes_at_the_time_limit(tmp_path: Path) -> None:
    desk = lay(tmp_path, seconds=10.0)
    say(desk, "a", "cat", seconds=6.0)
    assert desk.take(1) is None
    say(desk, "b", "skip", seconds=4.0)
    taken = desk.take(1)
    assert taken is not None
    assert (taken.because, taken.words, taken.seconds["b"]) == ("seconds", {"a": "cat"}, 4.0)


def test_questions_answered_by_label_pngs_need_no_answer(tmp_path: Path) -> None:
    desk = lay(tmp_path)
    say(desk, "a", "cat")
    assert desk.take(1, elsewhere=["b"]) is None
    taken = desk.take(1, elsewhere=["b", "c", "a"])
    assert taken is not None
    assert (taken.because, taken.words) == ("settled", {"a": "cat"})


def test_a_question_that_is_asked_again_is_answered_in_its_new_round(tmp_path: Path) -> None:
    desk = lay(tmp_path, seconds=1.0, rule="agree", people=2)
    say(desk, "a", "cat", "anna", seconds=5.0)
    assert desk.take(1) is not None
    lay(tmp_path, 2, ("a",))
    assert desk.standing("a").state == "open"  # answers of the first round no longer count
    assert say(desk, "a", "dog", "bob") is None
    assert [(one.word, one.round) for one in desk.answers("a")] == [("cat", 1), ("dog", 2)]
    second = desk.take(2)
    assert second is not None
    assert (second.words, second.seconds) == ({"a": "dog"}, {"a": 0.0})


def test_an_incomplete_line_is_ignored(tmp_path: Path) -> None:
    desk, other = lay(tmp_path), Desk(tmp_path)
    say(desk, "a", "cat")
    with desk.book.path.open("ab") as file:
        file.write(b'{"question": "b", "wo')
    assert len(other.answers()) == 1
    say(other, "b", "dog")
    assert [one.question for one in desk.answers()] == ["a", "b"]
    assert [one.question for one in Desk(tmp_path).answers()] == ["a", "b"]


def test_a_copy_of_a_round_is_ignored(tmp_path: Path) -> None:
    desk = lay(tmp_path)
    shutil.copytree(desk.home(1), tmp_path / "round-01 copy")
    assert desk.rounds() == [1]


def test_corrupt_files_are_reported(tmp_path: Path) -> None:
    desk = lay(tmp_path)
    (desk.home(1) / "taken.json").write_text("{")
    with pytest.raises(UserError, match=r"taken\.json is corrupt"):
        desk.take(1)
    (desk.home(1) / "questions.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"questions in .*round-01 are corrupt"):
        Sheet.read(desk.home(1))


def hand_in(folder: Path, who: str, keys: tuple[str, ...]) -> None:
    desk = Desk(folder)
    for key in keys:
        desk.receive([{"question": key, "word": "cat", "who": who}], via=who)


def test_two_processes_write_concurrently_without_loss(tmp_path: Path) -> None:
    keys = tuple(f"image {i}" for i in range(200))
    lay(tmp_path, keys=keys)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=hand_in, args=(tmp_path, who, keys)) for who in ("anna", "bob")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    desk = Desk(tmp_path)
    for who in ("anna", "bob"):
        assert [one.question for one in desk.answers() if one.who == who] == list(keys)
    assert len(desk.answers()) == (tmp_path / "received.jsonl").read_bytes().count(b"\n") == 400
    assert desk.take(1) is not None
