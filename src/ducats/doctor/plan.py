"""Check the run plan against data and machine: evaluation, budget, batches, views and memory."""

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from ducats.acquisition.budget import TimeBudget, parse_time_budget, split_pixels
from ducats.acquisition.queries import resolve_query
from ducats.acquisition.queries.kmeans import check_cluster_count
from ducats.annotation.question import MAX_LISTED_QUESTIONS
from ducats.config import Config, query_epochs
from ducats.data.evaluation_split import EvaluatedOn, TestSetOrigin, n_held_out, resolve_split
from ducats.data.store import ReadFailure, try_files
from ducats.doctor.label_maps import sample_indices
from ducats.doctor.memory import check_memory
from ducats.doctor.survey import DataSurvey, SplitSurvey
from ducats.ledger import open_initial_ledger
from ducats.models import hub, offline, resolve_model
from ducats.run.checks import VIEW_ROLES, StoredImages, check_segmentation, check_views
from ducats.run.components import RunPlan
from ducats.run.estimate import Workload, estimate_run
from ducats.run.factory import (
    audit_per_round,
    check_oracle,
    check_task,
    labels_per_round,
    make_model,
    make_objective,
    make_query,
    resolve_for_machine,
    settings_of,
)
from ducats.runfolder.records import EVALUATED_ON_DESCRIPTIONS
from ducats.settings import ScoringOptions, TrainingOptions, View
from ducats.training.distributed import has_gpu
from ducats.training.embed import count_pixel_views
from ducats.training.step import is_trusted_code
from ducats.training.streams import check_batch_size
from ducats.utils.errors import UserError
from ducats.utils.findings import Finding, collect_findings, count_images, pluralise
from ducats.utils.image_files import displayed_size


def check_plan(config: Config, survey: DataSurvey) -> list[Finding]:
    """Run all checks of the plan against the surveyed data."""
    return collect_findings(
        partial(check_task, config, survey.per_pixel if survey.splits else None),
        partial(check_oracle, config.oracle, survey.has_ground_truth),
        partial(_check_evaluation, config, survey),
        partial(_check_budget, config, survey),
        partial(_check_batches, config, survey),
        partial(_check_views, config, survey),
        partial(_check_view_sizes, config, survey),
        partial(_check_enlargement, config, survey),
        partial(_check_weights, config),
        partial(check_memory, config.views, survey),
        partial(_estimate_costs, config, survey),
    )


def _estimate_costs(config: Config, survey: DataSurvey) -> Iterator[Finding]:
    """Report an estimate of time and memory without a GPU, from timed steps of the model."""
    is_known = {"target"} <= survey.splits.keys() & survey.stored_shapes.keys()
    if has_gpu(config.engine.device) or not is_known:
        return
    with suppress(Exception):  # whatever is invalid is reported elsewhere
        if costs := _describe_costs(config, survey):
            yield Finding("note", costs)


def _describe_costs(config: Config, survey: DataSurvey) -> str:
    config = resolve_for_machine(config)
    n_source, n_pool = len(survey.splits.get("source", ())), pool_size(config, survey)
    evaluated_on, test_origin = _resolve_split(config, survey)
    n_test = len(survey.splits["test"]) if "test" in survey.splits else len(survey.splits["target"]) - n_pool
    if evaluated_on != "held_out":
        n_test = n_pool if survey.has_ground_truth else 0
    freezes = config.model.freeze == "backbone"
    n_tested = n_test if test_origin != "target" else 0
    n_to_embed = (n_source + n_pool + n_tested) * config.views.embedded
    classes = survey.classes or tuple(survey.splits["source"].class_counts())
    acquisition, round_epochs = config.acquisition, query_epochs(config)
    time_budget = parse_time_budget(acquisition.budget, acquisition.seconds_per_label, acquisition.growth)
    labels: Sequence[int] = ()
    task = config.task if survey.per_pixel else None
    if task is not None and time_budget is None and not task.labels_whole_images:
        area = math.prod(survey.stored_shapes["target"][1:])
        per_image = split_pixels(acquisition.budget, [area] * n_pool, len(round_epochs), acquisition.rounding)
        labels = [sum(counts) for counts in zip(*per_image, strict=True)]
    elif time_budget is None:
        labels = labels_per_round(acquisition, n_pool, len(round_epochs), _count_initial_labels(config))
        round_epochs = round_epochs[: len(labels)]
    if task is not None:
        audit = audit_per_round(
            acquisition,
            labels,
            time_budget,
            rounds=len(round_epochs),
            n_initial=0,
            has_test=bool(n_test),
            labels_maps=task.labels_whole_images,
        )
        n_to_embed = _count_feature_maps(
            config, n_source, n_pool, n_tested, tests_pool=evaluated_on != "held_out", has_audit=any(audit)
        )
    workload = Workload(
        plan=RunPlan(
            **settings_of(TrainingOptions, config.train),
            **settings_of(ScoringOptions, config.engine),
            query_epochs=round_epochs,
            budget=labels,
            time_budget=time_budget,
            optimisation=config.train,
        ),
        views=config.views,
        n_source=n_source,
        n_pool=n_pool,
        n_evaluated=n_test,
        classes=len(classes),
        stored_shape=survey.stored_shapes["target"],
        n_to_embed=n_to_embed if freezes else None,
        task=task,
        average_flipped=config.evaluation.average_flipped,
    )
    model = make_model(config, len(classes), workload.stored_shape[0], is_resumable=True)
    if not is_trusted_code(make_objective(config).fn, model):
        return ""
    estimates = estimate_run(model, make_objective(config), make_query(config), workload)
    return "" if estimates is None else estimates[0].describe(estimates[1])


def _count_feature_maps(
    config: Config, n_source: int, n_pool: int, n_tested: int, *, tests_pool: bool, has_audit: bool
) -> int:
    """Return the number of images in segmentation that a frozen backbone embeds, mirror images included."""
    views, average_flipped = config.views, config.evaluation.average_flipped
    pool_views = [views.unlabelled, views.labelled_or_source]
    image_sets: tuple[tuple[int, list[View], bool], ...] = (
        (n_source, [views.source], False),
        (n_pool, pool_views, has_audit or (tests_pool and n_tested > 0)),
        (n_tested, [], True),
    )
    return sum(
        count * count_pixel_views(trained_with, is_evaluated=is_evaluated, average_flipped=average_flipped)
        for count, trained_with, is_evaluated in image_sets
    )


def _check_view_sizes(config: Config, survey: DataSurvey) -> Iterator[Finding]:
    """Check that all views have the same size. Segmentation models accept any size."""
    if survey.per_pixel:
        return
    views = {name: getattr(config.views, name) for name in VIEW_ROLES if name != "strong"}
    stored = {role: shape[-1] for role, shape in survey.stored_shapes.items()}
    sides = {
        name: view.size or stored.get(VIEW_ROLES[name], "stored")
        for name, view in views.items()
        if view is not None
    }
    if len(set(sides.values())) > 1:
        sizes_text = ", ".join(f"views.{name} {side}" for name, side in sides.items())
        yield Finding(
            "warning", f"views produce images of different sizes ({sizes_text}); give all views the same size"
        )


def _check_enlargement(config: Config, survey: DataSurvey) -> Iterator[Finding]:
    """Warn if images from files are enlarged strongly, which costs time and adds no detail."""
    small: dict[str, tuple[int, int]] = {}
    largest, stored_text = 0.0, ""
    for role, split in survey.splits.items():
        size = _median_size(split)
        if size is None or role not in survey.stored_shapes:
            continue
        _, *stored = survey.stored_shapes[role]
        factor = math.sqrt(math.prod(stored) / math.prod(size))
        if factor >= MIN_REPORTED_ENLARGEMENT:
            small[role] = size
            if factor > largest:
                largest, stored_text = factor, f"{stored[0]} x {stored[1]}"
    if not small:
        return
    height, width = max(small.values(), key=math.prod)
    setting = f"data.params.size=[{height},{width}]"
    if not survey.per_pixel:
        side = min(height, width)
        # Views without a size of their own show the images as stored.
        has_size = config.views.source.size is not None
        setting = f"views.size={max(8, round(side * 7 / 8))}" if has_size else f"data.params.size={side}"
    sizes = ", ".join(f"{role} {rows} x {columns}" for role, (rows, columns) in small.items())
    yield Finding(
        # Benchmarks are published with such settings.
        "note" if survey.expected_counts else "warning",
        f"images are small ({sizes}: median height x width) and are enlarged up to {largest:.1f} times to "
        f"{stored_text}, which takes time and adds no detail; to keep their size, use --set {setting}",
    )


def _median_size(split: SplitSurvey) -> tuple[int, int] | None:
    """Return height and width of the image with the median area; None if there are no readable files."""
    sizes: Sequence[tuple[int, int] | ReadFailure | None] = split.original_sizes if split.paths else ()
    if split.paths and not sizes:
        paths = [split.paths[index] for index in sample_indices(len(split.paths))]
        sizes = list(try_files(displayed_size, paths))
    known = sorted((size for size in sizes if isinstance(size, tuple)), key=math.prod)
    return known[len(known) // 2] if known else None


MIN_REPORTED_ENLARGEMENT = 2.0  # of height and width


def _check_weights(config: Config) -> Iterator[Finding]:
    """Report where pretrained weights come from; check that a file of weights fits the model."""
    model, params = resolve_model(config.model.name), config.model.params
    if model.has_timm_backbone and params.get("pretrained", True) and not params.get("weights"):
        default = inspect.signature(model.build).parameters["backbone"].default
        backbone = str(params.get("backbone", default))
        if offline.has_weights_for(backbone):
            origin = f"come from the package {offline.OFFLINE_PACKAGE}"
        elif hub.is_cached(backbone):
            origin = "are on this machine"
        else:  # whether they can be downloaded is checked with the settings
            origin = "are not on this machine; a run must download them first"
        yield Finding("note", f"the weights of timm's {backbone} {origin}")
    if model.has_timm_backbone and params.get("weights"):
        model.build(classes=2, channels=3, **params)  # raises if the weights do not fit the backbone


def _check_evaluation(config: Config, survey: DataSurvey) -> Iterator[Finding]:
    """Report which images the model is evaluated on."""
    if survey.has_ground_truth is None:
        return  # the problem with the data is reported elsewhere
    evaluated_on, _ = _resolve_split(config, survey)
    if evaluated_on != "held_out" or "test" in survey.splits or survey.has_ground_truth:
        yield Finding(
            "note",
            f"the model is evaluated on {EVALUATED_ON_DESCRIPTIONS[evaluated_on]} "
            f"(evaluation.split={config.evaluation.split})",
        )


def _resolve_split(config: Config, survey: DataSurvey) -> tuple[EvaluatedOn, TestSetOrigin]:
    return resolve_split(
        config.evaluation.split,
        has_test="test" in survey.splits,
        has_ground_truth=bool(survey.has_ground_truth),
        target_is_test=survey.target_is_test,
    )


def pool_size(config: Config, survey: DataSurvey) -> int:
    """Return the number of target images that can be queried: those that are not held out."""
    target = survey.splits.get("target")
    if target is None or survey.has_ground_truth is None:
        return 0 if target is None else len(target)
    try:
        _, test_origin = _resolve_split(config, survey)
    except UserError:
        return len(target)  # reported elsewhere
    if test_origin != "split":
        return len(target)
    if survey.per_pixel:
        return len(target) - n_held_out(len(target), config.evaluation.test_fraction)
    class_counts = (survey.splits["test"] if survey.target_is_test else target).class_counts().values()
    return len(target) - sum(n_held_out(size, config.evaluation.test_fraction) for size in class_counts)


def _check_budget(config: Config, survey: DataSurvey) -> Iterator[Finding]:
    """Describe the label budget: how many labels, when, and who provides them."""
    round_epochs, n_images = query_epochs(config), pool_size(config, survey)
    if not round_epochs:
        yield Finding("note", "no labels are queried (acquisition.rounds is 0)")
    if not round_epochs or not n_images:
        return
    time_budget = parse_time_budget(
        config.acquisition.budget, config.acquisition.seconds_per_label, config.acquisition.growth
    )
    if time_budget is not None:
        yield from _describe_time_budget(config, survey, n_images, time_budget)
        return
    if survey.per_pixel and config.task.resolved_unit != "image":
        yield from _describe_pixel_budget(config, survey, n_images, round_epochs)
        return
    n_initial = _count_initial_labels(config)
    labels = labels_per_round(config.acquisition, n_images, len(round_epochs), n_initial)
    if n_initial:
        yield Finding(
            "note",
            f"the run starts with {pluralise(n_initial, 'label')} of {config.acquisition.start_from}, which "
            "count towards the budget",
        )
        labels, round_epochs = labels[1:], round_epochs[1 : len(labels)]
        if not labels:
            yield Finding("note", "no further labels are queried: the budget is used up")
            return
    per_round_text = f"{labels[0]}" if len(set(labels)) == 1 else " + ".join(map(str, labels))
    suffix = " per round" if len(labels) > 1 and len(set(labels)) == 1 else ""
    epochs = ", ".join(map(str, round_epochs))
    unit_name = "whole images" if survey.per_pixel else "labels"
    yield Finding(
        "note",
        f"the budget is {sum(labels)} {'more ' if n_initial else ''}{unit_name} from "
        f"{count_images(n_images)} of the target: "
        f"{per_round_text}{suffix} after epoch {epochs} of {config.train.epochs}",
    )
    yield from _describe_audit(config, survey, labels)
    if has_human_oracle(config, survey):
        yield Finding(
            "note",
            f"human annotators provide {per_round_text} {unit_name}{suffix}, "
            f"in {pluralise(len(labels), 'round')}; the run pauses each time",
        )


def _describe_audit(config: Config, survey: DataSurvey, labels: Sequence[int]) -> Iterator[Finding]:
    """Say how many labels of the rounds are for the audit, or that nothing will be measured."""
    evaluated_on, _ = _resolve_split(config, survey)
    has_test = "test" in survey.splits or bool(survey.has_ground_truth) or evaluated_on != "held_out"
    labels_maps = survey.per_pixel and config.task.labels_whole_images
    audit = audit_per_round(
        config.acquisition,
        labels,
        None,
        rounds=len(labels),
        n_initial=0,
        has_test=has_test,
        labels_maps=labels_maps,
    )
    if sum(audit):
        pixels = "single pixels, " if survey.per_pixel else ""
        measure = "mIoU and pixel accuracy" if survey.per_pixel else "accuracy"
        yield Finding(
            "note",
            f"{sum(audit)} of them are for the audit: {pixels}drawn at random and not trained on, they give "
            f"the {measure} with an interval (acquisition.audit)",
        )
    elif not has_test:
        advice = "choose another task.unit than image" if labels_maps else "raise --budget to at least 60"
        yield Finding(
            "note",
            "nothing will be measured, because there are neither a test set nor audit labels; "
            f"{advice}, or {'use a labelled test set' if labels_maps else 'set --audit'}",
        )


def _count_initial_labels(config: Config) -> int:
    """Return the number of labels with which the run starts."""
    start_from = config.acquisition.start_from
    return 0 if start_from is None else len(open_initial_ledger(Path(start_from)))


def has_human_oracle(config: Config, survey: DataSurvey) -> bool:
    """Return whether people label the target."""
    name = config.oracle.name
    return name == "human" or (name == "auto" and survey.has_ground_truth is False)


def _describe_time_budget(
    config: Config, survey: DataSurvey, n_images: int, time_budget: TimeBudget
) -> Iterator[Finding]:
    """Describe a time budget, with an estimate of the first round."""
    round_epochs = query_epochs(config)
    epochs = ", ".join(map(str, round_epochs))
    rounds = pluralise(len(round_epochs), "round")
    unit_name = f"{config.task.resolved_unit}s" if survey.per_pixel else "labels"
    first_round = time_budget.questions_in_round(None, 0, 0, len(round_epochs))
    yield Finding(
        "note",
        f"the budget is {time_budget} for {unit_name} of {count_images(n_images)} of the target, in {rounds} "
        f"after epoch {epochs} of {config.train.epochs}: about {first_round} in the first, at "
        f"{time_budget.seconds_per_label:g} s each (acquisition.seconds_per_label); later rounds depend on "
        "the measured time per answer",
    )
    if config.task.resolved_unit == "image" and first_round * len(round_epochs) > n_images:
        yield Finding(
            "warning",
            f"{time_budget} is enough for about {pluralise(first_round * len(round_epochs), 'label')}, but "
            f"the pool has {count_images(n_images)}: later rounds may have nothing left to query; lower "
            "acquisition.budget",
        )
    if has_human_oracle(config, survey):
        yield Finding(
            "note",
            f"human annotators answer: the run pauses in each of {rounds} and stops querying after "
            f"{time_budget}",
        )


def _check_batches(config: Config, survey: DataSurvey) -> Iterator[Finding]:
    """Check that batches can be filled and divided among processes."""
    size = config.train.batch_size
    for role in ("source", "target"):
        count = len(survey.splits.get(role, ()))
        if 0 < count < size:
            yield Finding(
                "warning",
                f"train.batch_size={size} is larger than the {role} ({count_images(count)}), so its "
                "batches are smaller; lower it or add images",
            )
    check_batch_size(size, (config.engine.processes or 1) * (config.engine.nodes or 1))


def _check_views(config: Config, survey: DataSurvey) -> Iterator[Finding]:
    """Check that views fit the stored images and the task."""
    needs_strong = False
    with suppress(Exception):  # an invalid objective is reported elsewhere
        needs_strong = make_objective(config).needs_strong_view()
    stored = {}
    for role, shape in survey.stored_shapes.items():
        has_files = role not in survey.splits or bool(survey.splits[role].paths)
        stored[role] = StoredImages(*shape, has_aspect=has_files, has_bilinear=has_files)
    if survey.per_pixel or config.task.name == "segmentation":
        yield from check_segmentation(config.task, config.evaluation, config.views, survey.classes)
    yield from check_views(config.views, stored, needs_strong=needs_strong)


def _describe_pixel_budget(
    config: Config, survey: DataSurvey, pool_size: int, query_epochs: Sequence[int]
) -> Iterator[Finding]:
    """Describe the pixel budget per image and per round, and who labels it."""
    areas = image_areas(config, survey)[:pool_size]
    if not areas:
        return  # no image can be read, which is reported elsewhere
    per_image_and_round = split_pixels(
        config.acquisition.budget, areas, len(query_epochs), config.acquisition.rounding
    )
    per_round = [sum(image_counts) for image_counts in zip(*per_image_and_round, strict=True)]
    epochs = ", ".join(map(str, query_epochs))
    percent = 100 * sum(per_round) / sum(areas)
    per_image_text = _format_range([sum(counts) for counts in per_image_and_round])
    per_image_and_round_text = _format_range([count for counts in per_image_and_round for count in counts])
    yield Finding(
        "note",
        f"the budget is {pluralise(sum(per_round), 'pixel')} ({percent:.3g} %) of {count_images(pool_size)} "
        f"of the target: {per_image_text} per image, {per_image_and_round_text} per image and round; "
        f"{' + '.join(map(str, per_round))} in total after epoch {epochs} of {config.train.epochs}, "
        f"counted at the "
        f"{'size of the network input' if config.task.resolution == 'network' else 'original image size'} "
        f"(task.resolution={config.task.resolution})",
    )
    yield from _describe_audit(config, survey, per_round)
    if has_human_oracle(config, survey):
        yield Finding(
            "note",
            f"human annotators label {_format_range(per_round)} pixels in each of "
            f"{pluralise(len(per_round), 'round')}: {_ways_to_answer(config, max(per_round))}; the run "
            "pauses each time",
        )
    _check_clusters(config, max(count for counts in per_image_and_round for count in counts))


def _ways_to_answer(config: Config, n_pixels: int) -> str:
    """Describe how annotators may label so many pixels in a round."""
    area = config.task.region_side**2 if config.task.resolved_unit == "region" else 1
    if config.task.resolved_unit != "superpixel" and n_pixels // area > MAX_LISTED_QUESTIONS:
        return f"masks mark them, and label PNGs are the answers (too many for a page: {n_pixels // area})"
    return (
        f"one {config.task.resolved_unit} after the other in the browser with `ducats label RUN`, or as "
        "label PNGs for the masks in the run folder"
    )


def _check_clusters(config: Config, max_pixels: int) -> None:
    """Raise if a clustering query needs too many clusters for so many pixels per image and round."""
    query = config.query.name
    if not resolve_query(query).clusters:
        return
    task = config.task
    clusters_by_unit = {
        "region": math.ceil(max_pixels / task.region_side**2),
        "superpixel": min(max_pixels, task.n_superpixels),
    }
    check_cluster_count(query, clusters_by_unit.get(task.resolved_unit, max_pixels))


def image_areas(config: Config, survey: DataSurvey) -> list[int]:
    """Return the number of pixels of each target image, at the resolution of the budget."""
    split = survey.splits["target"]
    if config.task.resolution == "network":
        _, height, width = survey.stored_shapes["target"]
        return [height * width] * len(split)
    return [size[0] * size[1] for size in split.original_sizes if size is not None]


def _format_range(numbers: Sequence[int]) -> str:
    """Format a range of numbers.

    >>> _format_range([3, 3]), _format_range([3, 5, 4])
    ('3', '3 to 5')
    """
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"
