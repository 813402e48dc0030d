"""Correct labels that a run has acquired. Does not import torch, except to read a label PNG."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ducats.annotation.answer import VOID_WORD, parse_word
from ducats.annotation.csv_answers import read_csv_answers
from ducats.annotation.question import Question, RoundRules
from ducats.annotation.store import AnnotationStore
from ducats.runfolder.amendments import Amendment, Correction, label_runs
from ducats.runfolder.class_changes import ClassList, translate_word
from ducats.runfolder.question_names import CLASSES
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError
from ducats.utils.npz_columns import AnyArray

VOID_LABEL = -2  # in the files of labels


class NewLabel(NamedTuple):
    """A label to be corrected."""

    question: str  # id
    word: str  # class name, or void
    where: str = ""  # prefix of messages, e.g. a line of a file
    annotator: str = ""


@dataclass(frozen=True)
class AmendResult:
    """What an amendment changed."""

    corrections: tuple[Correction, ...]  # without runs: the label was confirmed
    unchanged: tuple[str, ...]  # questions whose label was amended or confirmed before


def read_new_labels(path: Path, *, per_pixel: bool) -> list[NewLabel]:
    """Read labels from a CSV file with the columns of answers.csv; rows without a label are skipped."""
    lines = [line for line in read_csv_answers(path, per_pixel=per_pixel) if line.word]
    if not lines:
        raise UserError(f"{path} has no row with a label")
    return [
        NewLabel(line.question, line.word, f"{path} line {line.line_number}: ", line.annotator)
        for line in lines
    ]


class LabelAmender:
    """Corrects labels of a run. The run uses them from its next round on.

    Args:
        annotator: who corrects, if a new label does not say so.
    """

    def __init__(self, run_folder: RunFolder, annotator: str) -> None:
        self._run_folder, self._annotator = run_folder, annotator
        self._store = AnnotationStore(run_folder.questions_path)
        self._pool = run_folder.load_pool()
        self._image_of = {key: image for image, key in enumerate(self._pool.keys)}

    def amend(self, labels: Sequence[NewLabel], *, channel: str = "") -> AmendResult:
        """Correct or, if they are the same, confirm the labels of questions, all or none.

        Args:
            channel: name of the file that the labels come from.

        Raises:
            UserError: A question or a label is invalid; the message lists all of them.
        """
        corrections: list[tuple[str, Correction]] = []
        unchanged, problems, first = [], [], dict[str, NewLabel]()
        for one in labels:
            if first.setdefault(one.question, one) is not one:
                problems.append(f"{one.where}{one.question!r} is there twice; keep one")
                continue
            try:
                correction = self._correct_question(one.question, one.word)
            except UserError as error:
                problems.append(f"{one.where}{error}")
                continue
            if correction is None:
                unchanged.append(one.question)
            else:
                corrections.append((one.annotator or self._annotator, correction))
        if problems:
            raise UserError("\n".join(problems))
        for annotator in dict.fromkeys(name for name, _ in corrections):
            self._append(annotator, channel, [one for name, one in corrections if name == annotator])
        return AmendResult(tuple(one for _, one in corrections), tuple(unchanged))

    def amend_by_png(self, key: str, path: Path) -> AmendResult:
        """Correct the labelled pixels of an image; pixels without a label are ignored.

        Args:
            path: label PNG, see ``annotation.oracles.mask_files``.
        """
        image = self._image(key)
        if self._pool.sizes is None:
            raise UserError(f"{key!r} has one label, not a label map; give a class instead of {path}")
        position, label, rounds = self._run_folder.load_image_labels(image)
        if not len(position):
            raise UserError(f"{key!r} has no labelled pixels yet, so there is nothing to correct")
        new = self._read_png(path, image, position, int(rounds.max()))
        changed = (new != label) & (new != -1)
        if not changed.any():
            return AmendResult((), (key,))
        classes = self._run_folder.classes.resolved_names
        correction = Correction(
            key,
            int(rounds[changed].max()),
            _describe(label[changed], classes),
            _describe(new[changed], classes),
            image,
            label_runs(position[changed], label[changed], new[changed]),
        )
        self._append(self._annotator, path.name, [correction])
        return AmendResult((correction,), ())

    def _append(self, annotator: str, channel: str, corrections: Sequence[Correction]) -> None:
        made_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._run_folder.append_amendment(Amendment(annotator, made_at, channel, tuple(corrections)))

    def _correct_question(self, question_id: str, word: str) -> Correction | None:
        """Return the correction or confirmation of a question; None if that was done before."""
        question, rules = self._find(question_id)
        image = self._image(question_id if question is None else question.key)
        position, label, rounds = self._run_folder.load_image_labels(image)
        asked = np.zeros(1, np.int64)
        if question is not None and question.area is not None:
            asked = np.concatenate([np.arange(low, low + count) for low, count in question.area.runs])
        kept = np.isin(position, asked)
        position, label, rounds = position[kept], label[kept], rounds[kept]
        if not len(position):
            taken = rules.round in self._run_folder.labelled_rounds()
            remedy = (
                "it was not answered"
                if taken or question is None
                else f"the run has not taken round {rules.round}; answer it there, on the page or in a file"
            )
            raise UserError(f"{question_id!r} has no label to correct: {remedy}")
        has_data = self._run_folder.data_path.exists()
        classes = self._run_folder.classes if has_data else ClassList(rules.classes)
        word, new_label = _parse_label(word, rules, classes)
        new = np.full(len(position), new_label, np.int16)
        is_same = bool((new == label).all())
        if is_same and question_id in self._store.corrected_words():
            return None
        runs = () if is_same else label_runs(position, label, new)
        return Correction(
            question_id, int(rounds.max()), _describe(label, classes.resolved_names), word, image, runs
        )

    def _find(self, question_id: str) -> tuple[Question | None, RoundRules]:
        """Return a question in the newest round whose labels the run has taken, or else in the newest.

        It is None for an image that was not labelled by annotators.
        """
        labelled = self._run_folder.labelled_rounds()
        numbers = sorted(self._store.round_numbers(), key=lambda number: (number in labelled, number))
        for number in reversed(numbers):
            question_round = self._store.question_round(number)
            if question_id in question_round.by_id:
                return question_round.by_id[question_id], question_round.rules
        if numbers or self._pool.sizes is not None or question_id not in self._image_of:
            raise self._unknown(question_id)
        return None, RoundRules(0, self._run_folder.classes.current)

    def _unknown(self, question_id: str) -> UserError:
        if question_id in self._image_of and self._pool.sizes is not None:
            return UserError(
                f"{question_id!r} has labelled pixels; name a question as KEY#Y,X, or give a label PNG "
                "instead of a class"
            )
        asked = [
            one for number in self._store.round_numbers() for one in self._store.question_round(number).by_id
        ]
        similar = get_close_matches(question_id, asked, n=1)
        hint = f"did you mean {similar[0]!r}?" if similar else "`ducats labels` lists the keys"
        return UserError(f"{question_id!r} is not a question of this run; {hint}")

    def _image(self, key: str) -> int:
        if key not in self._image_of:
            similar = get_close_matches(key, self._image_of, n=1)
            hint = f"did you mean {similar[0]!r}?" if similar else "`ducats labels` lists the keys"
            raise UserError(f"{key!r} is not a target image of this run; {hint}")
        return self._image_of[key]

    def _read_png(self, path: Path, image: int, position: AnyArray, round_number: int) -> AnyArray:
        import torch

        from ducats.annotation.oracles.mask_files import LabelCodes, read_labels_at

        assert self._pool.sizes is not None
        codes = LabelCodes(len(self._run_folder.classes))
        labels: AnyArray = read_labels_at(
            path,
            torch.from_numpy(position),
            self._pool.sizes[image].tolist(),
            codes,
            self._store.round_folder(round_number) / CLASSES,
        ).numpy()
        return labels.astype(np.int16)


def _parse_label(word: str, rules: RoundRules, classes: ClassList) -> tuple[str, int]:
    """Return the word of a label as it is spelt, and the label."""
    names = tuple(dict.fromkeys((*rules.classes, *classes.current)))
    kind, name = parse_word(translate_word(word, classes.changes), names)
    if kind == "void":
        return name, VOID_LABEL
    number = classes.number(name)
    if number is not None:
        return name, number
    known = ", ".join(classes.current)
    if kind == "class":
        raise UserError(f"{name!r} has no label in a closed round yet; until then, use one of: {known}")
    raise UserError(f"{word!r} is not a class; use one of: {known} or {VOID_WORD}")


def _describe(labels: AnyArray, classes: Sequence[str]) -> str:
    """Return the class of labels, or how many classes there are."""
    found = np.unique(labels).tolist()
    if len(found) > 1:
        return f"{len(found)} classes"
    return VOID_WORD if found[0] == VOID_LABEL else classes[found[0]]
