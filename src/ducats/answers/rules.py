"""Rules that turn several answers to one question into one label."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ducats.answers.answer import VOID_WORD, Answer
from ducats.answers.question import Terms


class Vote(NamedTuple):
    """The final answer of one annotator."""

    who: str
    word: str
    first: int  # index of the annotator's first answer among all answers to the question
    last: int  # index of the last one


Rule = Callable[[Sequence[Vote], int], str | None]


def first(votes: Sequence[Vote], people: int) -> str | None:
    """Return the word of the annotator who answered first."""
    return min(votes, key=lambda vote: vote.first).word if len(votes) >= people else None


def newest(votes: Sequence[Vote], people: int) -> str | None:
    """Return the word of the annotator who answered last."""
    return max(votes, key=lambda vote: vote.last).word if len(votes) >= people else None


def majority(votes: Sequence[Vote], people: int) -> str | None:
    """Return the word with more than half of the votes."""
    if len(votes) < people:
        return None
    word, count = Counter(vote.word for vote in votes).most_common(1)[0]
    return word if 2 * count > len(votes) else None


def agree(votes: Sequence[Vote], people: int) -> str | None:
    """Return the word if all annotators agree."""
    words = {vote.word for vote in votes}
    return words.pop() if len(votes) >= people and len(words) == 1 else None


RULES: Mapping[str, Rule] = {"first": first, "newest": newest, "majority": majority, "agree": agree}
PEOPLE: Mapping[str, int] = {"first": 1, "newest": 1, "majority": 3, "agree": 2}  # default annotators


def ruling(
    *, rule: str = "first", people: int | None = None, unsure: str = "again", new_classes: bool = False
) -> dict[str, Any]:
    """Validate the settings of all rounds of a run; return them as keyword arguments of ``Terms``.

    Args:
        rule: how several answers become one label: first, newest, majority, or agree (wait until all
            annotators agree).
        people: number of different annotators that each question needs; None for the rule's default.
        unsure: how to treat an unsure answer: ``again`` asks someone else, ``void`` labels it VOID.
        new_classes: whether to accept unknown class names, as VOID; rejected otherwise.

    >>> ruling(rule="agree")["people"], ruling(people=2)["rule"]
    (2, 'first')
    """
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, not {rule!r}")
    if people is not None and (isinstance(people, bool) or not isinstance(people, int) or people < 1):
        raise ValueError(f"people must be a positive integer, not {people!r}")
    if unsure not in ("again", "void"):
        raise ValueError(f"unsure must be again or void, not {unsure!r}")
    if not isinstance(new_classes, bool):
        raise ValueError(f"new_classes must be true or false, not {new_classes!r}")
    needed = PEOPLE[rule] if people is None else people
    return {"rule": rule, "people": needed, "unsure": unsure, "new_classes": new_classes}


@dataclass(frozen=True)
class Standing:
    """Status of a question."""

    state: Literal["open", "disputed", "settled"]
    word: str | None  # the label, if settled
    votes: tuple[Vote, ...]
    unsure: tuple[str, ...]  # annotators who are unsure
    seconds: float  # annotation time of all answers

    @property
    def contradicting(self) -> bool:
        """Whether annotators disagree, even if the question is settled."""
        return len({vote.word for vote in self.votes}) > 1


def standing(answers: Sequence[Answer], terms: Terms) -> Standing:
    """Compute the status of a question from all answers to it, in the order of arrival."""
    first_at: dict[str, int] = {}
    said: dict[str, tuple[Answer, int]] = {}
    seconds = 0.0
    for place, answer in enumerate(answers):
        if answer.refused is not None:
            continue
        seconds += answer.seconds or 0.0
        if answer.kind == "skip":
            continue
        if answer.kind == "undo":
            said.pop(answer.who, None)
            first_at.pop(answer.who, None)
            continue
        first_at.setdefault(answer.who, place)
        said[answer.who] = (answer, place)
    votes, unsure = [], []
    for who, (answer, place) in said.items():
        if answer.kind == "unsure" and terms.unsure == "again":
            unsure.append(who)
            continue
        word = VOID_WORD if answer.kind == "unsure" else answer.word
        votes.append(Vote(who, word, first_at[who], place))
    decided = RULES[terms.rule](votes, terms.people) if votes else None
    enough = len(votes) >= terms.people
    state: Literal["open", "disputed", "settled"] = (
        "settled" if decided is not None else "disputed" if enough and votes else "open"
    )
    return Standing(state, decided, tuple(votes), tuple(unsure), seconds)
