"""Answers that contradict a confident model. Does not import torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ducats.annotation.question import Question
from ducats.annotation.store import AnnotationStore
from ducats.runfolder.run_folder import RunFolder
from ducats.runfolder.snapshot_files import load_newest_snapshot
from ducats.utils.errors import UserError

CONFIDENT = 0.8  # lowest probability of a prediction that makes an answer suspicious


@dataclass(frozen=True)
class Prediction:
    """A predicted class and its probability."""

    word: str
    probability: float

    def __str__(self) -> str:
        return f"{self.word} ({100 * self.probability:.0f} %)"


@dataclass(frozen=True)
class SuspiciousAnswer:
    """A label that contradicts a confident prediction; at least one of the predictions is known."""

    round: int
    question: Question
    label: str
    asked: Prediction | None  # when the question was asked, before the model was trained on the answer
    trained: Prediction | None  # by the newest model that was trained on the answer

    @property
    def probability(self) -> float:
        """Highest probability of another class."""
        return max(one.probability for one in (self.asked, self.trained) if one is not None)

    @property
    def description(self) -> str:
        """What the model predicted instead."""
        texts = [f"the model predicted {self.asked}"] if self.asked else []
        texts += [f"predicts {self.trained} after training on it"] if self.trained else []
        return " and ".join(texts) if self.asked else f"the model {texts[0]}"


def suspicious_answers(
    run_folder: RunFolder,
    min_probability: float = CONFIDENT,
    *,
    open_with: Callable[[Question], Question] | None = None,
    on_corrupt_snapshot: Callable[[str], object] = lambda _: None,
) -> list[SuspiciousAnswer]:
    """Return the labels that contradict a confident model, the most confident contradiction first.

    A prediction counts if it was made when the question was asked, or if the model contradicts the answer
    even after training on it. Corrected labels are not listed.

    Args:
        open_with: include open rounds; returns a question of one with the model's prediction.
        on_corrupt_snapshot: called with a message if the predictions after training cannot be read.
    """
    store = AnnotationStore(run_folder.questions_path)
    trained: dict[str, Prediction] = {}
    try:
        trained = _predictions_after_training(run_folder)
    except UserError as error:
        on_corrupt_snapshot(str(error))
    corrected = store.corrected_words()
    found = []
    for round_number in store.round_numbers():
        closed, question_round = store.closed_round(round_number), store.question_round(round_number)
        words: Mapping[str, str | None] = closed.words if closed is not None else {}
        if closed is None and open_with is not None:
            words = {one: status.word for one, status in store.statuses(round_number).items()}
        for question in question_round.questions:
            label = words.get(question.id)
            if label is None or (closed is not None and question.id in corrected):
                continue
            if closed is None and open_with is not None:
                question = open_with(question)
            asked, later = None, trained.get(question.id)
            if question.guess is not None and question.probability is not None:
                asked = Prediction(question.guess, question.probability)
            doubts = [
                one if one and one.word != label and one.probability >= min_probability else None
                for one in (asked, later)
            ]
            if any(doubts):
                found.append(SuspiciousAnswer(round_number, question, label, *doubts))
    return sorted(found, key=lambda one: -one.probability)


def _predictions_after_training(run_folder: RunFolder) -> dict[str, Prediction]:
    """Return the predictions of the labelled images in the newest snapshot, by key."""
    pool, snapshot = run_folder.load_pool(), load_newest_snapshot(run_folder.path)
    if snapshot is None or pool.sizes is not None:
        return {}
    classes = run_folder.classes.resolved_names
    rows = (snapshot.is_target & snapshot.is_labelled & (snapshot.image < len(pool.keys))).nonzero()[0]
    columns = (snapshot.image[rows], snapshot.predicted[rows], snapshot.probability[rows])
    return {
        pool.keys[image]: Prediction(classes[predicted], probability)
        for image, predicted, probability in zip(*(column.tolist() for column in columns), strict=True)
    }
