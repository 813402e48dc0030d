"""Run components, their validation, and the run's identity."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from ducats.acquisition.budget import Rounding, TimeBudget, split_pixels
from ducats.acquisition.queries import QUERIES, QueryFn, QuerySpec, as_query_spec
from ducats.annotation.oracles import GroundTruthOracle, Oracle
from ducats.data.domain import Domain, Images, Labels
from ducats.data.evaluation_split import EvaluatedOn
from ducats.data.views import View, apply_view, sample_view_params
from ducats.models import EvidentialModel, find_head_weights, model_names
from ducats.models.output import Output
from ducats.objectives import ObjectiveFn, ObjectiveSpec, as_objective_spec, duc
from ducats.training import placement
from ducats.training.fit import Optimisation
from ducats.training.schedules import LRSchedule, inverse_decay
from ducats.training.step import TARGET_BATCHING
from ducats.training.streams import BATCHING, StreamViews
from ducats.training.task import TaskOptions, label_grid_sizes
from ducats.utils.errors import UserError
from ducats.utils.randomness import make_generator


@dataclass(frozen=True)
class Components:
    """Components of a run. The pool has no labels; only the oracle has access to them."""

    model: nn.Module  # maps images to logits or to (logits, features), or is an EvidentialModel
    source: Domain
    pool: Images
    oracle: Oracle
    query: QueryFn | QuerySpec = QUERIES["duc"]
    objective: ObjectiveFn | ObjectiveSpec = duc
    test: Domain | None = None  # used for evaluation only
    evaluated_on: EvaluatedOn = "held_out"  # unless "held_out", test.images must be the pool
    views: StreamViews = field(default_factory=StreamViews)
    task: TaskOptions = field(default_factory=TaskOptions)  # segmentation settings

    @property
    def objective_spec(self) -> ObjectiveSpec:
        """The objective with its auxiliary modules."""
        return as_objective_spec(self.objective)

    @property
    def selects_pixels(self) -> bool:
        """Whether pixels are selected within each image, rather than images from the pool."""
        return self.source.per_pixel and not self.task.labels_whole_images


@dataclass(frozen=True)
class RunPlan:
    """Schedule, budget and training settings of a run."""

    epochs: int = 50
    query_epochs: Sequence[int] = (10, 12, 14, 16, 18)  # acquire labels after these epochs
    budget: Sequence[int] = ()  # labels per round; derived from `pixel_budget` if pixels are selected
    pixel_budget: int | str | None = None  # see `budget.split_pixels`
    rounding: Rounding = "nearest_total"
    time_budget: TimeBudget | None = None  # instead of `budget` and `pixel_budget`
    batch_size: int = 32  # per stream
    steps_per_epoch: int | None = None
    labelled_batches: str = "even"  # or "short_last", as published
    target_batching: str = "separate"  # or "joint", "joint_if_few": labelled with unlabelled images
    source_sampling: str = "shuffled"  # or "rare_classes"
    optimisation: Optimisation = field(default_factory=Optimisation)
    schedule: LRSchedule = inverse_decay
    source_weight: Mapping[int, float] = field(default_factory=lambda: {0: 1.0})  # by first epoch
    evaluate_every: int | None = None  # epochs between extra evaluations
    scoring_batch_size: int = 256
    snapshot_samples: int = 3000  # pool samples per snapshot; 0: no snapshots
    seed: int = 0


def check_run(components: Components, plan: RunPlan) -> None:
    """Raise UserError if components and plan are inconsistent, before anything is written or trained."""
    check_budget(components, plan)
    if plan.snapshot_samples < 0:
        raise UserError(
            "snapshot_samples must be a number of samples, or 0 for no snapshots, "
            f"not {plan.snapshot_samples}"
        )
    if plan.query_epochs and not list(plan.query_epochs) == sorted({*plan.query_epochs}):
        raise UserError(f"query_epochs must be strictly increasing, not {list(plan.query_epochs)}")
    if plan.query_epochs and not 0 <= plan.query_epochs[0] <= plan.query_epochs[-1] < plan.epochs:
        raise UserError(
            f"query_epochs must be at least 0 and less than epochs={plan.epochs}, "
            f"not {list(plan.query_epochs)}"
        )
    if plan.labelled_batches not in BATCHING:
        raise UserError(
            f"labelled_batches must be one of {', '.join(BATCHING)}, not {plan.labelled_batches!r}"
        )
    if plan.target_batching not in TARGET_BATCHING:
        raise UserError(
            f"target_batching must be one of {', '.join(TARGET_BATCHING)}, not {plan.target_batching!r}"
        )
    if plan.source_sampling not in SOURCE_SAMPLINGS:
        raise UserError(
            f"source_sampling must be {' or '.join(SOURCE_SAMPLINGS)}, not {plan.source_sampling!r}"
        )
    if components.test is not None and tuple(components.test.classes) != tuple(components.source.classes):
        raise UserError("source and test must have the same classes in the same order")
    if components.evaluated_on != "held_out" and (
        components.test is None or components.test.images is not components.pool
    ):
        raise UserError(
            f"evaluated_on={components.evaluated_on!r} needs a test set whose images are the pool's"
        )
    if isinstance(components.oracle, GroundTruthOracle) and len(components.oracle) != len(components.pool):
        raise UserError(
            f"the ground truth has {len(components.oracle)} labels for a pool of {len(components.pool)} "
            "images"
        )
    check_views(components)
    check_segmentation(components)


SOURCE_SAMPLINGS = ("shuffled", "rare_classes")


def check_budget(components: Components, plan: RunPlan) -> None:
    """Raise UserError if the budget is inconsistent or exceeds the pool."""
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
    if not components.selects_pixels and sum(budget) > len(components.pool):
        raise UserError(
            f"the budget of {sum(budget)} labels exceeds the pool of {len(components.pool)} images"
        )


def pixels_per_image(components: Components) -> Tensor:
    """Return the number of pixels per image at the resolution that is labelled: int64 ``(N,)``."""
    return label_grid_sizes(components.pool, components.task.resolution).prod(1)


def check_segmentation(components: Components) -> None:
    """Raise UserError for inconsistent segmentation settings."""
    if not components.source.per_pixel:
        return
    classes = components.source.classes
    unknown = [name for name in components.task.miou_star_exclude if name not in classes]
    if unknown:
        class_names = ", ".join(classes)
        raise UserError(
            f"evaluation.miou_star_exclude names {unknown[0]!r}, but the classes are {class_names}"
        )
    if set(components.task.miou_star_exclude) >= set(classes):
        raise UserError("evaluation.miou_star_exclude names every class: leave at least one for the mean")
    if components.test is not None and not components.test.per_pixel:
        raise UserError("the source has label maps, but the test has per-image labels: give maps for both")
    if (
        isinstance(components.oracle, GroundTruthOracle)
        and components.oracle.resolution != components.task.resolution
    ):
        raise UserError(
            f"pixels are labelled at the {components.task.resolution} resolution, but the ground truth has "
            f"the {components.oracle.resolution} resolution: use GroundTruthOracle(labels, "
            f"{components.task.resolution!r})"
        )
    for name in ("source", "labelled", "unlabelled", "scoring", "test"):
        if getattr(components.views, name).randaugment is not None:
            raise UserError(
                f"views.{name}.randaugment rotates and shears images but not their label maps: "
                f"set views.{name}.randaugment=null"
            )
    for name in ("scoring", "test"):
        view: View = getattr(components.views, name)
        if view.crop != "none" or view.size is not None or view.flip:
            raise UserError(
                f"views.{name} must use whole images in segmentation: set views.{name}.crop=none and "
                f"views.{name}.size=null (for flip averaging, set evaluation.average_flipped)"
            )


def check_views(components: Components) -> None:
    """Raise UserError for a view that does not fit the stored images."""
    strong = ["strong_or_default"] if components.objective_spec.needs_strong_view() else []
    for name, images in (
        ("source", components.source.images),
        *((use, components.pool) for use in ("labelled", "unlabelled", "scoring", *strong)),
        *([("test", components.test.images)] if components.test is not None else []),
    ):
        view: View = getattr(components.views, name)
        name = "strong" if name == "strong_or_default" else name
        channels = images.pixels.shape[1]
        if view.randaugment is not None and channels not in (1, 3):
            raise UserError(
                f"views.{name}.randaugment needs images with 1 or 3 channels, not {channels}: "
                f"set views.{name}.randaugment=null"
            )
        if view.resize == "short_side" and images.aspect is None:
            raise UserError(
                f"views.{name}.resize=short_side needs images from files, whose original shape is known: "
                f"set views.{name}.resize=squash"
            )
        stored = images.pixels.shape[-2:]
        for side, size in zip(stored, view.output_size(*stored), strict=True):
            side = side + 2 * view.pad * (view.crop == "random")
            if view.crop in ("center", "random") and size > side:
                raise UserError(
                    f"views.{name} crops {size} pixels from images of {side}: lower views.{name}.size "
                    "or raise data.params.size"
                )


@torch.inference_mode()
def probe_model(components: Components, model: EvidentialModel) -> tuple[QuerySpec, int]:
    """Run the model on one image and check that it fits the classes and the query.

    Returns:
        The query with its columns, and the number of features, 0 if the model returns none.
    """
    model.eval()
    pixels, view = components.pool.pixels[:1], components.views.scoring
    aspect = None if components.pool.aspect is None else components.pool.aspect[:1]
    height, width = pixels.shape[-2:]
    aug_params = sample_view_params(view, 1, height, width, make_generator(0, "first look"), aspect)
    augmented = apply_view(pixels, view, aug_params)
    try:
        output: Output = model(augmented)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        size = tuple(augmented.shape[1:])
        raise UserError(f"the model fails on images of {size}: {type(error).__name__}: {error}") from error
    classes = len(components.source.classes)
    if output.z.shape[1] != classes:
        raise UserError(f"the model outputs {output.z.shape[1]} classes, but the source has {classes}")
    if (output.size is not None) != components.source.per_pixel:
        model_kind, data_kind = ("pixel", "image") if output.size is not None else ("image", "pixel")
        suggestion = model_names(per_pixel=data_kind == "pixel")
        raise UserError(
            f"the model outputs per-{model_kind} logits, but the data has per-{data_kind} labels: choose "
            f"another model, such as model.name={suggestion}"
        )
    n_features = 0 if output.features is None else int(output.features.shape[1])
    query = as_query_spec(components.query).for_model(has_features=output.features is not None)
    if "features" in query.needs and output.features is None:
        raise UserError("the query needs features, but the model returns none: return (logits, features)")
    if query.needs_head and (
        output.features is None or find_head_weights(model.network, classes, output.features.shape[1]) is None
    ):
        raise UserError(
            "the query needs the weights of the last layer, but the model's last layer is not linear: choose "
            "another query, or a model whose logits come from one linear layer"
        )
    if query.per_pixel and not components.source.per_pixel:
        raise UserError(
            "the query needs per-pixel outputs, but the data has per-image labels: choose another query"
        )
    if "impurity" in query.needs and components.task.unit.name == "pixel":
        raise UserError(
            "the query needs units of several pixels: use TaskOptions(unit=Unit('region')) or another query"
        )
    return query, n_features


MAX_DIGEST_MAPS = 64  # most label maps in a digest; hashing all maps of a large set would take minutes


def place_data(
    components: Components, device: torch.device, image_placement: placement.Placement
) -> Components:
    """Return the components with images and label maps placed on the fastest storage that fits them."""
    test = components.test
    image_sets = [components.source.images, components.pool, *([] if test is None else [test.images])]
    source, pool, *rest = placement.place_images(image_sets, device, image_placement)
    labels = placement.place_label_maps(components.source.labels, device, image_placement)
    return replace(
        components,
        source=replace(components.source, images=source, labels=labels),
        pool=pool,
        test=None if test is None else replace(test, images=rest[0]),
    )


def data_digest(keys: Sequence[str], labels: Labels | None = None) -> str:
    """Return a short digest of keys and labels; from many label maps, only some are hashed."""
    if labels is None or labels.ndim == 1:
        text = "\n".join([*keys, *([] if labels is None else map(str, labels[:].tolist()))])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    digest = hashlib.blake2b("\n".join(keys).encode(), digest_size=8)
    for index in range(0, len(labels), -(-len(labels) // MAX_DIGEST_MAPS)):
        digest.update(labels[index].cpu().numpy().tobytes())
    return digest.hexdigest()


def summarise_data(components: Components) -> dict[str, Any]:
    """Summarise the data; on resume, the summary reveals a changed pool, source or test set."""
    test = components.test
    return {
        "classes": list(components.source.classes),
        "channels": int(components.source.images.pixels.shape[1]),
        "size": list(components.pool.pixels.shape[-2:])
        if components.source.per_pixel
        else int(components.source.images.pixels.shape[-1]),
        "source": {
            "images": len(components.source),
            "digest": data_digest(components.source.images.keys, components.source.labels),
        },
        "pool": {"images": len(components.pool), "digest": data_digest(components.pool.keys)},
        "test": None
        if test is None
        else {"images": len(test), "digest": data_digest(test.images.keys, test.labels)},
    }


def run_identity(components: Components, plan: RunPlan) -> dict[str, Any]:
    """Return the identity of a run made from Python: plan, query, objective, views and model shape."""
    query = components.query.fn if isinstance(components.query, QuerySpec) else components.query
    evidence = components.model.evidence if isinstance(components.model, EvidentialModel) else "exp"
    network = components.model.network if isinstance(components.model, EvidentialModel) else components.model
    return {
        "plan": _plan_identity(plan),
        "query": to_plain(query),
        "objective": to_plain(components.objective_spec),
        "views": to_plain(asdict(components.views)),
        "evaluated_on": components.evaluated_on,
        **({"task": to_plain(asdict(components.task))} if components.source.per_pixel else {}),
        "model": {
            "evidence": evidence,
            "parameters": to_plain({n: p.shape for n, p in network.named_parameters()}),
        },
    }


# RunPlan fields added later, with the value of the earlier behaviour, which is not part of the identity.
IDENTITY_DEFAULTS: Mapping[str, Any] = {"time_budget": None, "target_batching": "separate"}
NOT_IN_IDENTITY = ("snapshot_samples",)  # fields that do not affect training, selection or evaluation


def _plan_identity(plan: RunPlan) -> dict[str, Any]:
    names = [name for name in plan.__dataclass_fields__ if name not in NOT_IN_IDENTITY]
    values = {name: to_plain(getattr(plan, name)) for name in names}
    return {
        name: value
        for name, value in values.items()
        if name not in IDENTITY_DEFAULTS or value != IDENTITY_DEFAULTS[name]
    }


def to_plain(value: Any) -> Any:
    """Convert a value to YAML types; a function becomes its module and name, with its bound parameters."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_plain(inner) for key, inner in value.items()}
    if isinstance(value, Optimisation | TimeBudget):
        return to_plain(asdict(value))
    if isinstance(value, ObjectiveSpec):
        loss = to_plain(value.fn)
        extras = {"params": value.params, "auxiliary": value.auxiliary}
        return (
            {"objective": loss, **to_plain({k: v for k, v in extras.items() if v})}
            if any(extras.values())
            else loss
        )
    if isinstance(value, partial):
        return {
            "function": to_plain(value.func),
            "params": to_plain(value.keywords),
            "args": to_plain(value.args),
        }
    if callable(value):
        module = getattr(value, "__module__", "")
        name = getattr(value, "__qualname__", type(value).__qualname__)
        code = getattr(value, "__code__", None)
        # Lambdas share a name, and scripts change between calls: a digest of the code distinguishes them.
        if isinstance(code, CodeType) and ("<" in name or module == "__main__"):
            return f"{module}.{name}#{_code_digest(code)}"
        return f"{module}.{name}"
    if isinstance(value, Sequence | range | torch.Size):
        return [to_plain(inner) for inner in value]
    return to_plain(value.tolist()) if hasattr(value, "tolist") else repr(value)


def _code_digest(code: CodeType) -> str:
    """Return a short digest of a function's code, the same in every process."""
    inner = [_code_digest(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    text = "\n".join([code.co_code.hex(), *code.co_names, *inner])
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
