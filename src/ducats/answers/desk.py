"""Annotation store: a run's questions and the answers to them."""

import json
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ducats.answers.answer import LONGEST, Answer, clean, kind_of, malformed
from ducats.answers.book import Book
from ducats.answers.question import Sheet
from ducats.answers.rules import Standing, standing
from ducats.errors import UserError
from ducats.files import write_text_atomically

MOST_SECONDS = 24 * 3600.0  # longest plausible time for one answer


@dataclass(frozen=True)
class Taken:
    """The final labels of a round; later answers do not count."""

    words: Mapping[str, str]  # by question id
    kinds: Mapping[str, str]
    seconds: Mapping[str, float]  # annotation time by question id
    because: str  # settled: every question has a label; seconds: the time limit was reached
    elsewhere: Collection[str] = ()  # questions answered by label PNGs only


class Desk:
    """Questions and answers of a run, safe for several processes.

    Args:
        folder: the run's ``questions`` folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.book = Book(folder / "received.jsonl")
        self._sheets: dict[int, Sheet] = {}
        self._taken: dict[int, Taken] = {}
        # The newest round of each question: unanswered questions may be asked again in a later round.
        self._round_of: dict[str, int] = {}
        self._entered: set[int] = set()  # rounds included in it
        self._heard: dict[tuple[int, str], list[Answer]] = {}  # by round and question
        self._refs: dict[str, set[tuple[str, str]]] = {}  # question and word received under each ref
        self._standings: dict[tuple[int, str], Standing] = {}
        self._seen = 0
        self._own = threading.RLock()

    # -- questions ------------------------------------------------------------------------------------

    def rounds(self) -> list[int]:
        """Return the numbers of the rounds with questions, oldest first."""
        names = (path.parent.name.removeprefix("round-") for path in self.folder.glob("round-*/terms.json"))
        return sorted(int(name) for name in names if name.isdecimal())  # others are user copies

    def home(self, number: int) -> Path:
        """Return the folder of a round."""
        return self.folder / f"round-{number:02d}"

    def sheet(self, number: int) -> Sheet:
        """Return the questions of a round."""
        if number not in self._sheets:
            self._sheets[number] = Sheet.read(self.home(number))
        return self._sheets[number]

    def current(self) -> Sheet | None:
        """Return the round that is waiting for answers, if any."""
        numbers = self.rounds()
        return self.sheet(numbers[-1]) if numbers and self.taken(numbers[-1]) is None else None

    def _look(self) -> None:
        """Load rounds written since the last call."""
        for number in self.rounds():
            if number not in self._entered:
                self._round_of.update(dict.fromkeys(self.sheet(number).by_id, number))
                self._entered.add(number)

    # -- answers --------------------------------------------------------------------------------------

    def receive(self, given: Iterable[Mapping[str, Any]], *, via: str) -> list[Answer]:
        """Log answers, valid or not, and flush them to disk.

        Args:
            given: mappings with ``question`` and ``word``, and optionally ``who``, ``seconds`` and ``ref``.
                An answer whose ``ref`` is in the log already is skipped; if its question or word differs, it
                is logged as rejected. Set ``refused`` to a reason to log an answer that cannot count.
            via: how the answers were submitted.

        Returns:
            The logged answers in order. ``refused`` is the reason why an answer does not count.
        """
        with self._own, self.book.held():
            self._look()
            self._catch_up()
            when = datetime.now(UTC).isoformat(timespec="milliseconds")
            answers: list[Answer] = []
            again = False
            # Remembered only after the write: if the disk is full, the same answers may be submitted again.
            refs: dict[str, set[tuple[str, str]]] = {}
            for raw in given:
                answer = self._examined(raw, when, via)
                if (ref := answer.ref) is not None:
                    said = self._refs.get(ref, set()) | refs.get(ref, set())
                    if (answer.question, answer.word) in said:
                        again = True
                        continue
                    if said:
                        answer = replace(answer, refused=answer.refused or "doubled")
                    refs.setdefault(ref, set()).add((answer.question, answer.word))
                answers.append(answer)
            self.book.append(answers)
            if again and not answers:
                self.book.flush()
            self._catch_up()
        return answers

    def _examined(self, raw: Mapping[str, Any], when: str, via: str) -> Answer:
        if not isinstance(raw, Mapping):
            return malformed(raw, when, via)
        question, word, who = raw.get("question"), raw.get("word"), raw.get("who", "")
        seconds, ref = raw.get("seconds"), raw.get("ref")
        refused = str(raw["refused"])[:LONGEST] if raw.get("refused") else None
        if not (isinstance(question, str) and isinstance(word, str) and isinstance(who, str)):
            return malformed(raw, when, via)
        if isinstance(seconds, bool) or not (seconds is None or isinstance(seconds, int | float)):
            return malformed(raw, when, via)
        if len(word) > LONGEST or len(who) > LONGEST:
            return malformed(raw, when, via)
        if seconds is not None and not 0 <= seconds <= MOST_SECONDS:
            seconds = None  # implausible: a wrong clock, or a page left open
        known: dict[str, Any] = {"who": clean(who), "when": when, "via": via, "seconds": seconds}
        known["ref"] = clean(ref) if isinstance(ref, str) else None
        number = self._round_of.get(question)
        if number is None:
            return Answer(
                clean(question[:LONGEST]), clean(word), "none", refused=refused or "foreign", **known
            )
        terms = self.sheet(number).terms
        kind, word = kind_of(clean(word), terms.classes)
        if kind == "new" and not terms.new_classes:
            refused = refused or "no class"
        elif self.taken(number) is not None:
            refused = refused or "late"
        return Answer(question, word, kind, round=number, refused=refused, **known)

    def _catch_up(self) -> None:
        answers = self.book.answers()
        for answer in answers[self._seen :]:
            if answer.ref is not None:
                self._refs.setdefault(answer.ref, set()).add((answer.question, answer.word))
            if answer.question:
                place = (answer.round, answer.question)
                self._heard.setdefault(place, []).append(answer)
                self._standings.pop(place, None)
        self._seen = len(answers)

    def answers(self, question: str | None = None) -> list[Answer]:
        """Return all answers, or all answers to one question, oldest first."""
        with self._own:
            self._catch_up()
            if question is None:
                return list(self.book.answers())
            return [
                answer for number in (0, *self.rounds()) for answer in self._heard.get((number, question), [])
            ]

    def standing(self, question: str) -> Standing:
        """Return the status of a question in its newest round; raise KeyError if it was never asked."""
        with self._own:
            self._look()
            self._catch_up()
            return self._standing(self._round_of[question], question)

    def _standing(self, number: int, question: str) -> Standing:
        place = (number, question)
        if place not in self._standings:
            self._standings[place] = standing(self._heard.get(place, []), self.sheet(number).terms)
        return self._standings[place]

    def standings(self, number: int) -> dict[str, Standing]:
        """Return the status of each question in a round."""
        sheet = self.sheet(number)
        with self._own:
            self._catch_up()
            return {question: self._standing(number, question) for question in sheet.by_id}

    # -- labels ---------------------------------------------------------------------------------------

    def take(self, number: int, *, elsewhere: Collection[str] = ()) -> Taken | None:
        """Close a round if possible and return its labels; return None if it still waits for answers.

        The labels of a closed round never change. A run that is killed before it has appended them to the
        ledger gets the same labels after a restart.

        Args:
            number: the round.
            elsewhere: ids of questions that label PNGs answer; they need no answer in the log.
        """
        if (taken := self.taken(number)) is not None:
            return taken
        with self._own, self.book.held():
            found = self.standings(number)
            terms = self.sheet(number).terms
            spent = sum(one.seconds for one in found.values())
            settled = {question: one for question, one in found.items() if one.state == "settled"}
            left = found.keys() - settled.keys() - set(elsewhere)
            if left and (terms.seconds is None or spent < terms.seconds):
                return None
            words = {question: str(one.word) for question, one in settled.items()}
            value: dict[str, Any] = {
                "because": "seconds" if left else "settled",
                "words": words,
                "kinds": {question: kind_of(word, terms.classes)[0] for question, word in words.items()},
                "seconds": {question: round(one.seconds, 3) for question, one in found.items()},
            }
            if others := [question for question in found if question not in words and question in elsewhere]:
                value["elsewhere"] = others
            write_text_atomically(self.home(number) / "taken.json", json.dumps(value, ensure_ascii=False))
        return self.taken(number)

    def taken(self, number: int) -> Taken | None:
        """Return the labels of a round if it is closed."""
        path = self.home(number) / "taken.json"
        if number not in self._taken:
            if not path.exists():
                return None
            try:
                self._taken[number] = Taken(**json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, TypeError) as error:
                raise UserError(f"{path} is corrupt ({error}); restore it from a backup") from error
        return self._taken[number]
