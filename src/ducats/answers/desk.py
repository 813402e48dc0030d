"""The desk: where a run's questions lie and answers come in."""

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ducats.answers.answer import Answer, kind_of, malformed
from ducats.answers.book import Book
from ducats.answers.question import Sheet
from ducats.answers.rules import Standing, standing
from ducats.errors import UserError
from ducats.files import write_text_atomically

MOST_SECONDS = 24 * 3600.0  # that one answer may be said to have taken


@dataclass(frozen=True)
class Taken:
    """A round's labels as the run took them; later answers are late."""

    words: Mapping[str, str]  # by question
    kinds: Mapping[str, str]
    seconds: Mapping[str, float]  # of people, for each question
    because: str  # settled: all are; seconds: people's time is spent


class Desk:
    """A run's questions and answers; several processes may work at one desk.

    Args:
        folder: the run's ``questions``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.book = Book(folder / "received.jsonl")
        self._sheets: dict[int, Sheet] = {}
        self._round_of: dict[str, int] = {}
        self._by_question: dict[str, list[Answer]] = {}
        self._refs: set[str] = set()
        self._standings: dict[str, Standing] = {}
        self._seen = 0
        self._own = threading.RLock()

    # -- questions ------------------------------------------------------------------------------------

    def rounds(self) -> list[int]:
        """Rounds that were laid out, oldest first."""
        return sorted(
            int(path.parent.name.removeprefix("round-")) for path in self.folder.glob("round-*/terms.json")
        )

    def home(self, number: int) -> Path:
        """A round's folder."""
        return self.folder / f"round-{number:02d}"

    def sheet(self, number: int) -> Sheet:
        """A round's questions."""
        if number not in self._sheets:
            self._sheets[number] = Sheet.read(self.home(number))
        return self._sheets[number]

    def current(self) -> Sheet | None:
        """The questions that wait for answers now, if any do."""
        numbers = self.rounds()
        return self.sheet(numbers[-1]) if numbers and self.taken(numbers[-1]) is None else None

    def _sheet_of(self, question: str) -> Sheet | None:
        if question not in self._round_of:
            for number in set(self.rounds()) - set(self._round_of.values()):
                self._round_of.update(dict.fromkeys(self.sheet(number).by_id, number))
        return self.sheet(self._round_of[question]) if question in self._round_of else None

    # -- answers --------------------------------------------------------------------------------------

    def receive(self, given: Iterable[Mapping[str, Any]], *, via: str) -> list[Answer]:
        """Put answers down, good or not; they are on disk when this returns.

        Args:
            given: ``question`` and ``word``, and ``who``, ``seconds``, ``ref`` where they are known. One
                whose ``ref`` is in the book already is not put down again.
            via: how they came.

        Returns:
            What was put down, in order; ``refused`` says why an answer does not count.
        """
        with self._own, self.book.held():
            self._catch_up()
            when = datetime.now(UTC).isoformat(timespec="milliseconds")
            answers = []
            for raw in given:
                ref = raw.get("ref") if isinstance(raw, Mapping) else None
                if isinstance(ref, str) and ref in self._refs:
                    continue
                answers.append(self._examined(raw, when, via))
                if isinstance(ref, str):
                    self._refs.add(ref)
            self.book.append(answers)
            self._catch_up()
        return answers

    def _examined(self, raw: Mapping[str, Any], when: str, via: str) -> Answer:
        if not isinstance(raw, Mapping):
            return malformed(raw, when, via)
        question, word, who = raw.get("question"), raw.get("word"), raw.get("who", "")
        seconds, ref = raw.get("seconds"), raw.get("ref")
        if not (isinstance(question, str) and isinstance(word, str) and isinstance(who, str)):
            return malformed(raw, when, via)
        if isinstance(seconds, bool) or not (seconds is None or isinstance(seconds, int | float)):
            return malformed(raw, when, via)
        if seconds is not None and not 0 <= seconds <= MOST_SECONDS:
            seconds = None  # a clock that was wrong, or a page left open: no cost that can be believed
        known: dict[str, Any] = {"who": who, "when": when, "via": via, "seconds": seconds}
        known["ref"] = ref if isinstance(ref, str) else None
        sheet = self._sheet_of(question)
        if sheet is None:
            return Answer(question, word, "none", refused="foreign", **known)
        kind, word = kind_of(word, sheet.terms.classes)
        known["round"] = sheet.terms.round
        refused = None
        if kind == "new" and not sheet.terms.new_classes:
            refused = "no class"
        elif self.taken(sheet.terms.round) is not None:
            refused = "late"
        return Answer(question, word, kind, refused=refused, **known)

    def _catch_up(self) -> None:
        answers = self.book.answers()
        for answer in answers[self._seen :]:
            if answer.ref is not None:
                self._refs.add(answer.ref)
            if answer.question:
                self._by_question.setdefault(answer.question, []).append(answer)
                self._standings.pop(answer.question, None)
        self._seen = len(answers)

    def answers(self, question: str | None = None) -> list[Answer]:
        """All that came, or all that came to one question, oldest first."""
        with self._own:
            self._catch_up()
            return list(self.book.answers() if question is None else self._by_question.get(question, []))

    def standing(self, question: str) -> Standing:
        """How far a question is."""
        with self._own:
            self._catch_up()
            return self._standing(question)

    def _standing(self, question: str) -> Standing:
        if question not in self._standings:
            sheet = self._sheet_of(question)
            if sheet is None:
                raise KeyError(question)
            self._standings[question] = standing(self._by_question.get(question, []), sheet.terms)
        return self._standings[question]

    def standings(self, number: int) -> dict[str, Standing]:
        """How far each question of a round is."""
        sheet = self.sheet(number)
        with self._own:
            self._catch_up()
            for question in sheet.by_id:
                if question not in self._standings:
                    heard = self._by_question.get(question, [])
                    self._standings[question] = standing(heard, sheet.terms)
            return {question: self._standings[question] for question in sheet.by_id}

    # -- labels ---------------------------------------------------------------------------------------

    def take(self, number: int) -> Taken | None:
        """Close a round if it can be, and return its labels; None if it still waits.

        What is returned once is returned for ever: a run that is killed before it entered them goes on alike.
        """
        if (taken := self.taken(number)) is not None:
            return taken
        with self._own, self.book.held():
            found = self.standings(number)
            bound = self.sheet(number).terms.seconds
            spent = sum(one.seconds for one in found.values())
            settled = {question: one for question, one in found.items() if one.state == "settled"}
            if len(settled) < len(found) and (bound is None or spent < bound):
                return None
            because = "settled" if len(settled) == len(found) else "seconds"
            sheet = self.sheet(number)
            words = {question: str(one.word) for question, one in settled.items()}
            value = {
                "because": because,
                "words": words,
                "kinds": {
                    question: kind_of(word, sheet.terms.classes)[0] for question, word in words.items()
                },
                "seconds": {question: round(one.seconds, 3) for question, one in found.items()},
            }
            write_text_atomically(self.home(number) / "taken.json", json.dumps(value, ensure_ascii=False))
        return self.taken(number)

    def taken(self, number: int) -> Taken | None:
        """A round's labels if the run took them."""
        path = self.home(number) / "taken.json"
        if not path.exists():
            return None
        try:
            return Taken(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path} was spoilt ({error}): restore it from a copy") from error
