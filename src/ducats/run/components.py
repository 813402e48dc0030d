"""Run components, a first forward pass through them, and the run's identity."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from types import CodeType
from typing import Any

import torch
from pydantic.dataclasses import dataclass as validated_dataclass
from torch import Tensor, nn

from ducats.acquisition.budget import TimeBudget
from ducats.acquisition.queries import QueryFn, QuerySpec, as_query_spec
from ducats.acquisition.stop_rule import StopRule
from ducats.annotation.oracles import Oracle
from ducats.data.domain import Domain, Images, Labels, UnreadableFile
from ducats.data.evaluation_split import EvaluatedOn
from ducats.ledger import InitialLabels
from ducats.models import EvidentialModel, find_head_weights, model_names
from ducats.models.freezing import embedding_network
from ducats.models.output import Output
from ducats.objectives import ObjectiveFn, ObjectiveSpec, as_objective_spec
from ducats.settings import (
    LATER_OPTIMISATION,
    STRICT,
    EvaluationOptions,
    Optimisation,
    Placement,
    Rounding,
    ScoringOptions,
    StreamViews,
    TargetBatching,
    TaskOptions,
    TrainingOptions,
)
from ducats.training import placement
from ducats.training.inputs import model_inputs
from ducats.training.schedules import LRSchedule, inverse_decay
from ducats.training.streams import steps_in_epoch
from ducats.training.task import label_grid_sizes
from ducats.utils.errors import UserError
from ducats.utils.randomness import make_generator


@dataclass(frozen=True)
class Components:
    """Components of a run. The pool has no labels; only the oracle has access to them."""

    model: nn.Module  # maps images to logits or to (logits, features), or is an EvidentialModel
    source: Domain
    pool: Images
    oracle: Oracle
    query: QueryFn | QuerySpec | None = None  # None: that of the default method
    objective: ObjectiveFn | ObjectiveSpec | None = None  # None: that of the default method
    test: Domain | None = None  # used for evaluation only
    evaluated_on: EvaluatedOn = "held_out"  # unless "held_out", test.images must be the pool
    views: StreamViews = field(default_factory=StreamViews)
    task: TaskOptions = field(default_factory=TaskOptions)  # segmentation settings
    evaluation: EvaluationOptions = field(default_factory=EvaluationOptions)
    initial_labels: InitialLabels | None = None  # the first round, after epoch 0; the oracle is not asked

    @property
    def query_spec(self) -> QuerySpec:
        """The query with its columns."""
        assert self.query is not None, "filled in by `with_default_method`"
        return as_query_spec(self.query)

    @property
    def objective_spec(self) -> ObjectiveSpec:
        """The objective with its auxiliary modules."""
        assert self.objective is not None, "filled in by `with_default_method`"
        return as_objective_spec(self.objective)

    @property
    def selects_pixels(self) -> bool:
        """Whether pixels are selected within each image, rather than images from the pool."""
        return self.source.per_pixel and not self.task.labels_whole_images


@validated_dataclass(frozen=True, config=STRICT)
class RunPlan(ScoringOptions, TrainingOptions):
    """Schedule, budget and training settings of a run."""

    query_epochs: Sequence[int] = (10, 12, 14, 16, 18)  # acquire labels after these epochs
    budget: Sequence[int] = ()  # labels per round; derived from `pixel_budget` if pixels are selected
    audit: Sequence[int] = ()  # how many of the labels of each round are for the audit; () for none
    release_audit: bool = False  # train on the audit labels, too, after the last round
    until: StopRule | None = None  # ask for no more labels once the audit shows this
    pixel_budget: int | str | None = None  # see `budget.split_pixels`
    rounding: Rounding = "nearest_total"
    time_budget: TimeBudget | None = None  # instead of `budget` and `pixel_budget`
    optimisation: Optimisation = Optimisation()
    schedule: LRSchedule = inverse_decay
    seed: int = 0
    target_batching: TargetBatching | None = None  # type: ignore[assignment] # None: as in the default method


def steps_per_epoch(components: Components, plan: RunPlan) -> int:
    """Return the steps of an epoch: those of the plan, or as many as the data has batches."""
    model = components.model
    network = model.network if isinstance(model, EvidentialModel) else model
    head_only = components.pool.embeddings is not None or embedding_network(network) is not None
    return plan.steps_per_epoch or steps_in_epoch(
        len(components.source),
        len(components.pool),
        plan.batch_size,
        head_only=head_only,
        per_pixel=components.source.per_pixel,
    )


def pixels_per_image(components: Components) -> Tensor:
    """Return the number of pixels per image at the resolution that is labelled: int64 ``(N,)``."""
    return label_grid_sizes(components.pool, components.task.resolution).prod(1)


@torch.inference_mode()
def probe_model(components: Components, model: EvidentialModel) -> tuple[QuerySpec, int]:
    """Run the model on one image and check that it fits the classes and the query.

    Returns:
        The query with its columns, and the number of features, 0 if the model returns none.
    """
    model.eval()
    first, inputs = torch.zeros(1, dtype=torch.long), model_inputs(components.pool, components.views.scoring)
    aug_params = inputs.sample_params(first, make_generator(0, "first look"))
    augmented = inputs.apply(inputs.stored[first], aug_params)
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
    query = components.query_spec.for_model(has_features=output.features is not None)
    if "features" in query.needs and output.features is None:
        raise UserError(
            "the query needs features, but the model returns none: return (logits, features) from its "
            "forward, or choose a method that needs none, such as --method duc (in Python, "
            "Components(query=QUERIES['duc'], objective=OBJECTIVES['duc']))"
        )
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
    if "impurity" in query.needs and components.task.resolved_unit == "pixel":
        raise UserError(
            "the query needs units of several pixels: use TaskOptions(unit='region') or another query"
        )
    return query, n_features


def unreadable_files(components: Components) -> list[tuple[str, UnreadableFile]]:
    """Return the set (source, target or test) and the path of each skipped file, every file once."""
    test = [] if components.test is None else [("test", components.test.images)]
    image_sets = [("source", components.source.images), ("target", components.pool), *test]
    files = {file.path: (name, file) for name, images in reversed(image_sets) for file in images.unreadable}
    return sorted(files.values(), key=lambda found: (found[0], found[1].path))


MAX_DIGEST_MAPS = 64  # most label maps in a digest; hashing all maps of a large set would take minutes


def place_data(components: Components, device: torch.device, image_placement: Placement) -> Components:
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
    source, pool, test = components.source, components.pool, components.test

    def describe(keys: Sequence[str], labels: Labels | None = None) -> dict[str, Any]:
        return {"images": len(keys), "digest": data_digest(keys, labels)}

    return {
        "classes": list(source.classes),
        "channels": int(source.images.pixels.shape[1]),
        "size": list(pool.pixels.shape[-2:]) if source.per_pixel else int(source.images.pixels.shape[-1]),
        "source": describe(source.images.keys, source.labels),
        "pool": describe(pool.keys),
        "test": None if test is None else describe(test.images.keys, test.labels),
    }


def run_identity(components: Components, plan: RunPlan) -> dict[str, Any]:
    """Return the identity of a run made from Python: plan, query, objective, views and model shape."""
    evidence = components.model.evidence if isinstance(components.model, EvidentialModel) else "exp"
    network = components.model.network if isinstance(components.model, EvidentialModel) else components.model
    plan_settings = {
        f.name: to_plain(getattr(plan, f.name)) for f in fields(plan) if f.name not in NOT_IN_IDENTITY
    }
    # A default leaves the identity as it was before the setting existed.
    for name in ("audit", "release_audit", "until"):
        if not getattr(plan, name):
            del plan_settings[name]
    if not plan.unlabelled_includes_labelled:
        del plan_settings["unlabelled_includes_labelled"]
    for name in LATER_OPTIMISATION:
        if getattr(plan.optimisation, name) == getattr(Optimisation(), name):
            del plan_settings["optimisation"][name]
    views = asdict(components.views)
    if embedding_network(network) is None:
        del views["embedded"]
    if not components.views.uses_bilinear:
        for view in views.values():
            if isinstance(view, dict):
                del view["interpolation"]
    return {
        "plan": plan_settings,
        "query": to_plain(components.query_spec.fn),
        "objective": to_plain(components.objective_spec),
        "views": to_plain(views),
        "evaluated_on": components.evaluated_on,
        **({"task": to_plain(asdict(components.task))} if components.source.per_pixel else {}),
        "evaluation": to_plain(asdict(components.evaluation)),
        "model": {
            "evidence": evidence,
            "parameters": to_plain({n: p.shape for n, p in network.named_parameters()}),
        },
    }


NOT_IN_IDENTITY = ("snapshot_samples",)  # fields that do not affect training, selection or evaluation


def to_plain(value: Any) -> Any:
    """Convert a value to YAML types; a function becomes its module and name, with its bound parameters."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_plain(inner) for key, inner in value.items()}
    if isinstance(value, Optimisation | TimeBudget):
        return to_plain(asdict(value))
    if isinstance(value, ObjectiveSpec):
        extras = {"params": value.params, "auxiliary": value.auxiliary}
        given = {name: extra for name, extra in extras.items() if extra}
        return to_plain({"objective": value.fn, **given} if given else value.fn)
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
