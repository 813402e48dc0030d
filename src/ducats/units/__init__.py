"""Labelling units (pixel, region, superpixel, image) and the selection of units within an image."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ducats.criteria import WHOLE
from ducats.domain import UNLABELLED
from ducats.queries import QuerySpec
from ducats.rows import Deferred, Rows, Slate, ask
from ducats.units.described import described
from ducats.units.scene import Scene, neighbours
from ducats.units.superpixels import superpixels as superpixels
from ducats.windows import window_max


@dataclass(frozen=True)
class Unit:
    """The unit that is labelled at once. Whole images compete in the pool, see `image_columns`."""

    name: Literal["pixel", "region", "superpixel", "image"] = "pixel"
    side: int = 3  # of a region, in pixels, odd
    superpixels: int = 100  # approximate number per image
    compactness: float = 10.0  # of superpixels

    def __post_init__(self) -> None:
        if self.side < 1 or self.side % 2 == 0:
            raise ValueError(f"the side of a region must be odd and positive, not {self.side}")


@dataclass(frozen=True)
class Picked:
    """Pixels to label, in the order of selection, on the CPU."""

    position: Tensor  # (Q,) int64
    unit: Tensor | None = None  # (U,) int64, pixels of each unit, in the same order; None: one each


@torch.no_grad()
def spend(
    strategy: QuerySpec,
    unit: Unit,
    *,
    z: Tensor | None,
    features: Tensor | None,
    target: Tensor,
    image: int,
    pixels: Tensor | None,
    budget: int,
    generator: torch.Generator,
    told: Mapping[str, Tensor] | None = None,
    head: Tensor | None = None,
) -> Picked:
    """Select pixels of one image with a query, up to a budget.

    The budget is spent exactly if there are enough pixels: the last region or superpixel is truncated.

    Args:
        z: log alpha, ``(C, H, W)``, on any device; None if the query needs no columns.
        features: ``(D, h, w)``, if the query needs them.
        target: known labels, ``(H, W)``, on the same device as ``z``; ``UNLABELLED`` pixels can be selected.
        image: index in the pool.
        pixels: the image, uint8 ``(channels, h, w)``; needed for superpixels only.
        budget: maximum number of pixels.
        generator: the query's only source of randomness.
        told: probe columns, ``(..., h, w)`` each.
        head: the last layer's weights, ``(C, D)``, if the query reads them.
    """
    shape = (int(target.shape[0]), int(target.shape[1]))
    counter = _Counter(strategy, Scene(z, features, shape, told), target.flatten(), image, generator, head)
    if unit.name == "pixel":
        return _pixels(counter, budget)
    if unit.name == "region":
        return _regions(counter, budget, unit.side // 2)
    if unit.name == "superpixel":
        if pixels is None:
            raise ValueError("superpixels are computed from the image: pass pixels")
        pieces = superpixels(pixels, shape, unit.superpixels, unit.compactness)
        return _pieces(counter, budget, pieces.flatten().to(target.device))
    raise ValueError("whole images are not selected within an image: use `image_columns`")


@torch.no_grad()
def summary(
    z: Tensor | None,
    features: Tensor | None,
    target: Tensor,
    needs: tuple[str, ...],
    told: Mapping[str, Tensor] | None = None,
    labels: Tensor | None = None,
) -> dict[str, Tensor]:
    """Compute the columns of a whole image over its ``UNLABELLED`` pixels: ``(1,)`` or ``(1, K)`` each.

    If no pixel is unlabelled, all pixels count.

    Args:
        z: log alpha, ``(C, H, W)``.
        features: ``(D, h, w)``, if needed.
        target: known labels, ``(H, W)``.
        told: probe columns, ``(..., h, w)`` each.
        labels: label map of a source image, ``(H, W)``; its descriptor covers correct predictions only.
    """
    scene = Scene(z, features, (int(target.shape[0]), int(target.shape[1])), told)
    open_ = (target.flatten() == UNLABELLED).nonzero().T
    everything = torch.arange(target.numel(), device=target.device)[None]
    members = open_ if open_.numel() else everything
    columns = scene.sets([name for name in needs if name not in WHOLE], members)
    if "descriptor" in needs:
        columns["descriptor"] = described(scene.z, features, target, labels)
    return columns


@dataclass(frozen=True)
class _Counter:
    """The state of a query within one image."""

    strategy: QuerySpec
    scene: Scene
    target: Tensor  # (H * W,)
    image: int
    generator: torch.Generator
    head: Tensor | None = None

    def ask(self, candidates: Rows, labelled: Rows, count: int) -> Tensor:
        """Return the indices of the candidates that the query picks."""
        count = min(count, len(candidates))
        return ask(self.strategy.fn, Slate(candidates, labelled, count, self.generator, None, self.head))

    def rows(
        self, position: Tensor, columns: dict[str, Deferred] | dict[str, Tensor], apart: int = 0
    ) -> Rows:
        return Rows(torch.full_like(position, self.image), position, dict(columns), self.scene.shape, apart)

    def open(self) -> Tensor:
        """Return the mask of unlabelled pixels, ``(H * W,)``."""
        return self.target == UNLABELLED

    def known(self) -> Tensor:
        """Return the positions that have a class label."""
        return (self.target >= 0).nonzero().squeeze(1)


def _pixels(counter: _Counter, budget: int) -> Picked:
    needs, scene = counter.strategy.needs, counter.scene
    candidates, labelled = (
        counter.rows(position, scene.pixels(needs, position))
        for position in (counter.open().nonzero().squeeze(1), counter.known())
    )
    picks = counter.ask(candidates, labelled, budget)
    return Picked(candidates.position[picks].cpu())


def _regions(counter: _Counter, budget: int, radius: int) -> Picked:
    """Select regions, best first, without overlap as long as possible; truncate the last one."""
    needs, scene, apart = counter.strategy.needs, counter.scene, 2 * radius

    def rows(position: Tensor) -> Rows:
        return counter.rows(position, scene.regions(needs, radius, position), apart)

    labelled, open_ = rows(counter.known()), counter.open()
    clear = torch.ones_like(open_)  # centres whose region overlaps no region selected here
    left = min(budget, int(open_.sum()))
    positions, sizes = [labelled.position[:0]], [labelled.position[:0]]
    while left > 0:
        if not bool((open_ & clear).any()):
            clear = torch.ones_like(open_)
        candidates = rows((open_ & clear).nonzero().squeeze(1))
        # Regions at the border or with labelled pixels are smaller: query again until the budget is spent.
        picks = counter.ask(candidates, labelled, math.ceil(left / (2 * radius + 1) ** 2))
        middle = candidates.position[picks]
        bought, owner = _expanded(middle, radius, scene.shape, open_)
        bought, owner = bought[:left], owner[:left]
        open_[bought] = False
        seen = torch.zeros_like(open_, dtype=torch.uint8)
        seen[middle] = 1
        clear = clear & (window_max(seen.view(scene.shape), apart).flatten() == 0)
        positions.append(bought)
        sizes.append(owner.unique(return_counts=True)[1])
        left -= len(bought)
    return Picked(torch.cat(positions).cpu(), torch.cat(sizes).cpu())


def _expanded(middle: Tensor, radius: int, shape: tuple[int, int], open_: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pixels that regions add, in order and without duplicates, and the region index of each."""
    near, inside = neighbours(middle, radius, shape)
    bought = inside & open_[near.clamp(0, len(open_) - 1)]
    position, owner = near[bought], bought.nonzero()[:, 0]
    order = position.argsort(stable=True)
    again = torch.zeros_like(bought[bought])
    again[order[1:]] = position[order[1:]] == position[order[:-1]]
    return position[~again], owner[~again]


def _pieces(counter: _Counter, budget: int, number: Tensor) -> Picked:
    """Select superpixels, best first; truncate the last one in raster order."""
    needs, scene = counter.strategy.needs, counter.scene
    members, known = (
        _members(number, position) for position in (counter.open().nonzero().squeeze(1), counter.known())
    )
    everything, labelled = (counter.rows(some[:, 0], scene.sets(needs, some)) for some in (members, known))
    size = (members >= 0).sum(1)
    waiting, left = torch.ones_like(size, dtype=torch.bool), min(budget, int(size.sum()))
    positions, sizes = [members.new_empty(0)], list[int]()
    while left > 0:
        open_ = waiting.nonzero().squeeze(1)
        # Ask for about as many as are needed: queries with several internal steps depend on the number.
        count = math.ceil(left / float(size[open_].float().mean()))
        for pick in open_[counter.ask(everything[open_], labelled, count)].tolist():
            bought = members[pick, : min(int(size[pick]), left)]
            if not len(bought):
                break
            waiting[pick] = False
            positions.append(bought)
            sizes.append(len(bought))
            left -= len(bought)
    return Picked(torch.cat(positions).cpu(), torch.tensor(sizes, dtype=torch.long))


def _members(number: Tensor, position: Tensor) -> Tensor:
    """Group positions by superpixel: ``(_S, L)`` in raster order, padded with -1."""
    piece, size = number[position].unique(return_inverse=True, return_counts=True)[1:]
    order = piece.argsort(stable=True)
    start = size.cumsum(0) - size
    place = torch.arange(len(position), device=position.device) - start.repeat_interleave(size)
    members = position.new_full((len(size), int(size.max()) if len(size) else 1), -1)
    members[piece[order], place] = position[order]
    return members
