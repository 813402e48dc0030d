"""Summary of the answers by round and by annotator, and the disputed questions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ducats.annotation.answer import Answer
from ducats.annotation.question import Question
from ducats.annotation.rules import QuestionStatus, Vote
from ducats.annotation.store import AnnotationStore


@dataclass(frozen=True)
class RoundSummary:
    """Status of a round."""

    round: int
    questions: int
    settled: int
    open: int
    disputed: int
    void: int  # settled as void
    new_classes: Mapping[str, int]  # settled with a name outside the classes, with counts
    multi_annotated: int  # questions with more than one annotator
    unanimous: int  # among these, questions on which all annotators agree
    rejected: Mapping[str, int]  # number of answers that do not count, by reason
    closed_reason: str  # why the round was closed; empty if it is open
    answered_by_png: int = 0  # questions answered by label PNGs only; neither open nor disputed


@dataclass(frozen=True)
class AnnotatorSummary:
    """Statistics of one annotator."""

    annotator: str
    answers: int  # without withdrawn, repeated and rejected answers
    void: int
    unsure: int
    seconds: float  # total, including withdrawn and skipped answers
    median_seconds: float | None  # per answer; None if unknown
    compared: int  # answers to settled questions with other annotators
    agreed: int  # among these, answers equal to the label


@dataclass(frozen=True)
class Dispute:
    """A question on which annotators disagree."""

    round: int
    question: Question
    votes: tuple[Vote, ...]
    label: str | None  # None if there is none yet
    answered_by_png: bool = False  # whether a label PNG answers it


def annotator_name(name: str) -> str:
    """Return how an annotator is shown.

    >>> annotator_name("anna"), annotator_name("")
    ('anna', '(unknown)')
    """
    return name or "(unknown)"


def summarise_rounds(store: AnnotationStore) -> list[RoundSummary]:
    """Summarise each round, oldest first."""
    rejected: dict[int, Counter[str]] = {}
    for answer in store.answers():
        if answer.reject_reason is not None:
            rejected.setdefault(answer.round, Counter())[answer.reject_reason] += 1
    summaries = []
    for round_number in store.round_numbers():
        statuses, closed = store.statuses(round_number), store.closed_round(round_number)
        classes = set(store.question_round(round_number).rules.classes)
        answered_by_png = closed.answered_by_png if closed is not None else ()
        states = Counter(
            status.state for question, status in statuses.items() if question not in answered_by_png
        )
        words = [one.word for one in statuses.values() if one.word is not None]
        non_class_words = [word for word in words if word not in classes]
        multi_annotated = [one for one in statuses.values() if len(one.votes) > 1]
        summaries.append(
            RoundSummary(
                round_number,
                len(statuses),
                states["settled"],
                states["open"],
                states["disputed"],
                void=non_class_words.count("void"),
                new_classes=Counter(word for word in non_class_words if word != "void"),
                multi_annotated=len(multi_annotated),
                unanimous=sum(not one.has_conflict for one in multi_annotated),
                rejected=dict(sorted(rejected.get(round_number, Counter()).items())),
                closed_reason=closed.reason if closed is not None else "",
                answered_by_png=len(answered_by_png),
            )
        )
    return summaries


def count_unassigned(store: AnnotationStore) -> dict[str, int]:
    """Count the answers that belong to no round, by reject reason."""
    return dict(sorted(Counter(str(a.reject_reason) for a in store.answers() if a.round == 0).items()))


def summarise_annotators(store: AnnotationStore) -> list[AnnotatorSummary]:
    """Summarise each annotator, sorted by name."""
    answers_by_annotator: dict[str, list[Answer]] = {}
    for answer in store.answers():
        if answer.reject_reason is None:
            answers_by_annotator.setdefault(answer.annotator, []).append(answer)
    statuses = [
        status for round_number in store.round_numbers() for status in store.statuses(round_number).values()
    ]
    return [
        _summarise_annotator(annotator, answers, statuses)
        for annotator, answers in sorted(answers_by_annotator.items())
    ]


def _summarise_annotator(
    annotator: str, answers: Sequence[Answer], statuses: Sequence[QuestionStatus]
) -> AnnotatorSummary:
    known = [(answer.seconds, answer.kind) for answer in answers if answer.seconds is not None]
    answer_seconds = [seconds for seconds, kind in known if kind not in ("skip", "undo")]
    own_votes = [
        (vote, status) for status in statuses for vote in status.votes if vote.annotator == annotator
    ]
    compared = [(vote, one) for vote, one in own_votes if one.word is not None and len(one.votes) > 1]
    return AnnotatorSummary(
        annotator,
        answers=len(own_votes),
        void=sum(vote.word == "void" for vote, _ in own_votes),
        unsure=sum(annotator in one.unsure_annotators for one in statuses),
        seconds=sum(seconds for seconds, _ in known),
        median_seconds=median(answer_seconds) if answer_seconds else None,
        compared=len(compared),
        agreed=sum(vote.word == one.word for vote, one in compared),
    )


def list_disputes(store: AnnotationStore) -> list[Dispute]:
    """Return the questions on which annotators disagree, in order."""
    disputes = []
    for round_number in store.round_numbers():
        statuses, closed = store.statuses(round_number), store.closed_round(round_number)
        answered_by_png = closed.answered_by_png if closed is not None else ()
        for question in store.question_round(round_number).questions:
            status = statuses[question.id]
            if status.has_conflict:
                disputes.append(
                    Dispute(round_number, question, status.votes, status.word, question.id in answered_by_png)
                )
    return disputes
