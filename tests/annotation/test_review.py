"""Answers worth a second look: reasons, order, and what a review settles."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from commands import Capture, output_of
from ducats.annotation import AnnotationStore, Question, QuestionRound, RoundRules
from ducats.annotation.amend import LabelAmender, NewLabel
from ducats.annotation.answer import REVIEW_CHANNEL
from ducats.annotation.review import ReviewItem, list_for_review
from ducats.ledger import Ledger, Request
from ducats.runfolder.pool_file import PoolInfo
from ducats.runfolder.run_folder import RunFolder
from question_rounds import CLASSES, submit_answer

ROUND_1 = ("agreed", "both", "differ", "sure", *(f"e{n}" for n in range(12)))
ROUND_2 = ("disputed", "guessed", "lone", "fine")
SURE_OF_DOG = ("both", "sure", "guessed")


def write_questions(store: AnnotationStore, number: int, keys: tuple[str, ...], **rules: object) -> None:
    questions = [
        Question(n, key, key, "", guess="dog" if key in SURE_OF_DOG else "cat", probability=0.9)
        for n, key in enumerate(keys, start=1)
    ]
    QuestionRound.write(store.round_folder(number), RoundRules(number, CLASSES, **rules), questions)  # type: ignore[arg-type]


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    """Round 1 is closed, round 2 is open. Eve often answers cow where the others see a cat."""
    run_folder = RunFolder(tmp_path)
    store = AnnotationStore(run_folder.questions_path)
    write_questions(store, 1, ROUND_1, rule="majority", min_annotators=1)
    for key in ROUND_1:
        submit_answer(store, key, "cat", "ada")
        submit_answer(store, key, "cat", "ben")
    for key in ("both", "differ"):
        submit_answer(store, key, "dog", "tom")
    for n in range(12):
        submit_answer(store, f"e{n}", "cow", "eve")
        submit_answer(store, f"e{n}", "cat", "eve")  # she gave in: nobody differs in the end
    assert store.close_round(1) is not None
    run_folder.save_pool(PoolInfo([*ROUND_1, *ROUND_2]))
    request = Request(1, torch.arange(len(ROUND_1)), torch.zeros(len(ROUND_1), dtype=torch.long))
    Ledger(run_folder.labels_path, [*ROUND_1, *ROUND_2]).append(request, torch.zeros(len(ROUND_1)).long())
    write_questions(store, 2, ROUND_2, overlap=0.25)
    shared = set(store.question_round(2).shared_questions)
    assert shared == {"guessed"}  # by its name
    submit_answer(store, "guessed", "cat", "ada")
    submit_answer(store, "guessed", "cow", "ben")
    submit_answer(store, "lone", "cow", "eve")
    submit_answer(store, "fine", "cat", "ada")
    return run_folder


def found(run_folder: RunFolder) -> dict[str, ReviewItem]:
    return {one.question.id: one for one in list_for_review(run_folder)}


def test_the_most_suspicious_answers_come_first_with_their_reasons(run_folder: RunFolder) -> None:
    items = found(run_folder)
    assert list(items)[:3] == ["lone", "both", "sure"]  # where eve answers cow, others see a cat
    assert items.keys() == {"both", "sure", "differ", "guessed", "lone"}
    differ = "people differ (ada: cat, ben: cat, tom: dog)"
    assert items["both"].reasons() == ["the model predicted dog (90 %)", differ]
    assert items["both"].reasons(blind=True) == [differ]
    assert items["sure"].reasons(blind=True) == []
    predicted, low = items["lone"].reasons()
    assert predicted == "the model predicted cat (90 %)"
    assert low.startswith("the answer is right with a probability of only ")
    assert low.endswith(", given the errors of eve")
    assert items["guessed"].status.word is None  # people differ, so there is no label to contradict
    assert [one.is_closed for one in items.values() if one.round == 2] == [False, False]
    scores = [one.score for one in items.values()]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)


def test_open_rounds_are_compared_with_the_current_prediction(run_folder: RunFolder) -> None:
    items = list_for_review(run_folder, with_hints=lambda one: replace(one, guess="dog", probability=0.95))
    (fine,) = [one for one in items if one.question.id == "fine"]
    assert fine.reasons() == ["the model predicted dog (95 %)"]


def test_what_was_reviewed_is_not_listed_again(run_folder: RunFolder) -> None:
    LabelAmender(run_folder, "ada").amend([NewLabel("both", "dog"), NewLabel("sure", "cat")])
    store = AnnotationStore(run_folder.questions_path)
    answer = {"question": "lone", "word": "cow", "annotator": "eve"}
    store.receive([answer], channel=REVIEW_CHANNEL)
    store.receive([{**answer, "question": "guessed", "annotator": "ben"}], channel=REVIEW_CHANNEL)
    assert found(run_folder).keys() == {"differ", "guessed"}  # ada and ben still differ
    store.receive([{"question": "guessed", "word": "cow", "annotator": "ada"}], channel=REVIEW_CHANNEL)
    assert found(run_folder).keys() == {"differ"}


def test_the_command_lists_answers_and_commands(run_folder: RunFolder, capsys: Capture) -> None:
    printed = output_of(capsys, "answers", run_folder.path, "--review")
    assert "5 answers worth a second look, the most suspicious first" in printed
    assert "round 1, sure: cat; the model predicted dog (90 %)" in printed
    assert "round 2 (open), guessed: no label yet; people differ (ada: cat, ben: cow)" in printed
    assert f"`ducats answers {run_folder.path} --amend KEY CLASS`" in printed
    assert "press r" in printed
    assert "annotators" not in printed
    LabelAmender(run_folder, "ada").amend([NewLabel(key, "cat") for key in ("both", "sure", "differ")])
    printed = output_of(capsys, "answers", run_folder.path, "--review")
    assert "2 answers worth a second look" in printed
    assert "--amend" not in printed
