"""Statistics of human annotation: answers, time, disagreements and void labels by run."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ducats.annotation import VOID_WORD, AnnotationStore, Question
from ducats.annotation.summary import (
    AnnotatorSummary,
    Dispute,
    RoundSummary,
    list_disputes,
    summarise_annotators,
    summarise_rounds,
)
from ducats.report.run_reader import Run
from ducats.runfolder.question_names import ANSWER_LOG

MAX_SHOWN_QUESTIONS = 20  # disagreements, and void labels, shown per run
QUESTION_THUMBNAIL_SIDE = 96  # longer side of a thumbnail in pixels
PIXEL_CROP_MARGIN = 24  # pixels shown on each side of the queried pixel


@dataclass(frozen=True)
class AnsweredQuestion:
    """A question with its answers, as shown on the page."""

    round: int
    question_id: str
    answers: str
    label: str
    thumbnail: str  # data URL; empty if the image cannot be read


@dataclass(frozen=True)
class AnnotationStats:
    """Annotation statistics of one run."""

    run_name: str
    rounds: tuple[RoundSummary, ...]
    annotators: tuple[AnnotatorSummary, ...]
    seconds: float | None  # total of all annotators; None if no times were recorded
    n_multi_annotated: int
    n_unanimous: int
    n_disputes: int
    shown_disputes: tuple[AnsweredQuestion, ...]  # the first disagreements
    n_voids: int
    shown_voids: tuple[AnsweredQuestion, ...]
    n_late: int

    @property
    def unanimous_share(self) -> str:
        """Percentage of unanimous answers among the questions with several annotators."""
        return f"{100 * self.n_unanimous / self.n_multi_annotated:.0f}%" if self.n_multi_annotated else "–"


def annotation_stats(runs: Sequence[Run]) -> list[AnnotationStats]:
    """Return the statistics of all runs with answers of annotators, in the order of the runs."""
    return [_run_stats(run) for run in runs if (run.files.questions_path / ANSWER_LOG).is_file()]


def _run_stats(run: Run) -> AnnotationStats:
    store = AnnotationStore(run.files.questions_path)
    rounds, annotators = summarise_rounds(store), summarise_annotators(store)
    disputes = list_disputes(store)
    voids = _void_questions(store)
    annotator_seconds = [summary.seconds for summary in annotators if summary.median_seconds is not None]
    return AnnotationStats(
        run.name,
        tuple(rounds),
        tuple(annotators),
        sum(annotator_seconds) if annotator_seconds else None,
        sum(summary.multi_annotated for summary in rounds),
        sum(summary.unanimous for summary in rounds),
        len(disputes),
        tuple(_answered_question(store, dispute) for dispute in disputes[:MAX_SHOWN_QUESTIONS]),
        len(voids),
        tuple(_answered_question(store, void) for void in voids[:MAX_SHOWN_QUESTIONS]),
        sum(summary.rejected.get("late", 0) for summary in rounds),
    )


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


def _answered_question(store: AnnotationStore, dispute: Dispute) -> AnsweredQuestion:
    answers = ", ".join(f"{vote.annotator or 'anonymous'}: {vote.word}" for vote in dispute.votes)
    thumbnail = _thumbnail_url(
        store.round_folder(dispute.round) / dispute.question.image_path, dispute.question
    )
    label = dispute.label or ("by PNG" if dispute.answered_by_png else "none yet")
    if dispute.label not in (None, VOID_WORD, *store.question_round(dispute.round).rules.classes):
        label += " (not a class: void)"
    return AnsweredQuestion(dispute.round, dispute.question.id, answers, label, thumbnail)


def _thumbnail_url(path: Path, question: Question) -> str:
    """Return a thumbnail of a question as a data URL; for a pixel question, of the area around the pixel."""
    try:
        with Image.open(path) as image:
            crop = image.convert("RGB")
    except (OSError, SyntaxError, ValueError):
        return ""  # an unreadable image must not prevent the page
    if question.area is not None:
        y, x = question.area.y, question.area.x
        left, top = max(0, x - PIXEL_CROP_MARGIN), max(0, y - PIXEL_CROP_MARGIN)
        crop = crop.crop(
            (
                left,
                top,
                min(crop.width, x + PIXEL_CROP_MARGIN + 1),
                min(crop.height, y + PIXEL_CROP_MARGIN + 1),
            )
        )
    scale = QUESTION_THUMBNAIL_SIDE / max(crop.size)
    size = tuple(max(1, round(side * scale)) for side in crop.size)
    thumbnail = crop.resize(
        (size[0], size[1]), Image.Resampling.BOX if scale < 1 else Image.Resampling.NEAREST
    )
    buffer = io.BytesIO()
    thumbnail.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
