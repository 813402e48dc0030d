"""Progress of a round: the next questions for each annotator, and counts."""

import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ducats.annotation import AnnotationStore, Answer, Question, QuestionRound, QuestionStatus

HOLD_SECONDS = 120.0  # seconds for which a question shown to one annotator is offered to others last


@dataclass(frozen=True)
class LatestAnswer:
    """The latest answer of one annotator to one question."""

    log_index: int  # index in the answer log
    act: str  # id of the act; answers given at once share it


class RoundProgress:
    """State of one round, kept up to date with the answer log.

    Args:
        store: store that receives the answers.
        question_round: the round's questions.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        store: AnnotationStore,
        question_round: QuestionRound,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.question_round = question_round
        self._store = store
        self._clock = clock
        self._index = {question.id: place for place, question in enumerate(question_round.questions)}
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
            answers, first = self._store.answers(), self._n_read == 0
            touched: dict[str, None] = {}
            for place, answer in enumerate(answers[self._n_read :], start=self._n_read):
                # The same question may occur in another round.
                if answer.round == self.question_round.rules.round and answer.reject_reason is None:
                    self._record_latest(place, answer)
                    touched[answer.question] = None
            self._n_read = len(answers)
            known = self._store.statuses(self.question_round.rules.round) if first else None
            for question in touched:
                self._update_status(question, known[question] if known else self._store.status(question))

    def _record_latest(self, place: int, answer: Answer) -> None:
        latest = self._latest.setdefault(answer.annotator, {})
        latest.pop(answer.question, None)  # keep chronological order
        if answer.kind != "undo":
            group = (answer.external_id or f"{place}.").rpartition(".")[0]
            latest[answer.question] = LatestAnswer(place, group)

    def _update_status(self, question: str, now: QuestionStatus) -> None:
        before, at = self._status.get(question), self._index[question]
        self._status[question] = now
        self._seconds += now.seconds - (before.seconds if before else 0.0)
        for who in _annotators(before):
            self._answered_by[who].discard(question)
        for who in _annotators(now):
            self._answered_by.setdefault(who, set()).add(question)
        (self._disputed.add if now.state == "disputed" else self._disputed.discard)(question)
        found = bisect_left(self._waiting, at)
        waits = found < len(self._waiting) and self._waiting[found] == at
        if now.state == "settled" and waits:
            del self._waiting[found]
        elif now.state != "settled" and not waits:
            insort(self._waiting, at)

    def status(self, question: str) -> QuestionStatus | None:
        """Return the status of a question, or None if it has no answers."""
        return self._status.get(question)

    def next_questions(self, who: str, count: int) -> list[Question]:
        """Return the next questions for an annotator.

        The order is: questions they have not answered, in order of selection, with those held by other
        annotators last; disputed questions (their own only if someone answered after them); skipped ones;
        unsure ones.
        """
        with self._lock:
            now, latest = self._clock(), self._latest.get(who, {})
            free: list[Question] = []
            busy: list[Question] = []
            for index in self._waiting:
                question = self.question_round.questions[index]
                if question.id in latest or question.id in self._disputed:
                    continue
                (busy if self._is_held(question.id, who, now) else free).append(question)
                if len(free) == count:
                    break
            for question in free:
                self._holds.setdefault(question.id, {})[who] = now + HOLD_SECONDS
            chosen = [*free, *busy][:count]
            return chosen if len(chosen) == count else [*chosen, *self._revisit(who)][:count]

    def _is_held(self, question: str, who: str, now: float) -> bool:
        standing = self._status.get(question)
        wanted = self.question_round.rules.min_annotators - (len(standing.votes) if standing else 0)
        others = [until for one, until in self._holds.get(question, {}).items() if one != who]
        return sum(until > now for until in others) >= max(wanted, 1)

    def _revisit(self, who: str) -> list[Question]:
        latest = self._latest.get(who, {})
        ranked: list[tuple[int, int, Question]] = []
        for question in {*latest, *self._disputed}:
            standing, at = self._status[question], self._index[question]
            if standing.state == "settled":
                continue
            asked = self.question_round.questions[at]
            mine = [vote.last_index for vote in standing.votes if vote.annotator == who]
            if mine:
                if standing.state == "disputed" and any(vote.last_index > mine[0] for vote in standing.votes):
                    ranked.append((1, at, asked))
            elif question not in latest:
                ranked.append((0, at, asked))
            else:
                ranked.append(
                    (3 if who in standing.unsure_annotators else 2, latest[question].log_index, asked)
                )
        return [question for _, _, question in sorted(ranked, key=lambda one: one[:2])]

    def same_segment(self, who: str, question: Question, limit: int) -> list[Question]:
        """Return other questions in the same segment that are open for this annotator."""
        if question.area is None or question.segment is None:
            return []
        others = self._segments[question.key, question.segment]
        with self._lock:
            return [one for one in others if one is not question and self._is_open_for(who, one)][:limit]

    def _is_open_for(self, who: str, question: Question) -> bool:
        standing = self._status.get(question.id)
        if standing is None:
            return True
        return standing.state != "settled" and all(vote.annotator != who for vote in standing.votes)

    def open_by_guess(self, who: str) -> dict[str, list[Question]]:
        """Group an annotator's open questions by the model's guess, largest group first."""
        found: dict[str, list[Question]] = {}
        with self._lock:
            for index in self._waiting:
                question = self.question_round.questions[index]
                if question.guess is not None and self._is_open_for(who, question):
                    found.setdefault(question.guess, []).append(question)
        return dict(sorted(found.items(), key=lambda one: -len(one[1])))

    def recent_acts(self, who: str, limit: int) -> list[list[Question]]:
        """Return an annotator's latest acts, oldest first; each is the list of questions answered at once."""
        groups: dict[str, list[Question]] = {}
        with self._lock:
            mine = self._answered_by.get(who, set())
            for question, last in self._latest.get(who, {}).items():
                if question in mine:
                    groups.setdefault(last.act, []).append(
                        self.question_round.questions[self._index[question]]
                    )
        return list(groups.values())[-limit:]

    def counts(self, who: str) -> dict[str, Any]:
        """Return the numbers of all, settled, disputed and own answered questions, and the total seconds."""
        with self._lock:
            return {
                "all": len(self._index),
                "settled": len(self._index) - len(self._waiting),
                "disputed": len(self._disputed),
                "mine": len(self._answered_by.get(who, ())),
                "seconds": round(self._seconds, 1),
            }


def _annotators(standing: QuestionStatus | None) -> Iterable[str]:
    return (
        ()
        if standing is None
        else (*(vote.annotator for vote in standing.votes), *standing.unsure_annotators)
    )
