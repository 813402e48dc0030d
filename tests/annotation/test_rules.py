"""Voting rules: hand-made examples and properties."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ducats.annotation import VOTING_RULES, Answer, QuestionStatus, RoundRules, question_status
from ducats.annotation.answer import parse_word
from ducats.annotation.oracles import HumanOracle
from ducats.annotation.rules import make_rules
from ducats.data.toy import toy
from ducats.utils.errors import UserError
from question_rounds import CLASSES


def status_of(
    *answers: str, rule: str = "first", min_annotators: int = 1, on_unsure: str = "ask_another"
) -> QuestionStatus:
    """Return the status for answers given as ``annotator:word``, in the order of arrival."""
    rules = RoundRules(1, CLASSES, rule, min_annotators, on_unsure)  # type: ignore[arg-type]
    parsed = []
    for one in answers:
        annotator, _, word = one.partition(":")
        kind, word = parse_word(word, CLASSES)
        parsed.append(Answer("q", word, kind, annotator, "now", "test", 1, seconds=2.0))
    return question_status(parsed, rules)


@pytest.mark.parametrize(
    ("rule", "min_annotators", "answers", "state", "word"),
    [
        ("first", 1, "", "open", None),
        ("first", 1, "a:cat b:dog a:cow", "settled", "cow"),  # the first annotator changed the answer
        ("first", 1, "a:cat b:dog a:", "settled", "dog"),  # the first annotator withdrew the answer
        ("first", 1, "a:cat b:dog a: a:cat", "settled", "dog"),  # and answered again
        ("first", 1, "a:unsure b:dog", "settled", "dog"),
        ("first", 2, "a:cat a:dog", "open", None),  # the same annotator twice
        ("first", 2, "a:cat b:void", "settled", "cat"),
        ("newest", 1, "a:cat b:dog a:cow", "settled", "cow"),
        ("newest", 1, "a:cat b:dog b:skip", "settled", "dog"),
        ("majority", 3, "a:cat b:cat", "open", None),
        ("majority", 3, "a:cat b:cat c:dog", "settled", "cat"),
        ("majority", 3, "a:cat b:dog c:cow d:cat", "disputed", None),  # two of four are not a majority
        ("unanimous", 2, "a:cat b:Cat", "settled", "cat"),
        ("unanimous", 2, "a:cat b:cat c:dog", "disputed", None),
        ("unanimous", 2, "a:cat b:unsure", "open", None),
        # Nothing is known about these annotators: each is right with a probability of 80 %.
        ("weighted", 1, "a:cat", "open", None),
        ("weighted", 1, "a:cat b:cat", "settled", "cat"),
        ("weighted", 1, "a:horse b:horse", "settled", "horse"),
        ("weighted", 1, "a:cat b:dog", "disputed", None),
        ("weighted", 1, "a:cat b:dog c:dog", "settled", "dog"),  # by the maximum of three annotators
        ("weighted", 1, "a:cat b:dog c:cow", "settled", "cat"),  # equally probable: the first
    ],
)
def test_rules_by_hand(rule: str, min_annotators: int, answers: str, state: str, word: str | None) -> None:
    found = status_of(*answers.split(), rule=rule, min_annotators=min_annotators)
    assert (found.state, found.word) == (state, word)


def test_unsure_answers_are_asked_again_or_void() -> None:
    again, void = (
        status_of("a:unsure", "b:cat", rule="unanimous", min_annotators=2, on_unsure=u)
        for u in ("ask_another", "void")
    )
    assert (again.state, again.unsure_annotators, len(again.votes)) == ("open", ("a",), 1)
    assert (void.state, void.unsure_annotators) == ("disputed", ())
    assert {vote.word for vote in void.votes} == {"void", "cat"}
    assert status_of("a:unsure", on_unsure="void").word == "void"


def test_refused_answers_cost_nothing_and_all_others_cost_their_seconds() -> None:
    assert status_of("a:cat", "a:dog", "b:skip", "b:").seconds == 8.0
    late = Answer("q", "dog", "class", "b", "now", "test", 1, 3.0, reject_reason="late")
    found = question_status([late], RoundRules(1, CLASSES))
    assert (found.state, found.votes, found.seconds) == ("open", (), 0.0)


WORDS = st.sampled_from([*CLASSES, "void", "unsure", "skip", ""])
ANSWERS = st.lists(st.builds("{}:{}".format, st.sampled_from("abcd"), WORDS), max_size=12)


@settings(max_examples=300)
@given(ANSWERS, st.sampled_from(sorted(VOTING_RULES)), st.integers(1, 4))
def test_the_status_equals_a_replay_of_all_answers(
    answers: list[str], rule: str, min_annotators: int
) -> None:
    final: dict[str, str] = {}  # in the order of each annotator's first answer
    last: dict[str, int] = {}
    for index, one in enumerate(answers):
        annotator, _, word = one.partition(":")
        if word == "":
            final.pop(annotator, None)
        elif word != "skip":
            final[annotator], last[annotator] = word, index
    votes = {annotator: word for annotator, word in final.items() if word != "unsure"}
    label, state = None, "open"
    if len(votes) >= min_annotators:
        common, count = Counter(votes.values()).most_common(1)[0]
        label = {
            "first": next(iter(votes.values())),
            "newest": votes[max(votes, key=lambda annotator: last[annotator])],
            "majority": common if count > len(votes) / 2 else None,
            "unanimous": common if count == len(votes) else None,
        }[rule]
        state = "disputed" if label is None else "settled"
    found = status_of(*answers, rule=rule, min_annotators=min_annotators)
    assert (found.state, found.word) == (state, label)
    assert {vote.annotator: vote.word for vote in found.votes} == votes
    assert found.has_conflict == (len(set(votes.values())) > 1)
    assert set(found.unsure_annotators) == final.keys() - votes.keys()


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (
            {"rule": "loudest"},
            "rule must be one of first, newest, majority, unanimous, weighted, not 'loudest'",
        ),
        ({"min_annotators": 0}, "min_annotators must be a positive integer, not 0"),
        ({"min_annotators": True}, "min_annotators must be"),
        ({"min_annotators": 1.5}, "min_annotators must be"),
        ({"overlap": 1.5}, "overlap must be a number from 0 to 1, not 1.5"),
        ({"overlap": True}, "overlap must be"),
        ({"min_probability": "high"}, "min_probability must be a number from 0 to 1"),
        ({"max_annotators": 0}, "max_annotators must be a positive integer"),
        (
            {"rule": "weighted", "min_annotators": 4},
            r"max_annotators is 3, less than min_annotators \(4\)",
        ),
        ({"rule": "weighted", "max_annotators": 1, "overlap": 0.1}, "less than the two that overlap needs"),
        ({"on_unsure": "maybe"}, "on_unsure must be ask_another or void"),
        ({"allow_new_classes": "yes"}, "allow_new_classes must be true or false"),
    ],
)
def test_invalid_parameters_are_reported(params: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_rules(**params)  # type: ignore[arg-type]


def test_the_default_number_of_annotators_depends_on_the_rule() -> None:
    found = {rule: make_rules(rule=rule)["min_annotators"] for rule in (*VOTING_RULES, "weighted")}
    assert found == {"first": 1, "newest": 1, "majority": 3, "unanimous": 2, "weighted": 1}
    assert make_rules(rule="unanimous", min_annotators=4)["min_annotators"] == 4


@pytest.mark.parametrize("name", ["void", "Unsure", "skip"])
def test_a_reserved_class_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=name):
        HumanOracle(tmp_path, toy().pool, ["cat", name])


def test_a_class_name_with_a_trailing_space_matches() -> None:
    for word in ("cat ", "cat", " CAT"):
        assert parse_word(word, ["cat ", "dog"]) == ("class", "cat ")
