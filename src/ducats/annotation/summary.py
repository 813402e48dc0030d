"""Summary of the answers by round and by annotator, and the disputed questions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from ducats.annotation.agreement import Agreement, ErrorRate, measure_agreement
from ducats.annotation.answer import REVIEW_CHANNEL, Answer
from ducats.annotation.question import Question
from ducats.annotation.rules import QuestionStatus, Vote
from ducats.annotation.store import AnnotationStore
from ducats.runfolder import checksums
from ducats.runfolder.question_names import MASKS, RULES
from ducats.runfolder.records import describe_timed
from ducats.runfolder.rounds import rounds_in


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
    timed: int  # among these, answers with a known time
    void: int
    unsure: int
    seconds: float  # total of the known times, including withdrawn and skipped answers
    median_seconds: float | None  # per answer; None if unknown
    compared: int  # answers to settled questions with other annotators
    agreed: int  # among these, answers equal to the label


@dataclass(frozen=True)
class ChannelSummary:
    """What arrived through one channel: a tool, or files."""

    channel: str
    answers: int  # without withdrawn, repeated and rejected answers; 0 for label PNGs
    pixels: int  # that these answers or the PNGs label; 0 if images are labelled

    def __str__(self) -> str:
        pixels = f"{self.pixels:,} {'pixel' if self.pixels == 1 else 'pixels'}"
        if not self.answers:
            return f"{self.channel}: {pixels}"
        answers = f"{self.answers:,} {'answer' if self.answers == 1 else 'answers'}"
        return f"{self.channel}: {answers}" + (f" ({pixels})" if self.pixels else "")


class FinalAnswer(NamedTuple):
    """The final answer of one annotator to one question."""

    question: Question
    status: QuestionStatus
    vote: Vote
    channel: str  # of the last answer
    is_timed: bool  # whether the time of this or of an earlier answer of the annotator is known


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
    """Summarise each round, oldest first; raise if the rules of one are missing."""
    for name in checksums.missing(store.folder.parent, f"{store.folder.name}/*/{RULES}"):
        checksums.verify(store.folder.parent / name)
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
    """Summarise each annotator, sorted by name, with the unknown ones last."""
    answers_by_annotator: dict[str, list[Answer]] = {}
    for answer in store.answers():
        if answer.reject_reason is None:
            answers_by_annotator.setdefault(answer.annotator, []).append(answer)
    statuses = [
        status for round_number in store.round_numbers() for status in store.statuses(round_number).values()
    ]
    final = final_answers(store)
    return [
        _summarise_annotator(annotator, answers_by_annotator[annotator], statuses, final)
        for annotator in sorted(answers_by_annotator, key=lambda name: (not name, name))
    ]


def final_answers(store: AnnotationStore) -> list[FinalAnswer]:
    """Return the answers that count, one per annotator and question."""
    channels: dict[tuple[int, str, str], str] = {}
    timed: set[tuple[int, str, str]] = set()
    for answer in store.answers():
        if answer.reject_reason is None and answer.kind not in ("skip", "undo"):
            key = (answer.round, answer.question, answer.annotator)
            channels[key] = answer.channel
            timed |= {key} if answer.seconds is not None else set()
    found = []
    for round_number in store.round_numbers():
        questions = store.question_round(round_number).by_id
        for question, status in store.statuses(round_number).items():
            keys = [(round_number, question, vote.annotator) for vote in status.votes]
            found += [
                FinalAnswer(questions[question], status, vote, channels[key], key in timed)
                for key, vote in zip(keys, status.votes, strict=True)
            ]
    return found


def describe_timed_answers(store: AnnotationStore) -> str:
    """Say how many answers have a known time; empty if all have."""
    final = final_answers(store)
    return describe_timed(sum(one.is_timed for one in final), len(final))


def summarise_channels(store: AnnotationStore) -> list[ChannelSummary]:
    """Summarise the labels by channel: the page, other tools, CSV files, and label PNGs last."""
    answers, pixels = Counter[str](), Counter[str]()
    for one in final_answers(store):
        name = channel_name(one.channel)
        answers[name] += 1
        pixels[name] += _n_pixels(one.question)
    found = [ChannelSummary(name, count, pixels[name]) for name, count in sorted(answers.items())]
    n_by_png = count_png_pixels(store)
    return [*found, ChannelSummary("label PNGs", 0, n_by_png)] if n_by_png else found


def channel_name(channel: str) -> str:
    """Return how a channel is shown.

    >>> channel_name("page"), channel_name("round-01/answers.csv"), channel_name("mine")
    ('labelling page', 'CSV files', 'mine')
    """
    names = {"page": "labelling page", "label-studio": "Label Studio", REVIEW_CHANNEL: "review"}
    return "CSV files" if channel.endswith(".csv") else names.get(channel, channel)


def _n_pixels(question: Question) -> int:
    return sum(length for _, length in question.area.runs) if question.area is not None else 0


def count_png_pixels(store: AnnotationStore) -> int:
    """Count the acquired pixels that label PNGs answered."""
    from ducats.runfolder.run_folder import RunFolder  # needs NumPy; keeps `--help` fast

    run_folder, with_words, total = RunFolder(store.folder.parent), store.round_numbers(), 0
    for round_number in rounds_in(store.folder, f"*/{MASKS}"):
        total += run_folder.count_round_labels(round_number)
        closed = store.closed_round(round_number) if round_number in with_words else None
        if closed is not None and run_folder.count_round_labels(round_number):
            by_id = store.question_round(round_number).by_id
            total -= sum(_n_pixels(by_id[question]) for question in closed.words if question in by_id)
    return total


def _summarise_annotator(
    annotator: str,
    answers: Sequence[Answer],
    statuses: Sequence[QuestionStatus],
    final: Sequence[FinalAnswer],
) -> AnnotatorSummary:
    known = [(answer.seconds, answer.kind) for answer in answers if answer.seconds is not None]
    answer_seconds = [seconds for seconds, kind in known if kind not in ("skip", "undo")]
    own_final = [one for one in final if one.vote.annotator == annotator]
    own_votes = [(one.vote, one.status) for one in own_final]
    compared = [(vote, one) for vote, one in own_votes if one.word is not None and len(one.votes) > 1]
    return AnnotatorSummary(
        annotator,
        answers=len(own_votes),
        timed=sum(one.is_timed for one in own_final),
        void=sum(vote.word == "void" for vote, _ in own_votes),
        unsure=sum(annotator in one.unsure_annotators for one in statuses),
        seconds=sum(seconds for seconds, _ in known),
        median_seconds=median(answer_seconds) if answer_seconds else None,
        compared=len(compared),
        agreed=sum(vote.word == one.word for vote, one in compared),
    )


@dataclass(frozen=True)
class AnnotatorQuality:
    """How far annotators agree, and how often each is probably wrong."""

    agreement: Agreement | None  # None if no question has two independent answers
    errors: Mapping[str, ErrorRate]  # by annotator


def annotator_quality(store: AnnotationStore) -> AnnotatorQuality:
    """Measure agreement and errors on the questions that several annotators answered independently."""
    numbers = store.round_numbers()
    questions = [words for number in numbers for words in store.independent_words(number).values()]
    agreement = measure_agreement(questions)
    errors = store.annotator_model(numbers[-1]).error_rates(questions) if agreement is not None else {}
    return AnnotatorQuality(agreement, errors)


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
