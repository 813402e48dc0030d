"""Statistics of human annotation: answers, time, disagreements and void labels by run."""

import base64
import io
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ducats.annotation import VOID_WORD, AnnotationStore, Question
from ducats.annotation.agreement import ErrorRate
from ducats.annotation.shared_answers import answered_questions, question_subject
from ducats.annotation.summary import (
    AnnotatorQuality,
    AnnotatorSummary,
    ChannelSummary,
    Dispute,
    RoundSummary,
    annotator_name,
    annotator_quality,
    count_png_pixels,
    list_disputes,
    summarise_annotators,
    summarise_channels,
    summarise_rounds,
)
from ducats.annotation.suspicious import suspicious_answers
from ducats.report.run_reader import Run
from ducats.report.table import EMPTY_CELL, Cell, Table, make_table
from ducats.runfolder import checksums
from ducats.runfolder.amendments import CorrectedLabels
from ducats.runfolder.question_names import ANSWER_LOG
from ducats.runfolder.records import describe_timed
from ducats.utils.findings import pluralise

MAX_SHOWN_QUESTIONS = 20  # disagreements, and void labels, shown per run
QUESTION_THUMBNAIL_SIDE = 96  # longer side of a thumbnail in pixels
PIXEL_CROP_MARGIN = 24  # pixels shown on each side of the queried pixel


@dataclass(frozen=True)
class QuestionList:
    """The first of ``total`` questions, and their thumbnails as data URLs, empty if unreadable."""

    total: int
    table: Table
    thumbnails: tuple[str, ...]


@dataclass(frozen=True)
class AnnotationStats:
    """Annotation statistics of one run."""

    run_name: str
    rounds: tuple[RoundSummary, ...]
    annotators: tuple[AnnotatorSummary, ...]
    quality: AnnotatorQuality
    channels: tuple[ChannelSummary, ...]
    disputes: QuestionList
    voids: QuestionList
    suspicious: QuestionList
    corrected: str  # how many labels or pixels were
    corrections: Table  # all of them, oldest first
    n_unused_corrections: int  # made after the run took its newest round
    answered: tuple[Hashable, ...]  # what each answered question is about: equal if runs share the answer

    @property
    def n_multi_annotated(self) -> int:
        """Number of questions with several answers."""
        return sum(summary.multi_annotated for summary in self.rounds)

    @property
    def unanimous_share(self) -> str:
        """Percentage of unanimous answers among the questions with several annotators."""
        n_unanimous = sum(summary.unanimous for summary in self.rounds)
        return f"{100 * n_unanimous / self.n_multi_annotated:.0f}%" if self.n_multi_annotated else EMPTY_CELL

    @property
    def n_late(self) -> int:
        """Number of answers after the end of their round."""
        return sum(summary.rejected.get("late", 0) for summary in self.rounds)

    @property
    def total(self) -> str:
        """Who answered, how long it took and how the answers arrived, as a phrase."""
        return describe_annotation(self.annotators, self.channels)

    @property
    def annotator_table(self) -> Table:
        """One row per annotator."""
        return annotator_table(self.annotators, self.quality.errors)

    @property
    def agreement(self) -> str:
        """Agreement of the annotators as a sentence; empty if no question was answered by two."""
        text = str(self.quality.agreement or "")
        return f"{text[:1].upper()}{text[1:]}"


def annotator_table(
    annotators: Sequence[AnnotatorSummary], errors: Mapping[str, ErrorRate] | None = None
) -> Table:
    """Return a table with one row per annotator, and with their errors if given."""
    titles = (
        "Annotator",
        "Answers",
        "Void",
        "Unsure",
        "Timed",
        "Median seconds",
        "Minutes",
        "Agrees with label",
        *(["Estimated error"] if errors else []),
    )
    rows: list[list[Cell]] = []
    for each in annotators:
        is_timed = each.median_seconds is not None
        rows.append(
            [
                *(annotator_name(each.annotator), each.answers, each.void, each.unsure, each.timed),
                f"{each.median_seconds:.1f}" if is_timed else EMPTY_CELL,
                f"{each.seconds / 60:.1f}" if is_timed else EMPTY_CELL,
                f"{each.agreed} of {each.compared}" if each.compared else EMPTY_CELL,
                *([str(errors.get(each.annotator, EMPTY_CELL))] if errors else []),
            ]
        )
    return make_table(titles, rows)


def describe_annotation(annotators: Sequence[AnnotatorSummary], channels: Sequence[ChannelSummary]) -> str:
    """Return who answered, how long the timed answers took, and the channels."""
    named = [each for each in annotators if each.annotator]
    phrases = [pluralise(len(named), "annotator")] if named else []
    if unknown := sum(each.answers for each in annotators if not each.annotator):
        phrases.append(f"{pluralise(unknown, 'answer')} by unknown annotators")
    n_answers, n_timed = sum(each.answers for each in annotators), sum(each.timed for each in annotators)
    if any(each.median_seconds is not None for each in annotators):
        timed = f" ({note})" if (note := describe_timed(n_timed, n_answers)) else ""
        phrases.append(f"{sum(each.seconds for each in annotators) / 60:.1f} minutes in total{timed}")
    elif n_answers:
        phrases.append(describe_timed(n_timed, n_answers))
    by_channel = "; ".join(map(str, channels))
    return " – ".join(filter(None, (", ".join(phrases), by_channel)))


def annotation_stats(runs: Sequence[Run]) -> list[AnnotationStats]:
    """Return the statistics of all runs with answers of annotators, in the order of the runs."""
    for run in runs:
        checksums.verify(run.files.questions_path / ANSWER_LOG)  # also raises if it is missing
    return [
        _run_stats(run)
        for run in runs
        if (run.files.questions_path / ANSWER_LOG).is_file()
        or run.files.load_amendments(with_merges=False)
        or count_png_pixels(AnnotationStore(run.files.questions_path))
    ]


def _run_stats(run: Run) -> AnnotationStats:
    store = AnnotationStore(run.files.questions_path)
    return AnnotationStats(
        run.name,
        tuple(summarise_rounds(store)),
        tuple(summarise_annotators(store)),
        annotator_quality(store),
        tuple(summarise_channels(store)),
        _question_list(store, list_disputes(store)),
        _question_list(store, _void_questions(store)),
        _suspicious_list(run, store),
        _describe_corrected(run),
        _correction_table(run),
        run.files.count_unused_corrections(),
        tuple(
            question_subject(question, classes) or (run.name, question.id)
            for question, classes, _ in answered_questions(store)
        ),
    )


def describe_shared_answers(stats: Sequence[AnnotationStats]) -> str:
    """Return how many answers the runs have in common; empty if there are none.

    Their annotation times must then not be added up.
    """
    total = sum(len(each.answered) for each in stats)
    different = len({subject for each in stats for subject in each.answered})
    if total == different:
        return ""
    return (
        f"The {len(stats)} runs asked {total} questions, {different} of them different. An answer that "
        "several runs need is given once; each run counts its label and its time as its own cost."
    )


def _suspicious_list(run: Run, store: AnnotationStore) -> QuestionList:
    found = suspicious_answers(run.files)
    rows = [
        (one.question.id, one.round, one.label, str(one.asked or EMPTY_CELL), str(one.trained or EMPTY_CELL))
        for one in found[:MAX_SHOWN_QUESTIONS]
    ]
    titles = ("Question", "Round", "Label", "Model when asked", "Model trained on it")
    questions = [(one.round, one.question) for one in found[:MAX_SHOWN_QUESTIONS]]
    return QuestionList(len(found), make_table(titles, rows), _thumbnails(store, questions))


def _describe_corrected(run: Run) -> str:
    count = CorrectedLabels.from_amendments(run.files.load_amendments(with_merges=False)).n_corrected
    return pluralise(count, "label" if run.files.load_pool().sizes is None else "pixel")


def _correction_table(run: Run) -> Table:
    rows = [
        (
            one.question,
            one.round,
            one.old,
            one.new,
            annotator_name(amendment.annotator),
            amendment.made_at[:10],
        )
        for amendment in run.files.load_amendments(with_merges=False)
        for one in amendment.corrections
        if one.runs
    ]
    return make_table(("Question", "Round", "From", "To", "By", "Date"), rows, n_text_columns=6)


def _void_questions(store: AnnotationStore) -> list[Dispute]:
    """Return the questions whose label is not one of the classes: void, or a new class name."""
    voids = []
    for round_number in store.round_numbers():
        question_round, statuses = store.question_round(round_number), store.statuses(round_number)
        classes = set(question_round.rules.classes)
        for question in question_round.questions:
            status = statuses[question.id]
            if status.word is not None and status.word not in classes:
                voids.append(Dispute(round_number, question, status.votes, status.word))
    return voids


def _question_list(store: AnnotationStore, questions: Sequence[Dispute]) -> QuestionList:
    shown = questions[:MAX_SHOWN_QUESTIONS]
    rows = [
        (
            each.question.id,
            each.round,
            ", ".join(f"{annotator_name(vote.annotator)}: {vote.word}" for vote in each.votes),
            _label_text(store, each),
        )
        for each in shown
    ]
    table = make_table(("Question", "Round", "Answers", "Label"), rows)
    thumbnails = _thumbnails(store, [(each.round, each.question) for each in shown])
    return QuestionList(len(questions), table, thumbnails)


def _thumbnails(store: AnnotationStore, questions: Sequence[tuple[int, Question]]) -> tuple[str, ...]:
    """Return the thumbnails of questions, given with their rounds."""
    return tuple(
        _thumbnail_url(store.round_folder(round_number) / question.image_path, question)
        for round_number, question in questions
    )


def _label_text(store: AnnotationStore, dispute: Dispute) -> str:
    if dispute.label is None:
        return "by PNG" if dispute.answered_by_png else "none yet"
    is_known = dispute.label in (VOID_WORD, *store.question_round(dispute.round).rules.classes)
    return dispute.label if is_known else f"{dispute.label} (not a class: void)"


def _thumbnail_url(path: Path, question: Question) -> str:
    """Return a thumbnail of a question as a data URL; for a pixel question, of the area around the pixel."""
    try:
        with Image.open(path) as image:
            crop = image.convert("RGB")
    except (OSError, SyntaxError, ValueError):
        return ""  # an unreadable image must not prevent the page
    if question.area is not None:
        y, x, margin = question.area.y, question.area.x, PIXEL_CROP_MARGIN
        right, bottom = min(crop.width, x + margin + 1), min(crop.height, y + margin + 1)
        crop = crop.crop((max(0, x - margin), max(0, y - margin), right, bottom))
    scale = QUESTION_THUMBNAIL_SIDE / max(crop.size)
    size = tuple(max(1, round(side * scale)) for side in crop.size)
    resampling = Image.Resampling.BOX if scale < 1 else Image.Resampling.NEAREST
    thumbnail = crop.resize((size[0], size[1]), resampling)
    buffer = io.BytesIO()
    thumbnail.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
