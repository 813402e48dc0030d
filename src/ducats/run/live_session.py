"""Live labelling: a head that learns from each answer, beside the server of the labelling page."""

import threading
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from ducats.annotation import VOID_WORD, AnnotationStore, Answer, Question
from ducats.annotation.oracles.question_files import model_hints
from ducats.annotation.page.live import ClassSummary, LearningSummary
from ducats.data.domain import UNLABELLED, VOID
from ducats.evaluation.prediction_stability import PredictionStability
from ducats.evaluation.temperature_scaling import optimal_temperature
from ducats.run.head_learner import FIT_STEPS, REFIT_STEPS, HeadLearner
from ducats.run.hints import pool_hints
from ducats.run.live_audit import LiveAudit
from ducats.runfolder.hints import AnnotatorHints
from ducats.runfolder.records import describe_audit

QUESTIONS_AHEAD = 12  # questions selected after each refit, for all annotators
POLL_SECONDS = 2.0  # between two looks for answers from elsewhere, such as CSV files
RECENT_ANSWERS = 20
MAX_JUDGED = 100  # latest guesses that the certainty is calibrated on
SURE_PROBABILITY = 0.9


@dataclass(frozen=True)
class _Learnt:
    """All that the page reads, published at once after each refit."""

    n_answers: int = 0  # answers in the log that the model knows
    first: tuple[int, ...] = ()  # questions to ask next
    hints: AnnotatorHints | None = None  # one entry per pool image; None before the first training
    classes: tuple[str, ...] = ()
    summary: LearningSummary = field(default_factory=lambda: LearningSummary(0, 0, 0, 0, 0, ()))


class LiveSession(AbstractContextManager["LiveSession"]):
    """Fit a head, and refit it after each answer, in a thread; see `LiveModel` for what the page calls.

    Args:
        learner: not trained yet; its pool has the images of all rounds.
        store: its newest round is open and live; the ids of questions are keys of the pool.
        audit: draws questions at random; None: all labels are trained on.
        fit_steps: training steps with the labels that are known at the start.
        refit_steps: training steps after new answers.
    """

    def __init__(
        self,
        learner: HeadLearner,
        store: AnnotationStore,
        *,
        audit: LiveAudit | None = None,
        fit_steps: int = FIT_STEPS,
        refit_steps: int = REFIT_STEPS,
    ) -> None:
        self.learner, self.store, self.audit = learner, store, audit
        self._refit_steps = refit_steps
        question_round = store.open_round()
        assert question_round is not None
        assert question_round.rules.live
        self.round = question_round.rules.round
        self._image_of = {key: image for image, key in enumerate(learner.pool.keys)}
        self._question_of = {
            self._image_of[question.key]: index for index, question in enumerate(question_round.questions)
        }
        self._recent: deque[bool] = deque(maxlen=RECENT_ANSWERS)
        self._judged: deque[tuple[torch.Tensor, int]] = deque(maxlen=MAX_JUDGED)  # log alpha, answer
        self._labels = torch.full((len(learner.pool),), UNLABELLED)  # of the pool, with those of the audit
        self._picks: list[int] = []  # latest selection of the query, with images of the audit
        self._log_alpha = torch.zeros(0)  # of the pool, after the latest refit
        self._stability = PredictionStability()
        self._state = _Learnt()
        self._changed, self._wake = threading.Condition(), threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="refit", daemon=True)
        self.learn(fit_steps)

    # ---- for the page

    def first_questions(self) -> Sequence[int]:
        """Return the indices of the questions to ask next, the most informative first."""
        return self._state.first

    def with_hints(self, question: Question) -> Question:
        """Return a question with the model's current guess and uncertainties."""
        state = self._state
        if state.hints is None:
            return question
        image = self._image_of[question.key]
        row = AnnotatorHints(
            **{name: values[image : image + 1] for name, values in vars(state.hints).items()}
        )
        fields = model_hints(row, state.classes, 1)[0]
        return replace(question, **{name: value for name, value in fields.items() if name != "segment"})

    def summary(self) -> LearningSummary:
        """Return what the model has learnt so far."""
        return self._state.summary

    def notify(self) -> None:
        """Say that there are new answers."""
        self._wake.set()

    def wait_until_current(self, timeout: float) -> None:
        """Return when the model has learnt from all answers, or after so many seconds."""
        expected = len(self.store.answers())
        with self._changed:
            self._changed.wait_for(lambda: self._state.n_answers >= expected or self._has_failed, timeout)

    # ---- learning

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join()

    @property
    def _has_failed(self) -> bool:
        return bool(self._state.summary.error)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(POLL_SECONDS)
            self._wake.clear()
            if self._stopping:
                return
            try:
                if len(self.store.answers()) > self._state.n_answers:
                    self.learn(self._refit_steps)
            except Exception as error:  # answers are still stored; the page says that it no longer learns
                summary = replace(self._state.summary, error=f"{type(error).__name__}: {error}")
                self._publish(replace(self._state, summary=summary))
                return

    def learn(self, steps: int) -> None:
        """Train with all answers so far, select the next questions and publish what was learnt."""
        learner, answers = self.learner, self.store.answers()
        classes = self.store.question_round(self.round).rules.classes
        if len(classes) > len(learner.classes):
            learner.add_classes(classes[len(learner.classes) :])
        labels = self._read_labels(classes)
        changed = (labels != self._labels).nonzero().squeeze(1)
        if not len(changed) and self._state.first:  # such as a skipped question
            self._publish(replace(self._state, n_answers=len(answers)))
            return
        self._release_skipped(changed)
        self._compare_guesses(changed, labels)
        self._labels = labels
        self._train(steps)
        self._publish(self._learnt(answers))

    def _train(self, steps: int) -> None:
        """Train with all labels but those of the audit, if there are new ones."""
        learner, labels = self.learner, self._labels
        if self.audit is not None:
            labels = torch.where(self.audit.mask(), UNLABELLED, labels)
        changed = (labels != learner.labels).nonzero().squeeze(1)
        if len(changed) or not learner.step:
            learner.set_labels(changed, labels[changed])
            learner.train(steps)

    def _publish(self, state: _Learnt) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def _read_labels(self, classes: Sequence[str]) -> torch.Tensor:
        """Return the label of each pool image from the answers of all rounds."""
        number = {name: index for index, name in enumerate(classes)}
        labels = torch.full((len(self.learner.pool),), UNLABELLED)
        for key, word in known_words(self.store).items():
            if key in self._image_of:
                labels[self._image_of[key]] = VOID if word == VOID_WORD else number.get(word, VOID)
        return labels

    def _compare_guesses(self, changed: torch.Tensor, labels: torch.Tensor) -> None:
        """Compare new labels with the guesses before them; not those that confirm many guesses at once."""
        hints = self._state.hints
        if hints is None:
            return
        given_alone = _given_alone(self.store.answers()[self._state.n_answers :])
        is_new = (self._labels == UNLABELLED) & (labels >= 0)
        is_audit = None if self.audit is None else self.audit.mask()
        confirmed: list[int] = []
        for image in changed[is_new[changed]].tolist():
            is_right = int(hints.guess[image]) == int(labels[image])
            if self.learner.pool.keys[image] not in given_alone:
                confirmed += [image] if is_right else []
                continue
            self._recent.append(is_right)
            if is_audit is None or not is_audit[image]:
                self._judged.append((self._log_alpha[image], int(labels[image])))
        self._release_confirmed(confirmed, hints, labels)

    def _release_skipped(self, changed: torch.Tensor) -> None:
        """Release the audit images that would have been asked about before one that was answered now."""
        given_alone = _given_alone(self.store.answers()[self._state.n_answers :])
        is_new, keys = self._labels == UNLABELLED, self.learner.pool.keys
        answered = {i for i in changed[is_new[changed]].tolist() if keys[i] in given_alone}
        n_passed = max((n for n, image in enumerate(self._picks) if image in answered), default=0)
        if self.audit is not None and n_passed:
            is_audit = self.audit.mask()
            self.audit.release([i for i in self._picks[:n_passed] if is_audit[i]], self.round)

    def _release_confirmed(self, images: Sequence[int], hints: AnnotatorHints, labels: torch.Tensor) -> None:
        """Release the audit images that would have been confirmed with others: right, and as sure.

        Otherwise the audit would keep easy images, while those like them are learnt.
        """
        if self.audit is None or not images:
            return
        least: dict[int, float] = {}  # smallest probability of a confirmed guess, by class
        for image in images:
            guess, probability = int(hints.guess[image]), float(hints.probability[image])
            least[guess] = min(probability, least.get(guess, 1.0))
        audited = self.audit.mask().nonzero().squeeze(1).tolist()
        right = [image for image in audited if int(labels[image]) == int(hints.guess[image])]
        alike = [i for i in right if hints.probability[i] >= least.get(int(labels[i]), 2.0)]
        self.audit.release(alike, self.round)

    def _learnt(self, answers: Sequence[Answer]) -> _Learnt:
        learner = self.learner
        first = [self._question_of[image] for image in self._select(answers) if image in self._question_of]
        is_open = (self._labels == UNLABELLED).numpy()
        hints = None
        if learner.can_train:
            self._log_alpha = learner.predict(learner.pool)
            certainty = (self._log_alpha / self._temperature()).softmax(1).amax(1)
            hints = replace(pool_hints(self._log_alpha), probability=certainty.double().numpy())
            self._stability.update(int((~is_open).sum()), hints.guess.astype(np.int64), is_open)
            if self.audit is not None:
                probability = self._log_alpha.softmax(1).amax(1).double().numpy()
                self.audit.look(self._labels, hints.guess.astype(np.int64), probability)
        summary = self._summarise(hints, is_open)
        return _Learnt(len(answers), tuple(first), hints, learner.classes, summary)

    def _select(self, answers: Sequence[Answer]) -> list[int]:
        """Return the images to ask about next: those that are due for the audit, then what the query selects.

        The query does not know the audit. If it selects an audit image, the image leaves the audit; if its
        label is known already, the model learns it.
        """
        audit, is_known = self.audit, (self._labels != UNLABELLED).tolist()
        if audit is not None:
            keys, given_alone = self.learner.pool.keys, _given_alone(answers)
            n_asked = sum(known and key in given_alone for key, known in zip(keys, is_known, strict=True))
            audit.draw(n_asked, self._labels)
        while not all(is_known):
            self._picks = picks = self.learner.query(QUESTIONS_AHEAD).tolist()
            if audit is None:
                return picks
            is_audit = audit.mask().tolist()
            n_released = next((n for n, image in enumerate(picks) if not is_audit[image]), len(picks))
            if not n_released:
                return [*audit.unanswered(self._labels), *(image for image in picks if not is_audit[image])]
            audit.release(picks[:n_released], self.round)
            self._train(self._refit_steps)
        return []

    def _temperature(self) -> float:
        """Return a temperature that makes the model as sure as its latest guesses were right.

        With few labels, a model is too sure of images that are unlike them. The guesses were made before the
        answers. They are about uncertain images, so the model may be right more often than it seems; it is
        never made surer.
        """
        classes = len(self.learner.classes)
        judged = [(z, label) for z, label in self._judged if len(z) == classes]  # before a class was added
        if not judged:
            return 1.0
        z, labels = torch.stack([z for z, _ in judged]), torch.tensor([label for _, label in judged])
        return max(1.0, optimal_temperature(z, labels) or 1.0)

    def _summarise(self, hints: AnnotatorHints | None, is_open: Any) -> LearningSummary:
        learner, classes = self.learner, []
        audit = None if self.audit is None else self.audit.latest
        for number, name in enumerate(learner.classes):
            is_predicted = is_open & (hints.guess == number) if hints is not None else np.zeros_like(is_open)
            certainty = None
            if hints is not None and is_predicted.any():
                certainty = round(float(hints.probability[is_predicted].mean()), 4)
            labelled = int((self._labels == number).sum())
            classes.append(ClassSummary(name, labelled, int(is_predicted.sum()), certainty))
        sure = 0 if hints is None else int((is_open & (hints.probability >= SURE_PROBABILITY)).sum())
        return LearningSummary(
            labels=int((~is_open).sum()),
            images=len(is_open),
            sure=sure,
            recent_right=sum(self._recent),
            recent=len(self._recent),
            classes=tuple(classes),
            advice=self._advice(classes),
            accuracy="" if audit is None else describe_audit(audit),
        )

    def _advice(self, classes: Sequence[ClassSummary]) -> str:
        """Say when more answers bring little; empty while they help."""
        missing = [one.name for one in classes if not one.labelled]
        if not self._stability.is_stable or (missing and self.learner.source is None):
            return ""
        unchanged = self._stability.unchanged
        most = "all" if unchanged == 1 else f"at least {_percent(unchanged)} of the"
        return (
            f"More answers bring little now: {most} predictions stayed the same over each of the last three "
            "sets of ten answers. To train a model with all labels, press Ctrl-C where `ducats label` was "
            "started."
        )


def known_words(store: AnnotationStore) -> dict[str, str]:
    """Return the label of each answered question of all rounds, corrected."""
    words: dict[str, str] = {}
    for round_number in store.round_numbers():
        closed = store.closed_round(round_number)
        if closed is not None:
            words |= closed.words
        else:
            statuses = store.statuses(round_number)
            words |= {question: one.word for question, one in statuses.items() if one.word is not None}
    corrected = store.corrected_words()
    return {question: corrected.get(question, word) for question, word in words.items()}


def _given_alone(answers: Sequence[Answer]) -> set[str]:
    """Return the questions that were answered one by one."""
    act_sizes = Counter(_act(one) for one in answers)
    return {one.question for one in answers if act_sizes[_act(one)] == 1}


def _act(answer: Answer) -> str:
    """Return the id of the act to which an answer belongs; answers given at once share it."""
    return (answer.external_id or "").rpartition(".")[0]


def _percent(share: float) -> str:
    """Format a share, rounded down.

    >>> _percent(0.9987), _percent(1.0)
    ('99.8%', '100%')
    """
    percent = int(share * 1000) / 10
    return f"{percent:g}%"
