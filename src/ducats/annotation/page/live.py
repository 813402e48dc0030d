"""Interface of a model that learns while people answer on the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ducats.annotation import AnnotationStore, Question


@dataclass(frozen=True)
class ClassSummary:
    """What the model knows about one class."""

    name: str
    labelled: int  # images that people labelled so
    predicted: int  # unlabelled images that the model predicts as this class
    certainty: float | None  # mean probability of these predictions


@dataclass(frozen=True)
class LearningSummary:
    """What the model has learnt so far, as shown on the page."""

    labels: int  # images with a label or void
    images: int  # of the pool
    sure: int  # unlabelled images of whose class the model is sure
    recent_right: int  # guesses that were right, among the recent answers
    recent: int
    classes: tuple[ClassSummary, ...]
    advice: str = ""  # when more answers bring little
    error: str = ""  # why the model no longer learns
    accuracy: str = ""  # on images that it has not learnt from, with its interval; empty if not known yet


class LiveModel(Protocol):
    """A model that learns from each answer, beside the server; all methods return at once."""

    store: AnnotationStore

    def first_questions(self) -> Sequence[int]:
        """Return the indices of the questions to ask next, the most informative first."""

    def with_hints(self, question: Question) -> Question:
        """Return a question with the model's current guess and uncertainties."""

    def summary(self) -> LearningSummary:
        """Return what the model has learnt so far."""

    def notify(self) -> None:
        """Say that there are new answers."""

    def wait_until_current(self, timeout: float) -> None:
        """Return when the model has learnt from all answers, or after so many seconds."""
