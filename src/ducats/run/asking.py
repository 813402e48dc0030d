"""What is asked: images, pixels of each image, or whole images with all their pixels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from ducats.budget import split_pixels
from ducats.domain import UNLABELLED, VOID
from ducats.engine.beside import Company, view_of
from ducats.engine.pick import Asked, image_table, pick, whole
from ducats.engine.processes import on_chief
from ducats.engine.score import choose, table
from ducats.engine.task import bought_sizes
from ducats.ledger import Ledger, TargetMaps
from ducats.parts import Parts, Plan, pixels_of
from ducats.queries import Strategy
from ducats.randomness import fork, seed_of
from ducats.rows import Rows
from ducats.rundir import RunDir


@dataclass(frozen=True)
class Asking:
    """How the questions of one run come about."""

    parts: Parts
    plan: Plan
    home: RunDir
    fabric: Fabric
    model: nn.Module  # as Fabric set it up
    strategy: Strategy
    beside: Company
    maps: Callable[[int], TargetMaps]  # what is known of the pool's pixels after so many rounds
    ledger: Callable[[], Ledger]  # of the first process

    def choose(self, number: int) -> None:
        """Choose for a question, and keep it as a request; the first process writes."""
        if self.parts.source.of_pixels:
            self._choose_pixels(number)
            return
        rows = table(
            self.model,
            self.parts.pool,
            self.strategy.needs,
            view=self.parts.views.scoring,
            batch_size=self.plan.scoring_batch,
            seed=seed_of(self.plan.seed, "scoring", number),
            fabric=self.fabric,
            tell=self.beside.tell,
        )
        more = self._more(number)
        generator = fork(self.plan.seed, "query", number)
        budget = self.plan.budget[number - 1]

        def keep() -> None:
            targets = self.beside.askable(self.ledger().targets(number - 1), budget)
            self.home.keep_request(choose(self.strategy, rows, targets, budget, number, generator, **more))

        on_chief(self.fabric, keep)

    def _more(self, number: int) -> dict[str, Any]:
        """What the strategy reads besides the pool: source images, weights of the last layer."""
        strategy, parts, more = self.strategy, self.parts, dict[str, Any]()
        if strategy.source:
            images = parts.source.images
            more["source"] = table(
                self.model,
                images,
                strategy.source,
                view=view_of(images, parts.views.scoring),
                batch_size=self.plan.scoring_batch,
                seed=seed_of(self.plan.seed, "scoring source", number),
                fabric=self.fabric,
                tell=self.beside.tell,
            )
        if strategy.head:
            more["head"] = self.beside.head()
        return more

    def _choose_pixels(self, number: int) -> None:
        """Ask for pixels inside every image, or for all pixels of some images."""
        parts, plan, asked = self.parts, self.plan, self.maps(number - 1).at
        how: dict[str, Any] = {
            "task": parts.task,
            "sizes": bought_sizes(parts.pool, parts.task.resolution),
            "asked": asked,
            "view": parts.views.scoring,
            "batch_size": plan.scoring_batch,
            "seed": seed_of(plan.seed, "query", number),
            "fabric": self.fabric,
            "tell": self.beside.tell,
        }
        head = self.beside.head() if self.strategy.head else None
        if parts.task.whole_images:
            rows = image_table(self.model, parts.pool, self.strategy, **how)
            more = {"source": self._source_maps(how), "head": head}
            on_chief(self.fabric, lambda: self._keep_whole(number, rows, asked, more))
            return
        areas, rounds = pixels_of(parts).tolist(), len(plan.ask_after)
        assert plan.pixels is not None
        budget = [part[number - 1] for part in split_pixels(plan.pixels, areas, rounds, plan.rounding)]
        picks = pick(self.model, parts.pool, self.strategy, budget=budget, head=head, **how)
        if not self.fabric.is_global_zero:
            for _ in picks:  # takes its part in the passes; the first process writes
                pass
            return
        with self.home.request_writer(number) as writer:
            for image, picked in picks:
                writer.add(image, picked.position, picked.unit)

    def _source_maps(self, how: Mapping[str, Any]) -> Rows | None:
        """The source's images as rows, where whole maps are bought and the strategy reads them."""
        source, strategy = self.parts.source, self.strategy
        if not strategy.source:
            return None
        how = {
            **how,
            "sizes": bought_sizes(source.images, "network"),
            "asked": lambda image: torch.where(source.labels[image] < 0, VOID, UNLABELLED),
            "view": view_of(source.images, self.parts.views.scoring),
        }
        read = replace(strategy, needs=strategy.source)
        return image_table(self.model, source.images, read, labels=source.labels, **how)

    def _keep_whole(self, number: int, rows: Rows, asked: Asked, more: Mapping[str, Any]) -> None:
        known = torch.full((len(rows),), UNLABELLED).index_fill_(
            0, self.ledger().counts(number - 1).nonzero().squeeze(1), 0
        )
        for image in (known == UNLABELLED).nonzero().squeeze(1).tolist():
            if not bool((asked(image) == UNLABELLED).any()):
                known[image] = VOID  # nothing of it can be asked
        budget, generator = self.plan.budget[number - 1], fork(self.plan.seed, "query", number)
        request = choose(self.strategy, rows, known, budget, number, generator, **more)
        with self.home.request_writer(number) as writer:
            for image in request.image.tolist():
                picked = whole(asked, image)
                writer.add(image, picked.position, picked.unit)
