"""The ledger: acquired labels by round, one file per round."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ducats.data.domain import UNLABELLED, VOID
from ducats.ledger.request import Request
from ducats.ledger.units import clicks_per_unit
from ducats.runfolder import checksums
from ducats.runfolder.amendments import (
    MERGE_CHANNEL,
    Amendment,
    CorrectedLabels,
    amendment_path,
    load_amendments,
)
from ducats.runfolder.label_files import LabelFile, read_label_file, write_label_file
from ducats.runfolder.pixel_runs import PixelRuns, chunk_by_weight, exclusive_cumsum
from ducats.runfolder.pool_file import PoolInfo
from ducats.runfolder.rounds import ROUND_FILES, round_file
from ducats.runfolder.run_folder import RunFolder
from ducats.settings import GridResolution
from ducats.utils.errors import UserError
from ducats.utils.npz_columns import AnyArray

CHECK_CHUNK_PIXELS = 1 << 20  # pixels validated together
ENTRY_CHUNK_PIXELS = 1 << 16  # pixels converted to Python objects together


class LedgerEntry(NamedTuple):
    """One label in the ledger, with the key of its image."""

    round: int  # from 1
    key: str
    position: int
    label: int


class ImageLabels(NamedTuple):
    """The labels of one image, in the order of acquisition."""

    position: Tensor  # (n,) int64
    label: Tensor  # (n,) int64


class PixelLabels(NamedTuple):
    """Labels of pixels in several images."""

    image: AnyArray  # int64 (n,)
    position: AnyArray  # int64 (n,)
    label: AnyArray  # int64 (n,)


class Ledger:
    """Acquired labels, one file per round. Rounds are written atomically and never changed.

    All counts and labels can be restricted to the first ``n_rounds`` rounds. Labels are corrected by the
    amendments that were made before the last of these rounds was appended; by default, by all amendments.

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
        resolution: GridResolution = "network",
    ) -> None:
        self.folder, self.keys, self.resolution = folder, keys, resolution
        self.sizes = None if sizes is None else torch.as_tensor(sizes, dtype=torch.long)
        if self.sizes is not None and self.sizes.shape != (len(keys), 2):
            raise ValueError(f"sizes must have shape ({len(keys)}, 2), not {tuple(self.sizes.shape)}")
        self._rounds: list[LabelFile] = []
        self._amendments: list[Amendment] = []
        self._audit_pixels: dict[tuple[int, int], PixelLabels] = {}
        self._corrected: dict[int, CorrectedLabels] = {}  # by number of amendments
        self.refresh()

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process opens the files itself: up to 100 million labels are not pickled.
        return Ledger, (self.folder, self.keys, self.sizes, self.resolution)

    def refresh(self) -> None:
        """Load the rounds and amendments that another process has appended."""
        while (path := round_file(self.folder, self.n_rounds + 1)).exists():
            self._rounds.append(self._read_round(path))
        checksums.verify(path)  # raises if the file existed
        stray = sorted(self.folder.glob(ROUND_FILES))[self.n_rounds :]
        if stray:
            raise UserError(
                f"{self.folder} has {stray[0].name} but {path.name} is missing; restore the missing round "
                "from a backup or start a new run"
            )
        self._amendments = load_amendments(self.folder)
        needed = max((r.n_amendments for r in self._rounds), default=0)
        if needed > len(self._amendments):
            missing = amendment_path(self.folder, len(self._amendments) + 1)
            raise UserError(f"{missing} is missing; restore it from a backup, it holds corrected labels")
        highest = max((c.image for a in self._amendments for c in a.corrections), default=-1)
        if highest >= len(self.keys):
            n_images = len(self.keys)
            raise UserError(
                f"an amendment in {self.folder} has image {highest}, but the pool has only {n_images} images"
            )

    def corrected_labels(self, n_rounds: int | None = None) -> CorrectedLabels:
        """Return the corrected labels that count after a number of rounds."""
        count = len(self._amendments)
        if n_rounds is not None:
            count = max((r.n_amendments for r in self._rounds[:n_rounds]), default=0)
        if count not in self._corrected:
            self._corrected[count] = CorrectedLabels.from_amendments(self._amendments[:count])
        return self._corrected[count]

    @property
    def n_corrected(self) -> int:
        """Number of labels that annotators corrected; merging classes corrects none."""
        count = max((r.n_amendments for r in self._rounds), default=0)
        reviews = [one for one in self._amendments[:count] if one.channel != MERGE_CHANNEL]
        return CorrectedLabels.from_amendments(reviews).n_corrected

    @property
    def n_rounds(self) -> int:
        """Number of rounds in the ledger."""
        return len(self._rounds)

    def __len__(self) -> int:
        return self.spent()

    def spent(self, n_rounds: int | None = None) -> int:
        """Return the number of labels."""
        return sum(r.pixel_runs.n_locations for r in self._rounds[:n_rounds])

    def clicks(self, n_rounds: int | None = None) -> int:
        """Return the number of clicks: connected pieces with the same label within a unit."""
        return sum(r.clicks for r in self._rounds[:n_rounds])

    def seconds(self, n_rounds: int | None = None) -> float | None:
        """Return the annotation time in seconds; None if no time was recorded."""
        included = self._rounds[:n_rounds]
        known = any(r.unanswered_seconds or r.seconds.any() for r in included)
        return sum(float(r.seconds.sum()) + r.unanswered_seconds for r in included) if known else None

    def unit_seconds(self) -> Tensor | None:
        """Return the annotation time of each unit, in the order of acquisition; None if none was recorded."""
        if self.seconds() is None:
            return None
        empty = [np.zeros(r.pixel_runs.n_units) if not len(r.seconds) else r.seconds for r in self._rounds]
        return torch.from_numpy(np.concatenate(empty))

    def n_units(self, n_rounds: int | None = None) -> int:
        """Return the number of labelled units; one answer labels one unit."""
        return sum(r.pixel_runs.n_units for r in self._rounds[:n_rounds])

    def n_timed_units(self, n_rounds: int | None = None) -> int:
        """Return the number of units with a recorded annotation time."""
        return sum(int(np.count_nonzero(r.seconds)) for r in self._rounds[:n_rounds])

    def labels_per_image(self, n_rounds: int | None = None) -> Tensor:
        """Return the number of labels per image: ``(len(pool),)`` int64."""
        counts = np.zeros(len(self.keys), np.int64)
        for ledger_round in self._rounds[:n_rounds]:
            np.add.at(counts, ledger_round.pixel_runs.image, ledger_round.pixel_runs.count)
        return torch.from_numpy(counts)

    def label_dtype(self, n_rounds: int | None = None) -> torch.dtype:
        """Return the dtype that holds all labels: int8, or int16 if any class id exceeds 127."""
        wide = any(r.labels.dtype.itemsize > 1 for r in self._rounds[:n_rounds])
        wide |= self.corrected_labels(n_rounds).max_label > np.iinfo(np.int8).max
        return torch.int16 if wide else torch.int8

    def append(
        self, request: Request, labels: Tensor, seconds: Tensor | None = None, unanswered_seconds: float = 0.0
    ) -> None:
        """Write one round. Each requested location needs exactly one label and must not be labelled already.

        All amendments made so far count from this round on.

        Args:
            request: the labelled locations; may be empty.
            labels: ``(len(request),)`` integers in the request's order; VOID where no class applies.
            seconds: annotation time per unit, ``(request.n_units,)``; 0 or NaN if unknown.
            unanswered_seconds: seconds spent on questions that were not answered and are not in the request.
        """
        if request.round != self.n_rounds + 1:
            raise ValueError(f"expected round {self.n_rounds + 1}, got round {request.round}")
        if labels.shape != (len(request),):
            raise ValueError(f"expected {len(request)} labels, got {labels.numel()}")
        label_values: AnyArray = labels.detach().cpu().numpy()
        if (label_values == UNLABELLED).any():
            raise ValueError("a label must be a class or VOID, not UNLABELLED")
        lowest, highest = int(label_values.min(initial=0)), int(label_values.max(initial=0))
        if label_values.dtype.kind not in "iu" or lowest < VOID or highest > np.iinfo(np.int16).max:
            raise ValueError(f"a label must be a class (an integer from 0 to 32767) or VOID ({VOID})")
        pixel_runs = request.pixel_runs
        unit_seconds = _validate_seconds(seconds, pixel_runs.n_units)
        if pixel_runs.image.max(initial=-1) >= len(self.keys):
            raise ValueError(f"image {pixel_runs.image.max()} is out of range for a pool of {len(self.keys)}")
        clicks = self._validate(pixel_runs, label_values)
        path = round_file(self.folder, request.round)
        self._amendments = load_amendments(self.folder)
        write_label_file(
            path,
            pixel_runs,
            label_values,
            clicks,
            seconds=unit_seconds,
            unanswered_seconds=unanswered_seconds,
            n_amendments=len(self._amendments),
            marks=request.marks,
        )
        self._rounds.append(self._read_round(path))

    def _validate(self, pixel_runs: PixelRuns, labels: AnyArray) -> AnyArray:
        """Validate a request, a chunk of images at a time; return the number of clicks per run."""
        n_pixels, widths = np.ones(len(self.keys), np.int64), np.ones(len(self.keys), np.int64)
        if self.sizes is not None:
            n_pixels, widths = self.sizes.prod(1).numpy(), self.sizes[:, 1].numpy()
        images, clicks = np.unique(pixel_runs.image), pixel_runs.count.copy()
        start = np.zeros(len(self.keys), np.int64)  # offset of each image's pixels within the chunk
        for chunk in chunk_by_weight(n_pixels[images], CHECK_CHUNK_PIXELS):
            chunk_images = images[chunk]
            runs = pixel_runs.runs_of_images(chunk_images)
            image, position = _images_and_positions(pixel_runs, runs)
            outside = np.flatnonzero(position >= n_pixels[image])
            if len(outside):
                first_bad = outside[0]
                raise ValueError(
                    f"position {position[first_bad]} is out of range for {self.keys[image[first_bad]]!r}, "
                    f"which has {n_pixels[image[first_bad]]}"
                )
            start[chunk_images] = exclusive_cumsum(n_pixels[chunk_images])
            is_taken = np.zeros(n_pixels[chunk_images].sum(), bool)
            total = len(position)
            is_taken[start[image] + position] = True
            for ledger_round in self._rounds:
                labelled_image, labelled_position = _images_and_positions(
                    ledger_round.pixel_runs, ledger_round.pixel_runs.runs_of_images(chunk_images)
                )
                is_taken[start[labelled_image] + labelled_position] = True
                total += len(labelled_position)
            if np.count_nonzero(is_taken) != total:
                raise ValueError(
                    "a location was requested twice; queries must select distinct unlabelled samples"
                )
            if pixel_runs.units_per_run.any():
                unit_sizes, units_per_run = pixel_runs.unit_sizes(runs)
                unit_widths = np.repeat(widths[pixel_runs.image[runs]], units_per_run)
                unit_clicks = clicks_per_unit(
                    position, labels[pixel_runs.location_indices(runs)], unit_sizes, unit_widths
                )
                clicks[runs] = np.add.reduceat(unit_clicks, np.cumsum(units_per_run) - units_per_run)
        return clicks

    def image_labels(
        self, image: int, n_rounds: int | None = None, *, with_audit: bool = False
    ) -> ImageLabels:
        """Return the labels of one image in the order of acquisition. Reads no other labels from disk.

        Audit labels are not included by default; see ``targets``.
        """
        position, label = self.image_label_arrays(image, n_rounds, with_audit=with_audit)
        return ImageLabels(torch.from_numpy(position), torch.from_numpy(label.astype(np.int64)))

    def image_label_arrays(
        self, image: int, n_rounds: int | None = None, *, with_audit: bool = False
    ) -> tuple[AnyArray, AnyArray]:
        """Return positions and labels like ``image_labels``, as arrays; labels have their stored dtype."""
        positions, labels = [np.zeros(0, np.int64)], [np.zeros(0, np.int8)]
        for ledger_round in self._rounds[:n_rounds]:
            runs = ledger_round.pixel_runs.runs_of_images(np.array([image]))
            if len(runs):
                positions.append(ledger_round.pixel_runs.positions(runs))
                labels.append(ledger_round.labels[ledger_round.pixel_runs.location_indices(runs)])
        position, label = np.concatenate(positions), np.concatenate(labels)
        label = self.corrected_labels(n_rounds).apply(image, position, label)
        audit = self.audit_pixels(n_rounds)
        if with_audit or not len(audit.image):
            return position, label
        kept = ~np.isin(position, audit.position[audit.image == image])
        return position[kept], label[kept]

    def audit_pixels(self, n_rounds: int | None = None) -> PixelLabels:
        """Return the audit labels of pixels, by image and position."""
        rounds = self._rounds[:n_rounds]
        corrected = self.corrected_labels(n_rounds)
        key = len(rounds), id(corrected)
        if key not in self._audit_pixels:
            self._audit_pixels[key] = _read_audit_pixels(rounds, corrected)
        return self._audit_pixels[key]

    def targets(self, n_rounds: int | None = None, *, with_audit: bool = False) -> Tensor:
        """Return the label of each image in the pool, ``(len(pool),)``; UNLABELLED if it has none.

        Audit labels are not included by default: no model may be trained on them, unless they are released.
        An epoch that is repeated after a restart must not see labels acquired after it; see ``n_rounds``. For
        per-pixel labels use ``TargetMaps``.
        """
        labels, is_audit = self._image_labels(n_rounds)
        return labels if with_audit else torch.where(is_audit, UNLABELLED, labels)

    def audit_labels(self, n_rounds: int | None = None) -> Tensor:
        """Return the audit label of each image in the pool, ``(len(pool),)``; UNLABELLED if it has none."""
        labels, is_audit = self._image_labels(n_rounds)
        return torch.where(is_audit, labels, UNLABELLED)

    def _image_labels(self, n_rounds: int | None) -> tuple[Tensor, Tensor]:
        """Return the label of each image in the pool, or UNLABELLED, and whether it is for the audit."""
        if self.sizes is not None:
            raise ValueError("the ledger holds per-pixel labels; use TargetMaps")
        labels = torch.full((len(self.keys),), UNLABELLED, dtype=torch.long)
        is_audit = torch.zeros(len(self.keys), dtype=torch.bool)
        for ledger_round in self._rounds[:n_rounds]:
            image = torch.from_numpy(np.repeat(ledger_round.pixel_runs.image, ledger_round.pixel_runs.count))
            labels[image] = torch.from_numpy(ledger_round.labels.astype(np.int64))
            is_audit[image] = torch.from_numpy(ledger_round.marks.mask(len(image)))
            is_audit[torch.from_numpy(ledger_round.marks.released_image)] = False
        for index, (_, _, label) in self.corrected_labels(n_rounds).by_image.items():
            labels[index] = int(label[0])
        return labels, is_audit

    def entries(self) -> Iterator[LedgerEntry]:
        """Yield every label in the order of acquisition."""
        corrected = self.corrected_labels()
        for round_number, ledger_round in enumerate(self._rounds, start=1):
            for chunk in chunk_by_weight(ledger_round.pixel_runs.count, ENTRY_CHUNK_PIXELS):
                runs = np.arange(chunk.start, chunk.stop)
                images, positions = _images_and_positions(ledger_round.pixel_runs, runs)
                labels = ledger_round.labels[ledger_round.pixel_runs.location_indices(runs)]
                labels = corrected.apply_to_images(images, positions, labels)
                for image, position, label in zip(
                    images.tolist(), positions.tolist(), labels.tolist(), strict=True
                ):
                    yield LedgerEntry(round_number, self.keys[image], position, label)

    def _read_round(self, path: Path) -> LabelFile:
        found = read_label_file(path)
        if (highest := found.pixel_runs.image.max(initial=-1)) >= len(self.keys):
            raise UserError(f"{path} has image {highest}, but the pool has only {len(self.keys)} images")
        return found


def open_ledger(
    run_folder: RunFolder,
    keys: Sequence[str],
    sizes: Tensor | None = None,
    resolution: GridResolution = "network",
) -> Ledger:
    """Open the ledger of a run; the first call saves the pool's keys. For the arguments see ``Ledger``."""
    run_folder.save_pool(PoolInfo(keys, None if sizes is None else sizes.numpy(), resolution))
    return Ledger(run_folder.labels_path, keys, sizes, resolution)


def load_ledger(run_folder: RunFolder) -> Ledger:
    """Open the ledger of a finished or paused run without loading its data."""
    if not run_folder.pool_path.exists():
        raise UserError(f"{run_folder.path} has no ledger yet: {run_folder.pool_path.name} is missing")
    pool = run_folder.load_pool()
    sizes = None if pool.sizes is None else torch.from_numpy(pool.sizes)
    return Ledger(run_folder.labels_path, pool.keys, sizes, pool.resolution)


def _validate_seconds(seconds: Tensor | None, n_units: int) -> AnyArray:
    """Return the annotation time per unit; 0 if unknown."""
    if seconds is None:
        return np.zeros(0)
    if seconds.shape != (n_units,):
        raise ValueError(f"expected the seconds of {n_units} units, got {seconds.numel()}")
    values: AnyArray = seconds.detach().cpu().double().nan_to_num(0.0, torch.inf).numpy()
    if (values < 0).any() or not np.isfinite(values).all():
        raise ValueError("seconds must be finite and not negative")
    return values


def _images_and_positions(pixel_runs: PixelRuns, runs: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return image and position of each location in the given runs."""
    return np.repeat(pixel_runs.image[runs], pixel_runs.count[runs]), pixel_runs.positions(runs)


def _read_audit_pixels(rounds: Sequence[LabelFile], corrected: CorrectedLabels) -> PixelLabels:
    """Collect the audit pixels that no query has selected since, sorted by image and position."""
    blocks, released = [np.zeros((3, 0), np.int64)], set[tuple[int, int]]()
    for found in rounds:
        image, position = found.pixel_runs.locations_at(found.marks.index)
        blocks.append(np.stack([image, position, found.labels[found.marks.index].astype(np.int64)]))
        marks = found.marks
        released |= set(zip(marks.released_image.tolist(), marks.released_position.tolist(), strict=True))
    image, position, label = np.concatenate(blocks, 1)
    order = [
        i for i in np.lexsort((position, image)).tolist() if (int(image[i]), int(position[i])) not in released
    ]
    image, position = image[order], position[order]
    return PixelLabels(image, position, corrected.apply_to_images(image, position, label[order]))
