"""What a run is made of, whether it can be, and who it is."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from ducats.budget import PeopleTime, Rounding, split_pixels
from ducats.data.exam import MeasuredOn
from ducats.data.views import View, draw, look
from ducats.domain import Domain, Images, Labels
from ducats.engine import resident
from ducats.engine.fit import Optimisation
from ducats.engine.schedules import Schedule, inverse_decay
from ducats.engine.step import TOGETHER
from ducats.engine.streams import CUTS, Views
from ducats.engine.task import Task, bought_sizes
from ducats.errors import UserError
from ducats.models import Evidential, head_of
from ducats.objectives import Objective, Training, as_training, duc
from ducats.oracles import Oracle, Truth
from ducats.queries import QUERIES, Query, Strategy
from ducats.randomness import fork
from ducats.rows import Output


@dataclass(frozen=True)
class Parts:
    """Everything that a run is made of. The pool has no labels; only the oracle may know them."""

    model: nn.Module  # images to logits, to (logits, features), or an Evidential
    source: Domain
    pool: Images
    oracle: Oracle
    query: Query | Strategy = QUERIES["duc"]
    objective: Objective | Training = duc
    test: Domain | None = None  # nothing is chosen by it
    measured_on: MeasuredOn = "held_out"  # what the test images are; for the others, test.images is pool
    views: Views = field(default_factory=Views)
    task: Task = field(default_factory=Task)  # what is bought of images whose pixels have labels

    @property
    def training(self) -> Training:
        """The objective, with what else it needs."""
        return as_training(self.objective)

    @property
    def buys_pixels(self) -> bool:
        """Whether pixels compete inside their image, rather than images in the pool."""
        return self.source.of_pixels and not self.task.whole_images


@dataclass(frozen=True)
class Plan:
    """When to train, when to ask, for how much."""

    epochs: int = 50
    ask_after: Sequence[int] = (10, 12, 14, 16, 18)  # epochs after which a question is asked
    budget: Sequence[int] = ()  # labels to buy at each of them; of pixels, it follows from the next
    pixels: int | str | None = None  # where pixels are bought: of each image, as in `budget.split_pixels`
    rounding: Rounding = "nearest_total"
    time: PeopleTime | None = None  # instead of budget and pixels: what people's answers may take in all
    batch_size: int = 32  # of each stream
    steps_per_epoch: int | None = None
    labelled_batches: str = "even"  # or "short_last", as published
    together: str = "apart"  # or "target", "few": bought and unlabelled images as one batch
    source_sampling: str = "shuffled"  # or "rare_classes"
    optimisation: Optimisation = field(default_factory=Optimisation)
    schedule: Schedule = inverse_decay
    source_weight: Mapping[int, float] = field(default_factory=lambda: {0: 1.0})  # by its first epoch
    measure_every: int | None = None  # epochs; besides each question and the end
    scoring_batch: int = 256
    snapshot: int = 3000  # samples of the pool that each snapshot shows; 0: none are kept
    seed: int = 0


def check(parts: Parts, plan: Plan) -> None:
    """Refuse what cannot be, before anything is written or trained."""
    check_budget(parts, plan)
    if plan.snapshot < 0:
        raise UserError(f"snapshot must be a number of samples, or 0 for no snapshots, not {plan.snapshot}")
    if plan.ask_after and not list(plan.ask_after) == sorted({*plan.ask_after}):
        raise UserError(f"ask_after must rise from question to question, not {list(plan.ask_after)}")
    if plan.ask_after and not 0 <= plan.ask_after[0] <= plan.ask_after[-1] < plan.epochs:
        raise UserError(
            f"questions after epochs {list(plan.ask_after)} must lie before the end, {plan.epochs}"
        )
    if plan.labelled_batches not in CUTS:
        raise UserError(f"labelled_batches must be one of {', '.join(CUTS)}, not {plan.labelled_batches!r}")
    if plan.together not in TOGETHER:
        raise UserError(f"together must be one of {', '.join(TOGETHER)}, not {plan.together!r}")
    if plan.source_sampling not in SAMPLINGS:
        raise UserError(f"source_sampling must be {' or '.join(SAMPLINGS)}, not {plan.source_sampling!r}")
    if parts.test is not None and tuple(parts.test.classes) != tuple(parts.source.classes):
        raise UserError("source and test must have the same classes in the same order")
    if parts.measured_on != "held_out" and (parts.test is None or parts.test.images is not parts.pool):
        raise UserError(f"measured_on={parts.measured_on!r} needs a test set whose images are the pool's")
    if isinstance(parts.oracle, Truth) and len(parts.oracle) != len(parts.pool):
        raise UserError(f"the truth has {len(parts.oracle)} labels for a pool of {len(parts.pool)} images")
    check_views(parts)
    check_maps(parts)


SAMPLINGS = ("shuffled", "rare_classes")


def check_budget(parts: Parts, plan: Plan) -> None:
    """Refuse a budget that the pool cannot give."""
    if plan.time is not None:
        if plan.budget or plan.pixels is not None:
            raise UserError("a plan has a time of people, or a budget of labels or pixels: drop one of them")
        return
    budget: Sequence[int] = plan.budget
    if parts.buys_pixels and plan.ask_after:
        if plan.pixels is None:
            raise UserError('pixels are bought: say how many of each image, Plan(pixels="5%")')
        each = split_pixels(plan.pixels, pixels_of(parts).tolist(), len(plan.ask_after), plan.rounding)
        budget = [sum(of_round) for of_round in zip(*each, strict=True)]
        if plan.budget and list(plan.budget) != budget:
            raise UserError(
                f"pixels={plan.pixels!r} buys {budget} in the rounds, but budget is {list(plan.budget)}: "
                "drop it"
            )
    if len(budget) != len(plan.ask_after):
        raise UserError(f"{len(plan.ask_after)} questions but {len(budget)} budgets: give one for each")
    if any(labels < 1 for labels in budget):
        raise UserError(
            f"a question must buy at least one label, not {list(budget)}: raise the budget or ask less often"
        )
    if not parts.buys_pixels and sum(budget) > len(parts.pool):
        raise UserError(f"the budget of {sum(budget)} labels exceeds the pool of {len(parts.pool)} images")


def pixels_of(parts: Parts) -> Tensor:
    """Pixels of each image in the grid in which they are bought: int64 ``(N,)``."""
    return bought_sizes(parts.pool, parts.task.resolution).prod(1)


def check_maps(parts: Parts) -> None:
    """Refuse what cannot be where pixels have labels."""
    if not parts.source.of_pixels:
        return
    classes = parts.source.classes
    unknown = [name for name in parts.task.star_without if name not in classes]
    if unknown:
        known = ", ".join(classes)
        raise UserError(f"evaluation.star_without names {unknown[0]!r}, but the classes are {known}")
    if set(parts.task.star_without) >= set(classes):
        raise UserError("evaluation.star_without names all classes: leave some for the mean")
    if parts.test is not None and not parts.test.of_pixels:
        raise UserError("the source has label maps, the test set a label for each image: give maps for both")
    if isinstance(parts.oracle, Truth) and parts.oracle.resolution != parts.task.resolution:
        raise UserError(
            f"pixels are bought at the {parts.task.resolution} resolution, but the truth answers at the "
            f"{parts.oracle.resolution} one: Truth(labels, {parts.task.resolution!r})"
        )
    for name in ("source", "labelled", "unlabelled", "scoring", "test"):
        if getattr(parts.views, name).randaugment is not None:
            raise UserError(
                f"views.{name}.randaugment turns and shears images, and their label maps would stay as they "
                f"are: set views.{name}.randaugment=null"
            )
    for name in ("scoring", "test"):
        view: View = getattr(parts.views, name)
        if view.crop != "none" or view.size is not None or view.flip:
            raise UserError(
                f"views.{name} must show whole images where pixels are bought: set views.{name}.crop=none "
                f"and views.{name}.size=null (evaluation.flip averages with the mirror image)"
            )


def check_views(parts: Parts) -> None:
    """Refuse a crop that does not fit into the stored images."""
    strong = ["stronger"] if parts.training.wants_strong() else []
    for name, images in (
        ("source", parts.source.images),
        *((use, parts.pool) for use in ("labelled", "unlabelled", "scoring", *strong)),
        *([("test", parts.test.images)] if parts.test is not None else []),
    ):
        view: View = getattr(parts.views, name)
        name = "strong" if name == "stronger" else name
        channels = images.pixels.shape[1]
        if view.randaugment is not None and channels not in (1, 3):
            raise UserError(
                f"views.{name}.randaugment is for images in grey or in colour, not of {channels} channels: "
                f"set views.{name}.randaugment=null"
            )
        if view.resize == "short_side" and images.aspect is None:
            raise UserError(
                f"views.{name}.resize=short_side needs images from files, whose own shape is known: "
                f"set views.{name}.resize=squash"
            )
        stored = images.pixels.shape[-2:]
        for side, size in zip(stored, view.sides(*stored), strict=True):
            side = side + 2 * view.pad * (view.crop == "random")
            if view.crop in ("center", "random") and size > side:
                raise UserError(
                    f"views.{name} cuts {size} pixels out of images of {side}: lower views.{name}.size "
                    "or raise data.knobs.size"
                )


@torch.inference_mode()
def settle(parts: Parts, model: Evidential) -> tuple[Strategy, int]:
    """Show the model one image: does it fit classes and query?

    Returns:
        The query, with its columns; and how many features the last layer sees, 0 if the model does not tell.
    """
    model.eval()
    pixels, view = parts.pool.pixels[:1], parts.views.scoring
    aspect = None if parts.pool.aspect is None else parts.pool.aspect[:1]
    height, width = pixels.shape[-2:]
    shown = look(pixels, view, draw(view, 1, height, width, fork(0, "first look"), aspect))
    try:
        output: Output = model(shown)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        size = tuple(shown.shape[1:])
        raise UserError(f"the model cannot take images of {size}: {type(error).__name__}: {error}") from error
    classes = len(parts.source.classes)
    if output.z.shape[1] != classes:
        raise UserError(f"the model tells {output.z.shape[1]} classes apart, but the source has {classes}")
    if (output.size is not None) != parts.source.of_pixels:
        had, wanted = ("pixels", "images") if output.size is not None else ("images", "pixels")
        fitting = "deeplab_v2 or deeplab_v3plus" if wanted == "pixels" else "timm"
        raise UserError(
            f"the model speaks of {had}, but the data has labels of {wanted}: choose another, such as "
            f"model.name={fitting}"
        )
    width = 0 if output.features is None else int(output.features.shape[1])
    if not isinstance(parts.query, Strategy):
        # A plain function did not say what it reads: it gets what there is.
        return Strategy(parts.query, ("z",) if output.features is None else ("z", "features")), width
    if "features" in parts.query.needs and output.features is None:
        raise UserError("the query needs features, but the model gives none: return (logits, features)")
    if parts.query.head and (
        output.features is None or head_of(model.network, classes, output.features.shape[1]) is None
    ):
        raise UserError(
            "the query reads the weights of the last layer, and the model's last layer is not linear: choose "
            "another query, or a model whose logits come from one linear layer"
        )
    if parts.query.of_pixels and not parts.source.of_pixels:
        raise UserError(
            "the query looks at how pixels lie, but the data has labels of images: choose another"
        )
    if "impurity" in parts.query.needs and parts.task.unit.name == "pixel":
        raise UserError("the query needs several pixels at once: Task(unit=Unit('region')), or another query")
    return parts.query, width


SEEN = 64  # label maps that enter a digest: all of a large set would take minutes


def near_at_hand(parts: Parts, device: torch.device, where: resident.Where) -> Parts:
    """The parts with their images and label maps where they are quickest to reach."""
    test = parts.test
    sets = [parts.source.images, parts.pool, *([] if test is None else [test.images])]
    source, pool, *rest = resident.settle(sets, device, where)
    labels = resident.settle_maps(parts.source.labels, device, where)
    return replace(
        parts,
        source=replace(parts.source, images=source, labels=labels),
        pool=pool,
        test=None if test is None else replace(test, images=rest[0]),
    )


def digest(keys: Sequence[str], labels: Labels | None = None) -> str:
    """A few characters for these images, and their labels; of many label maps, for some of them."""
    if labels is None or labels.ndim == 1:
        text = "\n".join([*keys, *([] if labels is None else map(str, labels[:].tolist()))])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    found = hashlib.blake2b("\n".join(keys).encode(), digest_size=8)
    for place in range(0, len(labels), -(-len(labels) // SEEN)):
        found.update(labels[place].cpu().numpy().tobytes())
    return found.hexdigest()


def describe_data(parts: Parts) -> dict[str, Any]:
    """Names and labels of the data in short, so that a run does not go on with another pool or source."""
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
    """Who a run is that no config made: plan, query, objective, views and the shape of the model."""
    query = parts.query.query if isinstance(parts.query, Strategy) else parts.query
    evidence = parts.model.evidence if isinstance(parts.model, Evidential) else "exp"
    network = parts.model.network if isinstance(parts.model, Evidential) else parts.model
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


# Fields of a plan that came later, with the value that means what was before: runs from then stay valid.
LATER: Mapping[str, Any] = {"time": None, "together": "apart"}


BESIDES = ("snapshot",)  # fields that change nothing of what a run trains, asks and measures


def _plan(plan: Plan) -> dict[str, Any]:
    names = [name for name in plan.__dataclass_fields__ if name not in BESIDES]
    known = {name: plain(getattr(plan, name)) for name in names}
    return {name: value for name, value in known.items() if name not in LATER or value != LATER[name]}


def plain(value: Any) -> Any:
    """Anything in the words of YAML; a function by its module and name, with the knobs bound to it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, Optimisation | PeopleTime):
        return plain(asdict(value))
    if isinstance(value, Training):
        loss = plain(value.loss)
        more = {"knobs": value.knobs, "companion": value.companion}
        return (
            {"objective": loss, **plain({k: v for k, v in more.items() if v})} if any(more.values()) else loss
        )
    if isinstance(value, partial):
        return {"function": plain(value.func), "knobs": plain(value.keywords), "given": plain(value.args)}
    if callable(value):
        module = getattr(value, "__module__", "")
        name = getattr(value, "__qualname__", type(value).__qualname__)
        code = getattr(value, "__code__", None)
        # Lambdas share a name, and a script is edited between two calls: there the code tells them apart.
        if isinstance(code, CodeType) and ("<" in name or module == "__main__"):
            return f"{module}.{name}#{_digest_of(code)}"
        return f"{module}.{name}"
    if isinstance(value, Sequence | range | torch.Size):
        return [plain(inner) for inner in value]
    return plain(value.tolist()) if hasattr(value, "tolist") else repr(value)


def _digest_of(code: CodeType) -> str:
    """A few characters for what a function does, the same in another process."""
    inner = [_digest_of(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    text = "\n".join([code.co_code.hex(), *code.co_names, *inner])
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
