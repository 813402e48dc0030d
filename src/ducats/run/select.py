"""Select the images, pixels or whole label maps to label in a round, and save them as a request."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from ducats.acquisition.budget import round_robin_counts, split_pixels
from ducats.acquisition.queries import QuerySpec
from ducats.acquisition.samples import SampleTable
from ducats.acquisition.units import PixelSelection, Unit
from ducats.annotation.question import MAX_LISTED_QUESTIONS
from ducats.data.domain import UNLABELLED, VOID
from ducats.ledger import Ledger, Request, RequestWriter, TargetMaps, load_request, save_request
from ducats.run.components import Components, RunPlan, pixels_per_image
from ducats.runfolder.run_folder import RunFolder
from ducats.training.annotator_hints import image_hints, pixel_hints
from ducats.training.auxiliary import AuxiliaryModules, compatible_view
from ducats.training.distributed import on_rank_zero
from ducats.training.image_selection import score_images, select
from ducats.training.pixel_selection import KnownLabelsFn, all_open_pixels, score_whole_images, select_pixels
from ducats.training.task import label_grid_sizes
from ducats.utils.randomness import derive_seed, make_generator


@dataclass(frozen=True)
class RequestSelector:
    """Selects the requests of one run and computes hints for the annotators."""

    components: Components
    plan: RunPlan
    run_folder: RunFolder
    fabric: Fabric
    model: nn.Module  # wrapped by Fabric
    query: QuerySpec
    auxiliaries: AuxiliaryModules
    label_maps_after: Callable[[int], TargetMaps]  # the pool's known label maps after a number of rounds
    get_ledger: Callable[[], Ledger]  # on rank 0 only

    def select(self, round_number: int) -> None:
        """Select the samples of a round and save them as a request; rank 0 writes."""
        unit_budget = on_rank_zero(self.fabric, lambda: self._unit_budget(round_number))
        if unit_budget == 0:
            on_rank_zero(self.fabric, lambda: save_request(self.run_folder, empty_request(round_number)))
            return
        if self.components.source.per_pixel:
            self._select_pixels(round_number, unit_budget)
            return
        samples = score_images(
            self.model,
            self.components.pool,
            self.query.needs,
            view=self.components.views.scoring,
            batch_size=self.plan.scoring_batch_size,
            seed=derive_seed(self.plan.seed, "scoring", round_number),
            fabric=self.fabric,
            extra_columns=self.auxiliaries.extra_columns,
        )
        query_inputs = self._query_inputs(round_number)
        generator = make_generator(self.plan.seed, "query", round_number)
        budget = self.plan.budget[round_number - 1] if unit_budget is None else unit_budget

        def save() -> None:
            targets = self.auxiliaries.mask_pseudo_labelled(
                self.get_ledger().targets(round_number - 1), budget
            )
            if not bool((targets == UNLABELLED).any()):  # the time budget exceeds the pool
                save_request(self.run_folder, empty_request(round_number))
                return
            save_request(
                self.run_folder,
                select(self.query, samples, targets, budget, round_number, generator, **query_inputs),
            )

        on_rank_zero(self.fabric, save)

    def _unit_budget(self, round_number: int) -> int | None:
        """Return how many units the time budget allows in a round; None without a time budget."""
        time_budget, ledger, earlier_rounds = self.plan.time_budget, self.get_ledger(), round_number - 1
        if time_budget is None:
            return None
        spent = (
            ledger.seconds(earlier_rounds),
            ledger.n_units(earlier_rounds),
            ledger.n_timed_units(earlier_rounds),
        )
        return time_budget.questions_in_round(
            *spent, remaining_rounds=len(self.plan.query_epochs) - earlier_rounds
        )

    def save_hints(self, round_number: int) -> None:
        """Save the model's hints for a request, if the oracle wants them and they do not exist yet.

        The images are augmented exactly as when the request was selected.
        """
        if not getattr(self.components.oracle, "wants_hints", False):
            return
        request, exists = on_rank_zero(
            self.fabric,
            lambda: (
                load_request(self.run_folder, round_number),
                self.run_folder.load_hints(round_number) is not None,
            ),
        )
        if exists or request is None or not 0 < request.n_units <= MAX_LISTED_QUESTIONS:
            return
        components, plan = self.components, self.plan
        predict_kwargs: dict[str, Any] = {
            "view": components.views.scoring,
            "batch_size": plan.scoring_batch_size,
            "seed": derive_seed(
                plan.seed, "query" if components.source.per_pixel else "scoring", round_number
            ),
            "fabric": self.fabric,
        }
        if components.source.per_pixel:
            predict_kwargs |= {
                "task": components.task,
                "sizes": label_grid_sizes(components.pool, components.task.resolution),
            }
        hints = (pixel_hints if components.source.per_pixel else image_hints)(
            self.model, components.pool, request, **predict_kwargs
        )
        on_rank_zero(self.fabric, lambda: self.run_folder.save_hints(round_number, hints))

    def _query_inputs(self, round_number: int) -> dict[str, Any]:
        """Return the query's other inputs: source images, weights of the last layer."""
        query, components, query_inputs = self.query, self.components, dict[str, Any]()
        if query.source_needs:
            images = components.source.images
            query_inputs["source"] = score_images(
                self.model,
                images,
                query.source_needs,
                view=compatible_view(images, components.views.scoring),
                batch_size=self.plan.scoring_batch_size,
                seed=derive_seed(self.plan.seed, "scoring source", round_number),
                fabric=self.fabric,
                extra_columns=self.auxiliaries.extra_columns,
            )
        if query.needs_head:
            query_inputs["head"] = self.auxiliaries.head_weights()
        return query_inputs

    def _select_pixels(self, round_number: int, unit_budget: int | None) -> None:
        """Select pixels inside every image, or all pixels of some images.

        ``unit_budget`` is the number of units to select; None without a time budget.
        """
        components, plan = self.components, self.plan
        known_labels_of = self.label_maps_after(round_number - 1).at_label_resolution
        predict_kwargs: dict[str, Any] = {
            "task": components.task,
            "sizes": label_grid_sizes(components.pool, components.task.resolution),
            "known_labels_of": known_labels_of,
            "view": components.views.scoring,
            "batch_size": plan.scoring_batch_size,
            "seed": derive_seed(plan.seed, "query", round_number),
            "fabric": self.fabric,
            "extra_columns": self.auxiliaries.extra_columns,
        }
        head = self.auxiliaries.head_weights() if self.query.needs_head else None
        if components.task.labels_whole_images:
            samples = score_whole_images(self.model, components.pool, self.query, **predict_kwargs)
            query_inputs = {"source": self._score_source_images(predict_kwargs), "head": head}
            on_rank_zero(
                self.fabric,
                lambda: self._save_whole_images(
                    round_number, unit_budget, samples, known_labels_of, query_inputs
                ),
            )
            return
        areas, rounds = pixels_per_image(components).tolist(), len(plan.query_epochs)
        units_per_image: list[int] | None = None
        if unit_budget is not None:
            units_before = on_rank_zero(self.fabric, lambda: self.get_ledger().n_units(round_number - 1))
            units_per_image = round_robin_counts(units_before, units_before + unit_budget, len(areas))
            budget = [
                n_units * pixels_per_unit(components.task.unit, area)
                for n_units, area in zip(units_per_image, areas, strict=True)
            ]
        else:
            assert plan.pixel_budget is not None
            budget = [
                image_budget[round_number - 1]
                for image_budget in split_pixels(plan.pixel_budget, areas, rounds, plan.rounding)
            ]
        selections = select_pixels(
            self.model, components.pool, self.query, budget=budget, head=head, **predict_kwargs
        )
        if not self.fabric.is_global_zero:
            for _ in selections:  # takes part in the forward passes; rank 0 writes
                pass
            return
        with RequestWriter(self.run_folder.request_path(round_number), round_number) as writer:
            for image, selection in selections:
                if units_per_image is not None:
                    selection = truncate_units(selection, units_per_image[image])
                writer.add(image, selection.position, selection.unit_sizes)

    def _score_source_images(self, predict_kwargs: Mapping[str, Any]) -> SampleTable | None:
        """Return the source images as a table, if the query reads them; for whole-image selection."""
        source, query = self.components.source, self.query
        if not query.source_needs:
            return None
        predict_kwargs = {
            **predict_kwargs,
            "sizes": label_grid_sizes(source.images, "network"),
            "known_labels_of": lambda image: torch.where(source.labels[image] < 0, VOID, UNLABELLED),
            "view": compatible_view(source.images, self.components.views.scoring),
        }
        source_query = replace(query, needs=query.source_needs)
        return score_whole_images(
            self.model, source.images, source_query, labels=source.labels, **predict_kwargs
        )

    def _save_whole_images(
        self,
        round_number: int,
        unit_budget: int | None,
        samples: SampleTable,
        known_labels_of: KnownLabelsFn,
        query_inputs: Mapping[str, Any],
    ) -> None:
        image_labels = torch.full((len(samples),), UNLABELLED).index_fill_(
            0, self.get_ledger().labels_per_image(round_number - 1).nonzero().squeeze(1), 0
        )
        for image in (image_labels == UNLABELLED).nonzero().squeeze(1).tolist():
            if not bool((known_labels_of(image) == UNLABELLED).any()):
                image_labels[image] = VOID  # the image has no pixel that can be labelled
        budget = self.plan.budget[round_number - 1] if unit_budget is None else unit_budget
        generator = make_generator(self.plan.seed, "query", round_number)
        if not bool((image_labels == UNLABELLED).any()):  # the time budget exceeds the pool
            save_request(self.run_folder, empty_request(round_number))
            return
        request = select(self.query, samples, image_labels, budget, round_number, generator, **query_inputs)
        with RequestWriter(self.run_folder.request_path(round_number), round_number) as writer:
            for image in request.image.tolist():
                selection = all_open_pixels(known_labels_of, image)
                writer.add(image, selection.position, selection.unit_sizes)


def empty_request(round_number: int) -> Request:
    """Return an empty request, for a round without questions."""
    empty = torch.zeros(0, dtype=torch.long)
    return Request(round_number, empty, empty)


def pixels_per_unit(unit: Unit, area: int) -> int:
    """Return how many pixels a unit has; for superpixels, the mean.

    >>> pixels_per_unit(Unit("region", side=3), 800)
    9
    >>> pixels_per_unit(Unit("superpixel", superpixels=100), 801)
    9
    """
    if unit.name == "region":
        return unit.side**2
    return math.ceil(area / unit.superpixels) if unit.name == "superpixel" else 1


def truncate_units(selection: PixelSelection, max_units: int) -> PixelSelection:
    """Keep at most ``max_units`` units.

    Units cut at the image's border are smaller, so a budget in pixels may select more units than allowed.
    """
    if selection.unit_sizes is None:
        return PixelSelection(selection.position[:max_units])
    return PixelSelection(
        selection.position[: int(selection.unit_sizes[:max_units].sum())], selection.unit_sizes[:max_units]
    )
