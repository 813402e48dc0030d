"""Statistics of human annotation: answers, time, disagreements and void labels by run."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ducats.annotation import VOID_WORD, AnnotationStore, Question, summary
from ducats.annotation.summary import AnnotatorSummary, Dispute, RoundSummary
from ducats.report.read import Run

SHOWN = 20  # disagreements, and void labels, shown per run
SIDE = 96  # longer side of a thumbnail in pixels
AROUND = 24  # pixels shown on each side of the queried pixel


@dataclass(frozen=True)
class Row:
    """A question with its answers, as shown on the page."""

    round: int
    key: str
    said: str
    accepted: str
    picture: str  # data URL; empty if the image cannot be read


@dataclass(frozen=True)
class People:
    """Annotation statistics of one run."""

    run: str
    rounds: tuple[RoundSummary, ...]
    persons: tuple[AnnotatorSummary, ...]
    seconds: float | None  # total of all annotators; None if no times were recorded
    several: int
    alike: int
    disputes: int
    shown: tuple[Row, ...]  # the first disagreements
    voids: int
    shown_voids: tuple[Row, ...]
    late: int

    @property
    def share(self) -> str:
        """Percentage of unanimous answers among the questions with several annotators."""
        return f"{100 * self.alike / self.several:.0f}%" if self.several else "–"


def people(runs: Sequence[Run]) -> list[People]:
    """Return the statistics of all runs with answers of annotators, in the order of the runs."""
    return [_people(run) for run in runs if (run.folder / "questions" / "received.jsonl").is_file()]


def _people(run: Run) -> People:
    desk = AnnotationStore(run.folder / "questions")
    rounds, persons, disputes = (
        summary.summarise_rounds(desk),
        summary.summarise_annotators(desk),
        summary.list_disputes(desk),
    )
    voids = _voids(desk)
    timed = [one.seconds for one in persons if one.median_seconds is not None]
    return People(
        run.name,
        tuple(rounds),
        tuple(persons),
        sum(timed) if timed else None,
        sum(one.multi_annotated for one in rounds),
        sum(one.unanimous for one in rounds),
        len(disputes),
        tuple(_row(desk, one) for one in disputes[:SHOWN]),
        len(voids),
        tuple(_row(desk, one) for one in voids[:SHOWN]),
        sum(one.rejected.get("late", 0) for one in rounds),
    )


def _voids(desk: AnnotationStore) -> list[Dispute]:
    """Return the questions whose label is not one of the classes: void, or a new class name."""
    found = []
    for number in desk.round_numbers():
        classes, standings = set(desk.question_round(number).rules.classes), desk.statuses(number)
        for question in desk.question_round(number).questions:
            one = standings[question.id]
            if one.word is not None and one.word not in classes:
                found.append(Dispute(number, question, one.votes, one.word))
    return found


def _row(desk: AnnotationStore, one: Dispute) -> Row:
    said = ", ".join(f"{vote.annotator or 'anonymous'}: {vote.word}" for vote in one.votes)
    picture = _picture(desk.round_folder(one.round) / one.question.image_path, one.question)
    label = one.label or ("by PNG" if one.answered_by_png else "none yet")
    if one.label not in (None, VOID_WORD, *desk.question_round(one.round).rules.classes):
        label += " (not a class: void)"
    return Row(one.round, one.question.id, said, label, picture)


def _picture(path: Path, question: Question) -> str:
    """Return a thumbnail of a question as a data URL; for a pixel question, of the area around the pixel."""
    try:
        with Image.open(path) as opened:
            shown = opened.convert("RGB")
    except (OSError, SyntaxError, ValueError):
        return ""  # an unreadable image must not prevent the page
    if question.area is not None:
        y, x = question.area.y, question.area.x
        left, top = max(0, x - AROUND), max(0, y - AROUND)
        shown = shown.crop((left, top, min(shown.width, x + AROUND + 1), min(shown.height, y + AROUND + 1)))
    scale = SIDE / max(shown.size)
    size = tuple(max(1, round(side * scale)) for side in shown.size)
    small = shown.resize((size[0], size[1]), Image.Resampling.BOX if scale < 1 else Image.Resampling.NEAREST)
    kept = io.BytesIO()
    small.save(kept, format="PNG")
    return "data:image/png;base64," + base64.b64encode(kept.getvalue()).decode("ascii")
