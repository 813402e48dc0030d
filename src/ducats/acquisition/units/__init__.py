"""Labelling units (pixel, region, superpixel, image) and the selection of units within an image."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ducats.acquisition.class_descriptors import image_descriptor
from ducats.acquisition.criteria import IMAGE_COLUMNS
from ducats.acquisition.neighbourhoods import window_max
from ducats.acquisition.queries import QuerySpec
from ducats.acquisition.samples import LazyColumn, QueryContext, SampleTable, run_query
from ducats.acquisition.units.pixel_columns import PixelColumns, window_positions
from ducats.acquisition.units.superpixels import compute_superpixels
from ducats.data.domain import UNLABELLED
from ducats.settings import Unit


@dataclass(frozen=True)
class PixelSelection:
    """Pixels to label, in the order of selection, on the CPU."""

    position: Tensor  # (Q,) int64
    unit_sizes: Tensor | None = None  # (U,) int64, pixels of each unit, in the same order; None: one each


@torch.no_grad()
def select_in_image(
    query: QuerySpec,
    unit: Unit,
    *,
    z: Tensor | None,
    features: Tensor | None,
    known_labels: Tensor,
    image: int,
    pixels: Tensor | None,
    budget: int,
    generator: torch.Generator,
    acquired: Tensor | None = None,
    extras: Mapping[str, Tensor] | None = None,
    head: Tensor | None = None,
) -> PixelSelection:
    """Select pixels of one image with a query, up to a budget.

    The budget is spent exactly if there are enough pixels: the last region or superpixel is truncated.

    Args:
        z: log alpha, ``(C, H, W)``, on any device; None if the query needs no columns.
        features: ``(D, h, w)``, if the query needs them.
        known_labels: ``(H, W)``, on the same device as ``z``; ``UNLABELLED`` pixels can be selected.
        pixels: the image, uint8 ``(channels, h, w)``; needed for superpixels only.
        acquired: ``(H, W)``, mask of the pixels that were selected in earlier rounds; by default those with a
            class in ``known_labels``.
        extras: probe columns, ``(..., h, w)`` each.
        head: the last layer's weights, ``(C, D)``, if the query reads them.
    """
    shape = (int(known_labels.shape[0]), int(known_labels.shape[1]))
    image_query = _ImageQuery(
        query,
        PixelColumns(z, features, shape, extras),
        known_labels.flatten(),
        (known_labels >= 0 if acquired is None else acquired).flatten().clone(),  # updated below
        image,
        generator,
        head,
    )
    if unit.resolved_unit == "pixel":
        return _select_pixels(image_query, budget)
    if unit.resolved_unit == "region":
        return _select_regions(image_query, budget, unit.region_side // 2)
    if unit.resolved_unit == "superpixel":
        if pixels is None:
            raise ValueError("superpixels are computed from the image: pass pixels")
        superpixel_map = compute_superpixels(pixels, shape, unit.n_superpixels, unit.compactness)
        return _select_superpixels(image_query, budget, superpixel_map.flatten().to(known_labels.device))
    raise ValueError("whole images are not selected within an image: use `image_columns`")


@torch.no_grad()
def image_columns(
    z: Tensor | None,
    features: Tensor | None,
    known_labels: Tensor,
    needs: tuple[str, ...],
    extras: Mapping[str, Tensor] | None = None,
    labels: Tensor | None = None,
) -> dict[str, Tensor]:
    """Compute the columns of a whole image over its ``UNLABELLED`` pixels: ``(1,)`` or ``(1, K)`` each.

    If no pixel is unlabelled, all pixels count.

    Args:
        z: log alpha, ``(C, H, W)``.
        features: ``(D, h, w)``, if needed.
        known_labels: ``(H, W)``.
        extras: probe columns, ``(..., h, w)`` each.
        labels: label map of a source image, ``(H, W)``; its descriptor covers correct predictions only.
    """
    pixel_columns = PixelColumns(
        z, features, (int(known_labels.shape[0]), int(known_labels.shape[1])), extras
    )
    open_positions = (known_labels.flatten() == UNLABELLED).nonzero().T
    all_positions = torch.arange(known_labels.numel(), device=known_labels.device)[None]
    members = open_positions if open_positions.numel() else all_positions
    columns = pixel_columns.for_pixel_sets([name for name in needs if name not in IMAGE_COLUMNS], members)
    if "descriptor" in needs:
        columns["descriptor"] = image_descriptor(pixel_columns.z, features, known_labels, labels)
    return columns


@dataclass(frozen=True)
class _ImageQuery:
    """The state of a query within one image."""

    query: QuerySpec
    pixel_columns: PixelColumns
    known_labels: Tensor  # (H * W,)
    acquired: Tensor  # bool (H * W,), selected in earlier rounds, or by an earlier call in this one
    image: int
    generator: torch.Generator
    head: Tensor | None = None

    def select(self, candidates: SampleTable, labelled: SampleTable, count: int) -> Tensor:
        """Return the indices of the candidates that the query picks."""
        context = QueryContext(
            candidates,
            labelled,
            min(count, len(candidates)),
            self.generator,
            head=self.head,
            acquired=self._acquired_table(),
        )
        return run_query(self.query.fn, context)

    def sample_table(
        self, position: Tensor, columns: dict[str, LazyColumn] | dict[str, Tensor], min_distance: int = 0
    ) -> SampleTable:
        return SampleTable(
            torch.full_like(position, self.image),
            position,
            dict(columns),
            self.pixel_columns.shape,
            min_distance,
        )

    def _acquired_table(self) -> SampleTable:
        """Return the acquired pixels, also those answered "void", with features if the query reads them."""
        position = self.acquired.nonzero().squeeze(1)
        names = [name for name in self.query.needs if name == "features"]
        return self.sample_table(position, self.pixel_columns.for_pixels(names, position))

    def open_mask(self) -> Tensor:
        """Return the mask of unlabelled pixels, ``(H * W,)``."""
        return self.known_labels == UNLABELLED

    def labelled_positions(self) -> Tensor:
        """Return the positions that have a class label."""
        return (self.known_labels >= 0).nonzero().squeeze(1)


def _select_pixels(image_query: _ImageQuery, budget: int) -> PixelSelection:
    needs, pixel_columns = image_query.query.needs, image_query.pixel_columns
    candidates, labelled = (
        image_query.sample_table(position, pixel_columns.for_pixels(needs, position))
        for position in (image_query.open_mask().nonzero().squeeze(1), image_query.labelled_positions())
    )
    picks = image_query.select(candidates, labelled, budget)
    return PixelSelection(candidates.position[picks].cpu())


def _select_regions(image_query: _ImageQuery, budget: int, radius: int) -> PixelSelection:
    """Select regions, best first; truncate the last one.

    They overlap neither each other nor acquired pixels, as long as possible.
    """
    needs, pixel_columns, min_distance = image_query.query.needs, image_query.pixel_columns, 2 * radius

    def make_samples(position: Tensor) -> SampleTable:
        return image_query.sample_table(
            position, pixel_columns.for_regions(needs, radius, position), min_distance
        )

    labelled, open_mask = make_samples(image_query.labelled_positions()), image_query.open_mask()
    # Centres whose region overlaps neither acquired pixels nor a region selected here.
    free_centres = window_max(image_query.acquired.view(pixel_columns.shape).byte(), radius).flatten() == 0
    remaining = min(budget, int(open_mask.sum()))
    positions, sizes = [labelled.position[:0]], [labelled.position[:0]]
    while remaining > 0:
        if not bool((open_mask & free_centres).any()):
            free_centres = torch.ones_like(open_mask)
        candidates = make_samples((open_mask & free_centres).nonzero().squeeze(1))
        # Regions at the border or with labelled pixels are smaller: query again until the budget is spent.
        picks = image_query.select(candidates, labelled, math.ceil(remaining / (2 * radius + 1) ** 2))
        centres = candidates.position[picks]
        new_pixels, region_index = _region_pixels(centres, radius, pixel_columns.shape, open_mask)
        new_pixels, region_index = new_pixels[:remaining], region_index[:remaining]
        open_mask[new_pixels] = False
        image_query.acquired[new_pixels] = True
        selected = torch.zeros_like(open_mask, dtype=torch.uint8)
        selected[centres] = 1
        free_centres = free_centres & (
            window_max(selected.view(pixel_columns.shape), min_distance).flatten() == 0
        )
        positions.append(new_pixels)
        sizes.append(region_index.unique(return_counts=True)[1])
        remaining -= len(new_pixels)
    return PixelSelection(torch.cat(positions).cpu(), torch.cat(sizes).cpu())


def _region_pixels(
    centres: Tensor, radius: int, shape: tuple[int, int], open_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the pixels that regions add, in order and without duplicates, and the region index of each."""
    near, inside = window_positions(centres, radius, shape)
    is_new = inside & open_mask[near.clamp(0, len(open_mask) - 1)]
    position, region_index = near[is_new], is_new.nonzero()[:, 0]
    order = position.argsort(stable=True)
    is_duplicate = torch.zeros_like(is_new[is_new])
    is_duplicate[order[1:]] = position[order[1:]] == position[order[:-1]]
    return position[~is_duplicate], region_index[~is_duplicate]


def _select_superpixels(image_query: _ImageQuery, budget: int, superpixel_map: Tensor) -> PixelSelection:
    """Select superpixels, best first; truncate the last one in raster order."""
    needs, pixel_columns = image_query.query.needs, image_query.pixel_columns
    members, known = (
        _superpixel_members(superpixel_map, position)
        for position in (image_query.open_mask().nonzero().squeeze(1), image_query.labelled_positions())
    )
    candidates, labelled = (
        image_query.sample_table(some[:, 0], pixel_columns.for_pixel_sets(needs, some))
        for some in (members, known)
    )
    size = (members >= 0).sum(1)
    waiting, remaining = torch.ones_like(size, dtype=torch.bool), min(budget, int(size.sum()))
    positions, sizes = [members.new_empty(0)], list[int]()
    while remaining > 0:
        open_index = waiting.nonzero().squeeze(1)
        # Request about as many as are needed: queries with several internal steps depend on the number.
        count = math.ceil(remaining / float(size[open_index].float().mean()))
        for pick in open_index[image_query.select(candidates[open_index], labelled, count)].tolist():
            new_pixels = members[pick, : min(int(size[pick]), remaining)]
            if not len(new_pixels):
                break
            waiting[pick] = False
            image_query.acquired[new_pixels] = True
            positions.append(new_pixels)
            sizes.append(len(new_pixels))
            remaining -= len(new_pixels)
    return PixelSelection(torch.cat(positions).cpu(), torch.tensor(sizes, dtype=torch.long))


def _superpixel_members(superpixel_map: Tensor, position: Tensor) -> Tensor:
    """Group positions by superpixel: ``(S, L)`` in raster order, padded with -1."""
    piece, size = superpixel_map[position].unique(return_inverse=True, return_counts=True)[1:]
    order = piece.argsort(stable=True)
    start = size.cumsum(0) - size
    slot = torch.arange(len(position), device=position.device) - start.repeat_interleave(size)
    members = position.new_full((len(size), int(size.max()) if len(size) else 1), -1)
    members[piece[order], slot] = position[order]
    return members
