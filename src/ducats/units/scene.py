"""What a model says about one image, as columns of pixels, of regions, or of any sets of pixels."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ducats.criteria import TOLD, Criterion, criterion, given, heard
from ducats.errors import UserError
from ducats.rows import Deferred
from ducats.windows import log_classes, window_impurity, window_log_mean, window_mean

_AT_ONCE = 2**19  # pixels per pass: the formulas' temporaries are a few dozen times (pixels x classes)


class Scene:
    """One image's log alpha and features; a column is computed when it is read, and maps are kept.

    Args:
        z: log alpha, ``(C, H, W)``; None if no column will be read.
        features: ``(D, h, w)``, on a grid of their own, corner on corner; None if the model gives none.
        shape: H and W.
        told: what witnesses say, ``(..., h, w)`` each, on a grid of their own.
    """

    def __init__(
        self,
        z: Tensor | None,
        features: Tensor | None,
        shape: tuple[int, int],
        told: Mapping[str, Tensor] | None = None,
    ) -> None:
        if z is not None and tuple(z.shape[1:]) != shape:
            raise ValueError(f"log alpha of {tuple(z.shape[1:])} for a map of {shape}")
        self._z, self._features, self.shape, self._told = z, features, shape, told
        self._maps: dict[tuple[str, int], Tensor] = {}

    @property
    def z(self) -> Tensor:
        """Log alpha, ``(C, H, W)``."""
        if self._z is None:
            raise ValueError("the strategy needs columns, and no log alpha was given")
        return self._z

    def pixels(self, needs: Sequence[str], position: Tensor) -> dict[str, Deferred]:
        """Columns of rows that are pixels."""
        for name in needs:
            if name == "impurity":
                raise UserError(
                    "the query needs 'impurity', and a single pixel has none: task.unit=region, "
                    "or query.name=ripu_points"
                )
        return {name: Deferred(partial(self._at, name), position) for name in needs}

    def regions(self, needs: Sequence[str], radius: int, position: Tensor) -> dict[str, Deferred]:
        """Columns of rows that are square regions, each named by the pixel in its middle."""
        return {name: Deferred(partial(self._around, name, radius), position) for name in needs}

    def sets(self, needs: Sequence[str], members: Tensor) -> dict[str, Tensor]:
        """Columns of rows that are sets of pixels.

        Args:
            needs: names of columns.
            members: positions, ``(S, L)``; -1 fills the rows of smaller sets.
        """
        return {name: self._over(name, members) for name in needs}

    def _at(self, name: str, position: Tensor) -> Tensor:
        """A column at some pixels: ``(R,)``, or ``(R, K)``."""
        if name == "z":
            return self.z.flatten(1)[:, position].T
        if name == "features":
            return self._sampled(given(self._features), position)
        if name in TOLD:
            coarse = heard(name, self._told)
            return self._sampled(coarse.reshape(-1, *coarse.shape[-2:]), position).reshape(
                len(position), *coarse.shape[:-2]
            )
        found = criterion(name)
        if found.around:
            return self._map(name, found).flatten()[position]
        z = self.z.flatten(1)
        # Row by row in memory: then a row's value does not depend, to the last bit, on the rows beside it.
        return torch.cat([found.of(z[:, some].T.contiguous()) for some in position.split(_AT_ONCE)])

    def _sampled(self, coarse: Tensor, position: Tensor) -> Tensor:
        """A map on a grid of its own, ``(K, h, w)``, at some pixels: ``(R, K)``."""
        height, width = self.shape
        # grid_sample counts from -1 to 1, from the middle of the first pixel to that of the last
        x = (position % width).float() * (2 / max(width - 1, 1)) - 1
        y = (position // width).float() * (2 / max(height - 1, 1)) - 1
        where = torch.stack([x, y], 1)[None, :, None]
        found = F.grid_sample(coarse[None].float(), where, "bilinear", "border", True)
        return found[0, :, :, 0].T

    def _around(self, name: str, radius: int, position: Tensor) -> Tensor:
        """A column of the regions around some pixels."""
        if name in ("z", "features", *TOLD):
            return self._mean_around(name, radius, position)
        return self._kept(name, radius, lambda: self._pooled(name, radius)).flatten()[position]

    def _mean_around(self, name: str, radius: int, position: Tensor) -> Tensor:
        near, inside = neighbours(position, radius, self.shape)
        total, size = torch.zeros((), device=position.device), inside.sum(1)
        for at, ok in zip(near.T, inside.T, strict=True):
            values = self._at(name, at.clamp(0, self.shape[0] * self.shape[1] - 1))
            total = total + values * ok.view(-1, *[1] * (values.ndim - 1))
        return total / size.view(-1, *[1] * (total.ndim - 1))

    def _pooled(self, name: str, radius: int) -> Tensor:
        found = criterion(name)
        values = self._map(name, found)
        if found.over == "impurity":
            return window_impurity(values, len(self.z), radius)
        return (window_log_mean if found.over == "log_mean" else window_mean)(values, radius)

    def _map(self, name: str, found: Criterion) -> Tensor:
        """A criterion at every pixel, ``(H, W)``."""
        if found.around:
            return self._kept(name, 0, lambda: found.of(self.z[None])[0])
        everywhere = torch.arange(self.shape[0] * self.shape[1], device=self.z.device)
        return self._kept(name, 0, lambda: self._at(name, everywhere).view(self.shape))

    def _kept(self, name: str, radius: int, make: Callable[[], Tensor]) -> Tensor:
        if (name, radius) not in self._maps:
            self._maps[name, radius] = make()
        return self._maps[name, radius]

    def _over(self, name: str, members: Tensor) -> Tensor:
        """A column of sets of pixels: ``(S,)``, or ``(S, K)``."""
        inside = members >= 0
        size, where = inside.sum(1), members.clamp(min=0)

        def mean(values: Tensor) -> Tensor:
            return values.flatten()[where].masked_fill(~inside, 0.0).sum(1) / size

        if name == "z":
            return torch.stack([mean(channel) for channel in self.z], 1)
        if name == "features" or name in TOLD:
            coarse = given(self._features) if name == "features" else heard(name, self._told)
            fine = (
                F.interpolate(one[None, None].float(), self.shape, mode="bilinear", align_corners=True)
                for one in coarse.reshape(-1, *coarse.shape[-2:])
            )
            return torch.stack([mean(channel) for channel in fine], 1).reshape(-1, *coarse.shape[:-2])
        found = criterion(name)
        values = self._map(name, found)
        if found.over == "mean":
            return mean(values)
        if found.over == "log_mean":
            return values.flatten()[where].masked_fill(~inside, -torch.inf).logsumexp(1) - size.log()
        share = torch.stack([mean((values == c).float()) for c in range(len(self.z))])
        return -torch.xlogy(share, share).sum(0) / log_classes(len(self.z))


def neighbours(position: Tensor, radius: int, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Positions in the window around each, in raster order, and which of them lie in the image.

    Args:
        position: ``(R,)``.
        radius: of the window.
        shape: height and width of the image.
    """
    step = torch.arange(-radius, radius + 1, device=position.device)
    y = (position // shape[1])[:, None, None] + step[:, None]
    x = (position % shape[1])[:, None, None] + step
    inside = (y >= 0) & (y < shape[0]) & (x >= 0) & (x < shape[1])
    return (y * shape[1] + x).flatten(1), inside.flatten(1)
