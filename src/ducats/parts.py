"""Run components, their validation, and the run's identity."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from ducats.budget import PeopleTime, Rounding, split_pixels
from ducats.data.evaluation_split import EvaluatedOn
from ducats.data.views import View, apply_view, sample_view_params
from ducats.domain import Domain, Images, Labels
from ducats.errors import UserError
from ducats.models import EvidentialModel, find_head_weights
from ducats.objectives import ObjectiveFn, ObjectiveSpec, as_objective_spec, duc
from ducats.oracles import Oracle, Truth
from ducats.queries import QUERIES, QueryFn, QuerySpec
from ducats.randomness import fork
from ducats.samples import Output
from ducats.training import placement
from ducats.training.fit import Optimisation
from ducats.training.schedules import LRSchedule, inverse_decay
from ducats.training.step import TARGET_BATCHING
from ducats.training.streams import BATCHING, StreamViews
from ducats.training.task import TaskOptions, label_grid_sizes


@dataclass(frozen=True)
class Parts:
    """Components of a run. The pool has no labels; only the oracle has access to them."""

    model: nn.Module  # maps images to logits or to (logits, features), or is an Evidential
    source: Domain
    pool: Images
    oracle: Oracle
    query: QueryFn | QuerySpec = QUERIES["duc"]
    objective: ObjectiveFn | ObjectiveSpec = duc
    test: Domain | None = None  # used for evaluation only
    measured_on: EvaluatedOn = "held_out"  # unless "held_out", test.images must be the pool
    views: StreamViews = field(default_factory=StreamViews)
    task: TaskOptions = field(default_factory=TaskOptions)  # segmentation settings

    @property
    def training(self) -> ObjectiveSpec:
        """The objective with its auxiliary modules."""
        return as_objective_spec(self.objective)

    @property
    def buys_pixels(self) -> bool:
        """Whether pixels are selected within each image, rather than images from the pool."""
        return self.source.of_pixels and not self.task.labels_whole_images


@dataclass(frozen=True)
class Plan:
    """Schedule, budget and training settings of a run."""

    epochs: int = 50
    ask_after: Sequence[int] = (10, 12, 14, 16, 18)  # acquire labels after these epochs
    budget: Sequence[int] = ()  # labels per round; derived from `pixels` if pixels are selected
    pixels: int | str | None = None  # pixel budget, see `budget.split_pixels`
    rounding: Rounding = "nearest_total"
    time: PeopleTime | None = None  # total annotation time, instead of `budget` and `pixels`
    batch_size: int = 32  # per stream
    steps_per_epoch: int | None = None
    labelled_batches: str = "even"  # or "short_last", as published
    together: str = "separate"  # or "joint", "joint_if_few": labelled and unlabelled images in one batch
    source_sampling: str = "shuffled"  # or "rare_classes"
    optimisation: Optimisation = field(default_factory=Optimisation)
    schedule: LRSchedule = inverse_decay
    source_weight: Mapping[int, float] = field(default_factory=lambda: {0: 1.0})  # by first epoch
    measure_every: int | None = None  # epochs between extra evaluations
    scoring_batch: int = 256
    snapshot: int = 3000  # pool samples per snapshot; 0: no snapshots
    seed: int = 0


def check(parts: Parts, plan: Plan) -> None:
    """Raise UserError if components and plan are inconsistent; nothing is written or trained before."""
    check_budget(parts, plan)
    if plan.snapshot < 0:
        raise UserError(f"snapshot must be a number of samples, or 0 for no snapshots, not {plan.snapshot}")
    if plan.ask_after and not list(plan.ask_after) == sorted({*plan.ask_after}):
        raise UserError(f"ask_after must be strictly increasing, not {list(plan.ask_after)}")
    if plan.ask_after and not 0 <= plan.ask_after[0] <= plan.ask_after[-1] < plan.epochs:
        raise UserError(
            f"ask_after must be at least 0 and less than epochs={plan.epochs}, not {list(plan.ask_after)}"
        )
    if plan.labelled_batches not in BATCHING:
        raise UserError(
            f"labelled_batches must be one of {', '.join(BATCHING)}, not {plan.labelled_batches!r}"
        )
    if plan.together not in TARGET_BATCHING:
        raise UserError(f"together must be one of {', '.join(TARGET_BATCHING)}, not {plan.together!r}")
    if plan.source_sampling not in SAMPLINGS:
        raise UserError(f"source_sampling must be {' or '.join(SAMPLINGS)}, not {plan.source_sampling!r}")
    if parts.test is not None and tuple(parts.test.classes) != tuple(parts.source.classes):
        raise UserError("source and test must have the same classes in the same order")
    if parts.measured_on != "held_out" and (parts.test is None or parts.test.images is not parts.pool):
        raise UserError(f"measured_on={parts.measured_on!r} needs a test set whose images are the pool's")
    if isinstance(parts.oracle, Truth) and len(parts.oracle) != len(parts.pool):
        raise UserError(
            f"the ground truth has {len(parts.oracle)} labels for a pool of {len(parts.pool)} images"
        )
    check_views(parts)
    check_maps(parts)


SAMPLINGS = ("shuffled", "rare_classes")


def check_budget(parts: Parts, plan: Plan) -> None:
    """Raise UserError if the budget is inconsistent or exceeds the pool."""
    if plan.time is not None:
        if plan.budget or plan.pixels is not None:
            raise UserError("a plan has either a time budget or a label or pixel budget: drop one of them")
        return
    budget: Sequence[int] = plan.budget
    if parts.buys_pixels and plan.ask_after:
        if plan.pixels is None:
            raise UserError('the task labels pixels: set how many per image, for example Plan(pixels="5%")')
        each = split_pixels(plan.pixels, pixels_of(parts).tolist(), len(plan.ask_after), plan.rounding)
        budget = [sum(of_round) for of_round in zip(*each, strict=True)]
        if plan.budget and list(plan.budget) != budget:
            raise UserError(
                f"pixels={plan.pixels!r} gives {budget} labels per round, but budget is {list(plan.budget)}: "
                "drop budget"
            )
    if len(budget) != len(plan.ask_after):
        raise UserError(f"{len(plan.ask_after)} rounds but {len(budget)} budgets: give one budget per round")
    if any(labels < 1 for labels in budget):
        raise UserError(
            f"each round needs at least one label, not {list(budget)}: raise the budget or use fewer rounds"
        )
    if not parts.buys_pixels and sum(budget) > len(parts.pool):
        raise UserError(f"the budget of {sum(budget)} labels exceeds the pool of {len(parts.pool)} images")


def pixels_of(parts: Parts) -> Tensor:
    """Return the number of pixels per image at the resolution that is labelled: int64 ``(N,)``."""
    return label_grid_sizes(parts.pool, parts.task.resolution).prod(1)


def check_maps(parts: Parts) -> None:
    """Raise UserError for inconsistent segmentation settings."""
    if not parts.source.of_pixels:
        return
    classes = parts.source.classes
    unknown = [name for name in parts.task.miou_star_exclude if name not in classes]
    if unknown:
        known = ", ".join(classes)
        raise UserError(f"evaluation.miou_star_exclude names {unknown[0]!r}, but the classes are {known}")
    if set(parts.task.miou_star_exclude) >= set(classes):
        raise UserError("evaluation.miou_star_exclude names every class: leave at least one for the mean")
    if parts.test is not None and not parts.test.of_pixels:
        raise UserError("the source has label maps, but the test has per-image labels: give maps for both")
    if isinstance(parts.oracle, Truth) and parts.oracle.resolution != parts.task.resolution:
        raise UserError(
            f"pixels are labelled at the {parts.task.resolution} resolution, but the ground truth has the "
            f"{parts.oracle.resolution} resolution: use Truth(labels, {parts.task.resolution!r})"
        )
    for name in ("source", "labelled", "unlabelled", "scoring", "test"):
        if getattr(parts.views, name).randaugment is not None:
            raise UserError(
                f"views.{name}.randaugment rotates and shears images but not their label maps: "
                f"set views.{name}.randaugment=null"
            )
    for name in ("scoring", "test"):
        view: View = getattr(parts.views, name)
        if view.crop != "none" or view.size is not None or view.flip:
            raise UserError(
                f"views.{name} must use whole images in segmentation: set views.{name}.crop=none and "
                f"views.{name}.size=null (for flip averaging, set evaluation.average_flipped)"
            )


def check_views(parts: Parts) -> None:
    """Raise UserError for a view that does not fit the stored images."""
    strong = ["strong_or_default"] if parts.training.needs_strong_view() else []
    for name, images in (
        ("source", parts.source.images),
        *((use, parts.pool) for use in ("labelled", "unlabelled", "scoring", *strong)),
        *([("test", parts.test.images)] if parts.test is not None else []),
    ):
        view: View = getattr(parts.views, name)
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
def settle(parts: Parts, model: EvidentialModel) -> tuple[QuerySpec, int]:
    """Run the model on one image and check that it fits the classes and the query.

    Returns:
        The query with its columns, and the number of features, 0 if the model returns none.
    """
    model.eval()
    pixels, view = parts.pool.pixels[:1], parts.views.scoring
    aspect = None if parts.pool.aspect is None else parts.pool.aspect[:1]
    height, width = pixels.shape[-2:]
    shown = apply_view(
        pixels, view, sample_view_params(view, 1, height, width, fork(0, "first look"), aspect)
    )
    try:
        output: Output = model(shown)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        size = tuple(shown.shape[1:])
        raise UserError(f"the model fails on images of {size}: {type(error).__name__}: {error}") from error
    classes = len(parts.source.classes)
    if output.z.shape[1] != classes:
        raise UserError(f"the model outputs {output.z.shape[1]} classes, but the source has {classes}")
    if (output.size is not None) != parts.source.of_pixels:
        had, wanted = ("pixel", "image") if output.size is not None else ("image", "pixel")
        fitting = "deeplab_v2 or deeplab_v3plus" if wanted == "pixel" else "timm"
        raise UserError(
            f"the model outputs per-{had} logits, but the data has per-{wanted} labels: choose another "
            f"model, such as model.name={fitting}"
        )
    width = 0 if output.features is None else int(output.features.shape[1])
    if not isinstance(parts.query, QuerySpec):
        # A plain function does not declare its columns: it gets all that the model has.
        return QuerySpec(parts.query, ("z",) if output.features is None else ("z", "features")), width
    if "features" in parts.query.needs and output.features is None:
        raise UserError("the query needs features, but the model returns none: return (logits, features)")
    if parts.query.needs_head and (
        output.features is None or find_head_weights(model.network, classes, output.features.shape[1]) is None
    ):
        raise UserError(
            "the query needs the weights of the last layer, but the model's last layer is not linear: choose "
            "another query, or a model whose logits come from one linear layer"
        )
    if parts.query.per_pixel and not parts.source.of_pixels:
        raise UserError(
            "the query needs per-pixel outputs, but the data has per-image labels: choose another query"
        )
    if "impurity" in parts.query.needs and parts.task.unit.name == "pixel":
        raise UserError(
            "the query needs units of several pixels: use Task(unit=Unit('region')) or another query"
        )
    return parts.query, width


SEEN = 64  # most label maps in a digest; hashing all maps of a large set would take minutes


def near_at_hand(parts: Parts, device: torch.device, where: placement.Placement) -> Parts:
    """Return the components with images and label maps placed on the fastest storage that fits them."""
    test = parts.test
    sets = [parts.source.images, parts.pool, *([] if test is None else [test.images])]
    source, pool, *rest = placement.place_images(sets, device, where)
    labels = placement.place_label_maps(parts.source.labels, device, where)
    return replace(
        parts,
        source=replace(parts.source, images=source, labels=labels),
        pool=pool,
        test=None if test is None else replace(test, images=rest[0]),
    )


def digest(keys: Sequence[str], labels: Labels | None = None) -> str:
    """Return a short digest of keys and labels; from many label maps, only some are hashed."""
    if labels is None or labels.ndim == 1:
        text = "\n".join([*keys, *([] if labels is None else map(str, labels[:].tolist()))])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    found = hashlib.blake2b("\n".join(keys).encode(), digest_size=8)
    for place in range(0, len(labels), -(-len(labels) // SEEN)):
        found.update(labels[place].cpu().numpy().tobytes())
    return found.hexdigest()


def describe_data(parts: Parts) -> dict[str, Any]:
    """Summarise the data; on resume, the summary reveals a changed pool, source or test set."""
    test = parts.test
    return {
        "classes": list(parts.source.classes),
        "channels": int(parts.source.images.pixels.shape[1]),
        "size": list(parts.pool.pixels.shape[-2:])
        if parts.source.of_pixels
        else int(parts.source.images.pixels.shape[-1]),
        "source": {
            "images": len(parts.source),
            "keys": digest(parts.source.images.keys, parts.source.labels),
        },
        "pool": {"images": len(parts.pool), "keys": digest(parts.pool.keys)},
        "test": None
        if test is None
        else {"images": len(test), "keys": digest(test.images.keys, test.labels)},
    }


def describe(parts: Parts, plan: Plan) -> dict[str, Any]:
    """Return the identity of a run made from Python: plan, query, objective, views and model shape."""
    query = parts.query.fn if isinstance(parts.query, QuerySpec) else parts.query
    evidence = parts.model.evidence if isinstance(parts.model, EvidentialModel) else "exp"
    network = parts.model.network if isinstance(parts.model, EvidentialModel) else parts.model
    return {
        "plan": _plan(plan),
        "query": plain(query),
        "objective": plain(parts.training),
        "views": plain(asdict(parts.views)),
        "measured_on": parts.measured_on,
        **({"task": plain(asdict(parts.task))} if parts.source.of_pixels else {}),
        "model": {
            "evidence": evidence,
            "parameters": plain({n: p.shape for n, p in network.named_parameters()}),
        },
    }


# Plan fields added later, with the value that keeps the earlier behaviour: older runs can still be resumed.
LATER: Mapping[str, Any] = {"time": None, "target_batching": "separate"}


BESIDES = ("snapshot",)  # fields that do not affect training, selection or evaluation


def _plan(plan: Plan) -> dict[str, Any]:
    names = [name for name in plan.__dataclass_fields__ if name not in BESIDES]
    known = {name: plain(getattr(plan, name)) for name in names}
    return {name: value for name, value in known.items() if name not in LATER or value != LATER[name]}


def plain(value: Any) -> Any:
    """Convert a value to YAML types; a function becomes its module and name, with its bound parameters."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, Optimisation | PeopleTime):
        return plain(asdict(value))
    if isinstance(value, ObjectiveSpec):
        loss = plain(value.fn)
        more = {"params": value.params, "companion": value.auxiliary}
        return (
            {"objective": loss, **plain({k: v for k, v in more.items() if v})} if any(more.values()) else loss
        )
    if isinstance(value, partial):
        return {"function": plain(value.func), "params": plain(value.keywords), "given": plain(value.args)}
    if callable(value):
        module = getattr(value, "__module__", "")
        name = getattr(value, "__qualname__", type(value).__qualname__)
        code = getattr(value, "__code__", None)
        # Lambdas share a name, and scripts change between calls: a digest of the code distinguishes them.
        if isinstance(code, CodeType) and ("<" in name or module == "__main__"):
            return f"{module}.{name}#{_digest_of(code)}"
        return f"{module}.{name}"
    if isinstance(value, Sequence | range | torch.Size):
        return [plain(inner) for inner in value]
    return plain(value.tolist()) if hasattr(value, "tolist") else repr(value)


def _digest_of(code: CodeType) -> str:
    """Return a short digest of a function's code, the same in every process."""
    inner = [_digest_of(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    text = "\n".join([code.co_code.hex(), *code.co_names, *inner])
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
