"""Check the run plan against data and machine: evaluation, budget, batches, crops and memory."""

import inspect
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ducats.acquisition.budget import TimeBudget, parse_time_budget, split_budget
from ducats.config import Config, ViewConfig, query_epochs
from ducats.data.decoding import RESERVED_DISK_GB
from ducats.data.evaluation_split import n_held_out, resolve_split
from ducats.doctor.finding import Finding, collect_findings, count_images
from ducats.doctor.segmentation_plan import check_segmentation_settings, describe_pixel_budget
from ducats.doctor.survey_result import DataSurvey, SplitRole
from ducats.runfolder.records import EVALUATED_ON_DESCRIPTIONS
from ducats.utils.errors import UserError
from ducats.utils.resources import free_disk_gb, free_memory_gb

VIEW_ROLES: dict[str, SplitRole] = {  # the images that each view is applied to
    "source": "source",
    "labelled": "target",
    "unlabelled": "target",
    "scoring": "target",
    "test": "test",
}


def check_plan(config: Config, survey: DataSurvey) -> list[Finding]:
    """Run all checks of the plan against the surveyed data."""
    checks = (
        _check_evaluation(config, survey),
        _check_budget(config, survey),
        _check_batches(config, survey),
        _check_crops(config, survey),
        _check_view_sizes(config, survey),
        _check_weights(config),
        _check_memory(survey),
        check_segmentation_settings(config, survey),
    )
    return [finding for check in checks for finding in collect_findings(check)]


def _check_view_sizes(config: Config, survey: DataSurvey) -> Iterator[Finding]:
    """Check that all views have the same size. Segmentation models accept any size."""
    if survey.per_pixel:
        return
    views = {name: getattr(config.views, name) for name in VIEW_ROLES}
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


def _check_weights(config: Config) -> Iterator[Finding]:
    """Report where pretrained weights come from."""
    params = config.model.params
    with suppress(Exception):  # a wrong name, or no torchvision, which is reported elsewhere
        from ducats.models import offline, resolve_model

        model = resolve_model(config.model.name)
        if model.has_timm_backbone and params.get("pretrained", True) and not params.get("weights"):
            default = inspect.signature(model.build).parameters["backbone"].default
            backbone = str(params.get("backbone", default))
            origin = (
                f"come from the package {offline.OFFLINE_PACKAGE}"
                if offline.has_weights_for(backbone)
                else "are downloaded on first use"
            )
            yield Finding("note", f"the weights of timm's {backbone} {origin}")


def _check_evaluation(config: Config, survey: DataSurvey) -> Iterator[Finding]:
    """Report which images the model is evaluated on."""
    if survey.has_ground_truth is None:
        return  # the problem with the data is reported elsewhere
    split = config.evaluation.split
    evaluated_on, _ = resolve_split(
        split,
        has_test="test" in survey.splits,
        has_ground_truth=survey.has_ground_truth,
        target_is_test=survey.target_is_test,
    )
    if evaluated_on != "held_out" or "test" in survey.splits or survey.has_ground_truth:
        yield Finding(
            "note",
            f"the model is evaluated on {EVALUATED_ON_DESCRIPTIONS[evaluated_on]} (evaluation.split={split})",
        )


def pool_size(config: Config, survey: DataSurvey) -> int:
    """Return the number of target images that can be queried: those that are not held out."""
    target = survey.splits.get("target")
    if target is None or survey.has_ground_truth is None:
        return 0 if target is None else len(target)
    try:
        _, test_origin = resolve_split(
            config.evaluation.split,
            has_test="test" in survey.splits,
            has_ground_truth=survey.has_ground_truth,
            target_is_test=survey.target_is_test,
        )
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
    oracle = config.oracle.name
    if oracle == "ground_truth" and survey.has_ground_truth is False:
        yield Finding(
            "error",
            "the oracle 'ground_truth' needs the target's labels, but the data has none: use --oracle human, "
            "or --ground-truth if the target's folders are its classes",
        )
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
        yield from describe_pixel_budget(config, survey, n_images, round_epochs)
        return
    labels = split_budget(
        config.acquisition.budget,
        n_images,
        len(round_epochs),
        config.acquisition.rounding,
        config.acquisition.growth,
    )
    per_round_text = f"{labels[0]}" if len(set(labels)) == 1 else " + ".join(map(str, labels))
    suffix = " per round" if len(labels) > 1 and len(set(labels)) == 1 else ""
    epochs = ", ".join(map(str, round_epochs))
    unit_name = "whole images" if survey.per_pixel else "labels"
    yield Finding(
        "note",
        f"the budget is {sum(labels)} {unit_name} from {count_images(n_images)} of the target: "
        f"{per_round_text}{suffix} after epoch {epochs} of {config.train.epochs}",
    )
    if oracle == "human" or (oracle == "auto" and survey.has_ground_truth is False):
        yield Finding(
            "note",
            f"human annotators provide {per_round_text} {unit_name}{suffix}, "
            f"in {len(labels)} {'round' if len(labels) == 1 else 'rounds'}; the run pauses each time",
        )


def _describe_time_budget(
    config: Config, survey: DataSurvey, n_images: int, time_budget: TimeBudget
) -> Iterator[Finding]:
    """Describe a time budget, with an estimate of the first round."""
    round_epochs = query_epochs(config)
    epochs = ", ".join(map(str, round_epochs))
    rounds = "1 round" if len(round_epochs) == 1 else f"{len(round_epochs)} rounds"
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
            f"{time_budget} is enough for about {first_round * len(round_epochs)} labels, but the pool has "
            f"{count_images(n_images)}: later rounds may have nothing left to query; lower "
            "acquisition.budget",
        )
    oracle = config.oracle.name
    if oracle == "human" or (oracle == "auto" and survey.has_ground_truth is False):
        yield Finding(
            "note",
            f"human annotators answer: the run pauses in each of {rounds} and stops querying after "
            f"{time_budget}",
        )


def _check_batches(config: Config, survey: DataSurvey) -> Iterator[Finding]:
    """Check that batches can be filled and divided among processes."""
    size, engine = config.train.batch_size, config.engine
    world = (engine.processes or 1) * (engine.nodes or 1)
    if size % world or size < 2 * world:
        hosts = "" if engine.nodes is None else f" on each of engine.nodes={engine.nodes}"
        yield Finding(
            "error",
            f"train.batch_size={size} must be a multiple of engine.processes={engine.processes or 1}{hosts}, "
            "with at least two images per process; change one of these settings",
        )
    for role in ("source", "target"):
        count = len(survey.splits.get(role, ()))
        if 0 < count < size:
            yield Finding(
                "warning",
                f"train.batch_size={size} is larger than the {role} ({count_images(count)}), so its "
                "batches are smaller; lower it or add images",
            )


def _check_crops(config: Config, survey: DataSurvey) -> Iterator[Finding]:
    """Check that crops fit into the stored images."""
    for name, role in VIEW_ROLES.items():
        view: ViewConfig | None = getattr(config.views, name)
        if view is None or view.crop not in ("center", "random") or role not in survey.stored_shapes:
            continue
        if view.resize == "short_side" and role in survey.splits and not survey.splits[role].paths:
            yield Finding(
                "error",
                f"views.{name}.resize=short_side needs images from files, whose original shape is known; set "
                f"views.{name}.resize=squash",
            )
        _, height, width = survey.stored_shapes[role]
        pad = 2 * view.pad if view.crop == "random" else 0
        crop_size = view.size or (height, width)
        crop_height, crop_width = crop_size if isinstance(crop_size, tuple) else (crop_size, crop_size)
        if crop_height > height + pad or crop_width > width + pad:
            size_text = crop_size if isinstance(crop_size, int) else f"{crop_width} x {crop_height}"
            yield Finding(
                "error",
                f"views.{name} takes a {view.crop} crop of {size_text} pixels from images stored as "
                f"{width} x {height}; lower views.{name}.size or raise data.params.size",
            )


def _check_memory(survey: DataSurvey) -> Iterator[Finding]:
    """Estimate memory and disk space of the decoded images and label maps."""
    memory = disk = 0.0
    remaining = float("inf") if survey.memory_gb is None else survey.memory_gb
    for size in _array_sizes_gb(survey):
        # As in ArrayStore: an array that does not fit goes to a file as a whole.
        memory, disk, remaining = (
            (memory + size, disk, remaining - size) if size <= remaining else (memory, disk + size, remaining)
        )
    if memory + disk == 0:
        return
    content = "images and label maps" if survey.per_pixel else "images"
    limit_text = (
        ""
        if survey.memory_gb is None
        else f"; {survey.memory_gb:.3g} GB may be kept in memory (data.params.memory_gb)"
    )
    cache_folder = survey.cache or Path(tempfile.gettempdir())
    cache_text = (
        f", so {_format_gb(disk)} go to {cache_folder}{'' if survey.cache else ' in every run'}"
        if disk
        else ""
    )
    yield Finding("note", f"decoded {content} take {_format_gb(memory + disk)}{limit_text}{cache_text}")
    free = free_memory_gb()
    # Built images are in memory already.
    if survey.memory_gb is not None and free is not None and memory > free:
        yield Finding(
            "warning",
            f"{memory:.1f} GB of {content} would be kept in memory, but only {free:.1f} GB are free; lower "
            "data.params.memory_gb or data.params.size",
        )
    if disk > free_disk_gb(cache_folder) - RESERVED_DISK_GB:
        yield Finding(
            "warning",
            f"{disk:.1f} GB of {content} would be written to {cache_folder}, but only "
            f"{free_disk_gb(cache_folder):.1f} GB are free there, so they will be decoded again for every "
            "batch, which is slower; set another data.params.cache or a smaller data.params.size",
        )


def _array_sizes_gb(survey: DataSurvey) -> Iterator[float]:
    """Yield the gigabytes of each array, in the order of decoding."""
    for role, split in survey.splits.items():
        if role in survey.stored_shapes:
            channels, height, width = survey.stored_shapes[role]
            yield len(split) * channels * height * width / 2**30
            if split.label_files or split.label_maps is not None:
                bytes_per_label = 1 if len(survey.classes) <= 127 else 2
                yield len(split) * height * width * bytes_per_label / 2**30


def _format_gb(gigabytes: float) -> str:
    return f"{gigabytes:.2f} GB" if gigabytes >= 0.01 else "less than 0.01 GB"
