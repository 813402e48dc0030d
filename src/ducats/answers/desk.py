"""The desk: where a run's questions lie and answers come in."""

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

MOST_SECONDS = 24 * 3600.0  # that one answer may be said to have taken


@dataclass(frozen=True)
class Taken:
    """A round's labels as the run took them; later answers are late."""

    words: Mapping[str, str]  # by question
    kinds: Mapping[str, str]
    seconds: Mapping[str, float]  # of people, for each question
    because: str  # settled: all are, here or in label PNGs; seconds: people's time is spent
    elsewhere: Collection[str] = ()  # questions that label PNGs answer, and no word


class Desk:
    """A run's questions and answers; several processes may work at one desk.

    Args:
        folder: the run's ``questions``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.book = Book(folder / "received.jsonl")
        self._sheets: dict[int, Sheet] = {}
        self._taken: dict[int, Taken] = {}
        # The newest round of each: what nobody had time for may be asked again.
        self._round_of: dict[str, int] = {}
        self._entered: set[int] = set()  # rounds that are in it
        self._heard: dict[tuple[int, str], list[Answer]] = {}  # by round and question
        self._refs: dict[str, set[tuple[str, str]]] = {}  # what was said under a name: question and word
        self._standings: dict[tuple[int, str], Standing] = {}
        self._seen = 0
        self._own = threading.RLock()

    # -- questions ------------------------------------------------------------------------------------

    def rounds(self) -> list[int]:
        """Rounds that were laid out, oldest first."""
        names = (path.parent.name.removeprefix("round-") for path in self.folder.glob("round-*/terms.json"))
        return sorted(int(name) for name in names if name.isdecimal())  # others are somebody's copies

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

    def _look(self) -> None:
        """Take note of rounds that were laid out meanwhile."""
        for number in self.rounds():
            if number not in self._entered:
                self._round_of.update(dict.fromkeys(self.sheet(number).by_id, number))
                self._entered.add(number)

    # -- answers --------------------------------------------------------------------------------------

    def receive(self, given: Iterable[Mapping[str, Any]], *, via: str) -> list[Answer]:
        """Put answers down, good or not; they are on disk when this returns.

        Args:
            given: ``question`` and ``word``, and ``who``, ``seconds``, ``ref`` where they are known. One
                whose ``ref`` is in the book already is not put down again; if it says something else
                under that name, it is, and does not count. ``refused`` says why an answer cannot count, where
                who brings it knows that already.
            via: how they came.

        Returns:
            What was put down, in order; ``refused`` says why an answer does not count.
        """
        with self._own, self.book.held():
            self._look()
            self._catch_up()
            when = datetime.now(UTC).isoformat(timespec="milliseconds")
            answers: list[Answer] = []
            again = False
            # Known once they are on disk: what a full disk refused may come again.
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
            seconds = None  # a clock that was wrong, or a page left open: no cost that can be believed
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
        """All that came, or all that came to one question, oldest first."""
        with self._own:
            self._catch_up()
            if question is None:
                return list(self.book.answers())
            return [
                answer for number in (0, *self.rounds()) for answer in self._heard.get((number, question), [])
            ]

    def standing(self, question: str) -> Standing:
        """How far a question is; KeyError if it was never asked."""
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
        """How far each question of a round is."""
        sheet = self.sheet(number)
        with self._own:
            self._catch_up()
            return {question: self._standing(number, question) for question in sheet.by_id}

    # -- labels ---------------------------------------------------------------------------------------

    def take(self, number: int, *, elsewhere: Collection[str] = ()) -> Taken | None:
        """Close a round if it can be, and return its labels; None if it still waits.

        What is returned once is returned for ever: a run that is killed before it entered them goes on alike.

        Args:
            number: the round.
            elsewhere: questions that nobody needs to settle here, as label PNGs answer them.
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
        """A round's labels if the run took them."""
        path = self.home(number) / "taken.json"
        if number not in self._taken:
            if not path.exists():
                return None
            try:
                self._taken[number] = Taken(**json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, TypeError) as error:
                raise UserError(f"{path} was spoilt ({error}): restore it from a copy") from error
        return self._taken[number]
