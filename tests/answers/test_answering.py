"""`ducats answers`: summary tables and CSV."""

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest
from laid_out import lay, say

from ducats.answers import Desk
from ducats.answers.summary import disputes, persons, rounds, unplaced
from ducats.cli import main


def ducats(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    return int(caught.value.code or 0)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Round 1 is closed, round 2 is disputed, and some answers do not count."""
    desk = lay(tmp_path / "questions")
    say(desk, "a", "cat", "anna", seconds=2.0)
    say(desk, "a", "dog", "bob", seconds=8.0)
    say(desk, "b", "void", "anna", seconds=4.0)
    say(desk, "c", "skip", "anna", seconds=60.0)
    say(desk, "c", "cow", "bob")
    say(desk, "nowhere", "cat", "bob")
    desk.receive([{}], via="test")
    assert desk.take(1) is not None
    say(desk, "a", "cow", "eve")
    lay(tmp_path / "questions", 2, ("d", "e"), rule="agree", people=2)
    say(desk, "d", "cat", "anna")
    say(desk, "d", "dog", "[bold]bob")
    say(desk, "e", "horse", "anna")
    return desk


def test_summary_of_a_hand_made_example(desk: Desk) -> None:
    first, second = rounds(desk)
    assert (first.asked, first.settled, first.open, first.disputed, first.void) == (3, 3, 0, 0, 1)
    assert (first.refused, first.taken, first.several, first.alike) == ({"late": 1}, "settled", 1, 0)
    assert (second.asked, second.settled, second.open, second.disputed) == (2, 0, 1, 1)
    assert (second.refused, second.taken) == ({"no class": 1}, "")
    assert unplaced(desk) == {"foreign": 1, "malformed": 1}
    found = {one.who: one for one in persons(desk)}
    anna, bob = found["anna"], found["bob"]
    assert (anna.answers, anna.median_seconds, anna.seconds) == (
        3,
        3.0,
        66.0,
    )  # skips cost time, too
    assert [(one.compared, one.agreed) for one in (anna, bob)] == [(1, 1), (1, 0)]
    assert "eve" not in found  # all her answers were late
    assert [(one.question.id, one.accepted) for one in disputes(desk)] == [("a", "cat"), ("d", None)]


def test_tables_show_the_summary(desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ducats("answers", tmp_path) == 0
    said = capsys.readouterr().out
    for words in (
        "2 questions with conflicting answers",
        "round 1, a (anna: cat, bob: dog), label cat",
        "round 2, d (anna: cat, [bold]bob: dog), no label yet",
        "match no question of this run: 1 foreign, 1 malformed",
        "1 late",
    ):
        assert words in said


def test_markup_in_answers_is_not_rendered(
    desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.receive([{"question": "d", "word": "cat", "refused": "[/x]"}], via="test")
    assert ducats("answers", tmp_path) == 0
    assert "[/x]" in capsys.readouterr().out


def test_questions_answered_by_label_pngs_are_not_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = lay(tmp_path / "questions", rule="agree", people=2)
    for who, word in (("anna", "cat"), ("bob", "dog")):
        say(desk, "a", word, who)
        say(desk, "c", "cow", who)
    assert desk.take(1, elsewhere=["a", "b", "c"]) is not None
    (tally,) = rounds(Desk(desk.folder))
    assert (tally.settled, tally.elsewhere, tally.open, tally.disputed) == (1, 2, 0, 0)
    assert ducats("answers", tmp_path) == 0
    assert "a (anna: cat, bob: dog), labelled by PNG" in capsys.readouterr().out


def test_the_csv_has_every_answer(desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ducats("answers", tmp_path, "--csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["question"] for row in rows] == ["a", "a", "b", "c", "c", "nowhere", "", "a", "d", "d", "e"]
    assert rows[1]["seconds"] == "8.0"
    assert [row["refused"] for row in rows[5:8]] == ["foreign", "malformed", "late"]


def test_a_folder_without_questions_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ducats("answers", tmp_path) == 2
    assert "has no questions for annotators" in capsys.readouterr().err


def test_it_needs_no_torch(desk: Desk, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom ducats.cli import app\n"
        f"app(['answers', {str(tmp_path)!r}], exit_on_error=False, result_action='return_value')\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
