"""Answers shared between runs: a label given once answers every run that asks about the same image.

There is no second copy to keep up to date: the book is read from the answer logs of all runs below a folder,
and of the folder itself if a sweep asks there for all its runs. A run copies the answers that it needs to its
own log, so that its folder stays complete and its own rules turn them into labels.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ducats.annotation.answer import UNDO_WORD, Answer, parse_word
from ducats.annotation.question import Question
from ducats.annotation.store import AnnotationStore
from ducats.runfolder.run_folder import RunFolder
from ducats.runfolder.search import find_run_folders

SHARED_CHANNEL = "shared"  # channel of answers that were copied from the book


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


class AnswerBook:
    """All answers in the runs below some folders, and in the folders themselves.

    Args:
        folders: of sweeps or runs.
        excluded: a ``questions`` folder that is not read: that of the run that asks.
    """

    def __init__(self, folders: Sequence[Path], excluded: Path | None = None) -> None:
        self.folders = tuple(folders)
        self._excluded = excluded.resolve() if excluded is not None else None
        self._stores: dict[Path, AnnotationStore] = {}
        self._ids: dict[tuple[Path, int], dict[Hashable, str]] = {}  # question ids by subject, for each round

    def stores(self) -> list[AnnotationStore]:
        """Return the annotation store of each run; runs may have been added since the last call."""
        folders = [folder for folder in self.folders if folder.is_dir()]
        runs = find_run_folders(folders, include_incomplete=True) if folders else []
        for path in (RunFolder(folder).questions_path.resolve() for folder in (*folders, *runs)):
            if path != self._excluded and path not in self._stores and path.is_dir():
                self._stores[path] = AnnotationStore(path)
        return list(self._stores.values())

    def words(self, question: Question, classes: Sequence[str]) -> list[AnnotatorWord]:
        """Return the current answer of each annotator to a question, oldest first.

        An annotator's newest answer counts. Copies count only if the original is gone.
        """
        found: dict[str, AnnotatorWord] = {}
        subject = question_subject(question, classes)
        for store in self._stores.values() if subject is not None else ():
            for round_number in store.round_numbers():
                asked = self._question_ids(store, round_number).get(subject)
                if asked is None:
                    continue
                answers = [answer for answer in store.answers(asked) if answer.round == round_number]
                for word in current_words(answers):
                    known = found.get(word.annotator)
                    if known is None or _precedence(word) > _precedence(known):
                        found[word.annotator] = word
        return sorted(found.values(), key=lambda word: word.received_at)

    def _question_ids(self, store: AnnotationStore, round_number: int) -> dict[Hashable, str]:
        key = store.folder, round_number
        if key not in self._ids:
            question_round = store.question_round(round_number)
            classes = question_round.rules.classes
            self._ids[key] = {
                question_subject(question, classes): question.id for question in question_round.questions
            }
        return self._ids[key]


def _precedence(word: AnnotatorWord) -> tuple[bool, str]:
    return not word.is_copy, word.received_at


def import_shared_answers(store: AnnotationStore, round_number: int, book: AnswerBook) -> int:
    """Copy the book's answers to the questions of an open round into its log; return their number.

    An answer that the annotator gave to this run itself is never replaced. A copy follows its original when
    that is changed or withdrawn.
    """
    if store.closed_round(round_number) is not None or not book.stores():
        return 0
    question_round = store.question_round(round_number)
    rules = question_round.rules
    copies: list[tuple[str, dict[str, Any]]] = []
    for question in question_round.questions:
        words = book.words(question, rules.classes)
        if not words:
            continue
        own_answers = [answer for answer in store.answers(question.id) if answer.round == round_number]
        own_words = {word.annotator: word for word in current_words(own_answers)}
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
                "external_id": f"{SHARED_CHANNEL} {question.id} {word.annotator} {word.received_at}",
            }
            if word.seconds is not None:
                counted = own.seconds or 0.0 if own is not None else 0.0
                copy["seconds"] = round(max(0.0, word.seconds - counted), 3)
            copies.append((word.received_at, copy))
    copies.sort(key=lambda copy: copy[0])  # `first` and `newest` depend on the order of arrival
    if copies:
        store.receive([copy for _, copy in copies], channel=SHARED_CHANNEL)
    return len(copies)


def answered_questions(store: AnnotationStore) -> Iterator[tuple[Question, Sequence[str], bool]]:
    """Yield the answered questions of a run with the classes, and whether only a label PNG answers each."""
    for number in store.round_numbers():
        question_round, closed = store.question_round(number), store.closed_round(number)
        statuses = store.statuses(number)
        for question in question_round.questions:
            by_png = closed is not None and question.id in closed.answered_by_png
            if by_png or statuses[question.id].state == "settled":
                yield question, question_round.rules.classes, by_png
