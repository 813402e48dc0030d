"""Select the images, pixels or whole label maps to label in a round, and save them as a request."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from ducats.answers.question import MOST
from ducats.budget import dealt, split_pixels
from ducats.domain import UNLABELLED, VOID
from ducats.ledger import Ledger, Request, TargetMaps
from ducats.parts import Parts, Plan, pixels_of
from ducats.queries import QuerySpec
from ducats.randomness import fork, seed_of
from ducats.rundir import RunDir
from ducats.samples import SampleTable
from ducats.training.annotator_hints import image_hints, pixel_hints
from ducats.training.auxiliary import AuxiliaryModules, compatible_view
from ducats.training.distributed import on_rank_zero
from ducats.training.image_selection import score_images, select
from ducats.training.pixel_selection import KnownLabelsFn, all_open_pixels, score_whole_images, select_pixels
from ducats.training.task import label_grid_sizes
from ducats.units import PixelSelection, Unit


@dataclass(frozen=True)
class Asking:
    """Selects the requests of one run and computes hints for the annotators."""

    parts: Parts
    plan: Plan
    home: RunDir
    fabric: Fabric
    model: nn.Module  # wrapped by Fabric
    strategy: QuerySpec
    beside: AuxiliaryModules
    maps: Callable[[int], TargetMaps]  # the pool's known label maps after a number of rounds
    ledger: Callable[[], Ledger]  # on rank 0 only

    def choose(self, number: int) -> None:
        """Select the samples of a round and save them as a request; rank 0 writes."""
        count = on_rank_zero(self.fabric, lambda: self._count(number))
        if count == 0:
            on_rank_zero(self.fabric, lambda: self.home.keep_request(nothing(number)))
            return
        if self.parts.source.of_pixels:
            self._choose_pixels(number, count)
            return
        rows = score_images(
            self.model,
            self.parts.pool,
            self.strategy.needs,
            view=self.parts.views.scoring,
            batch_size=self.plan.scoring_batch,
            seed=seed_of(self.plan.seed, "scoring", number),
            fabric=self.fabric,
            extra_columns=self.beside.extra_columns,
        )
        more = self._more(number)
        generator = fork(self.plan.seed, "query", number)
        budget = self.plan.budget[number - 1] if count is None else count

        def keep() -> None:
            targets = self.beside.mask_pseudo_labelled(self.ledger().targets(number - 1), budget)
            if not bool((targets == UNLABELLED).any()):  # the time budget exceeds the pool
                self.home.keep_request(nothing(number))
                return
            self.home.keep_request(select(self.strategy, rows, targets, budget, number, generator, **more))

        on_rank_zero(self.fabric, keep)

    def _count(self, number: int) -> int | None:
        """Return how many units the time budget allows in a round; None without a time budget."""
        time, ledger, before = self.plan.time, self.ledger(), number - 1
        if time is None:
            return None
        spent = ledger.seconds(before), ledger.units(before), ledger.timed(before)
        return time.questions(*spent, rounds=len(self.plan.ask_after) - before)

    def note(self, number: int) -> None:
        """Save the model's hints for a request, if the oracle wants them and they do not exist yet.

        The images are augmented exactly as when the request was selected.
        """
        if not getattr(self.parts.oracle, "wants_notes", False):
            return
        request, done = on_rank_zero(
            self.fabric, lambda: (self.home.request(number), self.home.notes(number) is not None)
        )
        if done or request is None or not 0 < request.units <= MOST:
            return
        parts, plan = self.parts, self.plan
        how: dict[str, Any] = {
            "view": parts.views.scoring,
            "batch_size": plan.scoring_batch,
            "seed": seed_of(plan.seed, "query" if parts.source.of_pixels else "scoring", number),
            "fabric": self.fabric,
        }
        if parts.source.of_pixels:
            how |= {"task": parts.task, "sizes": label_grid_sizes(parts.pool, parts.task.resolution)}
        notes = (pixel_hints if parts.source.of_pixels else image_hints)(
            self.model, parts.pool, request, **how
        )
        on_rank_zero(self.fabric, lambda: self.home.keep_notes(number, notes))

    def _more(self, number: int) -> dict[str, Any]:
        """Return the query's other inputs: source images, weights of the last layer."""
        strategy, parts, more = self.strategy, self.parts, dict[str, Any]()
        if strategy.source_needs:
            images = parts.source.images
            more["source"] = score_images(
                self.model,
                images,
                strategy.source_needs,
                view=compatible_view(images, parts.views.scoring),
                batch_size=self.plan.scoring_batch,
                seed=seed_of(self.plan.seed, "scoring source", number),
                fabric=self.fabric,
                extra_columns=self.beside.extra_columns,
            )
        if strategy.needs_head:
            more["head"] = self.beside.head_weights()
        return more

    def _choose_pixels(self, number: int, count: int | None) -> None:
        """Select pixels inside every image, or all pixels of some images.

        ``count`` is the number of units to select, or None unless the budget is a time.
        """
        parts, plan, asked = self.parts, self.plan, self.maps(number - 1).at
        how: dict[str, Any] = {
            "task": parts.task,
            "sizes": label_grid_sizes(parts.pool, parts.task.resolution),
            "known_labels_of": asked,
            "view": parts.views.scoring,
            "batch_size": plan.scoring_batch,
            "seed": seed_of(plan.seed, "query", number),
            "fabric": self.fabric,
            "extra_columns": self.beside.extra_columns,
        }
        head = self.beside.head_weights() if self.strategy.needs_head else None
        if parts.task.labels_whole_images:
            rows = score_whole_images(self.model, parts.pool, self.strategy, **how)
            more = {"source": self._source_maps(how), "head": head}
            on_rank_zero(self.fabric, lambda: self._keep_whole(number, count, rows, asked, more))
            return
        areas, rounds = pixels_of(parts).tolist(), len(plan.ask_after)
        units: list[int] | None = None
        if count is not None:
            before = on_rank_zero(self.fabric, lambda: self.ledger().units(number - 1))
            units = dealt(before, before + count, len(areas))
            budget = [
                many * pixels_in(parts.task.unit, area) for many, area in zip(units, areas, strict=True)
            ]
        else:
            assert plan.pixels is not None
            budget = [part[number - 1] for part in split_pixels(plan.pixels, areas, rounds, plan.rounding)]
        picks = select_pixels(self.model, parts.pool, self.strategy, budget=budget, head=head, **how)
        if not self.fabric.is_global_zero:
            for _ in picks:  # takes part in the forward passes; rank 0 writes
                pass
            return
        with self.home.request_writer(number) as writer:
            for image, picked in picks:
                picked = picked if units is None else first_of(picked, units[image])
                writer.add(image, picked.position, picked.unit)

    def _source_maps(self, how: Mapping[str, Any]) -> SampleTable | None:
        """Return the source images as a table, if the query reads them; for whole-image selection."""
        source, strategy = self.parts.source, self.strategy
        if not strategy.source_needs:
            return None
        how = {
            **how,
            "sizes": label_grid_sizes(source.images, "network"),
            "known_labels_of": lambda image: torch.where(source.labels[image] < 0, VOID, UNLABELLED),
            "view": compatible_view(source.images, self.parts.views.scoring),
        }
        read = replace(strategy, needs=strategy.source_needs)
        return score_whole_images(self.model, source.images, read, labels=source.labels, **how)

    def _keep_whole(
        self, number: int, count: int | None, rows: SampleTable, asked: KnownLabelsFn, more: Mapping[str, Any]
    ) -> None:
        known = torch.full((len(rows),), UNLABELLED).index_fill_(
            0, self.ledger().counts(number - 1).nonzero().squeeze(1), 0
        )
        for image in (known == UNLABELLED).nonzero().squeeze(1).tolist():
            if not bool((asked(image) == UNLABELLED).any()):
                known[image] = VOID  # the image has no pixel that can be labelled
        budget, generator = (
            self.plan.budget[number - 1] if count is None else count,
            fork(self.plan.seed, "query", number),
        )
        if not bool((known == UNLABELLED).any()):  # the time budget exceeds the pool
            self.home.keep_request(nothing(number))
            return
        request = select(self.strategy, rows, known, budget, number, generator, **more)
        with self.home.request_writer(number) as writer:
            for image in request.image.tolist():
                picked = all_open_pixels(asked, image)
                writer.add(image, picked.position, picked.unit)


def nothing(number: int) -> Request:
    """Return an empty request, for a round without questions."""
    none = torch.zeros(0, dtype=torch.long)
    return Request(number, none, none)


def pixels_in(unit: Unit, area: int) -> int:
    """Return how many pixels a unit has; for superpixels, the mean.

    >>> pixels_in(Unit("region", side=3), 800), pixels_in(Unit("superpixel", superpixels=100), 801)
    (9, 9)
    """
    if unit.name == "region":
        return unit.side**2
    return math.ceil(area / unit.superpixels) if unit.name == "superpixel" else 1


def first_of(picked: PixelSelection, units: int) -> PixelSelection:
    """Keep at most ``units`` units.

    Units cut at the image's border are smaller, so a budget in pixels may select more units than allowed.
    """
    if picked.unit is None:
        return PixelSelection(picked.position[:units])
    return PixelSelection(picked.position[: int(picked.unit[:units].sum())], picked.unit[:units])
