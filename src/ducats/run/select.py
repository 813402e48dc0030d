"""Select the images, pixels or whole label maps to label in a round, and save them as a request."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ducats.acquisition.budget import MAX_AUDIT_SHARE, reduce_budget, round_robin_counts, split_pixels
from ducats.acquisition.queries import QUERIES, QuerySpec
from ducats.acquisition.samples import QueryContext, SampleTable, run_query
from ducats.acquisition.units import PixelSelection
from ducats.data.domain import UNLABELLED, VOID
from ducats.ledger import Ledger, Request, RequestSpool, RequestWriter, load_request, save_request
from ducats.run.audit_draw import (
    add_audit_images,
    unanswered_images,
    unanswered_pixels,
    write_with_audit,
)
from ducats.run.components import pixels_per_image
from ducats.run.context import RunContext
from ducats.run.pixel_selection import all_open_pixels, score_whole_images, select_pixels
from ducats.run.training import TrainingContext
from ducats.settings import Unit
from ducats.training.predictor import Predictor
from ducats.training.task import label_grid_sizes
from ducats.utils.randomness import derive_seed, make_generator
from ducats.utils.registry import defining_package

MAX_TABLE_SHARE = 0.1  # of a GPU's memory, for the table of a query, which makes copies of the features
EVEN_COVERAGE = QUERIES["coverage"].bind({"power": 0.0, "subsample_by": "highest_entropy"})


def select_request(context: RunContext, round_number: int) -> None:
    """Select the samples of a round and save them as a request, unless it exists; rank 0 writes."""
    if context.on_rank_zero(lambda: load_request(context.run_folder, round_number)) is not None:
        return
    unit_budget = context.from_ledger(lambda ledger: _unit_budget(context, ledger, round_number))
    if unit_budget == 0:
        context.on_rank_zero(lambda: save_request(context.run_folder, empty_request(round_number)))
        return
    predictor = replace(
        context.round_predictor(round_number), extra_columns=context.auxiliaries.extra_columns
    )
    if context.components.selects_pixels:
        _select_pixels(context, predictor, round_number, unit_budget)
        return
    budget = context.plan.budget[round_number - 1] if unit_budget is None else unit_budget
    query, source, head = context.query, None, None
    labels = torch.zeros(0) if context.per_pixel else context.known_targets(round_number - 1)
    if context.per_pixel:
        samples, source = _score_label_maps(context, predictor, round_number)
    elif context.has_nothing_to_train_on(labels):
        query, samples = first_query(context, predictor)
    else:
        samples = predictor.score_images(context.components.pool, context.query.needs)
        source = score_source_images(context, predictor, round_number, labels)
    if query.needs_head:
        head = context.auxiliaries.head_weights()

    def save(ledger: Ledger) -> None:
        known_labels = _known_labels(context, ledger, round_number, budget)
        if not bool((known_labels == UNLABELLED).any()):  # the time budget exceeds the pool
            save_request(context.run_folder, empty_request(round_number))
            return
        generator = make_generator(context.plan.seed, "query", round_number)
        n_audit = 0 if context.per_pixel else _audit_budget(context, round_number, budget)
        request = select_images(
            query,
            samples,
            known_labels,
            budget - n_audit,
            round_number,
            generator,
            source=source,
            head=head,
            device=context.fabric.device,
        )
        if not context.per_pixel:
            unanswered = unanswered_images(context.run_folder, ledger, round_number - 1)
            request = add_audit_images(request, ledger, n_audit, context.plan.seed, unanswered)
            save_request(context.run_folder, request)
            return
        known_labels_of = context.label_maps(round_number - 1).at_label_resolution
        with RequestWriter(context.run_folder.request_path(round_number), round_number) as writer:
            for image in request.image.tolist():
                selection = all_open_pixels(known_labels_of, image)
                writer.add(image, selection.position, selection.unit_sizes)

    context.from_ledger(save)


def _audit_budget(context: RunContext, round_number: int, budget: int) -> int:
    """Return how many of the labels of a round are for the audit; a time budget may allow few labels."""
    audit = context.plan.audit[round_number - 1] if context.plan.audit else 0
    is_fixed = context.plan.time_budget is None
    return audit if is_fixed else min(audit, math.floor(MAX_AUDIT_SHARE * budget))


def _unit_budget(context: RunContext, ledger: Ledger, round_number: int) -> int | None:
    """Return how many units the time budget allows in a round; None without a time budget."""
    time_budget, earlier_rounds = context.plan.time_budget, round_number - 1
    if time_budget is None:
        return None
    return time_budget.questions_in_round(
        ledger.seconds(earlier_rounds),
        ledger.n_units(earlier_rounds),
        ledger.n_timed_units(earlier_rounds),
        remaining_rounds=len(context.plan.query_epochs) - earlier_rounds,
    )


def first_query(context: TrainingContext, predictor: Predictor) -> tuple[QuerySpec, SampleTable]:
    """Return the query for images before anything is learnt, and the pool as a table.

    It covers the pool evenly. A query that reads no outputs, such as random, is kept; a model without
    features leaves only random choice.
    """
    query, pool = context.query, context.components.pool
    if not query.needs or not context.auxiliaries.n_features:
        query = query if not query.needs else QUERIES["random"]
        return query, predictor.score_images(pool, ())
    samples = predictor.score_images(pool, ("features",))
    even = {"margin": torch.zeros(len(samples)), "entropy": torch.ones(len(samples))}
    return EVEN_COVERAGE, replace(samples, columns={**samples.columns, **even})


def score_source_images(
    context: TrainingContext, predictor: Predictor, round_number: int, labels: Tensor
) -> SampleTable | None:
    """Return the source images as a table, if the query reads them; labelled pool images if there are none.

    Args:
        labels: known labels of the pool.
    """
    if not context.query.source_needs:
        return None
    seed = derive_seed(context.plan.seed, "scoring source", round_number)
    source_predictor = replace(predictor, view=context.source_view(), seed=seed)
    images = context.source_or_labelled(labels).images
    return source_predictor.score_images(images, context.query.source_needs)


def _score_label_maps(
    context: RunContext, predictor: Predictor, round_number: int
) -> tuple[SampleTable, SampleTable | None]:
    """Return the pool's images as a table, and the source's if the query reads them, for whole label maps."""
    source, query = context.components.source, context.query
    samples = score_whole_images(
        predictor,
        context.components.pool,
        query,
        sizes=context.label_sizes,
        known_labels_of=context.label_maps(round_number - 1).at_label_resolution,
    )
    if not query.source_needs:
        return samples, None
    return samples, score_whole_images(
        replace(predictor, view=context.source_view()),
        source.images,
        replace(query, needs=query.source_needs),
        sizes=label_grid_sizes(source.images, "network"),
        known_labels_of=lambda image: torch.where(source.labels[image] < 0, VOID, UNLABELLED),
        labels=source.labels,
    )


def _known_labels(context: RunContext, ledger: Ledger, round_number: int, budget: int) -> Tensor:
    """Return the known label of each image, UNLABELLED if the query may select it."""
    if not context.per_pixel:
        return context.auxiliaries.mask_pseudo_labelled(ledger.targets(round_number - 1), budget)
    labelled = ledger.labels_per_image(round_number - 1).nonzero().squeeze(1)
    known_labels = torch.full((len(context.components.pool),), UNLABELLED).index_fill_(0, labelled, 0)
    known_labels_of = context.label_maps(round_number - 1).at_label_resolution
    for image in (known_labels == UNLABELLED).nonzero().squeeze(1).tolist():
        if not bool((known_labels_of(image) == UNLABELLED).any()):
            known_labels[image] = VOID  # the image has no pixel that can be labelled
    return known_labels


def _select_pixels(
    context: RunContext, predictor: Predictor, round_number: int, unit_budget: int | None
) -> None:
    """Select pixels inside every image.

    ``unit_budget`` is the number of units to select; None without a time budget.
    """
    components, plan = context.components, context.plan
    areas: list[int] = pixels_per_image(components).tolist()
    units_per_image: Sequence[int] | None = None
    if unit_budget is not None:
        n_audit = _audit_budget(context, round_number, unit_budget)
        units_before = context.from_ledger(
            lambda ledger: ledger.n_units(round_number - 1) - len(ledger.audit_pixels(round_number - 1).image)
        )
        units_per_image = round_robin_counts(units_before, units_before + unit_budget - n_audit, len(areas))
        budget = [
            n_units * pixels_per_unit(components.task, area)
            for n_units, area in zip(units_per_image, areas, strict=True)
        ]
    else:
        assert plan.pixel_budget is not None
        budgets = split_pixels(plan.pixel_budget, areas, len(plan.query_epochs), plan.rounding)
        budget = [image_budget[round_number - 1] for image_budget in budgets]
        n_audit = _audit_budget(context, round_number, sum(budget))
        budget = reduce_budget(budget, n_audit, phase=(round_number - 1) / len(plan.query_epochs))
    label_maps = context.label_maps(round_number - 1)
    selections = select_pixels(
        predictor,
        components.pool,
        context.query,
        unit=components.task,
        sizes=context.label_sizes,
        known_labels_of=label_maps.at_label_resolution,
        acquired_of=label_maps.acquired_mask,
        budget=budget,
        head=context.auxiliaries.head_weights() if context.query.needs_head else None,
    )
    if context.ledger is None:
        for _ in selections:  # takes part in the forward passes; rank 0 writes
            pass
        return
    path = context.run_folder.request_path(round_number)

    def add_picks(spool: RequestSpool) -> None:
        for image, selection in selections:
            if units_per_image is not None:
                selection = truncate_units(selection, units_per_image[image])
            spool.add(image, selection.position, selection.unit_sizes)

    if not plan.audit:
        with RequestWriter(path, round_number) as writer:
            add_picks(writer)
        return
    with RequestSpool(path.parent) as picks, RequestWriter(path, round_number) as writer:
        add_picks(picks)
        write_with_audit(
            writer,
            picks.pixel_runs(),
            count=n_audit,
            areas=pixels_per_image(components),
            seed=plan.seed,
            audited=context.ledger.audit_pixels(round_number - 1),
            known_labels_of=label_maps.at_label_resolution,
            unanswered_of=unanswered_pixels(context.run_folder, context.ledger, round_number - 1),
        )


def select_images(
    query: QuerySpec,
    samples: SampleTable,
    known_labels: Tensor,
    budget: int,
    round_number: int,
    generator: torch.Generator,
    *,
    source: SampleTable | None = None,
    head: Tensor | None = None,
    device: torch.device | None = None,
) -> Request:
    """Run a query on the unlabelled images and validate its picks.

    Args:
        samples: the whole pool.
        known_labels: ``(N,)``, known label of each image, or ``UNLABELLED``.
        budget: number of images to select; fewer if fewer are unlabelled.
        generator: the query's only source of randomness.
        source: the source images, if the query reads them.
        head: the last layer's weights, if the query reads them.
        device: the run's device; a GPU compares features, if they fit.
    """
    candidates = samples[(known_labels == UNLABELLED).nonzero().squeeze(1)]
    labelled = samples[(known_labels >= 0).nonzero().squeeze(1)]
    context = QueryContext(
        candidates, labelled, min(budget, len(candidates)), generator, source, head, len(samples)
    )
    picks = _run_on(device, query, context)
    return Request(round_number, candidates.image[picks], candidates.position[picks])


def _run_on(device: torch.device | None, query: QuerySpec, context: QueryContext) -> Tensor:
    """Run a query on a GPU if it compares features that fit there, else on the CPU; return picks on the CPU.

    The choice depends on the size of the GPU, not on its free memory, so that a repeated run makes the same
    one. Only if memory runs out does the query run again on the CPU.
    """
    if device is None or device.type != "cuda" or "features" not in context.candidates.columns:
        return run_query(query.fn, context)
    if defining_package(query.fn) != "ducats":  # a user's query may create tensors on the CPU
        return run_query(query.fn, context)
    if context.nbytes > MAX_TABLE_SHARE * torch.cuda.get_device_properties(device).total_memory:
        return run_query(query.fn, context)
    random_state = context.generator.get_state()
    try:
        return run_query(query.fn, context.to(device)).cpu()
    except torch.OutOfMemoryError:
        context.generator.set_state(random_state)
        return run_query(query.fn, context)


def empty_request(round_number: int) -> Request:
    """Return an empty request, for a round without questions."""
    empty = torch.zeros(0, dtype=torch.long)
    return Request(round_number, empty, empty)


def pixels_per_unit(unit: Unit, area: int) -> int:
    """Return how many pixels a unit has; for superpixels, the mean.

    >>> pixels_per_unit(Unit("region", region_side=3), 800)
    9
    >>> pixels_per_unit(Unit("superpixel", n_superpixels=100), 801)
    9
    """
    if unit.resolved_unit == "region":
        return unit.region_side**2
    return math.ceil(area / unit.n_superpixels) if unit.resolved_unit == "superpixel" else 1


def truncate_units(selection: PixelSelection, max_units: int) -> PixelSelection:
    """Keep at most ``max_units`` units.

    Units cut at the image's border are smaller, so a budget in pixels may select more units than allowed.
    """
    if selection.unit_sizes is None:
        return PixelSelection(selection.position[:max_units])
    return PixelSelection(
        selection.position[: int(selection.unit_sizes[:max_units].sum())], selection.unit_sizes[:max_units]
    )
