"""Agreement of annotators: kappa by hand and by scikit-learn, and which answers count."""

import random
from pathlib import Path

import pytest
from sklearn.metrics import cohen_kappa_score

from ducats.annotation import Answer
from ducats.annotation.agreement import measure_agreement, wilson_interval
from ducats.annotation.answer import REVIEW_CHANNEL, SHARED_CHANNEL, parse_word
from ducats.annotation.rules import independent_words
from ducats.annotation.summary import annotator_quality
from present import present
from question_rounds import CLASSES, submit_answer, write_round


def test_kappa_of_two_is_cohens() -> None:
    draw = random.Random(0)
    questions = [{"ada": draw.choice(CLASSES), "ben": draw.choice(CLASSES)} for _ in range(50)]
    for each in questions[:30]:
        each["ben"] = each["ada"]
    found = present(measure_agreement([*questions, {"ada": "cat"}, {}]))
    columns = [[each[name] for each in questions] for name in ("ada", "ben")]
    assert found.kappa == pytest.approx(cohen_kappa_score(*columns))
    assert (found.annotators, found.questions) == (2, 50)
    low, high = present(found.interval)
    assert low < present(found.kappa) < high


def test_kappa_of_three_by_hand() -> None:
    questions = [
        {"a": "cat", "b": "cat", "c": "cat"},
        {"a": "dog", "b": "dog", "c": "cat"},
        {"a": "cat", "b": "dog"},
        {"a": "dog", "b": "dog"},
    ]
    found = present(measure_agreement(questions))
    observed = (3 + 1 + 1) / 8  # equal answers: a and b in 3 of 4, a and c in 1 of 2, b and c in 1 of 2
    chance = (4 * (0.5 * 0.25 + 0.5 * 0.75) + 2 * 0.5 + 2 * 0.5) / 8
    assert found.observed == observed
    assert found.kappa == pytest.approx((observed - chance) / (1 - chance))
    low, high = wilson_interval(observed, 4)
    assert found.interval == pytest.approx(((low - chance) / (1 - chance), (high - chance) / (1 - chance)))
    assert "Conger's kappa of 3 annotators 0.25 (95 % interval" in str(found)


def test_perfect_agreement_has_an_interval_and_a_single_word_no_kappa() -> None:
    perfect = present(measure_agreement([{"a": word, "b": word} for word in ("cat", "dog")]))
    assert perfect.kappa == 1
    low, high = present(perfect.interval)
    assert low < 0.5
    assert high == 1
    single = present(measure_agreement([{"a": "cat", "b": "cat"}]))
    assert (single.kappa, single.interval, single.observed) == (None, None, 1)
    assert "1 question answered independently: 100 %; kappa is undefined" in str(single)
    assert measure_agreement([{"a": "cat"}, {"b": "cat"}]) is None


def words_of(*answers: str) -> dict[str, str]:
    """Return the independent words for answers given as ``annotator:word`` or ``annotator:word@channel``."""
    parsed = []
    for one in answers:
        annotator, _, rest = one.partition(":")
        word, _, channel = rest.partition("@")
        kind, word = parse_word(word, CLASSES)
        parsed.append(Answer("q", word, kind, annotator, "now", channel or "page", 1))
    return independent_words(parsed)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ("a:cat b:dog", {"a": "cat", "b": "dog"}),
        ("a:cat b:dog a:dog", {"a": "cat", "b": "dog"}),  # after the dispute was shown
        ("a:cat a:dog b:dog", {"a": "cat", "b": "dog"}),  # the first answer counts
        ("a:cat a: a:dog b:dog", {"a": "dog", "b": "dog"}),  # unless it was withdrawn
        ("a:cat b:dog a: a:dog", {"a": "cat", "b": "dog"}),  # too late
        ("a:cat b:dog b: b:cat", {"a": "cat", "b": "cat"}),  # nobody answered after b
        ("a:unsure b:dog a:skip a:cat", {"a": "cat", "b": "dog"}),
        ("a:cat :dog", {"a": "cat"}),  # who answered is unknown
        (f"a:cat b:dog@{REVIEW_CHANNEL} b:cat", {"a": "cat"}),
        (f"a:cat b:dog@{SHARED_CHANNEL}", {"a": "cat"}),
    ],
)
def test_answers_given_before_others_were_seen_count(answers: str, words: dict[str, str]) -> None:
    assert words_of(*answers.split()) == words


def test_errors_are_estimated_from_all_rounds(tmp_path: Path) -> None:
    store = write_round(tmp_path / "questions", 1, tuple("abcd"), rule="majority")
    for question, words in {
        "a": "cat cat dog",
        "b": "dog dog dog",
        "c": "cow cow cat",
        "d": "cat cat cat",
    }.items():
        for annotator, word in zip(("ada", "ben", "eve"), words.split(), strict=True):
            submit_answer(store, question, word, annotator)
    before = annotator_quality(store)
    assert present(before.agreement).questions == 4
    assert before.errors["eve"].share > 0.3 > 0.1 > before.errors["ada"].share
    assert before.errors["ada"] == before.errors["ben"]
    submit_answer(store, "a", "cat", "eve")  # she changes her mind: her first answer still counts
    assert annotator_quality(store) == before
    assert store.close_round(1) is not None
    write_round(tmp_path / "questions", 2, ("e",), rule="majority")
    submit_answer(store, "e", "cat", "ada")
    submit_answer(store, "e", "cat", "eve")
    after = annotator_quality(store).errors["eve"]
    assert after.share < before.errors["eve"].share
    assert after.answers == 5
