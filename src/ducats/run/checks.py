"""Checks of components and plan before a run; `ducats doctor` shares those that need no decoded images."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ducats.acquisition.budget import split_pixels
from ducats.acquisition.units.superpixels import import_slic
from ducats.annotation.oracles import GroundTruthOracle
from ducats.data.benchmarks.benchmark import TaskRole
from ducats.data.domain import Images
from ducats.objectives import ObjectiveSpec
from ducats.run.components import Components, RunPlan, pixels_per_image
from ducats.settings import EvaluationOptions, StreamViews, TaskOptions, View
from ducats.utils.errors import UserError
from ducats.utils.findings import Finding, pluralise, raise_first_error

VIEW_ROLES: dict[str, TaskRole] = {  # the images that each view is applied to
    "source": "source",
    "labelled": "target",
    "unlabelled": "target",
    "scoring": "target",
    "strong": "target",
    "test": "test",
}


class StoredImages(NamedTuple):
    """Shape of decoded images, and whether views can use what is read from their files."""

    channels: int
    height: int
    width: int
    has_aspect: bool
    has_bilinear: bool


def check_run(components: Components, plan: RunPlan) -> None:
    """Raise UserError if components and plan are inconsistent, before anything is written or trained."""
    images: dict[TaskRole, Images] = {"source": components.source.images, "target": components.pool}
    if components.test is not None:
        images["test"] = components.test.images
    stored = {role: _stored_images(role_images) for role, role_images in images.items()}
    needs_strong = components.objective_spec.needs_strong_view()
    raise_first_error(
        partial(check_budget, components, plan),
        partial(check_plan, plan),
        partial(check_source, components, plan),
        partial(check_labels, components),
        partial(check_views, components.views, stored, needs_strong=needs_strong),
    )
    if components.source.per_pixel:
        raise_first_error(
            partial(
                check_segmentation,
                components.task,
                components.evaluation,
                components.views,
                components.source.classes,
            ),
            partial(check_label_maps, components),
        )


def _stored_images(images: Images) -> StoredImages:
    channels, height, width = images.pixels.shape[1:]
    return StoredImages(
        channels, height, width, images.aspect is not None, images.bilinear_pixels is not None
    )


def check_budget(components: Components, plan: RunPlan) -> None:
    """Raise UserError if the budget is inconsistent or exceeds the pool."""
    if plan.audit and len(plan.audit) != len(plan.query_epochs):
        raise UserError(
            f"audit={list(plan.audit)} must give a number of labels for each of "
            f"{pluralise(len(plan.query_epochs), 'round')}"
        )
    if plan.audit and components.source.per_pixel and components.task.labels_whole_images:
        raise UserError(
            f"audit={list(plan.audit)} needs labels of single pixels, but whole label maps are labelled: use "
            "another unit than image"
        )
    if plan.until is not None and not plan.audit:
        raise UserError(f"until={str(plan.until)!r} needs audit labels; set audit, one number per round")
    if plan.time_budget is not None:
        if plan.budget or plan.pixel_budget is not None:
            raise UserError("a plan has either a time budget or a label or pixel budget: drop one of them")
        return
    budget: Sequence[int] = plan.budget
    if components.selects_pixels and plan.query_epochs:
        if plan.pixel_budget is None:
            raise UserError(
                'the task labels pixels: set how many per image, for example RunPlan(pixel_budget="5%")'
            )
        budgets_per_image = split_pixels(
            plan.pixel_budget, pixels_per_image(components).tolist(), len(plan.query_epochs), plan.rounding
        )
        budget = [sum(round_budget) for round_budget in zip(*budgets_per_image, strict=True)]
        if plan.budget and list(plan.budget) != budget:
            raise UserError(
                f"pixel_budget={plan.pixel_budget!r} gives {budget} labels per round, but budget is "
                f"{list(plan.budget)}: drop budget"
            )
    if len(budget) != len(plan.query_epochs):
        raise UserError(
            f"{len(plan.query_epochs)} rounds but {len(budget)} budgets: give one budget per round"
        )
    if any(labels < 1 for labels in budget):
        raise UserError(
            f"each round needs at least one label, not {list(budget)}: raise the budget or use fewer rounds"
        )
    if any(n_audit >= labels for n_audit, labels in zip(plan.audit, budget, strict=False)):
        raise UserError(
            f"audit={list(plan.audit)} must be less than the labels of each round, {list(budget)}: the "
            "others are trained on"
        )
    if not components.selects_pixels and sum(budget) > len(components.pool):
        raise UserError(
            f"the budget of {pluralise(sum(budget), 'label')} exceeds the pool of "
            f"{pluralise(len(components.pool), 'image')}"
        )


def check_cuda_graphs(cuda_graphs: bool | None, objective: ObjectiveSpec) -> None:
    """Raise UserError if CUDA graphs are requested for code that they would change."""
    if cuda_graphs and not objective.cuda_graph_safe:
        raise UserError(
            "engine.cuda_graphs=true does not work with this objective, which uses random numbers in each "
            "step: remove the setting"
        )


def check_plan(plan: RunPlan) -> Iterator[Finding]:
    """Check the settings of a plan by themselves."""
    if plan.query_epochs and list(plan.query_epochs) != sorted({*plan.query_epochs}):
        yield Finding("error", f"query_epochs must be strictly increasing, not {list(plan.query_epochs)}")
    if plan.query_epochs and not 0 <= plan.query_epochs[0] <= plan.query_epochs[-1] < plan.epochs:
        yield Finding(
            "error",
            f"query_epochs must be at least 0 and less than epochs={plan.epochs}, "
            f"not {list(plan.query_epochs)}",
        )


def check_source(components: Components, plan: RunPlan) -> Iterator[Finding]:
    """Check that there is something to learn from before the first epoch, if there is no source."""
    if len(components.source):
        return
    if components.source.per_pixel:
        yield Finding("error", "segmentation needs labelled source images; give some")
    elif not plan.query_epochs:
        yield Finding(
            "error",
            "without source images and without rounds of labels there is nothing to learn from; give "
            "labelled images with --source, or let the run ask for labels",
        )
    elif plan.query_epochs[0] != 0:
        yield Finding(
            "error",
            "without source images there is nothing to train on before the first round, which is after "
            f"epoch {plan.query_epochs[0]}; let acquisition.after_epochs start with 0",
        )


def check_labels(components: Components) -> Iterator[Finding]:
    """Check that the test set and the ground truth fit source and pool."""
    source, pool, test, oracle = components.source, components.pool, components.test, components.oracle
    if test is not None and tuple(test.classes[: len(source.classes)]) != tuple(source.classes):
        yield Finding(
            "error", "source and test must have the same classes in the same order; the test may have more"
        )
    if components.evaluated_on != "held_out" and (test is None or test.images is not pool):
        yield Finding(
            "error", f"evaluated_on={components.evaluated_on!r} needs a test set whose images are the pool's"
        )
    if isinstance(oracle, GroundTruthOracle) and len(oracle) != len(pool):
        yield Finding("error", f"the ground truth has {len(oracle)} labels for a pool of {len(pool)} images")


def check_label_maps(components: Components) -> Iterator[Finding]:
    """Check that test set and ground truth are label maps of the right resolution."""
    oracle, resolution = components.oracle, components.task.resolution
    if components.test is not None and not components.test.per_pixel:
        yield Finding(
            "error", "the source has label maps, but the test has per-image labels: give maps for both"
        )
    if isinstance(oracle, GroundTruthOracle) and oracle.resolution != resolution:
        yield Finding(
            "error",
            f"pixels are labelled at the {resolution} resolution, but the ground truth has the "
            f"{oracle.resolution} resolution: use GroundTruthOracle(labels, {resolution!r})",
        )


def check_views(
    views: StreamViews, stored: Mapping[TaskRole, StoredImages], *, needs_strong: bool
) -> Iterator[Finding]:
    """Check that views fit the stored images.

    Args:
        stored: by role (source, target, test); views of other roles are not checked.
        needs_strong: whether the objective uses the strong view.
    """
    for name, role in VIEW_ROLES.items():
        if role not in stored or (name == "strong" and not needs_strong):
            continue
        named = {"strong": views.strong_or_default, "labelled": views.labelled_or_source}
        view: View = named.get(name) or getattr(views, name)
        channels, height, width, has_aspect, has_bilinear = stored[role]
        if view.randaugment is not None and channels not in (1, 3):
            yield Finding(
                "error",
                f"views.{name}.randaugment needs images with 1 or 3 channels, not {channels}: "
                f"set views.{name}.randaugment=null",
            )
        if view.resize == "short_side" and not has_aspect:
            yield Finding(
                "error",
                f"views.{name}.resize=short_side needs images from files, whose original shape is known: "
                f"set views.{name}.resize=squash",
            )
        if view.interpolation == "bilinear" and not has_bilinear:
            yield Finding(
                "error",
                f"views.{name}.interpolation=bilinear needs images from files: "
                f"set views.{name}.interpolation=bicubic",
            )
        pad = view.pad if view.crop == "random" else 0
        crop_height, crop_width = view.output_size(height, width)
        if view.crop in ("center", "random") and (
            crop_height > height + 2 * pad or crop_width > width + 2 * pad
        ):
            padding = f" with {pad} pixels of padding" if pad else ""
            yield Finding(
                "error",
                f"views.{name} takes a {view.crop} crop of {crop_width} x {crop_height} pixels from images "
                f"stored as {width} x {height}{padding}: lower views.{name}.size or raise data.params.size",
            )


def check_segmentation(
    task: TaskOptions, evaluation: EvaluationOptions, views: StreamViews, classes: Sequence[str]
) -> Iterator[Finding]:
    """Check the settings of a segmentation run. No classes means that they are unknown."""
    unknown = [name for name in evaluation.miou_star_exclude if name not in classes]
    if classes and unknown:
        class_names = ", ".join(classes)
        yield Finding(
            "error", f"evaluation.miou_star_exclude names {unknown[0]!r}, but the classes are {class_names}"
        )
    elif classes and set(evaluation.miou_star_exclude) >= set(classes):
        yield Finding(
            "error", "evaluation.miou_star_exclude names every class: leave at least one for the mean"
        )
    for name in ("source", "labelled", "unlabelled", "scoring", "test"):
        view: View = views.labelled_or_source if name == "labelled" else getattr(views, name)
        if view.randaugment is not None:
            yield Finding(
                "error",
                f"views.{name}.randaugment rotates and shears images but not their label maps: "
                f"set views.{name}.randaugment=null",
            )
        if name in ("scoring", "test") and (view.crop != "none" or view.size is not None or view.is_random):
            yield Finding(
                "error",
                f"views.{name} must show whole images in segmentation, unchanged: set views.{name}.crop=none "
                f"and views.{name}.size=null, and flip, cutout and jitter to 0 (for flip averaging, set "
                "evaluation.average_flipped)",
            )
    if task.resolved_unit == "superpixel":
        import_slic()
