"""Oracle that asks human annotators through the labelling page, files or Label Studio."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ducats.annotation import AnnotationStore, Question, QuestionRound, RoundRules
from ducats.annotation.answer import parse_word
from ducats.annotation.csv_answers import describe_problems, import_csv_answers
from ducats.annotation.oracles import mask_files, pending, question_files, shared_maps
from ducats.annotation.question import MAX_LISTED_QUESTIONS
from ducats.annotation.rules import make_rules
from ducats.annotation.shared_answers import AnswerBook, import_shared_answers
from ducats.data.domain import UNLABELLED, VOID, Images, renumber
from ducats.ledger import Request
from ducats.runfolder.class_changes import ClassList
from ducats.runfolder.hints import AnnotatorHints
from ducats.runfolder.question_names import (
    CLASSES,
    PIXELS_TABLE,
    QUESTIONS_PAGE,
    QUESTIONS_TABLE,
    README,
    RULES,
)
from ducats.utils import files
from ducats.utils.errors import AwaitingLabels, UserError


class HumanOracle:
    """Write questions, pause the run, and return the labels when the run resumes after all are answered.

    Args:
        folder: gets one sub-folder per round.
        sizes: ``(N, 2)``, height and width of the grid in which each image's pixels are labelled; None if
            labels are per image.
        rule: how several answers to a question become one label: first, newest, majority, unanimous or
            weighted.
        min_annotators: number of different annotators that each question needs; None for the rule's default.
        on_unsure: how to treat an unsure answer: ``ask_another`` asks someone else, ``void`` labels it VOID.
        allow_new_classes: whether annotators may add classes; None: unless runs share answers.
        overlap: share of each round's questions that need two annotators who agree, to measure agreement.
        min_probability: with the rule weighted, the probability of a label that settles a question.
        max_annotators: with the rule weighted, the number of annotators after whom no one else is asked.
        unit: unit of one question; None for ``pixel`` or ``image``, depending on ``sizes``. Whole label maps
            can only be answered with label PNGs.
        hints: returns the model hints of a round, if there are any.
        query: name of the query, shown to annotators.
        query_summary: why the query picks a sample, shown to annotators; may contain ``{unit}``.
        explained_by: the uncertainties, ``u_dis`` and ``u_data``, that explain a pick to annotators instead.
        max_seconds: returns the time limit of a round in annotation seconds. When it is reached, the round
            closes with the answers so far. None for no limit.
        shared_answers: folders of sweeps or runs. What people answered there is not asked again.
    """

    def __init__(
        self,
        folder: str | Path,
        pool: Images,
        classes: Sequence[str],
        sizes: Tensor | None = None,
        *,
        rule: str = "first",
        min_annotators: int | None = None,
        on_unsure: str = "ask_another",
        allow_new_classes: bool | None = None,
        overlap: float = 0.0,
        min_probability: float = 0.9,
        max_annotators: int = 3,
        unit: str | None = None,
        hints: Callable[[int], AnnotatorHints | None] | None = None,
        query: str = "",
        query_summary: str = "",
        explained_by: Sequence[str] = (),
        max_seconds: Callable[[int], float | None] | None = None,
        shared_answers: Sequence[Path] = (),
    ) -> None:
        self._book = AnswerBook(shared_answers) if shared_answers else None
        self._store = AnnotationStore(Path(folder))
        self._pool, self._sizes = pool, sizes
        self.classes = ClassList(tuple(classes))  # a run sets it to its own list
        if allow_new_classes and shared_answers:
            raise UserError(
                "runs that share answers cannot add classes, because each would number them in its own way; "
                "remove oracle.params.allow_new_classes"
            )
        for name in classes:
            if parse_word(name, ())[0] != "new":
                raise UserError(f"the class name {name!r} is reserved (void, unsure, skip); rename the class")
        voting = make_rules(
            rule=rule,
            min_annotators=min_annotators,
            on_unsure=on_unsure,
            allow_new_classes=not shared_answers if allow_new_classes is None else allow_new_classes,
            overlap=overlap,
            min_probability=min_probability,
            max_annotators=max_annotators,
        )
        self._rules = RoundRules(  # of all rounds
            0,
            tuple(classes),
            unit=unit or ("image" if sizes is None else "pixel"),
            query=query,
            query_summary=query_summary,
            explained_by=tuple(explained_by),
            **voting,
        )
        self._hints, self._max_seconds = hints, max_seconds
        self._png_names = [] if sizes is None else mask_files.png_names(pool.keys)
        self._checked_rounds: set[int] = set()  # rounds whose questions are known to match the request

    def __call__(self, request: Request) -> Tensor:
        """Return the labels, or write the questions and raise ``AwaitingLabels``.

        If the round's time limit was reached, unanswered locations are UNLABELLED.
        """
        self._write_questions(request)
        for round_number in self._store.round_numbers():
            problems = import_csv_answers(self._store, round_number) if round_number <= request.round else []
            if problems and round_number == request.round:
                raise UserError(describe_problems(problems))
        self._copy_shared_answers(request)
        labels = (
            self._image_labels(request) if self._sizes is None else self._pixel_labels(request, self._sizes)
        )
        has_merged = self.classes.groups is not None
        return renumber(labels, torch.tensor(self.classes.merged_into)) if has_merged else labels

    def annotation_seconds(self, request: Request) -> Tensor | None:
        """Return the annotation time per unit in seconds, float32; None if no time was recorded."""
        closed = self._store.closed_round(request.round)
        if closed is None or not any(closed.seconds.values()):
            return None
        questions = self._store.question_round(request.round).questions
        return torch.tensor([closed.seconds.get(question.id, 0.0) for question in questions])

    @property
    def wants_hints(self) -> bool:
        """Whether the run should save model hints for its questions."""
        return self._hints is not None

    # -- questions ------------------------------------------------------------------------------------

    def _write_questions(self, request: Request) -> None:
        folder = self._store.round_folder(request.round)
        has_csv, has_rules = (folder / QUESTIONS_TABLE).exists(), (folder / RULES).exists()
        if has_csv and (has_rules or not self._answerable_by_word(request)):
            self._check_questions_match(request, has_rules=has_rules)
            return
        mask_rows = None
        if not has_csv and self._sizes is not None:
            mask_rows = mask_files.write_masks(folder, request, self._pool, self._sizes, self._png_names)
        if self._answerable_by_word(request):
            self._write_word_questions(request, has_csv=has_csv)
        if mask_rows is not None:  # last: a table without rules means that only label PNGs can answer
            mask_files.write_mask_table(folder, self.classes.resolved_names, mask_rows)

    def _write_word_questions(self, request: Request, *, has_csv: bool) -> None:
        folder = self._store.round_folder(request.round)
        hints = self._hints(request.round) if self._hints is not None else None
        unit_hints = question_files.model_hints(hints, self.classes.resolved_names, request.n_units)
        digests = question_files.unit_digests(request, self._pool)
        questions = self._questions(
            request, [{**one, **digest} for one, digest in zip(unit_hints, digests, strict=True)]
        )
        if self._sizes is not None:
            rows = [mask_files.pixel_csv_row(question) for question in questions]
            files.write_csv_atomically(folder / PIXELS_TABLE, mask_files.PIXEL_CSV_COLUMNS, rows)
        elif not has_csv:
            files.write_text_atomically(folder / CLASSES, "\n".join(self.classes.current) + "\n")
            page = question_files.contact_sheet(request.round, questions, self.classes.current)
            files.write_text_atomically(folder / QUESTIONS_PAGE, page)
            question_files.write_image_questions(folder, request, questions, self._pool)
        max_seconds = self._max_seconds(request.round) if self._max_seconds is not None else None
        rules = replace(
            self._rules, round=request.round, classes=self.classes.current, max_seconds=max_seconds
        )
        QuestionRound.write(folder, rules, questions)

    def _questions(self, request: Request, hints: Sequence[Mapping[str, Any]]) -> list[Question]:
        if self._sizes is None:
            return question_files.image_questions(request, self._pool, hints)
        return question_files.pixel_questions(request, self._pool, self._sizes, self._png_names, hints)

    def _check_questions_match(self, request: Request, *, has_rules: bool) -> None:
        """Raise if the questions on disk do not match the request, e.g. after a new selection."""
        if not has_rules or request.round in self._checked_rounds:
            return
        expected = self._questions(request, [{}] * request.n_units)
        question_round = self._store.question_round(request.round)
        if [(question.id, question.area) for question in expected] != [
            (one.id, one.area) for one in question_round.questions
        ]:
            raise UserError(
                f"the questions in {question_round.folder} do not match the run's request; restore the "
                "request's file, or delete the folder to write new questions"
            )
        self._checked_rounds.add(request.round)

    def _answerable_by_word(self, request: Request) -> bool:
        """Whether one class name answers each unit and the number of units is within the limit."""
        if self._sizes is None:
            return True
        pixel_runs = request.pixel_runs
        areas = self._sizes.prod(1).numpy()[pixel_runs.image]
        whole_image = (pixel_runs.units_per_run == 1) & (pixel_runs.count == areas) & (areas > 1)
        return (
            self._rules.unit != "image" and request.n_units <= MAX_LISTED_QUESTIONS and not whole_image.any()
        )

    def _copy_shared_answers(self, request: Request) -> None:
        """Answer what people have answered for other runs."""
        round_number, folder = request.round, self._store.round_folder(request.round)
        if self._book is None or self._store.closed_round(round_number) is not None:
            return
        self._book.refresh()
        if (folder / RULES).exists():
            import_shared_answers(self._store, round_number, self._book)
        if self._sizes is not None:
            shared_maps.write_shared_maps(folder, self._book)

    # -- labels ---------------------------------------------------------------------------------------

    def _image_labels(self, request: Request) -> Tensor:
        while (closed := self._store.close_round(request.round)) is None:
            if message := pending.describe_open_images(self._store, request.round):
                raise AwaitingLabels(message)  # otherwise the last answer has just arrived
        self.classes = self._with_new_classes(self.classes, request.round, closed.words)
        ids = [question.id for question in self._store.question_round(request.round).questions]
        labels = [self._label(closed.words.get(question), self.classes) for question in ids]
        return torch.tensor(labels, dtype=torch.long)

    def _with_new_classes(
        self, classes: ClassList, round_number: int, words: Mapping[str, str | None]
    ) -> ClassList:
        """Return the classes with those that annotators added and used in a round."""
        offered, used = self._store.question_round(round_number).rules.classes, set(words.values())
        new = [name for name in offered if name in used and classes.number(name) is None]
        return classes.with_added(new, round_number)

    def _label(self, word: str | None, classes: ClassList) -> int:
        if word is None:
            return UNLABELLED
        number = classes.number(word)
        return VOID if number is None else number

    def _pixel_labels(self, request: Request, sizes: Tensor) -> Tensor:
        """Return labels from the answer log, and from label PNGs where it has none."""
        folder, round_number = self._store.round_folder(request.round), request.round
        known = self.classes  # it changes when the round is closed: until then, annotators may edit theirs
        if self._rules.allow_new_classes:
            added = mask_files.read_added_classes(folder, known.resolved_names)
            known = known.with_added(added, round_number)
        pngs = mask_files.LabelPngs(folder, request, self._png_names, sizes, len(known))
        file_instructions = f"see {folder / README}"
        if not (folder / RULES).exists():
            labels = pngs.require_complete(
                f"To answer, {file_instructions}. Then run the same command again."
            )
            self.classes = known
            return labels
        questions = self._store.question_round(round_number).questions
        unit_sizes = request.unit_sizes
        if unit_sizes is None:
            unit_sizes = torch.ones(len(request), dtype=torch.long)
        complete_units = [bool((part != UNLABELLED).all()) for part in pngs.labels.split(unit_sizes.tolist())]

        def current_words() -> dict[str, str | None]:
            return {question: one.word for question, one in self._store.statuses(round_number).items()}

        def merge_labels(words: Mapping[str, str | None]) -> Tensor:
            """Return one label per location, from each unit's class name or else from the PNG."""
            classes = self._with_new_classes(known, round_number, words)
            unit_labels = [self._label(words.get(question.id), classes) for question in questions]
            dtype = torch.int8 if len(classes) <= 127 else torch.int16
            logged = torch.tensor(unit_labels, dtype=dtype).repeat_interleave(unit_sizes)
            self._check_consistent(request, pngs, logged, unit_sizes, classes)
            return torch.where(logged != UNLABELLED, logged, pngs.labels)

        # Check for contradictions first: they can only be fixed before the round is closed.
        merge_labels(current_words())
        answered_by_png = {
            question.id for question, complete in zip(questions, complete_units, strict=True) if complete
        }
        closed = self._store.close_round(round_number, answered_by_png=answered_by_png)
        if closed is None:
            pngs.labels = merge_labels(current_words())
            pngs.require_complete(
                pending.answering_instructions(self._store, file_instructions),
                pending.describe_undecided(self._store, round_number),
            )
            return self._pixel_labels(request, sizes)  # the last answer has just arrived
        self.classes = self._with_new_classes(known, round_number, closed.words)
        if closed.reason == "time_limit":  # a unit is labelled as a whole or not at all
            pngs.labels[~torch.tensor(complete_units).repeat_interleave(unit_sizes)] = UNLABELLED
            return merge_labels(closed.words)
        pngs.labels = merge_labels(closed.words)
        return pngs.require_complete(f"To answer, {file_instructions}. Then run the same command again.")

    def _check_consistent(
        self,
        request: Request,
        pngs: mask_files.LabelPngs,
        logged_labels: Tensor,
        unit_sizes: Tensor,
        classes: ClassList,
    ) -> None:
        """Raise if a label PNG contradicts an answer for the same pixel."""
        conflicts = (
            (pngs.own_labels != UNLABELLED)
            & (logged_labels != UNLABELLED)
            & (pngs.own_labels != logged_labels)
        ).nonzero()
        if not len(conflicts):
            return
        index = int(conflicts[0])
        unit = int(torch.searchsorted(unit_sizes.cumsum(0), index, right=True))
        question = self._store.question_round(request.round).questions[unit]
        votes = pending.describe_votes(self._store.statuses(request.round)[question.id])
        label = int(pngs.own_labels[index])
        name = "void" if label == VOID else classes.names[label]
        raise UserError(
            f"{pngs.describe_location(index)} is {name}, which contradicts the answer to {question.id!r} "
            f"({votes}); write {pngs.codes.unanswered} (not answered yet) there, or change it"
        )
