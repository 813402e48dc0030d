"""A round as people work on it: what is next for whom, and how far it is."""

import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ducats.answers import Answer, Desk, Question, Sheet, Standing

HELD = 120.0  # seconds for which what one person was shown goes to others last


@dataclass(frozen=True)
class Last:
    """The latest thing that one person said of one question."""

    place: int  # among all answers
    group: str  # what was said at once


class Progress:
    """One round; follows the book as it grows.

    Args:
        desk: where answers come in.
        sheet: the round.
        clock: seconds that never go back.
    """

    def __init__(self, desk: Desk, sheet: Sheet, clock: Callable[[], float] = time.monotonic) -> None:
        self.sheet = sheet
        self._desk = desk
        self._clock = clock
        self._at = {question.id: place for place, question in enumerate(sheet.questions)}
        self._standings: dict[str, Standing] = {}
        self._waiting = list(range(len(sheet.questions)))  # not settled, in the order of choosing
        self._disputed: set[str] = set()
        self._mine: dict[str, set[str]] = {}  # who -> what they have an answer to
        self._last: dict[str, dict[str, Last]] = {}
        self._held: dict[str, dict[str, float]] = {}  # question -> who -> until
        self._seconds = 0.0
        self._seen = 0
        self._own = threading.RLock()
        self._segments: dict[tuple[str, int], list[Question]] = {}
        for question in sheet.questions:
            if question.segment is not None and question.place is not None:
                self._segments.setdefault((question.key, question.segment), []).append(question)

    def refresh(self) -> None:
        """Read what came since."""
        with self._own:
            answers, first = self._desk.answers(), self._seen == 0
            touched: dict[str, None] = {}
            for place, answer in enumerate(answers[self._seen :], start=self._seen):
                # A question may have been asked in another round, too.
                if answer.round == self.sheet.terms.round and answer.refused is None:
                    self._note(place, answer)
                    touched[answer.question] = None
            self._seen = len(answers)
            known = self._desk.standings(self.sheet.terms.round) if first else None
            for question in touched:
                self._settle(question, known[question] if known else self._desk.standing(question))

    def _note(self, place: int, answer: Answer) -> None:
        said = self._last.setdefault(answer.who, {})
        said.pop(answer.question, None)  # so that the order is that of time
        if answer.kind != "undo":
            group = (answer.ref or f"{place}.").rpartition(".")[0]
            said[answer.question] = Last(place, group)

    def _settle(self, question: str, now: Standing) -> None:
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

    def standing(self, question: str) -> Standing | None:
        """How far a question is; None if nobody said anything."""
        return self._standings.get(question)

    def next(self, who: str, count: int) -> list[Question]:
        """What to show a person next.

        First what they said nothing of, in the order of choosing, and of this last what others are looking at
        now; then disputes, their own if another spoke after them; then what they skipped; then what they were
        unsure of.
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
        wanted = self.sheet.terms.people - (len(standing.votes) if standing else 0)
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
            mine = [vote.last for vote in standing.votes if vote.who == who]
            if mine:
                if standing.state == "disputed" and any(vote.last > mine[0] for vote in standing.votes):
                    ranked.append((1, at, asked))
            elif question not in said:
                ranked.append((0, at, asked))
            else:
                ranked.append((3 if who in standing.unsure else 2, said[question].place, asked))
        return [question for _, _, question in sorted(ranked, key=lambda one: one[:2])]

    def together(self, who: str, question: Question, most: int) -> list[Question]:
        """Other questions in the same segment that wait for this person."""
        if question.place is None or question.segment is None:
            return []
        others = self._segments[question.key, question.segment]
        with self._own:
            return [one for one in others if one is not question and self._waits_for(who, one)][:most]

    def _waits_for(self, who: str, question: Question) -> bool:
        standing = self._standings.get(question.id)
        if standing is None:
            return True
        return standing.state != "settled" and all(vote.who != who for vote in standing.votes)

    def guesses(self, who: str) -> dict[str, list[Question]]:
        """What waits for a person, by the model's guess; most first."""
        found: dict[str, list[Question]] = {}
        with self._own:
            for place in self._waiting:
                question = self.sheet.questions[place]
                if question.guess is not None and self._waits_for(who, question):
                    found.setdefault(question.guess, []).append(question)
        return dict(sorted(found.items(), key=lambda one: -len(one[1])))

    def recent(self, who: str, most: int) -> list[list[Question]]:
        """What a person answered, the latest last; what was said at once stands together."""
        groups: dict[str, list[Question]] = {}
        with self._own:
            mine = self._mine.get(who, set())
            for question, last in self._last.get(who, {}).items():
                if question in mine:
                    groups.setdefault(last.group, []).append(self.sheet.questions[self._at[question]])
        return list(groups.values())[-most:]

    def counts(self, who: str) -> dict[str, Any]:
        """How many there are, are settled, are disputed, and have this person's answer; seconds of all."""
        with self._own:
            return {
                "all": len(self._at),
                "settled": len(self._at) - len(self._waiting),
                "disputed": len(self._disputed),
                "mine": len(self._mine.get(who, ())),
                "seconds": round(self._seconds, 1),
            }


def _people(standing: Standing | None) -> Iterable[str]:
    return () if standing is None else (*(vote.who for vote in standing.votes), *standing.unsure)
