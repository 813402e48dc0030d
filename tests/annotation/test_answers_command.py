"""`ducats answers`: summary tables and CSV."""

import csv
import io
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from commands import ducats
from conftest import quick
from ducats.annotation import AnnotationStore, Question, QuestionArea, QuestionRound, RoundRules
from ducats.annotation.csv_answers import import_csv_answers
from ducats.annotation.summary import (
    AnnotatorSummary,
    RoundSummary,
    count_unassigned,
    list_disputes,
    summarise_annotators,
    summarise_channels,
    summarise_rounds,
)
from ducats.cli.run import check_answer_files
from ducats.config.options import default_run_folder
from ducats.ledger import Ledger, Request
from ducats.runfolder.question_names import MASKS
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError
from question_rounds import CLASSES, submit_answer, write_round


@pytest.fixture
def store(tmp_path: Path) -> AnnotationStore:
    """Round 1 is closed, round 2 is disputed, and some answers do not count."""
    store = write_round(tmp_path / "questions")
    submit_answer(store, "a", "cat", "anna", seconds=2.0)
    submit_answer(store, "a", "dog", "bob", seconds=8.0)
    submit_answer(store, "b", "void", "anna", seconds=4.0)
    submit_answer(store, "c", "skip", "anna", seconds=60.0)
    submit_answer(store, "c", "cow", "bob")
    submit_answer(store, "nowhere", "cat", "bob")
    store.receive([{}], channel="test")
    assert store.close_round(1) is not None
    submit_answer(store, "a", "cow", "eve")
    write_round(tmp_path / "questions", 2, ("d", "e"), rule="unanimous", min_annotators=2)
    submit_answer(store, "d", "cat", "anna")
    submit_answer(store, "d", "dog", "[bold]bob")
    submit_answer(store, "e", "horse", "anna")
    return store


def test_summary_of_a_hand_made_example(store: AnnotationStore) -> None:
    none: Counter[str] = Counter()
    assert summarise_rounds(store) == [
        RoundSummary(1, 3, 3, 0, 0, 1, none, 1, 0, {"late": 1}, "settled"),
        RoundSummary(2, 2, 0, 1, 1, 0, none, 1, 0, {"unknown class": 1}, ""),
    ]
    assert count_unassigned(store) == {"malformed": 1, "unknown question": 1}
    assert summarise_annotators(store) == [  # all answers by eve were late
        AnnotatorSummary("[bold]bob", 1, 0, 0, 0, 0.0, None, 0, 0),
        AnnotatorSummary("anna", 3, 2, 1, 0, 66.0, 3.0, 1, 1),  # skips cost time, too
        AnnotatorSummary("bob", 2, 1, 0, 0, 8.0, 8.0, 1, 0),
    ]
    assert [(one.question.id, one.label) for one in list_disputes(store)] == [("a", "cat"), ("d", None)]


def test_a_live_session_is_summarised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = write_round(tmp_path / "questions", live=True)
    submit_answer(store, "a", "cat")
    store.stop_round(1)
    assert ducats("answers", tmp_path) == 0
    assert "session" in capsys.readouterr().out


def test_tables_show_the_summary(
    store: AnnotationStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.receive([{"question": "d", "word": "cat", "reject_reason": "[/x]"}], channel="test")
    assert ducats("answers", tmp_path) == 0
    printed = capsys.readouterr().out
    for words in (
        "2 questions with conflicting answers",
        "round 1, a (anna: cat, bob: dog), label cat",
        "agreement on 2 questions answered independently: 0 %, Conger's kappa of 3 annotators 0.00 (95 %",
        "estimated share of wrong answers to these: [bold]bob ",
        "round 2, d (anna: cat, [bold]bob: dog), no label yet",
        "match no question of this run: 1 malformed, 1 unknown question",
        "1 late",
        "disputed   rejected",  # titles fit into 80 columns
        "[/x]",  # markup is not rendered
        "3 annotators, 1.2 minutes in total (3 of 6 answers timed) – test: 6 answers",
    ):
        assert words in printed


def test_answers_without_a_name_are_not_a_person_and_channels_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = write_round(tmp_path / "questions")
    (store.round_folder(1) / "answers.csv").write_text("key,label\na,cat\nb,dog\n")
    assert import_csv_answers(store, 1) == []
    page = {"question": "c", "word": "cow", "annotator": "anna", "seconds": 30.0}
    store.receive([page], channel="page")
    assert ducats("answers", tmp_path) == 0
    printed = capsys.readouterr().out
    assert "files" not in printed.replace("CSV files", "")
    assert (
        "1 annotator, 2 answers by unknown annotators, 0.5 minutes in total (1 of 3 answers timed) – "
        "CSV files: 2 answers; labelling page: 1 answer"
    ) in printed


def test_pixels_of_words_and_of_pngs_are_told_apart(tmp_path: Path) -> None:
    store, run_folder = AnnotationStore(tmp_path / "questions"), RunFolder(tmp_path)
    (store.round_folder(1) / MASKS).mkdir(parents=True)
    areas = [QuestionArea(0, 0, 4, 6, ((0, 2), (6, 2))), QuestionArea(3, 0, 4, 6, ((18, 3),))]
    questions = [
        Question(number, f"im#{area.y},0", "im", "", area=area) for number, area in enumerate(areas, start=1)
    ]
    QuestionRound.write(store.round_folder(1), RoundRules(1, CLASSES, unit="region"), questions)
    store.receive([{"question": "im#0,0", "word": "cat", "annotator": "anna"}], channel="page")
    assert store.close_round(1, answered_by_png=["im#3,0"]) is not None
    position = torch.tensor([0, 1, 6, 7, 18, 19, 20])
    request = Request(1, torch.zeros(7, dtype=torch.long), position, torch.tensor([4, 3]))
    Ledger(run_folder.labels_path, ["im"], [[4, 6]]).append(request, torch.zeros(7, dtype=torch.long))
    assert list(map(str, summarise_channels(store))) == [
        "labelling page: 1 answer (4 pixels)",
        "label PNGs: 3 pixels",
    ]


def test_questions_answered_by_label_pngs_are_not_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = write_round(tmp_path / "questions", rule="unanimous", min_annotators=2)
    for annotator, word in (("anna", "cat"), ("bob", "dog")):
        submit_answer(store, "a", word, annotator)
        submit_answer(store, "c", "cow", annotator)
    assert store.close_round(1, answered_by_png=["a", "b", "c"]) is not None
    (summary,) = summarise_rounds(AnnotationStore(store.folder))
    assert (summary.settled, summary.answered_by_png, summary.open, summary.disputed) == (1, 2, 0, 0)
    assert ducats("answers", tmp_path) == 0
    assert "a (anna: cat, bob: dog), labelled by PNG" in capsys.readouterr().out


def test_the_csv_has_every_answer(
    store: AnnotationStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ducats("answers", tmp_path, "--csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["question"] for row in rows] == ["a", "a", "b", "c", "c", "nowhere", "", "a", "d", "d", "e"]
    assert rows[1]["seconds"] == "8.0"
    assert [row["reject_reason"] for row in rows[5:8]] == ["unknown question", "malformed", "late"]


def test_a_folder_without_questions_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ducats("answers", tmp_path) == 2
    assert "has no questions for annotators" in capsys.readouterr().err


WRONG_ANSWERS = "key,label,seconds\nd,horse,\nnowhere,cat,\ne,cat,soon\nd,cat,2\n"
MISTAKES = (
    "line 2: 'horse' is not a class",
    "line 3: 'nowhere' is not a question of this round",
    "line 4: 'soon' is not a number of seconds",
    "line 5: the answer to 'd' contradicts line 2",
)


def test_all_mistakes_in_a_csv_are_listed_with_their_lines(
    store: AnnotationStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "new.csv"
    table.write_text(WRONG_ANSWERS)
    assert ducats("answers", tmp_path, "--check", table) == 1
    printed = capsys.readouterr().out
    assert [mistake for mistake in MISTAKES if mistake not in printed] == []
    assert "new.csv: 4 mistakes, 2 of 2 questions of round 2 answered" in printed
    n_answers = len(store.answers())  # nothing was imported
    table.write_text("key,label\nd,dog\ne,\n")
    assert ducats("answers", tmp_path, "--check", table) == 0
    assert "new.csv: no mistakes, 1 of 2 questions of round 2 answered" in capsys.readouterr().out
    table.write_bytes(b"key,label\nd,\xff\n\ne,\xfe\n")
    assert ducats("answers", tmp_path, "--check", table) == 1
    assert "new.csv line 2, 4: not UTF-8 text" in capsys.readouterr().out
    assert len(AnnotationStore(store.folder).answers()) == n_answers


def test_a_run_in_its_default_folder_finds_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = quick("engine.precision=auto")
    check_answer_files(config, None)  # there is no run yet
    store = write_round(default_run_folder(quick("engine.precision=32-true")) / "questions")
    (store.round_folder(1) / "answers.csv").write_text("key,label\na,horse\nb,dog\nx,cat\n")
    with pytest.raises(UserError, match=r"2 mistakes(.|\n)*line 2: 'horse'(.|\n)*line 4: 'x'"):
        check_answer_files(config, None)
    assert AnnotationStore(store.folder).status("b").word == "dog"  # the rest is kept


def test_it_needs_no_torch_and_run_finds_mistakes_before_importing_it(
    store: AnnotationStore, tmp_path: Path
) -> None:
    table, folder = store.round_folder(2) / "answers.csv", str(tmp_path)
    table.write_text(WRONG_ANSWERS)
    commands = [
        ["answers", folder],
        ["answers", folder, "--check", str(table)],
        ["answers", folder, "--suspicious", "0.5"],
        ["run", "--source", "a", "--target", "b", "--out", folder],
    ]
    code = (
        "import sys\nfrom ducats.cli import main\n"
        f"for command in {commands}:\n"
        "    try:\n        main(command)\n    except SystemExit as stop:\n        print('exit', stop.code)\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("exit")] == [
        "exit 0",
        "exit 1",
        "exit 0",
        "exit 2",
    ]
    assert [mistake for mistake in MISTAKES if mistake not in done.stderr] == []
