"""Answers that are worth a second look, with the reasons. Does not import torch."""

from collections.abc import Callable
from dataclasses import dataclass

from ducats.annotation.answer import REVIEW_CHANNEL
from ducats.annotation.question import Question
from ducats.annotation.rules import QuestionStatus
from ducats.annotation.store import AnnotationStore
from ducats.annotation.summary import annotator_name
from ducats.annotation.suspicious import CONFIDENT, SuspiciousAnswer, suspicious_answers
from ducats.runfolder.run_folder import RunFolder

LOW_PROBABILITY = 0.7  # of a label, given the errors of those who gave it; lower than that of a new annotator


@dataclass(frozen=True)
class ReviewItem:
    """A question whose answers should be looked at again."""

    round: int
    question: Question
    status: QuestionStatus
    is_closed: bool  # the label can only be amended
    doubt: SuspiciousAnswer | None  # predictions that contradict the label
    probability: float | None  # of the label or best answer, if people differ or are often wrong; else None

    @property
    def score(self) -> float:
        """Probability of an error, as if the model and the annotators erred independently."""
        return 1 - (1 - (self.doubt.probability if self.doubt else 0.0)) * (self.probability or 1.0)

    def reasons(self, *, blind: bool = False) -> list[str]:
        """Return why to look again; if blind, without the model's predictions."""
        texts = []
        if self.doubt is not None and not blind:
            texts.append(self.doubt.description)
        if self.status.has_conflict:
            votes = (f"{annotator_name(vote.annotator)}: {vote.word}" for vote in self.status.votes)
            texts.append(f"people differ ({', '.join(votes)})")
        elif self.probability is not None:
            names = ", ".join(annotator_name(vote.annotator) for vote in self.status.votes)
            right = f"{100 * self.probability:.0f} %"
            texts.append(
                f"the answer is right with a probability of only {right}, given the errors of {names}"
            )
        return texts


def list_for_review(
    run_folder: RunFolder,
    *,
    with_hints: Callable[[Question], Question] = lambda question: question,
    on_corrupt_snapshot: Callable[[str], object] = lambda _: None,
) -> list[ReviewItem]:
    """Return the answers worth a second look, the most suspicious first.

    What was amended, confirmed or settled in review is not listed again.

    Args:
        with_hints: returns a question of an open round with the model's current prediction.
        on_corrupt_snapshot: called with a message if the predictions after training cannot be read.
    """
    store = AnnotationStore(run_folder.questions_path)
    suspicious = suspicious_answers(
        run_folder, CONFIDENT, open_with=with_hints, on_corrupt_snapshot=on_corrupt_snapshot
    )
    doubts = {(one.round, one.question.id): one for one in suspicious}
    reviewed = store.corrected_words().keys()
    found = []
    for number in store.round_numbers():
        is_closed, statuses = store.closed_round(number) is not None, store.statuses(number)
        for question in store.question_round(number).questions:
            status = statuses[question.id]
            done = question.id in reviewed if is_closed else _is_settled_in_review(store, question, status)
            if done or (is_closed and status.word is None):
                continue
            doubt = doubts.get((number, question.id))
            probability = _low_probability(store, number, status)
            if doubt is not None or probability is not None:
                found.append(ReviewItem(number, question, status, is_closed, doubt, probability))
    return sorted(found, key=lambda one: -one.score)


def _is_settled_in_review(store: AnnotationStore, question: Question, status: QuestionStatus) -> bool:
    counted = [one for one in store.answers(question.id) if one.reject_reason is None and one.kind != "skip"]
    return status.state == "settled" and bool(counted) and counted[-1].channel == REVIEW_CHANNEL


def _low_probability(store: AnnotationStore, round_number: int, status: QuestionStatus) -> float | None:
    """Return the probability of the label, or of the best answer, if annotators differ or if it is low."""
    if not status.votes:
        return None
    model = store.annotator_model(round_number)
    posterior = model.posterior({vote.annotator: vote.word for vote in status.votes})
    given = [vote.word for vote in status.votes]
    probability = posterior[status.word if status.word in given else max(given, key=posterior.__getitem__)]
    is_known = any(vote.annotator in model.log_confusion for vote in status.votes)
    return probability if status.has_conflict or (is_known and probability < LOW_PROBABILITY) else None
