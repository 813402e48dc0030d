"""Rules that turn several answers to one question into one label."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ducats.annotation.answer import VOID_WORD, Answer
from ducats.annotation.question import RoundRules


class Vote(NamedTuple):
    """The final answer of one annotator."""

    annotator: str
    word: str
    first_index: int  # index of the annotator's first answer among all answers to the question
    last_index: int  # index of the last one


VotingRule = Callable[[Sequence[Vote], int], str | None]


def first(votes: Sequence[Vote], min_annotators: int) -> str | None:
    """Return the word of the annotator who answered first."""
    return min(votes, key=lambda vote: vote.first_index).word if len(votes) >= min_annotators else None


def newest(votes: Sequence[Vote], min_annotators: int) -> str | None:
    """Return the word of the annotator who answered last."""
    return max(votes, key=lambda vote: vote.last_index).word if len(votes) >= min_annotators else None


def majority(votes: Sequence[Vote], min_annotators: int) -> str | None:
    """Return the word with more than half of the votes."""
    if len(votes) < min_annotators:
        return None
    word, count = Counter(vote.word for vote in votes).most_common(1)[0]
    return word if 2 * count > len(votes) else None


def unanimous(votes: Sequence[Vote], min_annotators: int) -> str | None:
    """Return the word if all annotators agree."""
    words = {vote.word for vote in votes}
    return words.pop() if len(votes) >= min_annotators and len(words) == 1 else None


VOTING_RULES: Mapping[str, VotingRule] = {
    "first": first,
    "newest": newest,
    "majority": majority,
    "unanimous": unanimous,
}
DEFAULT_MIN_ANNOTATORS = {"first": 1, "newest": 1, "majority": 3, "unanimous": 2}


def make_rules(
    *,
    rule: str = "first",
    min_annotators: int | None = None,
    on_unsure: str = "ask_another",
    allow_new_classes: bool = False,
) -> dict[str, Any]:
    """Validate the settings of all rounds of a run; return them as keyword arguments of ``RoundRules``.

    ``min_annotators`` is that of the rule if None.

    >>> make_rules(rule="unanimous")["min_annotators"], make_rules(min_annotators=2)["rule"]
    (2, 'first')
    """
    if rule not in VOTING_RULES:
        raise ValueError(f"rule must be one of {', '.join(VOTING_RULES)}, not {rule!r}")
    if min_annotators is not None and (
        isinstance(min_annotators, bool) or not isinstance(min_annotators, int) or min_annotators < 1
    ):
        raise ValueError(f"min_annotators must be a positive integer, not {min_annotators!r}")
    if on_unsure not in ("ask_another", "void"):
        raise ValueError(f"on_unsure must be ask_another or void, not {on_unsure!r}")
    if not isinstance(allow_new_classes, bool):
        raise ValueError(f"allow_new_classes must be true or false, not {allow_new_classes!r}")
    n_needed = DEFAULT_MIN_ANNOTATORS[rule] if min_annotators is None else min_annotators
    return {
        "rule": rule,
        "min_annotators": n_needed,
        "on_unsure": on_unsure,
        "allow_new_classes": allow_new_classes,
    }


@dataclass(frozen=True)
class QuestionStatus:
    """Status of a question."""

    state: Literal["open", "disputed", "settled"]
    word: str | None  # the label, if settled
    votes: tuple[Vote, ...]
    unsure_annotators: tuple[str, ...]  # annotators who are unsure
    seconds: float  # annotation time of all answers

    @property
    def has_conflict(self) -> bool:
        """Whether annotators disagree, even if the question is settled."""
        return len({vote.word for vote in self.votes}) > 1


def question_status(answers: Sequence[Answer], rules: RoundRules) -> QuestionStatus:
    """Compute the status of a question from all answers to it, in the order of arrival."""
    first_index: dict[str, int] = {}
    final_answers: dict[str, tuple[Answer, int]] = {}
    seconds = 0.0
    for index, answer in enumerate(answers):
        if answer.reject_reason is not None:
            continue
        seconds += answer.seconds or 0.0
        if answer.kind == "skip":
            continue
        if answer.kind == "undo":
            final_answers.pop(answer.annotator, None)
            first_index.pop(answer.annotator, None)
            continue
        first_index.setdefault(answer.annotator, index)
        final_answers[answer.annotator] = (answer, index)
    votes, unsure_annotators = [], []
    for annotator, (answer, index) in final_answers.items():
        if answer.kind == "unsure" and rules.on_unsure == "ask_another":
            unsure_annotators.append(annotator)
            continue
        word = VOID_WORD if answer.kind == "unsure" else answer.word
        votes.append(Vote(annotator, word, first_index[annotator], index))
    label = VOTING_RULES[rules.rule](votes, rules.min_annotators) if votes else None
    enough = len(votes) >= rules.min_annotators
    state: Literal["open", "disputed", "settled"] = (
        "settled" if label is not None else "disputed" if enough and votes else "open"
    )
    return QuestionStatus(state, label, tuple(votes), tuple(unsure_annotators), seconds)
