"""Columns of an image's pixels, regions and pixel sets, computed on demand from the model output."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ducats.acquisition.criteria import (
    PROBE_COLUMNS,
    Criterion,
    get_criterion,
    require_features,
    require_probe,
)
from ducats.acquisition.neighbourhoods import uniform_entropy, window_impurity, window_log_mean, window_mean
from ducats.acquisition.samples import LazyColumn
from ducats.models.upsampling import bilinear_weights
from ducats.utils.errors import UserError

COARSE_COLUMNS = ("features", *PROBE_COLUMNS)  # columns on a grid of their own
_MAX_PIXELS = 2**19  # pixels per pass: temporaries take a few dozen times pixels x classes
_MAX_SET_PIXELS = 2**24  # pixel sets x pixels of the image per pass


class PixelColumns:
    """Columns of one image, computed when read from log alpha, features and probe outputs; maps are cached.

    Args:
        z: log alpha, ``(C, H, W)``; None if no column will be read.
        features: ``(D, h, w)``, on their own grid with aligned corners; None if the model returns none.
        shape: H and W.
        extras: probe columns, ``(..., h, w)`` each, on their own grid.
    """

    def __init__(
        self,
        z: Tensor | None,
        features: Tensor | None,
        shape: tuple[int, int],
        extras: Mapping[str, Tensor] | None = None,
    ) -> None:
        if z is not None and tuple(z.shape[1:]) != shape:
            raise ValueError(f"log alpha has shape {tuple(z.shape[1:])}, expected {shape}")
        self._z, self._features, self.shape, self._extras = z, features, shape, extras
        self._maps: dict[tuple[str, int], Tensor] = {}

    @property
    def z(self) -> Tensor:
        """Log alpha, ``(C, H, W)``."""
        if self._z is None:
            raise ValueError("the query needs columns, but z is None")
        return self._z

    def for_pixels(self, needs: Sequence[str], position: Tensor) -> dict[str, LazyColumn]:
        """Return columns of pixels."""
        for name in needs:
            if name == "impurity":
                raise UserError(
                    "the query needs 'impurity', which is undefined for single pixels; set task.unit=region "
                    "or query.name=ripu_points"
                )
        return {name: LazyColumn(partial(self._at_pixels, name), position) for name in needs}

    def for_regions(self, needs: Sequence[str], radius: int, position: Tensor) -> dict[str, LazyColumn]:
        """Return columns of square regions, each identified by its centre pixel."""
        return {name: LazyColumn(partial(self._in_regions, name, radius), position) for name in needs}

    def for_pixel_sets(self, needs: Sequence[str], members: Tensor) -> dict[str, Tensor]:
        """Return columns of pixel sets.

        Args:
            members: positions, ``(S, L)``; smaller sets are padded with -1.
        """
        return {name: self._in_sets(name, members) for name in needs}

    def _at_pixels(self, name: str, position: Tensor) -> Tensor:
        """Return a column at some pixels: ``(R,)`` or ``(R, K)``."""
        if name == "z":
            return self.z.flatten(1)[:, position].T
        if name in COARSE_COLUMNS:
            coarse = self._coarse_map(name)
            values = self._sample_map(coarse.reshape(-1, *coarse.shape[-2:]), position)
            return values.reshape(len(position), *coarse.shape[:-2])
        found = get_criterion(name)
        if found.needs_neighbours:
            return self._criterion_map(name, found).flatten()[position]
        z = self.z.flatten(1)
        # Contiguous rows: a row's value then does not depend on its neighbours, bit for bit.
        return torch.cat([found.fn(z[:, some].T.contiguous()) for some in position.split(_MAX_PIXELS)])

    def _coarse_map(self, name: str) -> Tensor:
        """Return features or a probe's column on their own grid, ``(..., h, w)``."""
        return require_features(self._features) if name == "features" else require_probe(name, self._extras)

    def _sample_map(self, coarse: Tensor, position: Tensor) -> Tensor:
        """Sample a map on its own grid, ``(K, h, w)``, at some pixels: ``(R, K)``."""
        height, width = self.shape
        # grid_sample's coordinates run from -1 to 1, from the centre of the first pixel to that of the last
        x = (position % width).float() * (2 / max(width - 1, 1)) - 1
        y = (position // width).float() * (2 / max(height - 1, 1)) - 1
        where = torch.stack([x, y], 1)[None, :, None]
        found = F.grid_sample(coarse[None].float(), where, "bilinear", "border", True)
        return found[0, :, :, 0].T

    def _in_regions(self, name: str, radius: int, position: Tensor) -> Tensor:
        """Return a column of the regions around some pixels."""
        if name == "z" or name in COARSE_COLUMNS:
            return self._region_mean(name, radius, position)
        return self._cached(name, radius, lambda: self._region_map(name, radius)).flatten()[position]

    def _region_mean(self, name: str, radius: int, position: Tensor) -> Tensor:
        near, inside = window_positions(position, radius, self.shape)
        total, size = torch.zeros((), device=position.device), inside.sum(1)
        for positions, valid in zip(near.T, inside.T, strict=True):
            values = self._at_pixels(name, positions.clamp(0, self.shape[0] * self.shape[1] - 1))
            total = total + values * valid.view(-1, *[1] * (values.ndim - 1))
        return total / size.view(-1, *[1] * (total.ndim - 1))

    def _region_map(self, name: str, radius: int) -> Tensor:
        found = get_criterion(name)
        values = self._criterion_map(name, found)
        if found.reduction == "impurity":
            return window_impurity(values, len(self.z), radius)
        return (window_log_mean if found.reduction == "log_mean" else window_mean)(values, radius)

    def _criterion_map(self, name: str, found: Criterion) -> Tensor:
        """Compute a criterion at every pixel, ``(H, W)``."""
        if found.needs_neighbours:
            return self._cached(name, 0, lambda: found.fn(self.z[None])[0])
        everywhere = torch.arange(self.shape[0] * self.shape[1], device=self.z.device)
        return self._cached(name, 0, lambda: self._at_pixels(name, everywhere).view(self.shape))

    def _cached(self, name: str, radius: int, compute: Callable[[], Tensor]) -> Tensor:
        if (name, radius) not in self._maps:
            self._maps[name, radius] = compute()
        return self._maps[name, radius]

    def _in_sets(self, name: str, members: Tensor) -> Tensor:
        """Return a column of pixel sets: ``(S,)`` or ``(S, K)``."""
        inside = members >= 0
        size, index = inside.sum(1), members.clamp(min=0)

        def mean(values: Tensor) -> Tensor:
            return values.flatten()[index].masked_fill(~inside, 0.0).sum(1) / size

        if name == "z":
            return torch.stack([mean(channel) for channel in self.z], 1)
        if name in COARSE_COLUMNS:
            coarse = self._coarse_map(name)
            values = coarse.reshape(-1, coarse.shape[-2] * coarse.shape[-1]).float()
            weights = self._set_weights(members, (coarse.shape[-2], coarse.shape[-1]))
            return (weights @ values.T).reshape(-1, *coarse.shape[:-2])
        found = get_criterion(name)
        values = self._criterion_map(name, found)
        if found.reduction == "mean":
            return mean(values)
        if found.reduction == "log_mean":
            return values.flatten()[index].masked_fill(~inside, -torch.inf).logsumexp(1) - size.log()
        share = torch.stack([mean((values == c).float()) for c in range(len(self.z))])
        return -torch.xlogy(share, share).sum(0) / uniform_entropy(len(self.z))

    def _set_weights(self, members: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return the weights of a coarse grid's points in the mean over each pixel set: ``(S, h * w)``.

        Interpolation is linear, so the mean of the interpolated values is a weighted mean of the coarse ones.
        """
        n_pixels = self.shape[0] * self.shape[1]
        rows, columns = (
            bilinear_weights(fine, coarse, torch.float32, members.device)
            for fine, coarse in zip(self.shape, grid, strict=True)
        )
        weights = []
        for some in members.split(max(1, _MAX_SET_PIXELS // n_pixels)):
            inside = torch.zeros(len(some), n_pixels + 1, device=members.device)
            inside.scatter_(1, some.remainder(n_pixels + 1), 1.0)  # padding, -1, becomes the last column
            maps = inside[:, :-1].unflatten(1, self.shape)
            weights.append((rows.T @ maps @ columns).flatten(1) / (some >= 0).sum(1, keepdim=True))
        return torch.cat(weights)


def window_positions(position: Tensor, radius: int, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the positions in the window around each one, in raster order, and which lie in the image."""
    step = torch.arange(-radius, radius + 1, device=position.device)
    y = (position // shape[1])[:, None, None] + step[:, None]
    x = (position % shape[1])[:, None, None] + step
    inside = (y >= 0) & (y < shape[0]) & (x >= 0) & (x < shape[1])
    return (y * shape[1] + x).flatten(1), inside.flatten(1)
