"""The book itself: rounds of bought labels, one file each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ducats import columns
from ducats.addresses import LONG, Addresses, before, chunks
from ducats.columns import Array
from ducats.domain import UNLABELLED, VOID
from ducats.errors import UserError
from ducats.ledger.clicks import pieces
from ducats.ledger.request import Request

Resolution = Literal["network", "original"]
AT_ONCE = 1 << 20  # pixels that are looked at together
IN_LISTS = 1 << 16  # the same, where each becomes an object


class Entry(NamedTuple):
    """One bought label, by name."""

    round: int  # 1 for the first question
    key: str
    position: int
    label: int


class Bought(NamedTuple):
    """An image's bought labels, in the order of buying."""

    position: Tensor  # (n,) int64
    label: Tensor  # (n,) int64


@dataclass(frozen=True)
class _Round:
    """A round's file; positions and labels stay in it until they are looked at."""

    addresses: Addresses
    label: Array  # one for each address
    clicks: int
    seconds: Array  # of people, one for each unit, 0 where they are not known; empty if nobody's are
    unanswered: float  # seconds that went into questions without an answer


class Ledger:
    """Labels by round, one file each; a round is there as a whole or not at all, and is never changed.

    Args:
        folder: where the rounds lie.
        keys: the pool's stable names; addresses are indices into them.
        sizes: where pixels are bought, each image's height and width, in which positions count; None where an
            image is one row, at position 0.
        resolution: what these sizes are: those of the images as stored, or as they were before.
    """

    def __init__(
        self,
        folder: Path,
        keys: Sequence[str],
        sizes: Tensor | Sequence[Sequence[int]] | None = None,
        resolution: Resolution = "network",
    ) -> None:
        self.folder, self.keys, self.resolution = folder, keys, resolution
        self.sizes = None if sizes is None else torch.as_tensor(sizes, dtype=torch.long)
        if self.sizes is not None and self.sizes.shape != (len(keys), 2):
            raise ValueError(f"sizes of shape {tuple(self.sizes.shape)} for {len(keys)} images")
        self._rounds: list[_Round] = []
        self.refresh()

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process opens the files by itself; 100 million labels are not sent.
        return Ledger, (self.folder, self.keys, self.sizes, self.resolution)

    def refresh(self) -> None:
        """Take note of rounds that another process entered."""
        while (path := self._path(self.rounds + 1)).exists():
            self._rounds.append(self._read(path))
        stray = sorted(self.folder.glob("round-*.npz"))[self.rounds :]
        if stray:
            raise UserError(
                f"{self.folder} has {stray[0].name} but no {self._path(self.rounds + 1).name}: "
                "a round of the ledger was removed; put it back or start a new run"
            )

    @property
    def rounds(self) -> int:
        """How many rounds were bought."""
        return len(self._rounds)

    def __len__(self) -> int:
        """Labels spent."""
        return self.spent()

    def spent(self, rounds: int | None = None) -> int:
        """Labels spent in the first so many rounds, or in all."""
        return sum(r.addresses.total for r in self._rounds[:rounds])

    def clicks(self, rounds: int | None = None) -> int:
        """Clicks spent in the first so many rounds, or in all: connected pieces of one label in a unit."""
        return sum(r.clicks for r in self._rounds[:rounds])

    def seconds(self, rounds: int | None = None) -> float | None:
        """Seconds that people took in the first so many rounds, or in all; None if nobody's are known."""
        some = self._rounds[:rounds]
        known = any(r.unanswered or r.seconds.any() for r in some)
        return sum(float(r.seconds.sum()) + r.unanswered for r in some) if known else None

    def units(self, rounds: int | None = None) -> int:
        """Units bought in the first so many rounds, or in all: what people answered at once."""
        return sum(r.addresses.units_in_all for r in self._rounds[:rounds])

    def timed(self, rounds: int | None = None) -> int:
        """Of these units, those whose seconds are known."""
        return sum(int(np.count_nonzero(r.seconds)) for r in self._rounds[:rounds])

    def counts(self, rounds: int | None = None) -> Tensor:
        """Labels spent on each image: ``(len(pool),)`` int64."""
        counts = np.zeros(len(self.keys), np.int64)
        for bought in self._rounds[:rounds]:
            np.add.at(counts, bought.addresses.image, bought.addresses.count)
        return torch.from_numpy(counts)

    def dtype(self, rounds: int | None = None) -> torch.dtype:
        """The type that all labels fit in: int8, or int16 where there are more than 127 classes."""
        wide = any(r.label.dtype.itemsize > 1 for r in self._rounds[:rounds])
        return torch.int16 if wide else torch.int8

    def append(
        self, request: Request, labels: Tensor, seconds: Tensor | None = None, unanswered: float = 0.0
    ) -> None:
        """Enter one round; refuse anything but one answer per question, and any address asked before.

        Args:
            request: what was asked; a round in which nothing was has no address.
            labels: ``(len(request),)`` integers in the request's order; VOID where no class applies.
            seconds: that people took for each unit, ``(request.units,)``; 0 or NaN where they are not known.
            unanswered: seconds that people took for questions that have no answer, and are not in the round.
        """
        if request.round != self.rounds + 1:
            raise ValueError(f"round {request.round} after {self.rounds} rounds")
        if labels.shape != (len(request),):
            raise ValueError(f"asked for {len(request)} labels, got {labels.numel()}")
        answers: Array = labels.detach().cpu().numpy()
        if (answers == UNLABELLED).any():
            raise ValueError("an answer must be a class or VOID, not UNLABELLED")
        lowest, highest = int(answers.min(initial=0)), int(answers.max(initial=0))
        if answers.dtype.kind not in "iu" or lowest < VOID or highest > np.iinfo(np.int16).max:
            raise ValueError(f"an answer must be a class, a whole number from 0 to 32767, or VOID ({VOID})")
        addresses = request.addresses
        taken = _seconds(seconds, addresses.units_in_all)
        if addresses.image.max(initial=-1) >= len(self.keys):
            raise ValueError(f"image {addresses.image.max()} was asked for in a pool of {len(self.keys)}")
        clicks = self._examine(addresses, answers)
        kept = dict(addresses.columns())
        kept["label"] = (answers, np.int8 if highest <= np.iinfo(np.int8).max else np.int16)
        if addresses.units.any():
            kept["clicks"] = (clicks, np.uint32)
        if taken.any():
            kept["seconds"] = (taken, np.float32)
        if unanswered:
            kept["unanswered"] = (np.array(unanswered), np.float64)
        path = self._path(request.round)
        columns.write(path, kept)
        self._rounds.append(self._read(path))

    def _examine(self, addresses: Addresses, answers: Array) -> Array:
        """Hold a request to the rules, some images at a time; return the clicks of each run."""
        pixels, widths = np.ones(len(self.keys), np.int64), np.ones(len(self.keys), np.int64)
        if self.sizes is not None:
            pixels, widths = self.sizes.prod(1).numpy(), self.sizes[:, 1].numpy()
        images, clicks = np.unique(addresses.image), addresses.count.copy()
        start = np.zeros(len(self.keys), np.int64)  # of an image's pixels among those looked at together
        for chunk in chunks(pixels[images], AT_ONCE):
            some = images[chunk]
            runs = addresses.runs_of(some)
            image, position = _pairs(addresses, runs)
            outside = np.flatnonzero(position >= pixels[image])
            if len(outside):
                worst = outside[0]
                raise ValueError(
                    f"position {position[worst]} was asked for in {self.keys[image[worst]]!r}, "
                    f"which has {pixels[image[worst]]}"
                )
            start[some] = before(pixels[some])
            asked = np.zeros(pixels[some].sum(), bool)
            total = len(position)
            asked[start[image] + position] = True
            for bought in self._rounds:
                old, place = _pairs(bought.addresses, bought.addresses.runs_of(some))
                asked[start[old] + place] = True
                total += len(place)
            if np.count_nonzero(asked) != total:
                raise ValueError("a label was asked for twice: a query must pick distinct, unlabelled rows")
            if addresses.units.any():
                unit, each = addresses.sizes(runs)
                wide = np.repeat(widths[addresses.image[runs]], each)
                found = pieces(position, answers[addresses.places(runs)], unit, wide)
                clicks[runs] = np.add.reduceat(found, np.cumsum(each) - each)
        return clicks

    def of(self, image: int, rounds: int | None = None) -> Bought:
        """An image's labels in the order of buying; reads these and no others.

        Args:
            image: index into the pool.
            rounds: of the first so many rounds only.
        """
        position, label = self.raw(image, rounds)
        return Bought(torch.from_numpy(position), torch.from_numpy(label.astype(np.int64)))

    def raw(self, image: int, rounds: int | None = None) -> tuple[Array, Array]:
        """As ``of``, in arrays, labels as they are stored."""
        positions, labels = [np.zeros(0, np.int64)], [np.zeros(0, np.int8)]
        for bought in self._rounds[:rounds]:
            runs = bought.addresses.runs_of(np.array([image]))
            if len(runs):
                positions.append(bought.addresses.positions(runs))
                labels.append(bought.label[bought.addresses.places(runs)])
        return np.concatenate(positions), np.concatenate(labels)

    def targets(self, rounds: int | None = None) -> Tensor:
        """The pool's labels as far as they were bought: ``(len(pool),)``, UNLABELLED elsewhere.

        For labels of pixels see ``TargetMaps``.

        Args:
            rounds: the first so many rounds only. An epoch that is repeated must not see labels that were
                bought after it.
        """
        if self.sizes is not None:
            raise ValueError("pixels were bought: their labels are maps, see TargetMaps")
        targets = torch.full((len(self.keys),), UNLABELLED, dtype=torch.long)
        for bought in self._rounds[:rounds]:
            image = np.repeat(bought.addresses.image, bought.addresses.count)
            targets[torch.from_numpy(image)] = torch.from_numpy(bought.label.astype(np.int64))
        return targets

    def entries(self) -> Iterator[Entry]:
        """Every bought label in the order of buying."""
        for number, bought in enumerate(self._rounds, start=1):
            for chunk in chunks(bought.addresses.count, IN_LISTS):
                runs = np.arange(chunk.start, chunk.stop)
                images, positions = _pairs(bought.addresses, runs)
                labels = bought.label[bought.addresses.places(runs)]
                for image, position, label in zip(
                    images.tolist(), positions.tolist(), labels.tolist(), strict=True
                ):
                    yield Entry(number, self.keys[image], position, label)

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:02d}.npz"

    def _read(self, path: Path) -> _Round:
        try:
            found = columns.read(path, (*LONG, "label"))
            addresses, label = Addresses.from_columns(found), found["label"]
            if len(label) != addresses.total:
                raise ValueError(f"it has {len(label)} labels for {addresses.total} addresses")
            seconds = found.get("seconds", np.zeros(0)).astype(np.float64)
            if len(seconds) not in (0, addresses.units_in_all):
                raise ValueError(f"it has {len(seconds)} times for {addresses.units_in_all} units")
        except columns.UNREADABLE as error:
            raise UserError(
                f"{path} cannot be read ({error}): restore it from a copy, its labels were paid for"
            ) from error
        if addresses.image.max(initial=-1) >= len(self.keys):
            raise UserError(f"{path} names image {addresses.image.max()}, but the pool has {len(self.keys)}")
        clicks = int(found.get("clicks", addresses.count).sum())
        return _Round(addresses, label, clicks, seconds, float(found.get("unanswered", 0.0)))


def _seconds(given: Tensor | None, units: int) -> Array:
    """What people took for each unit, 0 where it is not known."""
    if given is None:
        return np.zeros(0)
    if given.shape != (units,):
        raise ValueError(f"asked for {units} units, got the seconds of {given.numel()}")
    found: Array = given.detach().cpu().double().nan_to_num(0.0, torch.inf).numpy()
    if (found < 0).any() or not np.isfinite(found).all():
        raise ValueError("seconds must not be negative, nor beyond all bounds")
    return found


def _pairs(addresses: Addresses, runs: Array) -> tuple[Array, Array]:
    """Image and position of each address of some runs."""
    return np.repeat(addresses.image[runs], addresses.count[runs]), addresses.positions(runs)
