"""Annotation store: a run's questions and the answers to them."""

import json
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ducats.annotation.answer import (
    MAX_TEXT_LENGTH,
    Answer,
    fold_word,
    malformed_answer,
    new_class_name,
    parse_word,
    replace_surrogates,
)
from ducats.annotation.answer_log import AnswerLog
from ducats.annotation.question import QuestionRound
from ducats.annotation.rules import QuestionStatus, independent_words, possible_words, question_status
from ducats.runfolder import checksums
from ducats.runfolder.class_changes import CLASSES_FILE, ClassChange, load_class_changes, translate_word
from ducats.runfolder.question_names import ANSWER_LOG, CLOSED, RULES
from ducats.runfolder.rounds import round_name, rounds_in
from ducats.utils.errors import UserError
from ducats.utils.typed_json import parse_json

if TYPE_CHECKING:  # keeps `--help` fast
    from ducats.annotation.dawid_skene import AnnotatorModel

_Version = tuple[int, int, int] | None  # of a file

MAX_ANSWER_SECONDS = 24 * 3600.0  # longest plausible time for one answer


@dataclass(frozen=True)
class ClosedRound:
    """The final labels of a round; later answers do not count."""

    words: Mapping[str, str]  # by question id
    kinds: Mapping[str, str]
    seconds: Mapping[str, float]  # annotation time by question id
    # settled: every question has a label; time_limit: the time was up; stopped: live labelling ended
    reason: str
    answered_by_png: frozenset[str] = frozenset()  # questions answered by label PNGs only


class AnnotationStore:
    """Questions and answers in a run's ``questions`` folder, safe for several processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = AnswerLog(folder / ANSWER_LOG)
        self._question_rounds: dict[int, tuple[_Version, QuestionRound]] = {}
        self._changes_path = folder.parent / CLASSES_FILE
        self._changes: tuple[ClassChange, ...] = ()  # of the classes: words are translated when they are read
        self._changes_version: _Version = None
        self._answers: list[Answer] = []  # the log, translated
        self._closed_rounds: dict[int, ClosedRound] = {}
        # The newest round of each question: unanswered questions may be asked again in a later round.
        self._round_of: dict[str, int] = {}
        self._known_rounds: set[int] = set()  # rounds included in `_round_of`
        self._answers_by_question: dict[tuple[int, str], list[Answer]] = {}  # by round and question
        self._external_ids: dict[str, set[tuple[str, str]]] = {}  # question and word received under each id
        self._statuses: dict[tuple[int, str], QuestionStatus] = {}
        self._annotator_models: dict[int, AnnotatorModel] = {}  # by last round
        self._lock = threading.RLock()

    # -- questions ------------------------------------------------------------------------------------

    def round_numbers(self) -> list[int]:
        """Return the numbers of the rounds with questions, oldest first."""
        return rounds_in(self.folder, f"*/{RULES}")

    def round_folder(self, round_number: int) -> Path:
        """Return the folder of a round."""
        return self.folder / round_name(round_number)

    def question_round(self, round_number: int) -> QuestionRound:
        """Return the questions of a round, with the classes added or changed since it was written."""
        with self._lock:
            self._load_class_changes()
            version = _file_version(self.round_folder(round_number) / RULES)
            known = self._question_rounds.get(round_number)
            if known is None or known[0] != version:
                found = QuestionRound.read(self.round_folder(round_number))
                if self._changes:
                    found = found.with_words(self.translate)
                has_new_classes = known is not None
                self._question_rounds[round_number] = known = (version, found)
                if has_new_classes:
                    self._forget_models(round_number)
            return known[1]

    def translate(self, word: str) -> str:
        """Return the current name of a class that was renamed or merged; other words as they are."""
        if not self._changes:
            return word
        former = {fold_word(change.name): change.name for change in self._changes if change.kind != "added"}
        return translate_word(former.get(fold_word(word), word), self._changes)

    def n_class_changes(self) -> int:
        """Return how often classes were added, renamed or merged."""
        with self._lock:
            self._load_class_changes()
            return len(self._changes)

    def _load_class_changes(self) -> None:
        """Read the changes of the classes, and forget what depends on them, if there are new ones."""
        version = _file_version(self._changes_path)
        if version == self._changes_version:
            return
        self._changes, self._changes_version = load_class_changes(self._changes_path), version
        for cache in (
            self._question_rounds,
            self._closed_rounds,
            self._answers_by_question,
            self._external_ids,
            self._statuses,
            self._annotator_models,
            self._answers,
        ):
            cache.clear()

    def forget_round(self, round_number: int) -> None:
        """Read the questions of a round again when they are needed: they were written anew."""
        with self._lock:
            self._question_rounds.pop(round_number, None)
            self._known_rounds.discard(round_number)

    def open_round(self) -> QuestionRound | None:
        """Return the round that is waiting for answers, if any."""
        numbers = self.round_numbers()
        if not numbers or self.closed_round(numbers[-1]) is not None:
            return None
        return self.question_round(numbers[-1])

    def _load_new_rounds(self) -> None:
        """Load rounds written since the last call."""
        for round_number in self.round_numbers():
            if round_number not in self._known_rounds:
                self._round_of.update(dict.fromkeys(self.question_round(round_number).by_id, round_number))
                self._known_rounds.add(round_number)

    def add_class(self, round_number: int, name: str) -> str:
        """Append a class to the rules of an open round, unless it is there; return its name.

        Raises:
            UserError: the name is empty, too long or reserved.
        """
        with self._lock, self.log.locked():
            return self._add_class(round_number, name)

    def _add_class(self, round_number: int, name: str) -> str:
        question_round = self.question_round(round_number)
        kind, name = parse_word(self.translate(replace_surrogates(name)), question_round.rules.classes)
        if kind == "class":
            return name
        name = new_class_name(name)
        rules = replace(question_round.rules, classes=(*question_round.rules.classes, name))
        rules.write(question_round.folder)
        version = _file_version(question_round.folder / RULES)
        self._question_rounds[round_number] = (version, replace(question_round, rules=rules))
        return name

    # -- answers --------------------------------------------------------------------------------------

    def receive(self, raw_answers: Iterable[Mapping[str, Any]], *, channel: str) -> list[Answer]:
        """Log answers, valid or not, and flush them to disk.

        Args:
            raw_answers: mappings with ``question`` and ``word``, and optionally ``annotator``, ``seconds``
                and ``external_id``. An answer whose ``external_id`` is in the log already is skipped; if its
                question or word differs, it is logged as rejected. Set ``reject_reason`` to log an answer
                that cannot count.
            channel: how the answers were submitted.

        Returns:
            The logged answers in order. ``reject_reason`` says why an answer does not count.
        """
        with self._lock, self.log.locked():
            self._load_new_rounds()
            self._read_new_answers()
            received_at = datetime.now(UTC).isoformat(timespec="milliseconds")
            answers: list[Answer] = []
            has_duplicate = False
            # Remembered only after the write: if the disk is full, the same answers may be submitted again.
            new_external_ids: dict[str, set[tuple[str, str]]] = {}
            for raw in raw_answers:
                answer = self._validate(raw, received_at, channel)
                if (external_id := answer.external_id) is not None:
                    new = new_external_ids.setdefault(external_id, set())
                    known = new | self._external_ids.get(external_id, set())
                    if (answer.question, answer.word) in known:
                        has_duplicate = True
                        continue
                    if known:
                        answer = replace(answer, reject_reason=answer.reject_reason or "duplicate")
                    new.add((answer.question, answer.word))
                answers.append(answer)
            self.log.append(answers)
            if has_duplicate and not answers:
                self.log.flush()
            self._read_new_answers()
        return answers

    def _validate(self, raw: Mapping[str, Any], received_at: str, channel: str) -> Answer:
        if not isinstance(raw, Mapping):
            return malformed_answer(raw, received_at, channel)
        question, word, annotator = raw.get("question"), raw.get("word"), raw.get("annotator", "")
        seconds, external_id = raw.get("seconds"), raw.get("external_id")
        reject_reason = str(raw["reject_reason"])[:MAX_TEXT_LENGTH] if raw.get("reject_reason") else None
        if (
            not (isinstance(question, str) and isinstance(word, str) and isinstance(annotator, str))
            or isinstance(seconds, bool)
            or not isinstance(seconds, int | float | None)
            or max(len(word), len(annotator)) > MAX_TEXT_LENGTH
            or (isinstance(external_id, str) and len(external_id) > MAX_TEXT_LENGTH)
        ):
            return malformed_answer(raw, received_at, channel)
        if seconds is not None and not 0 <= seconds <= MAX_ANSWER_SECONDS:
            seconds = None  # implausible: a wrong clock, or a page left open
        fields: dict[str, Any] = {
            "annotator": replace_surrogates(annotator),
            "received_at": received_at,
            "channel": channel,
            "seconds": seconds,
            "external_id": replace_surrogates(external_id) if isinstance(external_id, str) else None,
        }
        round_number = self._round_of.get(question)
        if round_number is None:
            return Answer(
                replace_surrogates(question[:MAX_TEXT_LENGTH]),
                replace_surrogates(word),
                "invalid",
                reject_reason=reject_reason or "unknown question",
                **fields,
            )
        rules = self.question_round(round_number).rules
        kind, word = parse_word(self.translate(replace_surrogates(word)), rules.classes)
        if kind == "new" and not (rules.allow_new_classes or rules.live):
            reject_reason = reject_reason or "unknown class"
        elif self.closed_round(round_number) is not None:
            reject_reason = reject_reason or "late"
        elif kind == "new" and reject_reason is None:
            try:
                kind, word = "class", self._add_class(round_number, word)
            except UserError:
                reject_reason = "unknown class"
        return Answer(question, word, kind, round=round_number, reject_reason=reject_reason, **fields)

    def _read_new_answers(self) -> None:
        self._load_class_changes()
        answers = self.log.answers()
        for logged in answers[len(self._answers) :]:
            word = self.translate(logged.word)
            answer = logged if word == logged.word else replace(logged, word=word)
            self._answers.append(answer)
            if answer.external_id is not None:
                self._external_ids.setdefault(answer.external_id, set()).add((answer.question, answer.word))
            if answer.question:
                key = (answer.round, answer.question)
                self._answers_by_question.setdefault(key, []).append(answer)
                self._statuses.pop(key, None)
                if answer.reject_reason is None:
                    self._forget_models(answer.round)

    def _forget_models(self, first_round: int) -> None:
        """Forget what depends on all answers to a round."""
        for number in [one for one in self._annotator_models if one >= first_round]:
            del self._annotator_models[number]
            if self.question_round(number).rules.rule == "weighted":
                for key in [one for one in self._statuses if one[0] == number]:
                    del self._statuses[key]

    def answers(self, question: str | None = None) -> list[Answer]:
        """Return all answers, or all answers to one question, oldest first."""
        with self._lock:
            self._read_new_answers()
            if question is None:
                return list(self._answers)
            return [
                answer
                for round_number in (0, *self.round_numbers())
                for answer in self._answers_by_question.get((round_number, question), [])
            ]

    def status(self, question: str) -> QuestionStatus:
        """Return the status of a question in its newest round; raise KeyError if it was never asked."""
        with self._lock:
            self._load_new_rounds()
            self._read_new_answers()
            return self._status(self._round_of[question], question)

    def _status(self, round_number: int, question: str) -> QuestionStatus:
        key = (round_number, question)
        if key not in self._statuses:
            known = self._question_rounds.get(round_number)
            question_round = self.question_round(round_number) if known is None else known[1]
            rules = question_round.rules_for(question)
            model = self.annotator_model(round_number) if rules.rule == "weighted" else None
            self._statuses[key] = question_status(self._answers_by_question.get(key, []), rules, model)
        return self._statuses[key]

    def independent_words(self, round_number: int) -> dict[str, dict[str, str]]:
        """Return the words that annotators gave independently of each other, by question."""
        with self._lock:
            self._read_new_answers()
            questions = self.question_round(round_number).by_id
            by_question = self._answers_by_question
            return {one: independent_words(by_question.get((round_number, one), ())) for one in questions}

    def annotator_model(self, last_round: int) -> "AnnotatorModel":
        """Return the errors of annotators, estimated from the independent answers up to a round.

        What is said about a closed round never changes, since its answers do not.
        """
        from ducats.annotation.dawid_skene import fit_annotators  # needs NumPy; keeps `--help` fast

        with self._lock:
            self._read_new_answers()
            if last_round not in self._annotator_models:
                numbers = [number for number in self.round_numbers() if number <= last_round]
                answered = [one for number in numbers for one in self.independent_words(number).values()]
                classes = [name for n in numbers for name in self.question_round(n).rules.classes]
                given = {
                    answer.word
                    for answer in self._answers
                    if answer.reject_reason is None and answer.kind == "new" and answer.round <= last_round
                }
                self._annotator_models[last_round] = fit_annotators(answered, possible_words(classes, given))
            return self._annotator_models[last_round]

    def statuses(self, round_number: int) -> dict[str, QuestionStatus]:
        """Return the status of each question in a round; in a closed one, with corrected labels."""
        question_round = self.question_round(round_number)
        with self._lock:
            self._read_new_answers()
            found = {question: self._status(round_number, question) for question in question_round.by_id}
            if self.closed_round(round_number) is not None:
                for question, word in self.corrected_words().items():
                    if question in found and found[question].word is not None:
                        found[question] = replace(found[question], word=word)
            return found

    def corrected_words(self) -> dict[str, str]:
        """Return the corrected label of each question whose label was amended."""
        from ducats.runfolder.run_folder import RunFolder  # needs NumPy; keeps `--help` fast

        amendments = RunFolder(self.folder.parent).load_amendments(with_merges=False)
        corrections = [one for amendment in amendments for one in amendment.corrections]
        return {one.question: self.translate(one.new) for one in corrections}

    # -- labels ---------------------------------------------------------------------------------------

    def stop_round(self, round_number: int) -> ClosedRound:
        """Close a live round with the labels that it has."""
        with self._lock, self.log.locked():
            if self.closed_round(round_number) is None:
                statuses = self.statuses(round_number)
                answered = {question: one for question, one in statuses.items() if one.seconds or one.votes}
                self._write_closed(round_number, answered, "stopped")
        closed = self.closed_round(round_number)
        assert closed is not None
        return closed

    def close_round(self, round_number: int, *, answered_by_png: Collection[str] = ()) -> ClosedRound | None:
        """Close a round if possible and return its labels; return None if it still waits for answers.

        The labels of a closed round never change. A run that is killed before it has appended them to the
        ledger gets the same labels after a restart.

        Args:
            answered_by_png: ids of questions that label PNGs answer; they need no answer in the log.
        """
        if (self.round_folder(round_number) / CLOSED).exists():
            return self.closed_round(round_number)
        with self._lock, self.log.locked():
            statuses = self.statuses(round_number)
            rules = self.question_round(round_number).rules
            total_seconds = sum(status.seconds for status in statuses.values())
            settled = {question: status for question, status in statuses.items() if status.state == "settled"}
            open_questions = statuses.keys() - settled.keys() - set(answered_by_png)
            if open_questions and (rules.max_seconds is None or total_seconds < rules.max_seconds):
                return None
            png_only = [
                question for question in statuses if question not in settled and question in answered_by_png
            ]
            reason = "time_limit" if open_questions else "settled"
            self._write_closed(round_number, statuses, reason, answered_by_png=png_only)
        return self.closed_round(round_number)

    def _write_closed(
        self,
        round_number: int,
        statuses: Mapping[str, QuestionStatus],
        reason: str,
        *,
        answered_by_png: Sequence[str] = (),
    ) -> None:
        classes = self.question_round(round_number).rules.classes
        words = {question: str(one.word) for question, one in statuses.items() if one.state == "settled"}
        value: dict[str, Any] = {
            "reason": reason,
            "words": words,
            "kinds": {question: parse_word(word, classes)[0] for question, word in words.items()},
            "seconds": {question: round(one.seconds, 3) for question, one in statuses.items()},
        }
        if answered_by_png:
            value["answered_by_png"] = answered_by_png
        checksums.write_text(self.round_folder(round_number) / CLOSED, json.dumps(value, ensure_ascii=False))

    def closed_round(self, round_number: int) -> ClosedRound | None:
        """Return the labels of a round if it is closed."""
        self._load_class_changes()
        path = self.round_folder(round_number) / CLOSED
        if round_number not in self._closed_rounds:
            checksums.verify(path)
            if not path.exists():
                return None
            try:
                closed = parse_json(ClosedRound, path.read_bytes())
            except ValueError as error:
                raise checksums.corrupt(path, error) from error
            words = {question: self.translate(word) for question, word in closed.words.items()}
            self._closed_rounds[round_number] = replace(closed, words=words)
        return self._closed_rounds[round_number]


def _file_version(path: Path) -> _Version:
    """Return what changes when a file is replaced; None if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
