"""Answers in CSV files: any order, partial, by several annotators, each row logged once."""

from pathlib import Path

import pytest

from ducats.annotation import AnnotationStore, Question, QuestionArea, QuestionRound, RoundRules
from ducats.annotation.csv_answers import _list_classes, import_csv_answers, read_csv_answers
from ducats.utils.errors import UserError
from question_rounds import CLASSES, submit_answer, write_round


def write_and_import(
    store: AnnotationStore, text: str, name: str = "answers.csv", number: int = 1
) -> list[str]:
    (store.round_folder(number) / name).write_text(text, encoding="utf-8")
    return import_csv_answers(store, number)


def logged(store: AnnotationStore) -> list[str]:
    return [f"{one.annotator}:{one.question}={one.word}" for one in store.answers()]


def test_each_row_is_logged_once_and_again_when_it_changes(tmp_path: Path) -> None:
    store = write_round(tmp_path)
    assert write_and_import(store, "key,label\nb,dog\na,\n") == []
    assert write_and_import(store, "label,key\ncat,a\ndog,b\n") == []
    assert logged(store) == [":b=dog", ":a=cat"]
    assert write_and_import(store, "key,label\na,cow\nb, DOG\n") == []
    assert write_and_import(store, "key,label\na,cat\n") == []  # changed back; b's answer stays
    assert logged(store)[2:] == [":a=cow", ":a=cat"]
    assert [store.status(key).word for key in "abc"] == ["cat", "dog", None]
    assert {one.channel for one in store.answers()} == {"round-01/answers.csv"}


def test_several_annotators_in_one_or_several_files(tmp_path: Path) -> None:
    store = write_round(tmp_path, rule="unanimous", min_annotators=2)
    assert write_and_import(store, "key,label,annotator,seconds\na,cat,anna,2.5\na,dog,bob,\n") == []
    assert write_and_import(store, "key;label;seconds\nb;cat;3,5\n", "answers-anna.csv") == []
    assert write_and_import(store, "key,label\nb,cat\n", "answers-bob.csv") == []
    assert logged(store) == ["anna:a=cat", "bob:a=dog", "anna:b=cat", "bob:b=cat"]
    assert [one.seconds for one in store.answers()] == [2.5, None, 3.5, None]
    assert [store.status(key).state for key in "abc"] == ["disputed", "settled", "open"]


@pytest.mark.parametrize(
    ("lines", "words", "reject_reasons"),
    [
        ("elsewhere,cat,", "line 2: 'elsewhere' is not a question", ["unknown question"]),
        ("a,horse,", "line 2: 'horse' is not a class; use one of: cat, dog, cow, void", ["unknown class"]),
        ("a,cat,\na,Cat,", "line 3: the answer to 'a' repeats line 2", [None, "duplicate"]),
        ("a,cat,\na,dog,", "line 3: the answer to 'a' contradicts line 2", [None, "duplicate"]),
        ("a,cat,soon", "line 2: 'soon' is not a number of seconds", ["malformed"]),
    ],
)
def test_problems_are_reported_and_logged_once(
    tmp_path: Path, lines: str, words: str, reject_reasons: list[str | None]
) -> None:
    store = write_round(tmp_path)
    for _ in range(3):
        problems = write_and_import(store, f"key,label,seconds\n{lines}\n")
        assert [sentence.partition("answers.csv ")[2][: len(words)] for sentence in problems] == [words]
    assert [one.reject_reason for one in store.answers()] == reject_reasons
    assert store.status("a").word == ("cat" if None in reject_reasons else None)
    assert write_and_import(store, "key,label\na,dog\n") == []
    assert store.status("a").word == "dog"


@pytest.mark.parametrize("allow_new_classes", [False, True])
def test_a_rejected_class_counts_once_it_is_added(tmp_path: Path, *, allow_new_classes: bool) -> None:
    store = write_round(tmp_path, allow_new_classes=allow_new_classes)
    table = "key,label\na,cats\n"
    for _ in range(2):
        assert "is not a class" in write_and_import(store, table)[0]
    store.add_class(1, "cats")
    assert write_and_import(store, table) == write_and_import(store, table) == []
    assert len(store.answers()) == 2
    assert store.status("a").word == "cats"


def test_files_of_closed_rounds_are_late_and_withdrawn_answers_stay_withdrawn(tmp_path: Path) -> None:
    store = write_round(tmp_path)
    write_and_import(store, "key,label\na,cat\nb,cat\nc,cat\n")
    submit_answer(store, "a", "", "")
    assert write_and_import(store, "key,label\na,cat\nb,cat\nc,cat\n") == []
    assert store.status("a").state == "open"
    submit_answer(store, "a", "dog", "anna")
    assert store.close_round(1) is not None
    write_round(tmp_path, 2, ("d",))
    write_and_import(store, "key,label\na,cow\nb,cat\nc,cat\n")
    assert (logged(store)[-1], store.answers()[-1].reject_reason) == (":a=cow", "late")


def test_pixels_are_identified_by_id_or_by_key_and_position(tmp_path: Path) -> None:
    store = AnnotationStore(tmp_path)
    area = QuestionArea(1, 2, 4, 6, ((8, 1),))
    questions = [
        Question(1, "im.png#1,2", "im.png", "", area=area),
        Question(2, "im.png#3,0", "im.png", ""),
    ]
    QuestionRound.write(store.round_folder(1), RoundRules(1, CLASSES, unit="pixel"), questions)
    assert write_and_import(store, "key,y,x,label\nim.png,1,2,cat\n") == []
    assert write_and_import(store, 'id,label\n"im.png#3,0",dog\n', "answers-bob.csv") == []
    assert logged(store) == [":im.png#1,2=cat", "bob:im.png#3,0=dog"]
    problems = write_and_import(store, "key,label\nim.png,cat\n", "answers-c.csv")
    assert "needs the columns `key` and `y` and `x` and `label`" in problems[0]


def test_annotators_are_named_by_the_file(tmp_path: Path) -> None:
    named = {"answers.csv": "", "answers-anna.csv": "anna", "answers_bob b.csv": "bob b"}
    for name, annotator in named.items():
        (tmp_path / name).write_text("key,label,annotator\na,cat,\nb,cat,eve\n")
        assert [line.annotator for line in read_csv_answers(tmp_path / name)] == [annotator, "eve"]


def test_at_most_twenty_classes_are_listed() -> None:
    names = tuple(str(number) for number in range(21))
    assert _list_classes(names[:20]).endswith(", 18, 19, void or unsure")
    assert _list_classes(names).endswith(", 18, 19, …, void or unsure")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"
    for content, words in (
        (b"key|label\na|b\n", "columns `key` and `label`"),
        (b"key,label\n\xff", "CSV UTF-8"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=words):
            read_csv_answers(path)


def test_seconds_are_the_total_of_a_row(tmp_path: Path) -> None:
    store = write_round(tmp_path)
    write_and_import(store, "key,label,seconds\na,cat,5\n")
    write_and_import(store, "key,label,seconds\na,dog,5\n")  # a corrected mistake: not another 5 seconds
    assert (store.status("a").word, store.status("a").seconds) == ("dog", 5.0)
    for _ in range(2):
        write_and_import(store, "key,label,seconds\na,dog,6.5\nb,horse,4\n")
    write_and_import(store, "key,label,seconds\na,dog,2\nb,cow,4\n")  # seconds that were counted stay counted
    assert [store.status(key).seconds for key in "ab"] == [6.5, 4.0]
    assert logged(store) == [f":{text}" for text in ("a=cat", "a=dog", "a=dog", "b=horse", "b=cow")]
    submit_answer(store, "c", "cat")
    assert store.close_round(1) is not None
    for _ in range(2):
        write_and_import(store, "key,label,seconds\na,cow,9\nb,cow,4\n")
    assert [(one.word, one.reject_reason) for one in store.answers()[6:]] == [("cow", "late")]


@pytest.mark.parametrize("line", [f"a,{'x' * 600}", f"{'x' * 600},cat", f"a,cat,{'x' * 600}"])
def test_overlong_values_are_logged_once(tmp_path: Path, line: str) -> None:
    store = write_round(tmp_path)
    for _ in range(3):
        write_and_import(store, f"key,label,annotator\n{line}\n")
    assert len(store.answers()) == 1
