"""The ledger: acquired labels by round, one file per round."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ducats import npz_columns
from ducats.domain import UNLABELLED, VOID
from ducats.errors import UserError
from ducats.ledger.clicks import pieces
from ducats.ledger.request import Request
from ducats.npz_columns import AnyArray
from ducats.pixel_runs import MAPPED_COLUMNS, PixelRuns, chunk_by_weight, exclusive_cumsum

Resolution = Literal["network", "original"]
AT_ONCE = 1 << 20  # pixels validated together
IN_LISTS = 1 << 16  # pixels converted to Python objects together


class Entry(NamedTuple):
    """One label in the ledger, with the key of its image."""

    round: int  # from 1
    key: str
    position: int
    label: int


class Bought(NamedTuple):
    """The labels of one image, in the order of acquisition."""

    position: Tensor  # (n,) int64
    label: Tensor  # (n,) int64


@dataclass(frozen=True)
class _Round:
    """The file of one round; positions and labels are read from disk on access."""

    addresses: PixelRuns
    label: AnyArray  # one per location
    clicks: int
    seconds: AnyArray  # annotation time per unit, 0 if unknown; empty if unknown for all units
    unanswered: float  # seconds spent on questions that were not answered


class Ledger:
    """Acquired labels, one file per round. Rounds are written atomically and never changed.

    Args:
        folder: contains one file per round.
        keys: stable names of the pool's images; a location refers to an image by its index in ``keys``.
        sizes: ``(N, 2)``, height and width of the grid in which each image's pixels are labelled. None if
            labels are per image; then every position is 0.
        resolution: whether ``sizes`` are those of the stored (network) or of the original images.
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
            raise ValueError(f"sizes must have shape ({len(keys)}, 2), not {tuple(self.sizes.shape)}")
        self._rounds: list[_Round] = []
        self.refresh()

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process opens the files itself: up to 100 million labels are not pickled.
        return Ledger, (self.folder, self.keys, self.sizes, self.resolution)

    def refresh(self) -> None:
        """Load the rounds that another process has appended."""
        while (path := self._path(self.rounds + 1)).exists():
            self._rounds.append(self._read(path))
        stray = sorted(self.folder.glob("round-*.npz"))[self.rounds :]
        if stray:
            raise UserError(
                f"{self.folder} has {stray[0].name} but {self._path(self.rounds + 1).name} is missing; "
                "restore the missing round from a backup or start a new run"
            )

    @property
    def rounds(self) -> int:
        """Number of rounds in the ledger."""
        return len(self._rounds)

    def __len__(self) -> int:
        """Return the number of labels."""
        return self.spent()

    def spent(self, rounds: int | None = None) -> int:
        """Return the number of labels in the first ``rounds`` rounds; in all rounds if None."""
        return sum(r.addresses.n_locations for r in self._rounds[:rounds])

    def clicks(self, rounds: int | None = None) -> int:
        """Return the number of clicks: connected pieces with the same label within a unit."""
        return sum(r.clicks for r in self._rounds[:rounds])

    def seconds(self, rounds: int | None = None) -> float | None:
        """Return the annotation time in seconds; None if no time was recorded."""
        some = self._rounds[:rounds]
        known = any(r.unanswered or r.seconds.any() for r in some)
        return sum(float(r.seconds.sum()) + r.unanswered for r in some) if known else None

    def units(self, rounds: int | None = None) -> int:
        """Return the number of labelled units; one answer labels one unit."""
        return sum(r.addresses.n_units for r in self._rounds[:rounds])

    def timed(self, rounds: int | None = None) -> int:
        """Return the number of units with a recorded annotation time."""
        return sum(int(np.count_nonzero(r.seconds)) for r in self._rounds[:rounds])

    def counts(self, rounds: int | None = None) -> Tensor:
        """Return the number of labels per image: ``(len(pool),)`` int64."""
        counts = np.zeros(len(self.keys), np.int64)
        for bought in self._rounds[:rounds]:
            np.add.at(counts, bought.addresses.image, bought.addresses.count)
        return torch.from_numpy(counts)

    def dtype(self, rounds: int | None = None) -> torch.dtype:
        """Return the dtype that holds all labels: int8, or int16 if any class id exceeds 127."""
        wide = any(r.label.dtype.itemsize > 1 for r in self._rounds[:rounds])
        return torch.int16 if wide else torch.int8

    def append(
        self, request: Request, labels: Tensor, seconds: Tensor | None = None, unanswered: float = 0.0
    ) -> None:
        """Write one round. Each requested location needs exactly one label and must not be labelled already.

        Args:
            request: the labelled locations; may be empty.
            labels: ``(len(request),)`` integers in the request's order; VOID where no class applies.
            seconds: annotation time per unit, ``(request.units,)``; 0 or NaN if unknown.
            unanswered: seconds spent on questions that were not answered and are not in the request.
        """
        if request.round != self.rounds + 1:
            raise ValueError(f"expected round {self.rounds + 1}, got round {request.round}")
        if labels.shape != (len(request),):
            raise ValueError(f"expected {len(request)} labels, got {labels.numel()}")
        answers: AnyArray = labels.detach().cpu().numpy()
        if (answers == UNLABELLED).any():
            raise ValueError("a label must be a class or VOID, not UNLABELLED")
        lowest, highest = int(answers.min(initial=0)), int(answers.max(initial=0))
        if answers.dtype.kind not in "iu" or lowest < VOID or highest > np.iinfo(np.int16).max:
            raise ValueError(f"a label must be a class (an integer from 0 to 32767) or VOID ({VOID})")
        addresses = request.addresses
        taken = _seconds(seconds, addresses.n_units)
        if addresses.image.max(initial=-1) >= len(self.keys):
            raise ValueError(f"image {addresses.image.max()} is out of range for a pool of {len(self.keys)}")
        clicks = self._examine(addresses, answers)
        kept = dict(addresses.to_columns())
        kept["label"] = (answers, np.int8 if highest <= np.iinfo(np.int8).max else np.int16)
        if addresses.units_per_run.any():
            kept["clicks"] = (clicks, np.uint32)
        if taken.any():
            kept["seconds"] = (taken, np.float32)
        if unanswered:
            kept["unanswered"] = (np.array(unanswered), np.float64)
        path = self._path(request.round)
        npz_columns.write_columns(path, kept)
        self._rounds.append(self._read(path))

    def _examine(self, addresses: PixelRuns, answers: AnyArray) -> AnyArray:
        """Validate a request, a chunk of images at a time; return the number of clicks per run."""
        pixels, widths = np.ones(len(self.keys), np.int64), np.ones(len(self.keys), np.int64)
        if self.sizes is not None:
            pixels, widths = self.sizes.prod(1).numpy(), self.sizes[:, 1].numpy()
        images, clicks = np.unique(addresses.image), addresses.count.copy()
        start = np.zeros(len(self.keys), np.int64)  # offset of each image's pixels within the chunk
        for chunk in chunk_by_weight(pixels[images], AT_ONCE):
            some = images[chunk]
            runs = addresses.runs_of_images(some)
            image, position = _pairs(addresses, runs)
            outside = np.flatnonzero(position >= pixels[image])
            if len(outside):
                worst = outside[0]
                raise ValueError(
                    f"position {position[worst]} is out of range for {self.keys[image[worst]]!r}, "
                    f"which has {pixels[image[worst]]}"
                )
            start[some] = exclusive_cumsum(pixels[some])
            asked = np.zeros(pixels[some].sum(), bool)
            total = len(position)
            asked[start[image] + position] = True
            for bought in self._rounds:
                old, place = _pairs(bought.addresses, bought.addresses.runs_of_images(some))
                asked[start[old] + place] = True
                total += len(place)
            if np.count_nonzero(asked) != total:
                raise ValueError(
                    "a location was requested twice; queries must select distinct unlabelled samples"
                )
            if addresses.units_per_run.any():
                unit, each = addresses.unit_sizes(runs)
                wide = np.repeat(widths[addresses.image[runs]], each)
                found = pieces(position, answers[addresses.location_indices(runs)], unit, wide)
                clicks[runs] = np.add.reduceat(found, np.cumsum(each) - each)
        return clicks

    def of(self, image: int, rounds: int | None = None) -> Bought:
        """Return the labels of one image in the order of acquisition. Reads no other labels from disk.

        Args:
            image: index into the pool.
            rounds: number of rounds to include, from the first; None for all.
        """
        position, label = self.raw(image, rounds)
        return Bought(torch.from_numpy(position), torch.from_numpy(label.astype(np.int64)))

    def raw(self, image: int, rounds: int | None = None) -> tuple[AnyArray, AnyArray]:
        """Return positions and labels like ``of``, as arrays; labels have their stored dtype."""
        positions, labels = [np.zeros(0, np.int64)], [np.zeros(0, np.int8)]
        for bought in self._rounds[:rounds]:
            runs = bought.addresses.runs_of_images(np.array([image]))
            if len(runs):
                positions.append(bought.addresses.positions(runs))
                labels.append(bought.label[bought.addresses.location_indices(runs)])
        return np.concatenate(positions), np.concatenate(labels)

    def targets(self, rounds: int | None = None) -> Tensor:
        """Return the label of each image in the pool, ``(len(pool),)``; UNLABELLED if it has none.

        For per-pixel labels use ``TargetMaps``.

        Args:
            rounds: number of rounds to include, from the first; None for all. An epoch that is repeated after
                a restart must not see labels acquired after it.
        """
        if self.sizes is not None:
            raise ValueError("the ledger holds per-pixel labels; use TargetMaps")
        targets = torch.full((len(self.keys),), UNLABELLED, dtype=torch.long)
        for bought in self._rounds[:rounds]:
            image = np.repeat(bought.addresses.image, bought.addresses.count)
            targets[torch.from_numpy(image)] = torch.from_numpy(bought.label.astype(np.int64))
        return targets

    def entries(self) -> Iterator[Entry]:
        """Yield every label in the order of acquisition."""
        for number, bought in enumerate(self._rounds, start=1):
            for chunk in chunk_by_weight(bought.addresses.count, IN_LISTS):
                runs = np.arange(chunk.start, chunk.stop)
                images, positions = _pairs(bought.addresses, runs)
                labels = bought.label[bought.addresses.location_indices(runs)]
                for image, position, label in zip(
                    images.tolist(), positions.tolist(), labels.tolist(), strict=True
                ):
                    yield Entry(number, self.keys[image], position, label)

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:02d}.npz"

    def _read(self, path: Path) -> _Round:
        try:
            found = npz_columns.read_columns(path, (*MAPPED_COLUMNS, "label"))
            addresses, label = PixelRuns.from_columns(found), found["label"]
            if len(label) != addresses.n_locations:
                raise ValueError(f"{len(label)} labels for {addresses.n_locations} locations")
            seconds = found.get("seconds", np.zeros(0)).astype(np.float64)
            if len(seconds) not in (0, addresses.n_units):
                raise ValueError(f"{len(seconds)} annotation times for {addresses.n_units} units")
        except npz_columns.READ_ERRORS as error:
            raise UserError(f"{path} is corrupt ({error}); restore it from a backup") from error
        if addresses.image.max(initial=-1) >= len(self.keys):
            raise UserError(
                f"{path} has image {addresses.image.max()}, but the pool has only {len(self.keys)} images"
            )
        clicks = int(found.get("clicks", addresses.count).sum())
        return _Round(addresses, label, clicks, seconds, float(found.get("unanswered", 0.0)))


def _seconds(given: Tensor | None, units: int) -> AnyArray:
    """Return the annotation time per unit; 0 if unknown."""
    if given is None:
        return np.zeros(0)
    if given.shape != (units,):
        raise ValueError(f"expected the seconds of {units} units, got {given.numel()}")
    found: AnyArray = given.detach().cpu().double().nan_to_num(0.0, torch.inf).numpy()
    if (found < 0).any() or not np.isfinite(found).all():
        raise ValueError("seconds must be finite and not negative")
    return found


def _pairs(addresses: PixelRuns, runs: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return image and position of each location in the given runs."""
    return np.repeat(addresses.image[runs], addresses.count[runs]), addresses.positions(runs)
