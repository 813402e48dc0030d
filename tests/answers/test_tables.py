"""Answers in CSV files: any order, partial, by several annotators, each row logged once."""

from pathlib import Path

import pytest
from laid_out import CLASSES, lay, say

from ducats.answers import Desk, Place, Question, Sheet, Terms
from ducats.answers.tables import bring, read


def put(desk: Desk, text: str, name: str = "answers.csv", number: int = 1) -> list[str]:
    (desk.home(number) / name).write_text(text, encoding="utf-8")
    return bring(desk, number)


def heard(desk: Desk) -> list[str]:
    return [f"{one.who}:{one.question}={one.word}" for one in desk.answers()]


def test_each_row_is_logged_once_and_again_when_it_changes(tmp_path: Path) -> None:
    desk = lay(tmp_path)
    assert put(desk, "key,label\nb,dog\na,\n") == []
    assert put(desk, "label,key\ncat,a\ndog,b\n") == []
    assert heard(desk) == ["files:b=dog", "files:a=cat"]
    assert put(desk, "key,label\na,cow\nb, DOG\n") == []
    assert put(desk, "key,label\na,cat\n") == []  # changed back; b's row is gone, its answer is not
    assert heard(desk)[2:] == ["files:a=cow", "files:a=cat"]
    assert [desk.standing(key).word for key in "abc"] == ["cat", "dog", None]
    assert {one.via for one in desk.answers()} == {"round-01/answers.csv"}


def test_several_annotators_in_one_or_several_files(tmp_path: Path) -> None:
    desk = lay(tmp_path, rule="agree", people=2)
    assert put(desk, "key,label,annotator,seconds\na,cat,anna,2.5\na,dog,bob,\n") == []
    assert put(desk, "key;label;seconds\nb;cat;3,5\n", "answers-anna.csv") == []
    assert put(desk, "key,label\nb,cat\n", "answers-bob.csv") == []
    assert heard(desk) == ["anna:a=cat", "bob:a=dog", "anna:b=cat", "bob:b=cat"]
    assert [one.seconds for one in desk.answers()] == [2.5, None, 3.5, None]
    assert [desk.standing(key).state for key in "abc"] == ["disputed", "settled", "open"]


@pytest.mark.parametrize(
    ("lines", "words", "refused"),
    [
        (
            "elsewhere,cat,",
            "line 2: 'elsewhere' is not a question of this round",
            ["foreign"],
        ),
        ("a,horse,", "line 2: 'horse' is not a class; use one of: cat, dog, cow, void", ["no class"]),
        ("a,cat,\na,Cat,", "line 3: the answer to 'a' repeats line 2; keep one", [None, "doubled"]),
        (
            "a,cat,\na,dog,",
            "line 3: the answer to 'a' contradicts line 2; keep one",
            [None, "doubled"],
        ),
        ("a,cat,soon", "line 2: 'soon' is not a number of seconds", ["malformed"]),
    ],
)
def test_problems_are_reported_and_logged_once(
    tmp_path: Path, lines: str, words: str, refused: list[str | None]
) -> None:
    desk = lay(tmp_path)
    for _ in range(3):
        wrong = put(desk, f"key,label,seconds\n{lines}\n")
        assert [sentence.partition("answers.csv ")[2][: len(words)] for sentence in wrong] == [words]
    assert [one.refused for one in desk.answers()] == refused
    assert put(desk, "key,label\na,dog\n") == []
    assert desk.standing("a").word == "dog"


def test_a_duplicate_row_is_fixed_by_removing_either(tmp_path: Path) -> None:
    desk = lay(tmp_path)
    put(desk, "key,label\na,cat\na,dog\n")
    assert desk.standing("a").word == "cat"
    assert put(desk, "key,label\na,dog\n") == []
    assert desk.standing("a").word == "dog"


def test_files_of_closed_rounds_are_late_and_withdrawn_answers_stay_withdrawn(tmp_path: Path) -> None:
    desk = lay(tmp_path)
    put(desk, "key,label\na,cat\nb,cat\nc,cat\n")
    say(desk, "a", "", "files")
    assert put(desk, "key,label\na,cat\nb,cat\nc,cat\n") == []
    assert desk.standing("a").state == "open"
    say(desk, "a", "dog", "anna")
    assert desk.take(1) is not None
    lay(tmp_path, 2, ("d",))
    put(desk, "key,label\na,cow\nb,cat\nc,cat\n")
    assert (heard(desk)[-1], desk.answers()[-1].refused) == ("files:a=cow", "late")


def test_pixels_are_identified_by_id_or_by_key_and_position(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    place = Place(1, 2, 4, 6, ((8, 1),))
    questions = [
        Question(1, "im.png#1,2", "im.png", "", place=place),
        Question(2, "im.png#3,0", "im.png", ""),
    ]
    Sheet.write(desk.home(1), Terms(1, CLASSES, unit="pixel"), questions)
    assert put(desk, "key,y,x,label\nim.png,1,2,cat\n") == []
    assert put(desk, 'id,label\n"im.png#3,0",dog\n', "answers-bob.csv") == []
    assert heard(desk) == ["files:im.png#1,2=cat", "bob:im.png#3,0=dog"]
    wrong = put(desk, "key,label\nim.png,cat\n", "answers-c.csv")
    assert "needs the columns `key` and `y` and `x` and `label`" in wrong[0]


def test_annotators_are_named_by_the_file(tmp_path: Path) -> None:
    for name, who in (("answers.csv", "files"), ("answers-anna.csv", "anna"), ("answers_bob b.csv", "bob b")):
        (tmp_path / name).write_text("key,label,annotator\na,cat,\nb,cat,eve\n")
        assert [line.who for line in read(tmp_path / name)] == [who, "eve"]


def test_seconds_are_the_total_of_a_row(tmp_path: Path) -> None:
    desk = lay(tmp_path)
    put(desk, "key,label,seconds\na,cat,5\n")
    put(desk, "key,label,seconds\na,dog,5\n")  # a corrected mistake: not another 5 seconds
    assert (desk.standing("a").word, desk.standing("a").seconds) == ("dog", 5.0)
    for _ in range(2):
        put(desk, "key,label,seconds\na,dog,6.5\nb,horse,4\n")
    put(desk, "key,label,seconds\na,dog,2\nb,cow,4\n")  # seconds that were counted stay counted
    assert [desk.standing(key).seconds for key in "ab"] == [6.5, 4.0]
    assert heard(desk) == [f"files:{said}" for said in ("a=cat", "a=dog", "a=dog", "b=horse", "b=cow")]
    say(desk, "c", "cat")
    assert desk.take(1) is not None
    for _ in range(2):
        put(desk, "key,label,seconds\na,cow,9\nb,cow,4\n")
    assert [(one.word, one.refused) for one in desk.answers()[6:]] == [("cow", "late")]


@pytest.mark.parametrize("line", [f"a,{'x' * 600}", f"{'x' * 600},cat", f"a,cat,{'x' * 600}"])
def test_overlong_values_are_logged_once(tmp_path: Path, line: str) -> None:
    desk = lay(tmp_path)
    for _ in range(3):
        put(desk, f"key,label,annotator\n{line}\n")
    assert len(desk.answers()) == 1
