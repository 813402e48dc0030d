"""Progress of a round: the next questions for each annotator, and counts."""

import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ducats.annotation import AnnotationStore, Answer, Question, QuestionRound, QuestionStatus

MAX_SEGMENT_QUESTIONS = 200  # questions answered at once
HOLD_SECONDS = 120.0  # seconds for which a question shown to one annotator is offered to others last


@dataclass(frozen=True)
class LatestAnswer:
    """The latest answer of one annotator to one question."""

    log_index: int  # index in the answer log
    act: str  # id of the act; answers given at once share it


class RoundProgress:
    """State of one round, kept up to date with the answer log."""

    def __init__(
        self,
        store: AnnotationStore,
        question_round: QuestionRound,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.question_round = question_round
        self._store = store
        self._clock = clock
        self._index = {question.id: index for index, question in enumerate(question_round.questions)}
        self._status: dict[str, QuestionStatus] = {}
        self._waiting = list(range(len(question_round.questions)))  # not settled, in order of selection
        self._disputed: set[str] = set()
        self._answered_by: dict[str, set[str]] = {}  # annotator -> answered questions
        self._latest: dict[str, dict[str, LatestAnswer]] = {}
        self._holds: dict[str, dict[str, float]] = {}  # question -> annotator -> end of the hold
        self._seconds = 0.0
        self._n_read = 0
        self._lock = threading.RLock()
        self._segments: dict[tuple[str, int], list[Question]] = {}
        for question in question_round.questions:
            if question.segment is not None and question.area is not None:
                self._segments.setdefault((question.key, question.segment), []).append(question)

    def refresh(self) -> None:
        """Read the answers added since the last call."""
        with self._lock:
            self.question_round = self._store.question_round(self.question_round.rules.round)  # new classes
            answers, first = self._store.answers(), self._n_read == 0
            touched: dict[str, None] = {}
            for log_index, answer in enumerate(answers[self._n_read :], start=self._n_read):
                # The same question may occur in another round.
                if answer.round == self.question_round.rules.round and answer.reject_reason is None:
                    self._record_latest(log_index, answer)
                    touched[answer.question] = None
            self._n_read = len(answers)
            rules, known = self.question_round.rules, None
            if first or (touched and rules.rule == "weighted"):
                known = self._store.statuses(rules.round)
                if rules.rule == "weighted":  # an answer changes how much all others of its annotator count
                    touched = {one: None for one, now in known.items() if now != self._status.get(one)}
            for question in touched:
                self._update_status(question, known[question] if known else self._store.status(question))

    def _record_latest(self, log_index: int, answer: Answer) -> None:
        latest = self._latest.setdefault(answer.annotator, {})
        latest.pop(answer.question, None)  # keep chronological order
        if answer.kind != "undo":
            act = (answer.external_id or f"{log_index}.").rpartition(".")[0]
            latest[answer.question] = LatestAnswer(log_index, act)

    def _update_status(self, question: str, now: QuestionStatus) -> None:
        before, index = self._status.get(question), self._index[question]
        self._status[question] = now
        self._seconds += now.seconds - (before.seconds if before else 0.0)
        for annotator in _annotators(before):
            self._answered_by[annotator].discard(question)
        for annotator in _annotators(now):
            self._answered_by.setdefault(annotator, set()).add(question)
        (self._disputed.add if now.state == "disputed" else self._disputed.discard)(question)
        if now.state == "settled" and self._waits(index):
            del self._waiting[bisect_left(self._waiting, index)]
        elif now.state != "settled" and not self._waits(index):
            insort(self._waiting, index)

    def _waits(self, index: int) -> bool:
        position = bisect_left(self._waiting, index)
        return position < len(self._waiting) and self._waiting[position] == index

    def status(self, question: str) -> QuestionStatus | None:
        """Return the status of a question, or None if it has no answers."""
        return self._status.get(question)

    def next_questions(self, annotator: str, count: int, first: Sequence[int] = ()) -> list[Question]:
        """Return the next questions for an annotator.

        The order is: questions they have not answered, in order of selection, with those held by other
        annotators last; disputed questions (their own only if someone answered after them); skipped ones;
        unsure ones.

        Args:
            first: indices of questions that precede the order of selection.
        """
        with self._lock:
            now, latest = self._clock(), self._latest.get(annotator, {})
            free: list[Question] = []
            busy: list[Question] = []
            preferred = [index for index in first if self._waits(index)]
            for index in dict.fromkeys(chain(preferred, self._waiting)):
                question = self.question_round.questions[index]
                if question.id in latest or question.id in self._disputed:
                    continue
                (busy if self._is_held(question.id, annotator, now) else free).append(question)
                if len(free) == count:
                    break
            for question in free:
                self._holds.setdefault(question.id, {})[annotator] = now + HOLD_SECONDS
            chosen = [*free, *busy][:count]
            return chosen if len(chosen) == count else [*chosen, *self._revisit(annotator)][:count]

    def _is_held(self, question: str, annotator: str, now: float) -> bool:
        status = self._status.get(question)
        wanted = self.question_round.rules_for(question).min_annotators - (len(status.votes) if status else 0)
        others = [until for one, until in self._holds.get(question, {}).items() if one != annotator]
        return sum(until > now for until in others) >= max(wanted, 1)

    def _revisit(self, annotator: str) -> list[Question]:
        latest = self._latest.get(annotator, {})
        ranked: list[tuple[int, int, Question]] = []  # priority, order within it, question
        for question in {*latest, *self._disputed}:
            status, index = self._status[question], self._index[question]
            if status.state == "settled":
                continue
            candidate = self.question_round.questions[index]
            mine = [vote.last_index for vote in status.votes if vote.annotator == annotator]
            if mine:
                if status.state == "disputed" and any(vote.last_index > mine[0] for vote in status.votes):
                    ranked.append((1, index, candidate))
            elif question not in latest:
                ranked.append((0, index, candidate))
            else:
                ranked.append(
                    (3 if annotator in status.unsure_annotators else 2, latest[question].log_index, candidate)
                )
        return [question for _, _, question in sorted(ranked, key=lambda one: one[:2])]

    def same_segment(self, annotator: str, question: Question) -> list[Question]:
        """Return other questions in the same segment that are open for this annotator."""
        if question.area is None or question.segment is None:
            return []
        segment = self._segments[question.key, question.segment]
        with self._lock:
            others = [one for one in segment if one is not question and self._is_open_for(annotator, one)]
        return others[: MAX_SEGMENT_QUESTIONS - 1]

    def _is_open_for(self, annotator: str, question: Question) -> bool:
        status = self._status.get(question.id)
        if status is None:
            return True
        return status.state != "settled" and all(vote.annotator != annotator for vote in status.votes)

    def open_by_guess(
        self, annotator: str, with_hints: Callable[[Question], Question] = lambda question: question
    ) -> dict[str, list[Question]]:
        """Group an annotator's open questions by the model's guess, largest group first.

        Args:
            with_hints: returns a question with the model's current guess.
        """
        groups: dict[str, list[Question]] = {}
        with self._lock:
            for index in self._waiting:
                question = with_hints(self.question_round.questions[index])
                if question.guess is not None and self._is_open_for(annotator, question):
                    groups.setdefault(question.guess, []).append(question)
        return dict(sorted(groups.items(), key=lambda group: -len(group[1])))

    def recent_acts(self, annotator: str, limit: int) -> list[list[Question]]:
        """Return an annotator's latest acts, oldest first; each is the list of questions answered at once."""
        acts: dict[str, list[Question]] = {}
        with self._lock:
            mine = self._answered_by.get(annotator, set())
            for question, latest in self._latest.get(annotator, {}).items():
                if question in mine:
                    acts.setdefault(latest.act, []).append(
                        self.question_round.questions[self._index[question]]
                    )
        return list(acts.values())[-limit:]

    def counts(self, annotator: str) -> dict[str, Any]:
        """Return the numbers of all, settled, disputed and own answered questions, and the total seconds."""
        with self._lock:
            return {
                "all": len(self._index),
                "settled": len(self._index) - len(self._waiting),
                "disputed": len(self._disputed),
                "mine": len(self._answered_by.get(annotator, ())),
                "seconds": round(self._seconds, 1),
            }


def _annotators(status: QuestionStatus | None) -> Iterable[str]:
    return () if status is None else (*(vote.annotator for vote in status.votes), *status.unsure_annotators)
