"""Progress of a round: the next questions for each annotator, and counts."""

import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ducats.annotation import AnnotationStore, Answer, Question, QuestionRound, QuestionStatus

HELD = 120.0  # seconds for which a question shown to one annotator is offered to others last


@dataclass(frozen=True)
class Last:
    """The latest answer of one annotator to one question."""

    place: int  # index in the answer log
    group: str  # id of the act; answers given at once share it


class Progress:
    """State of one round, kept up to date with the answer log.

    Args:
        desk: store that receives the answers.
        sheet: the round's questions.
        clock: monotonic time in seconds.
    """

    def __init__(
        self, desk: AnnotationStore, sheet: QuestionRound, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.sheet = sheet
        self._desk = desk
        self._clock = clock
        self._at = {question.id: place for place, question in enumerate(sheet.questions)}
        self._standings: dict[str, QuestionStatus] = {}
        self._waiting = list(range(len(sheet.questions)))  # not settled, in order of selection
        self._disputed: set[str] = set()
        self._mine: dict[str, set[str]] = {}  # annotator -> answered questions
        self._last: dict[str, dict[str, Last]] = {}
        self._held: dict[str, dict[str, float]] = {}  # question -> annotator -> end of the hold
        self._seconds = 0.0
        self._seen = 0
        self._own = threading.RLock()
        self._segments: dict[tuple[str, int], list[Question]] = {}
        for question in sheet.questions:
            if question.segment is not None and question.area is not None:
                self._segments.setdefault((question.key, question.segment), []).append(question)

    def refresh(self) -> None:
        """Read the answers added since the last call."""
        with self._own:
            answers, first = self._desk.answers(), self._seen == 0
            touched: dict[str, None] = {}
            for place, answer in enumerate(answers[self._seen :], start=self._seen):
                # The same question may occur in another round.
                if answer.round == self.sheet.rules.round and answer.reject_reason is None:
                    self._note(place, answer)
                    touched[answer.question] = None
            self._seen = len(answers)
            known = self._desk.statuses(self.sheet.rules.round) if first else None
            for question in touched:
                self._settle(question, known[question] if known else self._desk.status(question))

    def _note(self, place: int, answer: Answer) -> None:
        said = self._last.setdefault(answer.annotator, {})
        said.pop(answer.question, None)  # keep chronological order
        if answer.kind != "undo":
            group = (answer.external_id or f"{place}.").rpartition(".")[0]
            said[answer.question] = Last(place, group)

    def _settle(self, question: str, now: QuestionStatus) -> None:
        before, at = self._standings.get(question), self._at[question]
        self._standings[question] = now
        self._seconds += now.seconds - (before.seconds if before else 0.0)
        for who in _people(before):
            self._mine[who].discard(question)
        for who in _people(now):
            self._mine.setdefault(who, set()).add(question)
        (self._disputed.add if now.state == "disputed" else self._disputed.discard)(question)
        found = bisect_left(self._waiting, at)
        waits = found < len(self._waiting) and self._waiting[found] == at
        if now.state == "settled" and waits:
            del self._waiting[found]
        elif now.state != "settled" and not waits:
            insort(self._waiting, at)

    def standing(self, question: str) -> QuestionStatus | None:
        """Return the status of a question, or None if it has no answers."""
        return self._standings.get(question)

    def next(self, who: str, count: int) -> list[Question]:
        """Return the next questions for an annotator.

        The order is: questions they have not answered, in order of selection, with those held by other
        annotators last; disputed questions (their own only if someone answered after them); skipped ones;
        unsure ones.
        """
        with self._own:
            now, said = self._clock(), self._last.get(who, {})
            free: list[Question] = []
            busy: list[Question] = []
            for place in self._waiting:
                question = self.sheet.questions[place]
                if question.id in said or question.id in self._disputed:
                    continue
                (busy if self._is_held(question.id, who, now) else free).append(question)
                if len(free) == count:
                    break
            for question in free:
                self._held.setdefault(question.id, {})[who] = now + HELD
            chosen = [*free, *busy][:count]
            return chosen if len(chosen) == count else [*chosen, *self._again(who)][:count]

    def _is_held(self, question: str, who: str, now: float) -> bool:
        standing = self._standings.get(question)
        wanted = self.sheet.rules.min_annotators - (len(standing.votes) if standing else 0)
        others = [until for one, until in self._held.get(question, {}).items() if one != who]
        return sum(until > now for until in others) >= max(wanted, 1)

    def _again(self, who: str) -> list[Question]:
        said = self._last.get(who, {})
        ranked: list[tuple[int, int, Question]] = []
        for question in {*said, *self._disputed}:
            standing, at = self._standings[question], self._at[question]
            if standing.state == "settled":
                continue
            asked = self.sheet.questions[at]
            mine = [vote.last_index for vote in standing.votes if vote.annotator == who]
            if mine:
                if standing.state == "disputed" and any(vote.last_index > mine[0] for vote in standing.votes):
                    ranked.append((1, at, asked))
            elif question not in said:
                ranked.append((0, at, asked))
            else:
                ranked.append((3 if who in standing.unsure_annotators else 2, said[question].place, asked))
        return [question for _, _, question in sorted(ranked, key=lambda one: one[:2])]

    def together(self, who: str, question: Question, most: int) -> list[Question]:
        """Return other questions in the same segment that are open for this annotator."""
        if question.area is None or question.segment is None:
            return []
        others = self._segments[question.key, question.segment]
        with self._own:
            return [one for one in others if one is not question and self._waits_for(who, one)][:most]

    def _waits_for(self, who: str, question: Question) -> bool:
        standing = self._standings.get(question.id)
        if standing is None:
            return True
        return standing.state != "settled" and all(vote.annotator != who for vote in standing.votes)

    def guesses(self, who: str) -> dict[str, list[Question]]:
        """Group an annotator's open questions by the model's guess, largest group first."""
        found: dict[str, list[Question]] = {}
        with self._own:
            for place in self._waiting:
                question = self.sheet.questions[place]
                if question.guess is not None and self._waits_for(who, question):
                    found.setdefault(question.guess, []).append(question)
        return dict(sorted(found.items(), key=lambda one: -len(one[1])))

    def recent(self, who: str, most: int) -> list[list[Question]]:
        """Return an annotator's latest acts, oldest first; each is the list of questions answered at once."""
        groups: dict[str, list[Question]] = {}
        with self._own:
            mine = self._mine.get(who, set())
            for question, last in self._last.get(who, {}).items():
                if question in mine:
                    groups.setdefault(last.group, []).append(self.sheet.questions[self._at[question]])
        return list(groups.values())[-most:]

    def counts(self, who: str) -> dict[str, Any]:
        """Return the numbers of all, settled, disputed and own answered questions, and the total seconds."""
        with self._own:
            return {
                "all": len(self._at),
                "settled": len(self._at) - len(self._waiting),
                "disputed": len(self._disputed),
                "mine": len(self._mine.get(who, ())),
                "seconds": round(self._seconds, 1),
            }


def _people(standing: QuestionStatus | None) -> Iterable[str]:
    return (
        ()
        if standing is None
        else (*(vote.annotator for vote in standing.votes), *standing.unsure_annotators)
    )
