"""Label maps for training, built from the ledger."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ducats.data.domain import UNLABELLED, VOID, LabelMaps, original_map
from ducats.ledger.label_ledger import Ledger
from ducats.settings import GridResolution, LabelDownsampling
from ducats.utils.npz_columns import AnyArray


class TargetMaps:
    """Label maps ``(N, height, width)`` of the acquired labels, built on access.

    Implements ``domain.LabelMaps``.
    A pixel is UNLABELLED if it has no label. It is VOID if it was labelled VOID, or if it has no label and
    ``void`` marks it.

    Args:
        shape: height and width of the maps, the size of the stored images. None for each image's size in the
            ledger; if these sizes differ, index with an integer or use
            ``at_label_resolution``.
        n_rounds: number of rounds to include, from the first; None for all rounds at the time of access.
        void: nonzero where a pixel is known to have no class.
        resolution: grid of the positions; None for the ledger's resolution.
        fill: how labels on the original grid are transferred to a map of another size. ``cell``: each label
            goes to the map cell that contains its pixel. If several labels fall into one cell, the one
            nearest to the cell's centre is used, then the one with the lower position. ``nearest``: each
            cell takes the label of the pixel that nearest-neighbour resizing would pick, if it has one. The
            other labels are lost. This is the published behaviour.
        with_audit: whether to include audit labels, which are not for training unless they are released.
    """

    def __init__(
        self,
        ledger: Ledger,
        shape: tuple[int, int] | None,
        n_rounds: int | None = None,
        void: LabelMaps | None = None,
        resolution: GridResolution | None = None,
        fill: LabelDownsampling = "cell",
        *,
        with_audit: bool = False,
    ) -> None:
        if ledger.sizes is None:
            raise ValueError("the ledger holds per-image labels; use Ledger.targets")
        if fill not in ("cell", "nearest"):
            raise ValueError(f"fill must be cell or nearest, not {fill!r}")
        self._ledger, self._n_rounds, self._with_audit = ledger, n_rounds, with_audit
        self._map_size, self._void, self._fill = shape, void, fill
        self._is_original = (resolution or ledger.resolution) == "original"
        self._sizes: list[list[int]] = ledger.sizes.tolist()
        if n_rounds is not None and n_rounds > ledger.n_rounds:
            ledger.refresh()  # another process may have appended them
        if not self._is_original and shape and any(tuple(s) != tuple(shape) for s in self._sizes):
            raise ValueError(f"the labels' grid differs from that of the images, {shape}")

    @property
    def shape(self) -> torch.Size:
        """``(N, height, width)``."""
        sizes = {self._map_size} if self._map_size else {(height, width) for height, width in self._sizes}
        if len(sizes) != 1:
            raise ValueError("the images have several sizes and no common shape; use `at_label_resolution`")
        return torch.Size((len(self), *sizes.pop()))

    @property
    def dtype(self) -> torch.dtype:
        """int8, or int16 if any class id exceeds 127."""
        return self._ledger.label_dtype(self._n_rounds)

    @property
    def ndim(self) -> int:
        """Number of dimensions: 3."""
        return 3

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: Any) -> Tensor:
        chosen = torch.arange(len(self))[index.cpu() if isinstance(index, Tensor) else index]
        if chosen.ndim == 0:
            return self._map(int(chosen))
        if not len(chosen):
            return torch.zeros(0, *self.shape[1:], dtype=self.dtype)
        return torch.stack([self._map(image) for image in chosen.tolist()])

    def at_label_resolution(self, image: int) -> Tensor:
        """Return the map of one image at the resolution of its labels, ``(height, width)``."""
        label_map = torch.from_numpy(self._label_array(image))
        if self._void is not None:
            void = original_map(self._void, image) if self._is_original else self._void[image]
            _fill_void(label_map, void)
        return label_map

    def acquired_mask(self, image: int) -> Tensor:
        """Return the mask of the acquired pixels of one image at the resolution of its labels."""
        return torch.from_numpy(self._label_array(image) != UNLABELLED)

    def _labels(self, image: int) -> tuple[AnyArray, AnyArray]:
        return self._ledger.image_label_arrays(image, self._n_rounds, with_audit=self._with_audit)

    def _label_array(self, image: int) -> AnyArray:
        position, label = self._labels(image)
        height, width = self._sizes[image]
        label_map = np.full(height * width, UNLABELLED, _NUMPY_DTYPES[self.dtype])
        label_map[position] = label
        return label_map.reshape(height, width)

    def _map(self, image: int) -> Tensor:
        if self._map_size is None or list(self._map_size) == self._sizes[image]:
            return self.at_label_resolution(image)
        if self._fill == "nearest":
            label_map = resize_nearest(torch.from_numpy(self._label_array(image)), self._map_size)
        else:
            position, label = self._labels(image)
            height, width = self._sizes[image]
            kept, cell = _assign_to_cells(position, (height, width), self._map_size)
            flat = np.full(self._map_size[0] * self._map_size[1], UNLABELLED, _NUMPY_DTYPES[self.dtype])
            flat[cell] = label[kept]
            label_map = torch.from_numpy(flat.reshape(self._map_size))
        if self._void is not None:
            _fill_void(label_map, self._void[image])
        return label_map


def _fill_void(label_map: Tensor, void: Tensor) -> None:
    """Set unlabelled pixels to VOID where ``void`` is nonzero. An acquired label takes precedence."""
    known = resize_nearest(void, (label_map.shape[0], label_map.shape[1])) != 0
    label_map[known & (label_map < 0)] = VOID


_NUMPY_DTYPES = {torch.int8: np.int8, torch.int16: np.int16}


def _assign_to_cells(
    position: AnyArray, old: tuple[int, int], new: tuple[int, int]
) -> tuple[AnyArray, AnyArray]:
    """Return the indices of the labels to keep and the cell of the new grid that each one fills."""
    rows, dy = _axis_cells(old[0], new[0])
    columns, dx = _axis_cells(old[1], new[1])
    y, x = np.divmod(position, old[1])
    cell = rows[y] * new[1] + columns[x]
    # Integers make ties exact: squared distances, each distance scaled by 2 * new[0] * new[1].
    distance = (dy[y] * new[1]) ** 2 + (dx[x] * new[0]) ** 2
    best = np.empty(new[0] * new[1], np.int64)
    remaining = np.arange(len(position))
    while len(remaining):
        # Each remaining label claims its cell and one of them gets it. Labels nearer than the winner stay for
        # the next pass. A sort by three keys gives the same result but takes ten times as long.
        best[cell[remaining]] = remaining
        other = best[cell[remaining]]
        nearer = distance[remaining] < distance[other]
        nearer |= (distance[remaining] == distance[other]) & (position[remaining] < position[other])
        remaining = remaining[nearer]
    kept = np.flatnonzero(best[cell] == np.arange(len(position)))
    return kept, cell[kept]


@lru_cache(maxsize=64)
def _axis_cells(old: int, new: int) -> tuple[AnyArray, AnyArray]:
    """Map each old line to the new line that contains its centre; also return the offset of the centres.

    The offset is in old lines, scaled by 2 * new.
    """
    centre = 2 * np.arange(old) + 1
    line = centre * new // (2 * old)
    return line, centre * new - (2 * line + 1) * old


def resize_nearest(values: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize a map with nearest-neighbour sampling."""
    if tuple(values.shape) == tuple(size):
        return values
    rows, columns = (nearest_indices(old, new) for old, new in zip(values.shape, size, strict=True))
    return torch.from_numpy(values.numpy().take(rows, 0).take(columns, 1))  # five times as fast as in torch


@lru_cache(maxsize=64)
def nearest_indices(old: int, new: int) -> AnyArray:
    """Return which of ``old`` lines Pillow samples for each of ``new`` lines, computed by Pillow itself."""
    ramp = Image.fromarray(np.arange(old, dtype=np.int32)[None])
    indices: AnyArray = np.array(ramp.resize((new, 1), Image.Resampling.NEAREST))[0].astype(np.int64)
    return indices
