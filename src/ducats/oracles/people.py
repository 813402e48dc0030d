"""People answer: on a page, in files, in a labelling tool; the run waits for them."""

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
    """Lays questions out, pauses the run, and takes the labels when the same command comes back.

    Args:
        folder: where to put the rounds; each gets a sub-folder.
        pool: the images that may be asked for.
        classes: names that an answer may give.
        sizes: where pixels are bought, each image's height and width, in which positions count: ``(N, 2)``.
        rule: how several people's answers become one label: first, newest, majority or agree.
        people: different people that must have answered a question; what the rule needs if it is None.
        unsure: what an unsure answer comes to: again, or void.
        new_classes: whether a name that is no class is kept, as void, or refused.
        unit: what is bought at once; pixel if it is None and pixels are bought. A whole image's map is
            answered by label PNGs alone.
        notes: what the model thought of a round's units when it chose them, if that is known.
        query: who chose.
        why: in which words.
        seconds: of people, after which a round ends with what is there; None: it waits.
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
                raise UserError(
                    f"people cannot be asked about a class called {name!r}: they would say it and mean "
                    "something else (no class, not sure, not now); rename it"
                )
        self._ruling = ruling(rule=rule, people=people, unsure=unsure, new_classes=new_classes)
        self._unit = unit or ("image" if sizes is None else "pixel")
        self._notes, self._query, self._why, self._seconds = notes, query, why, seconds
        self._names = None if sizes is None else masks.file_names(pool.keys)
        self._checked: set[int] = set()  # rounds whose questions are those of the request

    def __call__(self, request: Request) -> Tensor:
        """Return the labels, or ask and raise ``AwaitingLabels``.

        Where people's seconds are bounded and spent, what they did not answer is UNLABELLED.
        """
        self._lay(request)
        for number in self._desk.rounds():
            wrong = bring(self._desk, number) if number <= request.round else []
            if wrong and number == request.round:
                raise UserError(wrong[0])
        return self._images(request) if self._sizes is None else self._pixels(request, self._sizes)

    def seconds_of(self, request: Request) -> Tensor | None:
        """Seconds that people took for each unit, in order, float32; None if that is not known."""
        taken = self._desk.taken(request.round)
        if taken is None or not any(taken.seconds.values()):
            return None
        questions = self._desk.sheet(request.round).questions
        return torch.tensor([taken.seconds.get(question.id, 0.0) for question in questions])

    @property
    def wants_notes(self) -> bool:
        """Whether the run is to note what the model thinks of what it asks."""
        return self._notes is not None

    # -- asking ---------------------------------------------------------------------------------------

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
        """Refuse a round whose questions are not those of the request, as when it was chosen anew."""
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
                f"the questions in {sheet.folder} are not those of the run's request: put back the request's "
                "file, or remove the folder to have them made anew"
            )
        self._checked.add(request.round)

    def _thoughts(self, request: Request) -> list[dict[str, Any]]:
        notes = self._notes(request.round) if self._notes is not None else None
        return laying.thoughts(notes, self._classes, request.units)

    def _one_by_one(self, request: Request) -> bool:
        """Whether one word answers a unit, and there are not too many of them."""
        if self._sizes is None:
            return True
        runs = request.addresses
        areas = self._sizes.prod(1).numpy()[runs.image]
        whole_image = (runs.units == 1) & (runs.count == areas) & (areas > 1)
        return self._unit != "image" and request.units <= MOST and not whole_image.any()

    # -- labels ---------------------------------------------------------------------------------------

    def _images(self, request: Request) -> Tensor:
        while (taken := self._desk.take(request.round)) is None:
            if what := waiting.for_images(self._desk, request.round):
                raise AwaitingLabels(what)  # else the last answer came in between
        ids = [question.id for question in self._desk.sheet(request.round).questions]
        return torch.tensor([self._label(taken.words.get(question)) for question in ids], dtype=torch.long)

    def _label(self, word: str | None) -> int:
        if word is None:
            return UNLABELLED
        return self._classes.index(word) if word in self._classes else VOID

    def _pixels(self, request: Request, sizes: Tensor) -> Tensor:
        """Labels of the book, and of PNGs where it has none."""
        assert self._names is not None
        folder, number = self._desk.home(request.round), request.round
        png = masks.Answers(folder, request, self._names, sizes, len(self._classes))
        how = f"see {folder / 'README.txt'}"
        if not (folder / "terms.json").exists():
            return png.whole(f"{how}, and give the same command again")
        questions = self._desk.sheet(number).questions
        count = torch.from_numpy(laying.unit_sizes(request))
        png_units = [bool((part != UNLABELLED).all()) for part in png.labels.split(count.tolist())]

        def filled(words: Mapping[str, str | None]) -> Tensor:
            """A label for each address, of a word for each unit, or of the PNG."""
            each = [self._label(words.get(question.id)) for question in questions]
            book = torch.tensor(each, dtype=png.labels.dtype).repeat_interleave(count)
            self._same(request, png, book, count)
            return torch.where(book != UNLABELLED, book, png.labels)

        # Contradictions first: they can be mended only before the round is closed.
        filled({question: one.word for question, one in self._desk.standings(number).items()})
        there = {question.id for question, whole in zip(questions, png_units, strict=True) if whole}
        taken = self._desk.take(number, elsewhere=there)
        if taken is None:
            said = {question: one.word for question, one in self._desk.standings(number).items()}
            png.labels = filled(said)
            png.whole(waiting.ways(self._desk, how), waiting.disputes(self._desk, number))
            return self._pixels(request, sizes)  # the last answer came in between
        if taken.because == "seconds":  # a unit is bought as a whole or not at all
            png.labels[~torch.tensor(png_units).repeat_interleave(count)] = UNLABELLED
            return filled(taken.words)
        png.labels = filled(taken.words)
        return png.whole(f"{how}, and give the same command again")

    def _same(self, request: Request, png: masks.Answers, book: Tensor, count: Tensor) -> None:
        """Refuse a label PNG that contradicts what people said of the same pixel."""
        wrong = ((png.labels != UNLABELLED) & (book != UNLABELLED) & (png.labels != book)).nonzero()
        if not len(wrong):
            return
        place = int(wrong[0])
        unit = int(torch.searchsorted(count.cumsum(0), place, right=True))
        question = self._desk.sheet(request.round).questions[unit]
        said = waiting.who_says_what(self._desk.standings(request.round)[question.id])
        raise UserError(
            f"{png.where(place)} is {self._name(int(png.labels[place]))}, but {said} of {question.id!r}: "
            f"write {png.codes.waiting} (not answered yet) there, or let them change their answer"
        )

    def _name(self, label: int) -> str:
        return "void" if label == VOID else self._classes[label]
