"""Answers shared between runs: a label given once answers every run that asks about the same image.

There is no second copy to keep up to date: the book is read from the answer logs of all runs below a folder,
and of the folder itself if a sweep asks there for all its runs. A run copies the answers that it needs to its
own log, so that its folder stays complete and its own rules turn them into labels.
"""

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ducats.annotation.answer import SHARED_CHANNEL, UNDO_WORD, Answer, parse_word
from ducats.annotation.question import Question
from ducats.annotation.store import AnnotationStore
from ducats.runfolder.run_folder import RunFolder
from ducats.runfolder.search import find_run_folders


class AnnotatorWord(NamedTuple):
    """The current answer of one annotator to one question."""

    annotator: str
    word: str  # empty if the answer was withdrawn
    seconds: float | None  # total time of this annotator for this question
    received_at: str
    is_copy: bool  # copied from another run


def current_words(answers: Iterable[Answer]) -> list[AnnotatorWord]:
    """Return the current answer of each annotator, from all answers to a question in the order of arrival.

    Late answers count: the round that they missed is closed, but another run may still ask.
    """
    words: dict[str, AnnotatorWord] = {}
    seconds: dict[str, float] = {}
    for answer in answers:
        if answer.reject_reason not in (None, "late"):
            continue
        if answer.seconds is not None:
            seconds[answer.annotator] = seconds.get(answer.annotator, 0.0) + answer.seconds
        if answer.kind != "skip":
            is_copy = answer.channel == SHARED_CHANNEL
            words[answer.annotator] = AnnotatorWord(
                answer.annotator, answer.word, None, answer.received_at, is_copy
            )
    return [word._replace(seconds=seconds.get(annotator)) for annotator, word in words.items()]


def question_subject(question: Question, classes: Sequence[str]) -> Hashable | None:
    """Return a key that is equal for questions with the same answer: same image, same area, same classes.

    None if the content of the image is unknown.
    """
    return (question.image_digest, question.area, frozenset(classes)) if question.image_digest else None


AnswersByQuestion = Mapping[tuple[int, str], Sequence[Answer]]  # round and question


class AnswerBook:
    """All answers in the runs below some folders, and in the folders themselves, as of the last refresh.

    Args:
        folders: of sweeps or runs.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = tuple(folders)
        self._stores: dict[Path, AnnotationStore] = {}
        self._known_rounds: set[tuple[Path, int]] = set()
        self._asked: dict[Hashable, list[tuple[Path, int, str]]] = {}  # store, round and question, by subject
        self._answers: dict[Path, AnswersByQuestion] = {}
        self._amended: dict[Hashable, AnnotatorWord] = {}  # newest correction, by subject

    def refresh(self) -> None:
        """Read what was added since the last call."""
        folders = [folder for folder in self.folders if folder.is_dir()]
        runs = find_run_folders(folders, include_incomplete=True) if folders else []
        for path in (RunFolder(folder).questions_path.resolve() for folder in (*folders, *runs)):
            if path not in self._stores and path.is_dir():
                self._stores[path] = AnnotationStore(path)
        for path, store in self._stores.items():
            for number in store.round_numbers():
                if (path, number) not in self._known_rounds:
                    self._known_rounds.add((path, number))
                    question_round = store.question_round(number)
                    for question in question_round.questions:
                        subject = question_subject(question, question_round.rules.classes)
                        self._asked.setdefault(subject, []).append((path, number, question.id))
            self._answers[path] = group_answers(store)
            self._read_amendments(path.parent, store)

    def _read_amendments(self, run: Path, store: AnnotationStore) -> None:
        for amendment in RunFolder(run).load_amendments(with_merges=False):
            word = AnnotatorWord(amendment.annotator, "", None, amendment.made_at, is_copy=False)
            for one in amendment.corrections:
                if one.round not in store.round_numbers():
                    continue  # answered by label PNGs only
                question_round = store.question_round(one.round)
                question = question_round.by_id.get(one.question)  # None: corrected by a label PNG
                subject = question and question_subject(question, question_round.rules.classes)
                known = self._amended.get(subject)
                if subject and (known is None or known.received_at <= word.received_at):
                    self._amended[subject] = word._replace(word=one.new)

    def stores(self, *, besides: Path | None = None) -> list[AnnotationStore]:
        """Return the annotation stores, without the one in the folder ``besides``."""
        excluded = besides.resolve() if besides is not None else None
        return [store for path, store in self._stores.items() if path != excluded]

    def is_amended(self, question: Question, classes: Sequence[str]) -> bool:
        """Return whether a run corrected its label of this question."""
        return question_subject(question, classes) in self._amended

    def words(
        self, question: Question, classes: Sequence[str], *, besides: Path | None = None
    ) -> list[AnnotatorWord]:
        """Return the current answer of each annotator to a question, oldest first.

        An annotator's newest answer counts. Copies count only if the original is gone. Of a label that was
        corrected, only the correction counts.

        Args:
            besides: resolved folder of a store whose answers are not used.
        """
        found: dict[str, AnnotatorWord] = {}
        subject = question_subject(question, classes)
        if self.is_amended(question, classes):
            return [self._amended[subject]]
        for path, number, asked in self._asked.get(subject, []) if subject is not None else ():
            if path == besides:
                continue
            for word in current_words(self._answers[path].get((number, asked), ())):
                known = found.get(word.annotator)
                if known is None or _precedence(word) > _precedence(known):
                    found[word.annotator] = word
        return sorted(found.values(), key=lambda word: word.received_at)


def group_answers(store: AnnotationStore) -> AnswersByQuestion:
    """Return all answers of a store by round and question."""
    groups: dict[tuple[int, str], list[Answer]] = {}
    for answer in store.answers():
        groups.setdefault((answer.round, answer.question), []).append(answer)
    return groups


def _precedence(word: AnnotatorWord) -> tuple[bool, str]:
    return not word.is_copy, word.received_at


def import_shared_answers(store: AnnotationStore, round_number: int, book: AnswerBook) -> int:
    """Copy the book's answers to the questions of an open round into its log; return their number.

    An answer that the annotator gave to this run itself is never replaced. A copy follows its original when
    that is changed or withdrawn.
    """
    if store.closed_round(round_number) is not None:
        return 0
    question_round, folder = store.question_round(round_number), store.folder.resolve()
    rules, own_answers = question_round.rules, group_answers(store)
    copies: list[tuple[str, dict[str, Any]]] = []
    for question in question_round.questions:
        words = book.words(question, rules.classes, besides=folder)
        if not words:
            continue
        own_words = {
            word.annotator: word for word in current_words(own_answers.get((round_number, question.id), ()))
        }
        if book.is_amended(question, rules.classes):  # copies of other answers are withdrawn
            by, made_at = words[0].annotator, words[0].received_at
            stale = [word for word in own_words.values() if word.is_copy and word.annotator != by]
            words += [word._replace(word=UNDO_WORD, received_at=made_at) for word in stale]
        for word in words:
            own = own_words.get(word.annotator)
            if own is not None and (not own.is_copy or own.word == word.word):
                continue
            kind = parse_word(word.word, rules.classes)[0]
            if (own is None and word.word == UNDO_WORD) or (kind == "new" and not rules.allow_new_classes):
                continue
            copy: dict[str, Any] = {
                "question": question.id,
                "word": word.word,
                "annotator": word.annotator,
                "external_id": _copy_id(question.id, word),
            }
            if word.seconds is not None:
                counted = own.seconds or 0.0 if own is not None else 0.0
                copy["seconds"] = round(max(0.0, word.seconds - counted), 3)
            copies.append((word.received_at, copy))
    copies.sort(key=lambda copy: copy[0])  # `first` and `newest` depend on the order of arrival
    if copies:
        store.receive([copy for _, copy in copies], channel=SHARED_CHANNEL)
    return len(copies)


def _copy_id(question: str, word: AnnotatorWord) -> str:
    """Return an id of fixed length, against copying the same answer twice."""
    text = f"{question} {word.annotator} {word.received_at}"
    return f"{SHARED_CHANNEL} {hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()}"


def answered_questions(store: AnnotationStore) -> Iterator[tuple[Question, Sequence[str], bool]]:
    """Yield the answered questions of a run with the classes, and whether only a label PNG answers each."""
    for number in store.round_numbers():
        question_round, closed = store.question_round(number), store.closed_round(number)
        statuses = store.statuses(number)
        for question in question_round.questions:
            by_png = closed is not None and question.id in closed.answered_by_png
            if by_png or statuses[question.id].state == "settled":
                yield question, question_round.rules.classes, by_png
