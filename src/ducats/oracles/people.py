"""Oracle that asks human annotators through the labelling page, files or Label Studio."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ducats import files
from ducats.answers import Desk, Sheet, Terms
from ducats.answers.answer import kind_of
from ducats.answers.question import MOST
from ducats.answers.rules import ruling
from ducats.answers.tables import bring
from ducats.domain import UNLABELLED, VOID, Images
from ducats.errors import AwaitingLabels, UserError
from ducats.ledger import Notes, Request
from ducats.oracles import laying, masks, waiting


class People:
    """Write questions, pause the run, and return the labels when the run resumes after all are answered.

    Args:
        folder: gets one sub-folder per round.
        sizes: ``(N, 2)``, height and width of the grid in which each image's pixels are labelled; None if
            labels are per image.
        rule: how several answers to a question become one label: first, newest, majority or agree.
        people: number of different annotators that each question needs; None for the rule's default.
        unsure: how to treat an unsure answer: ``again`` asks someone else, ``void`` labels it VOID.
        new_classes: whether to accept unknown class names, as VOID; rejected otherwise.
        unit: unit of one question; None for ``pixel`` or ``image``, depending on ``sizes``. Whole label maps
            can only be answered with label PNGs.
        notes: returns the model hints of a round, if there are any.
        query: name of the query, shown to annotators.
        why: summary of the query, shown to annotators.
        seconds: returns the time limit of a round in annotation seconds. When it is reached, the round closes
            with the answers so far. None for no limit.
    """

    def __init__(
        self,
        folder: str | Path,
        pool: Images,
        classes: Sequence[str],
        sizes: Tensor | None = None,
        *,
        rule: str = "first",
        people: int | None = None,
        unsure: str = "again",
        new_classes: bool = False,
        unit: str | None = None,
        notes: Callable[[int], Notes | None] | None = None,
        query: str = "",
        why: str = "",
        seconds: Callable[[int], float | None] | None = None,
    ) -> None:
        self._desk = Desk(Path(folder))
        self._pool, self._classes, self._sizes = pool, list(classes), sizes
        for name in classes:
            if kind_of(name, ())[0] != "new":
                raise UserError(f"the class name {name!r} is reserved (void, unsure, skip); rename the class")
        self._ruling = ruling(rule=rule, people=people, unsure=unsure, new_classes=new_classes)
        self._unit = unit or ("image" if sizes is None else "pixel")
        self._notes, self._query, self._why, self._seconds = notes, query, why, seconds
        self._names = None if sizes is None else masks.file_names(pool.keys)
        self._checked: set[int] = set()  # rounds whose questions are known to match the request

    def __call__(self, request: Request) -> Tensor:
        """Return the labels, or write the questions and raise ``AwaitingLabels``.

        If the round's time limit was reached, unanswered locations are UNLABELLED.
        """
        self._lay(request)
        for number in self._desk.rounds():
            wrong = bring(self._desk, number) if number <= request.round else []
            if wrong and number == request.round:
                raise UserError(wrong[0])
        return self._images(request) if self._sizes is None else self._pixels(request, self._sizes)

    def seconds_of(self, request: Request) -> Tensor | None:
        """Return the annotation time per unit in seconds, float32; None if no time was recorded."""
        taken = self._desk.taken(request.round)
        if taken is None or not any(taken.seconds.values()):
            return None
        questions = self._desk.sheet(request.round).questions
        return torch.tensor([taken.seconds.get(question.id, 0.0) for question in questions])

    @property
    def wants_notes(self) -> bool:
        """Whether the run should save model hints for its questions."""
        return self._notes is not None

    # -- questions ------------------------------------------------------------------------------------

    def _lay(self, request: Request) -> None:
        folder = self._desk.home(request.round)
        tabled, laid = (folder / "questions.csv").exists(), (folder / "terms.json").exists()
        if tabled and (laid or not self._one_by_one(request)):
            self._check(request, laid=laid)
            return
        if self._sizes is None:
            questions = laying.of_images(request, self._pool, self._thoughts(request))
            if not tabled:
                files.write_text_atomically(folder / "classes.txt", "\n".join(self._classes) + "\n")
                page = laying.contact_sheet(request.round, questions, self._classes)
                files.write_text_atomically(folder / "questions.html", page)
                laying.write_images(folder, request, questions, self._pool)
        else:
            assert self._names is not None
            if not tabled:
                masks.ask(folder, request, self._pool, self._classes, self._sizes, self._names)
            if not self._one_by_one(request):
                return
            thought = self._thoughts(request)
            questions = laying.of_pixels(request, self._pool, self._sizes, self._names, thought)
            rows = [masks.row(question) for question in questions]
            laying.write_table(folder / "pixels.csv", masks.COLUMNS, rows)
        bound = self._seconds(request.round) if self._seconds is not None else None
        terms = Terms(
            request.round,
            tuple(self._classes),
            unit=self._unit,
            query=self._query,
            why=self._why,
            seconds=bound,
            **self._ruling,
        )
        Sheet.write(folder, terms, questions)

    def _check(self, request: Request, *, laid: bool) -> None:
        """Raise if the questions on disk do not match the request, e.g. after a new selection."""
        if not laid or request.round in self._checked:
            return
        nothing: list[dict[str, Any]] = [{}] * request.units
        if self._sizes is None:
            asked = laying.of_images(request, self._pool, nothing)
        else:
            assert self._names is not None
            asked = laying.of_pixels(request, self._pool, self._sizes, self._names, nothing)
        sheet = self._desk.sheet(request.round)
        if [(one.id, one.place) for one in asked] != [(one.id, one.place) for one in sheet.questions]:
            raise UserError(
                f"the questions in {sheet.folder} do not match the run's request; restore the request's "
                "file, or delete the folder to write new questions"
            )
        self._checked.add(request.round)

    def _thoughts(self, request: Request) -> list[dict[str, Any]]:
        notes = self._notes(request.round) if self._notes is not None else None
        return laying.thoughts(notes, self._classes, request.units)

    def _one_by_one(self, request: Request) -> bool:
        """Whether one class name answers each unit and the number of units is within the limit."""
        if self._sizes is None:
            return True
        runs = request.addresses
        areas = self._sizes.prod(1).numpy()[runs.image]
        whole_image = (runs.units_per_run == 1) & (runs.count == areas) & (areas > 1)
        return self._unit != "image" and request.units <= MOST and not whole_image.any()

    # -- labels ---------------------------------------------------------------------------------------

    def _images(self, request: Request) -> Tensor:
        while (taken := self._desk.take(request.round)) is None:
            if what := waiting.for_images(self._desk, request.round):
                raise AwaitingLabels(what)  # otherwise the last answer has just arrived
        ids = [question.id for question in self._desk.sheet(request.round).questions]
        return torch.tensor([self._label(taken.words.get(question)) for question in ids], dtype=torch.long)

    def _label(self, word: str | None) -> int:
        if word is None:
            return UNLABELLED
        return self._classes.index(word) if word in self._classes else VOID

    def _pixels(self, request: Request, sizes: Tensor) -> Tensor:
        """Return labels from the answer log, and from label PNGs where it has none."""
        assert self._names is not None
        folder, number = self._desk.home(request.round), request.round
        png = masks.Answers(folder, request, self._names, sizes, len(self._classes))
        how = f"see {folder / 'README.txt'}"
        if not (folder / "terms.json").exists():
            return png.whole(f"To answer, {how}. Then run the same command again.")
        questions = self._desk.sheet(number).questions
        count = torch.from_numpy(laying.unit_sizes(request))
        png_units = [bool((part != UNLABELLED).all()) for part in png.labels.split(count.tolist())]

        def filled(words: Mapping[str, str | None]) -> Tensor:
            """Return one label per location, from each unit's class name or else from the PNG."""
            each = [self._label(words.get(question.id)) for question in questions]
            book = torch.tensor(each, dtype=png.labels.dtype).repeat_interleave(count)
            self._same(request, png, book, count)
            return torch.where(book != UNLABELLED, book, png.labels)

        # Check for contradictions first: they can only be fixed before the round is closed.
        filled({question: one.word for question, one in self._desk.standings(number).items()})
        there = {question.id for question, whole in zip(questions, png_units, strict=True) if whole}
        taken = self._desk.take(number, elsewhere=there)
        if taken is None:
            said = {question: one.word for question, one in self._desk.standings(number).items()}
            png.labels = filled(said)
            png.whole(waiting.ways(self._desk, how), waiting.disputes(self._desk, number))
            return self._pixels(request, sizes)  # the last answer has just arrived
        if taken.because == "seconds":  # a unit is labelled as a whole or not at all
            png.labels[~torch.tensor(png_units).repeat_interleave(count)] = UNLABELLED
            return filled(taken.words)
        png.labels = filled(taken.words)
        return png.whole(f"To answer, {how}. Then run the same command again.")

    def _same(self, request: Request, png: masks.Answers, book: Tensor, count: Tensor) -> None:
        """Raise if a label PNG contradicts an answer for the same pixel."""
        wrong = ((png.labels != UNLABELLED) & (book != UNLABELLED) & (png.labels != book)).nonzero()
        if not len(wrong):
            return
        place = int(wrong[0])
        unit = int(torch.searchsorted(count.cumsum(0), place, right=True))
        question = self._desk.sheet(request.round).questions[unit]
        said = waiting.who_says_what(self._desk.standings(request.round)[question.id])
        raise UserError(
            f"{png.where(place)} is {self._name(int(png.labels[place]))}, which contradicts the answer to "
            f"{question.id!r} ({said}); write {png.codes.waiting} (not answered yet) there, or change it"
        )

    def _name(self, label: int) -> str:
        return "void" if label == VOID else self._classes[label]
