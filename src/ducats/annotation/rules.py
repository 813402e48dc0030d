"""Rules that turn several answers to one question into one label."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ducats.annotation.answer import REVIEW_CHANNEL, SHARED_CHANNEL, VOID_WORD, Answer
from ducats.annotation.question import RoundRules

if TYPE_CHECKING:  # keeps `--help` fast
    from ducats.annotation.dawid_skene import AnnotatorModel


class Vote(NamedTuple):
    """The final answer of one annotator."""

    annotator: str
    word: str
    first_index: int  # index of the annotator's first answer among all answers to the question
    last_index: int  # index of the last one


VotingRule = Callable[[Sequence[Vote]], str | None]  # called only with enough votes


def first(votes: Sequence[Vote]) -> str:
    """Return the word of the annotator who answered first."""
    return min(votes, key=lambda vote: vote.first_index).word


def newest(votes: Sequence[Vote]) -> str:
    """Return the word of the annotator who answered last."""
    return max(votes, key=lambda vote: vote.last_index).word


def majority(votes: Sequence[Vote]) -> str | None:
    """Return the word with more than half of the votes."""
    word, count = Counter(vote.word for vote in votes).most_common(1)[0]
    return word if 2 * count > len(votes) else None


def unanimous(votes: Sequence[Vote]) -> str | None:
    """Return the word if all annotators agree."""
    words = {vote.word for vote in votes}
    return words.pop() if len(words) == 1 else None


def weighted(votes: Sequence[Vote], rules: RoundRules, model: "AnnotatorModel") -> str | None:
    """Return the most probable word given, if it is probable enough or no one else is to be asked."""
    posterior = model.posterior({vote.annotator: vote.word for vote in votes})
    best = max(votes, key=lambda vote: (posterior[vote.word], -vote.first_index)).word
    is_final = len(votes) >= rules.max_annotators
    return best if is_final or posterior[best] >= rules.min_probability else None


VOTING_RULES: Mapping[str, VotingRule] = {  # without ``weighted``, which depends on other questions, too
    "first": first,
    "newest": newest,
    "majority": majority,
    "unanimous": unanimous,
}
DEFAULT_MIN_ANNOTATORS = {"first": 1, "newest": 1, "majority": 3, "unanimous": 2, "weighted": 1}


def make_rules(
    *,
    rule: str = "first",
    min_annotators: int | None = None,
    on_unsure: str = "ask_another",
    allow_new_classes: bool = True,
    overlap: float = 0.0,
    min_probability: float = 0.9,
    max_annotators: int = 3,
) -> dict[str, Any]:
    """Validate the settings of all rounds of a run; return them as keyword arguments of ``RoundRules``.

    ``min_annotators`` is that of the rule if None.

    >>> make_rules(rule="unanimous")["min_annotators"], make_rules(min_annotators=2)["rule"]
    (2, 'first')
    """
    if rule not in DEFAULT_MIN_ANNOTATORS:
        raise ValueError(f"rule must be one of {', '.join(DEFAULT_MIN_ANNOTATORS)}, not {rule!r}")
    for name, number in (("min_annotators", min_annotators), ("max_annotators", max_annotators)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ValueError(f"{name} must be a positive integer, not {number!r}")
    for name, share in (("overlap", overlap), ("min_probability", min_probability)):
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ValueError(f"{name} must be a number from 0 to 1, not {share!r}")
    if on_unsure not in ("ask_another", "void"):
        raise ValueError(f"on_unsure must be ask_another or void, not {on_unsure!r}")
    if not isinstance(allow_new_classes, bool):
        raise ValueError(f"allow_new_classes must be true or false, not {allow_new_classes!r}")
    n_needed = DEFAULT_MIN_ANNOTATORS[rule] if min_annotators is None else min_annotators
    if rule == "weighted" and max_annotators < max(n_needed, 2 if overlap else 1):
        raise ValueError(
            f"max_annotators is {max_annotators}, less than "
            f"{f'min_annotators ({n_needed})' if n_needed > 1 else 'the two that overlap needs'}"
        )
    return {
        "rule": rule,
        "min_annotators": n_needed,
        "on_unsure": on_unsure,
        "allow_new_classes": allow_new_classes,
        "overlap": float(overlap),
        "min_probability": float(min_probability),
        "max_annotators": max_annotators,
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


def question_status(
    answers: Sequence[Answer], rules: RoundRules, model: "AnnotatorModel | None" = None
) -> QuestionStatus:
    """Compute the status of a question from all answers to it, in the order of arrival.

    Args:
        model: errors of the annotators, for the rule ``weighted``; None if nothing is known about them.
    """
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
    label: str | None = None
    is_enough = bool(votes) and len(votes) >= rules.min_annotators
    if is_enough and rules.rule == "weighted":
        label = weighted(votes, rules, model or _unknown_annotators(votes, rules))
    elif is_enough:
        label = VOTING_RULES[rules.rule](votes)
    # With ``weighted``, annotators may agree and yet not be trusted enough.
    is_disputed = is_enough and (rules.rule != "weighted" or len({vote.word for vote in votes}) > 1)
    state: Literal["open", "disputed", "settled"] = (
        "settled" if label is not None else "disputed" if is_disputed else "open"
    )
    return QuestionStatus(state, label, tuple(votes), tuple(unsure_annotators), seconds)


def _unknown_annotators(votes: Sequence[Vote], rules: RoundRules) -> "AnnotatorModel":
    from ducats.annotation.dawid_skene import fit_annotators  # needs NumPy; keeps `--help` fast

    return fit_annotators([], possible_words(rules.classes, (vote.word for vote in votes)))


def possible_words(classes: Sequence[str], given: Iterable[str]) -> list[str]:
    """Return all words that can be the answer: the classes, void, and other names that were given.

    >>> possible_words(("cat", "dog"), ["horse", "cat"])
    ['cat', 'dog', 'void', 'horse']
    """
    return list(dict.fromkeys((*classes, VOID_WORD, *sorted(given))))


def independent_words(answers: Iterable[Answer]) -> dict[str, str]:
    """Return the first word of each known annotator, given without knowledge of the answers of others.

    The page shows others' answers in review mode, and to annotators after whom someone answered differently.
    Until someone else has answered, an annotator may withdraw the first word and answer again. Copies of
    answers to other runs are left out: they may have been changed in a dispute there.
    """
    words: dict[str, str] = {}
    informed: set[str] = set()  # annotators after whom someone else answered
    for answer in answers:
        name = answer.annotator
        if answer.reject_reason is not None or not name or answer.channel == SHARED_CHANNEL:
            continue
        if answer.kind == "undo" and name not in informed:
            words.pop(name, None)
        if answer.kind not in ("class", "void", "new"):
            continue
        if answer.channel == REVIEW_CHANNEL:
            informed.add(name)
        elif name not in informed:
            words.setdefault(name, answer.word)
        informed |= words.keys() - {name}
    return words
