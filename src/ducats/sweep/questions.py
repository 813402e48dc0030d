"""Questions of a sweep: what its runs wait for, asked once for all of them in the folder of the sweep."""

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ducats.annotation import AnnotationStore, Question, QuestionRound, RoundRules
from ducats.annotation.csv_answers import import_csv_answers
from ducats.annotation.oracles import mask_files, question_files, shared_maps
from ducats.annotation.oracles.pending import answering_instructions, table_instructions
from ducats.annotation.question import area_mask
from ducats.annotation.shared_answers import (
    AnswerBook,
    answered_questions,
    import_shared_answers,
    question_subject,
)
from ducats.runfolder.question_names import (
    ANSWER_MAPS,
    CLASSES,
    IMAGES,
    MASKS,
    OVERLAYS,
    PIXELS_TABLE,
    QUESTIONS_PAGE,
    QUESTIONS_TABLE,
    README,
    RULES,
    THUMBNAILS,
)
from ducats.runfolder.rounds import rounds_in
from ducats.runfolder.run_folder import RunFolder
from ducats.sweep.runs import SweepRun
from ducats.utils import files
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise
from ducats.utils.image_files import load_image
from ducats.utils.npz_columns import AnyArray

PICK_EXPLANATION = "One of the compared methods picked this {unit}."
RequestedMask = tuple[shared_maps.MaskRow, Path, AnyArray]  # row, folder of its round, pixels
SEGMENTS_PER_RUN = 1 << 20  # keeps the segments of different runs apart


@dataclass(frozen=True)
class OpenRound:
    """A round of a run that waits for answers, with all that is known about it by now."""

    run: SweepRun
    number: int
    folder: Path
    classes: tuple[str, ...]
    rules: RoundRules | None  # None: label PNGs are the only answers
    questions: tuple[Question, ...] = ()  # open ones, if there are rules
    mask_rows: tuple[shared_maps.MaskRow, ...] = ()  # otherwise: images with unanswered pixels
    can_resume: bool = False  # all is answered, the time is used up, or the run has an error to report

    @property
    def kind(self) -> tuple[object, ...]:
        """Rounds of one kind can be asked together."""
        rules = self.rules and replace(
            self.rules, round=0, query="", query_summary="", explained_by=(), max_seconds=None
        )
        return self.run.task, self.classes, rules


def find_open_rounds(runs: Sequence[SweepRun], out: Path, book: AnswerBook) -> list[OpenRound]:
    """Return the rounds for which runs wait, after each got all answers that are known."""
    found, problems = [], {}
    for run in runs:
        run_folder = RunFolder(run.folder(out))
        store = AnnotationStore(run_folder.questions_path)
        numbers = set(rounds_in(store.folder, f"*/{QUESTIONS_TABLE}")) - set(run_folder.labelled_rounds())
        if numbers and not run_folder.finished:
            number = max(numbers)
            found.append((run, store, number))
            if number in store.round_numbers():
                problems[run.name] = import_csv_answers(store, number)
    book.refresh()  # with what the CSV files of all runs have
    return [
        _open_round(run, store, number, book, has_problem=bool(problems.get(run.name)))
        for run, store, number in found
    ]


def _open_round(
    run: SweepRun, store: AnnotationStore, number: int, book: AnswerBook, *, has_problem: bool
) -> OpenRound:
    folder = store.round_folder(number)
    mask_rows = shared_maps.read_mask_table(folder)
    if mask_rows:
        shared_maps.write_shared_maps(folder, book)
        has_problem = has_problem or bool(shared_maps.invalid_maps(folder))
    if not (folder / RULES).exists():
        is_open = [row for row in mask_rows if shared_maps.unanswered_pixels(folder, row).any()]
        classes = tuple(shared_maps.read_map_classes(folder))
        can_resume = not is_open or has_problem
        return OpenRound(run, number, folder, classes, None, mask_rows=tuple(is_open), can_resume=can_resume)
    import_shared_answers(store, number, book)
    question_round = store.question_round(number)
    rules, statuses = question_round.rules, store.statuses(number)
    unanswered = {
        row["answer"].removeprefix(f"{ANSWER_MAPS}/"): shared_maps.unanswered_pixels(folder, row)
        for row in mask_rows
    }
    questions = tuple(
        question
        for question in question_round.questions
        if statuses[question.id].state != "settled" and _lacks_pixels(question, unanswered)
    )
    is_time_spent = (
        rules.max_seconds is not None and sum(one.seconds for one in statuses.values()) >= rules.max_seconds
    )
    can_resume = not questions or is_time_spent or has_problem
    return OpenRound(run, number, folder, rules.classes, rules, questions, can_resume=can_resume)


def _lacks_pixels(question: Question, unanswered: dict[str, AnyArray]) -> bool:
    """Return whether no label PNG answers a question."""
    mask = unanswered.get(question.image_path.removeprefix(f"{OVERLAYS}/"))
    return question.area is None or mask is None or bool((mask & area_mask(question.area)).any())


class SweepQuestions:
    """The questions of a sweep, in its folder: people answer there for all runs, as for a single run.

    Args:
        out: folder of the sweep.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.store = AnnotationStore(RunFolder(out).questions_path)

    def round_numbers(self) -> list[int]:
        """Return the numbers of the complete rounds, those with label PNGs only included."""
        tables = rounds_in(self.store.folder, f"*/{QUESTIONS_TABLE}")
        with_masks = {number for number in tables if (self.store.round_folder(number) / MASKS).is_dir()}
        return sorted(with_masks.union(self.store.round_numbers()))

    def import_answers(self) -> list[str]:
        """Log the answers in CSV files, and close the rounds in which all is answered.

        Returns:
            One message per problem in the CSV files and label PNGs of the newest round, unless it is closed.
            Mistakes in earlier rounds do not matter: what is still needed of them is asked again.
        """
        newest = max(self.round_numbers(), default=0)
        is_newest_open = bool(newest) and self.store.closed_round(newest) is None
        problems: list[str] = []
        for number in self.store.round_numbers():
            found = import_csv_answers(self.store, number)
            if found and number == newest and is_newest_open:
                problems += found
            elif all(status.state == "settled" for status in self.store.statuses(number).values()):
                self.store.close_round(number)
        return problems + (
            shared_maps.invalid_maps(self.store.round_folder(newest)) if is_newest_open else []
        )

    def ask(self, open_rounds: Sequence[OpenRound], book: AnswerBook) -> list[OpenRound]:
        """Write the questions of the largest group of rounds of one kind, unless they are asked already.

        Returns:
            The rounds of this group, whose runs can all resume when its questions are answered.
        """
        kinds: dict[tuple[object, ...], list[OpenRound]] = {}
        for one in open_rounds:
            if not (one.questions or one.mask_rows):
                continue
            kinds.setdefault(one.kind, []).append(one)
        if not kinds:
            return []
        group = max(
            kinds.values(), key=lambda rounds: sum(len(one.questions or one.mask_rows) for one in rounds)
        )
        if not self._is_asked(group):
            number = max(self.round_numbers(), default=0) + 1
            if group[0].rules is None:
                self._write_masks(number, group)
            else:
                self._write_round(number, group, group[0].rules)
                book.refresh()
                import_shared_answers(self.store, number, book)
        return group

    def _is_asked(self, group: Sequence[OpenRound]) -> bool:
        """Return whether the newest round asks for all that a group needs: people may be answering it."""
        number = max(self.round_numbers(), default=0)
        folder = self.store.round_folder(number)
        if not number or (folder / RULES).exists() != (group[0].rules is not None):
            return False
        if group[0].rules is None:
            if tuple(shared_maps.read_map_classes(folder)) != group[0].classes:
                return False
            asked_pixels = {
                row["digest"]: shared_maps.read_mask(folder, row)
                for row in shared_maps.read_mask_table(folder)
            }
            return all(
                row.get("digest") in asked_pixels
                and not (shared_maps.unanswered_pixels(one.folder, row) & ~asked_pixels[row["digest"]]).any()
                for one in group
                for row in one.mask_rows
            )
        question_round = self.store.question_round(number)
        if self.store.closed_round(number) is not None:
            return False
        asked = {question_subject(each, question_round.rules.classes) for each in question_round.questions}
        return asked >= {question_subject(each, one.classes) for one in group for each in one.questions}

    def _write_round(self, number: int, group: Sequence[OpenRound], rules: RoundRules) -> None:
        folder = self.store.round_folder(number)
        origins: list[tuple[Question, Path]] = []
        known: set[Hashable] = set()
        unique_ids = self._unique_ids()
        for index, one in enumerate(group):
            for question in one.questions:
                if _identity(question) not in known:
                    known.add(_identity(question))
                    segment = (
                        None if question.segment is None else index * SEGMENTS_PER_RUN + question.segment
                    )
                    new_id = unique_ids(question)
                    key = new_id if rules.unit == "image" else question.key  # which answers name
                    numbered = replace(question, number=len(known), id=new_id, key=key, segment=segment)
                    origins.append((numbered, one.folder))
        if rules.unit == "image":
            questions = []
            for question, origin in origins:
                copied = replace(question, image_path=f"{THUMBNAILS}/{question.number:04d}.png")
                _copy(origin / question.image_path, folder / copied.image_path)
                questions.append(copied)
            files.write_text_atomically(folder / CLASSES, "\n".join(rules.classes) + "\n")
            page = question_files.contact_sheet(number, questions, rules.classes)
            files.write_text_atomically(folder / QUESTIONS_PAGE, page)
            question_files.write_question_table(folder, questions)
        else:
            questions = [question for question, _ in origins]
            rows_by_folder = {
                one.folder: {row["key"]: row for row in shared_maps.read_mask_table(one.folder)}
                for one in group
            }
            by_key: dict[str, list[tuple[Question, Path]]] = {}
            for question, origin in origins:
                by_key.setdefault(question.key, []).append((question, origin))
            masks = []
            for key, asked in by_key.items():
                origin = asked[0][1]
                mask = area_mask(*(question.area for question, _ in asked if question.area is not None))
                masks.append((rows_by_folder[origin][key], origin, mask))
            self._write_mask_files(folder, rules.classes, masks)
            rows = [mask_files.pixel_csv_row(question) for question in questions]
            files.write_csv_atomically(folder / PIXELS_TABLE, mask_files.PIXEL_CSV_COLUMNS, rows)
        rules = replace(
            rules,
            round=number,
            query="",
            query_summary=PICK_EXPLANATION,
            explained_by=(),
            max_seconds=None,
        )
        QuestionRound.write(folder, rules, questions)

    def _unique_ids(self) -> Callable[[Question], str]:
        """Return a function that gives each question an id that no other question of the sweep has.

        Regions of different runs may have the same centre and so the same id.
        """
        taken = {
            question.id: (question.image_digest, question.area)
            for number in self.store.round_numbers()
            for question in self.store.question_round(number).questions
        }

        def unique_id(question: Question) -> str:
            content = question.image_digest, question.area
            others = (f"{question.id} ({number})" for number in itertools.count(2))
            candidates = itertools.chain([question.id], others)
            return next(one for one in candidates if taken.setdefault(one, content) == content)

        return unique_id

    def _write_masks(self, number: int, group: Sequence[OpenRound]) -> None:
        """Write a round that is answered by label PNGs only."""
        masks: dict[str, RequestedMask] = {}
        for one in group:
            for row in one.mask_rows:
                mask = shared_maps.unanswered_pixels(one.folder, row)
                if row["key"] in masks:
                    mask = mask | masks[row["key"]][2]
                masks[row["key"]] = row, one.folder, mask
        self._write_mask_files(self.store.round_folder(number), group[0].classes, masks.values())

    def _write_mask_files(
        self,
        folder: Path,
        classes: Sequence[str],
        masks: Iterable[tuple[shared_maps.MaskRow, Path, AnyArray]],
    ) -> None:
        rows = []
        for row, origin, mask in masks:
            name = row["mask"].removeprefix(f"{MASKS}/")
            image_file = Path(row["file"]) if row["file"] else origin / IMAGES / name
            try:
                image = load_image(image_file).convert("RGB")
            except (OSError, ValueError, SyntaxError) as error:
                raise UserError(
                    f"{image_file} is not a readable image ({error}); restore the file that was there when "
                    "the sweep started"
                ) from error
            mask_files.write_mask(
                folder, name, mask.astype(np.uint8) * 255, image, has_file=bool(row["file"])
            )
            rows.append([{**row, "pixels": int(mask.sum())}[name] for name in mask_files.MASK_TABLE_COLUMNS])
        mask_files.write_mask_table(folder, classes, rows)

    def n_open(self, group: Sequence[OpenRound]) -> int:
        """Return how many different answers a group waits for."""
        rows = {row["key"] for one in group for row in one.mask_rows}
        return len(rows) + len({_identity(question) for one in group for question in one.questions})

    def instructions(self) -> str:
        """Return how to answer the newest round."""
        folder = self.store.round_folder(max(self.round_numbers()))
        if not (folder / RULES).exists():
            return f"To answer, see {folder / README}. Then run the same command again."
        if (folder / README).exists():
            return answering_instructions(self.store, f"see {folder / README}")
        return answering_instructions(self.store, table_instructions(folder))


def _identity(question: Question) -> Hashable:
    """Return what is equal if several runs ask the same question."""
    return question.id, question.image_digest, question.area


def _copy(source: Path, target: Path) -> None:
    files.write_atomically(target, lambda file: file.write(source.read_bytes()))


@dataclass(frozen=True)
class LabelCount:
    """Labels that the runs of a sweep have used so far."""

    runs: int  # that asked people
    labels: int  # of all runs
    given: int  # by people, for this sweep
    seconds: float | None  # measured per label that people gave, on average; None if unknown

    def __str__(self) -> str:
        """Describe who gave the labels."""
        verb = "was" if self.given == 1 else "were"
        return (
            f"{pluralise(self.runs, 'run')} asked for {pluralise(self.labels, 'label')}; {self.given} {verb} "
            f"answered by people, {self.labels - self.given} taken from the shared answers"
        )


def count_labels(runs: Sequence[SweepRun], out: Path) -> LabelCount:
    """Count the answered questions of all runs, and those that people had to answer for it."""
    n_runs, n_labels = 0, 0
    given: set[object] = set()
    given_pixels: dict[str, AnyArray] = {}  # by label PNGs, for each image
    times: list[float] = []
    book = AnswerBook([out])
    book.refresh()
    for run in runs:
        n_before = n_labels
        for mask, digest in _labelled_masks(run, out):
            n_labels += 1 if mask.all() else int(mask.sum())
            if mask.all():
                given.add(digest)
            else:
                given_pixels[digest] = given_pixels.get(digest, False) | mask
        for question, classes, by_png in answered_questions(
            AnnotationStore(RunFolder(run.folder(out)).questions_path)
        ):
            n_labels += 1
            subject = question_subject(question, classes) or (run.name, question.id)
            originals = [word for word in book.words(question, classes) if not word.is_copy]
            if subject not in given and (originals or by_png):
                given.add(subject)
                times += [seconds] if (seconds := sum(word.seconds or 0.0 for word in originals)) else []
        n_runs += n_labels > n_before
    n_given = len(given) + sum(int(mask.sum()) for mask in given_pixels.values())
    return LabelCount(n_runs, n_labels, n_given, sum(times) / len(times) if times else None)


def _labelled_masks(run: SweepRun, out: Path) -> Iterator[tuple[AnyArray, str]]:
    """Yield the masks and digests of the images that were labelled by PNGs only."""
    run_folder = RunFolder(run.folder(out))
    for number in run_folder.labelled_rounds():
        folder = AnnotationStore(run_folder.questions_path).round_folder(number)
        for row in shared_maps.read_mask_table(folder) if not (folder / RULES).exists() else ():
            yield shared_maps.read_mask(folder, row), row.get("digest") or f"{run.name} {row['key']}"
