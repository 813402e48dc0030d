"""Every setting of a run: frozen models with defaults, ranges and meaning beside each field."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from ducats.config.base import Part, Strict
from ducats.config.views import Views


class Task(Strict):
    """What gets a label: images, or their pixels; and what is bought at once."""

    name: Literal["classification", "segmentation"] = Field(
        "classification", description="a label for each image, or for each pixel"
    )
    unit: Literal["image", "pixel", "region", "superpixel"] | None = Field(
        None,
        description="what one question covers: of segmentation a pixel, a square region, a superpixel or a "
        "whole image, all counted in pixels; null: an image in classification, a pixel in segmentation",
    )
    side: int = Field(3, ge=1, description="of a region, in pixels; odd")
    superpixels: int = Field(100, ge=2, description="in an image, about (SLIC; needs ducats[superpixels])")
    compactness: float = Field(10.0, gt=0, description="of superpixels: higher is squarer")
    resolution: Literal["network", "original"] = Field(
        "network",
        description="grid of the pixels that are bought and counted: images as the network sees them "
        "(data.knobs.size), or in their own size; published: original",
    )
    twice: bool = Field(
        False,
        description="at the original resolution: interpolate by way of the network's grid, evidence in "
        "between, as published; or at once",
    )
    fill: Literal["cell", "nearest"] = Field(
        "cell",
        description="how labels bought at the original resolution reach the network's grid: each goes to the "
        "cell it falls into; or, published, only those that a nearest-neighbour resize would keep",
    )

    @field_validator("side")
    @classmethod
    def _odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError("a region has a pixel in its middle: its side must be odd")
        return value

    @model_validator(mode="after")
    def _fitting(self) -> "Task":
        if self.name == "classification" and self.unit not in (None, "image"):
            raise ValueError(f"classification buys images, not {self.unit}s: task.unit=image")
        return self

    @property
    def bought(self) -> Literal["image", "pixel", "region", "superpixel"]:
        """The unit, nothing left open."""
        return self.unit or ("image" if self.name == "classification" else "pixel")


class Model(Part):
    """The network and how its logits become Dirichlet parameters."""

    name: str = Field(
        "timm",
        description="timm, small_cnn; for segmentation deeplab_v2, deeplab_v3plus, small_fcn; or "
        "`package.module:function`",
    )
    evidence: Literal["exp", "exp_clamped", "exp_at_most_10", "exp_plus_one", "softplus_plus_one"] = Field(
        "exp", description="alpha from logits; exp is the paper's, exp_at_most_10 its code's for pixels"
    )


class Data(Part):
    """Where the images come from."""

    name: str = Field(
        "folders",
        description="folders, manifest, digits, toy, a benchmark (office_home, office31, visda2017, pacs, "
        "mini_domainnet, domainnet, digit_sets); with label maps: map_folders, streets, gtav_cityscapes, "
        "synthia_cityscapes, carla_camvid; or `package.module:function`",
    )


class Objective(Part):
    """How to train."""

    name: str = Field(
        "duc",
        description="duc, softmax, adversarial, waal, mme, tqs, eada, sdm, euq; for segmentation also mrkld, "
        "seg_uncertainty, tpld, proda, mada; or `package.module:function`",
    )


class Query(Part):
    """What to ask."""

    name: str = Field("duc", description="a name that `ducats queries` lists, or `package.module:function`")


class Oracle(Part):
    """Who answers."""

    name: str = Field("auto", description="truth, people, or your own; auto: truth where the data has it")


class Schedule(Part):
    """Learning rate over steps."""

    name: str = Field("inverse_decay", description="inverse_decay, poly or constant")


class Train(Strict):
    """One training; it goes on through all questions."""

    epochs: int = Field(50, ge=1)
    batch_size: int = Field(32, ge=2, description="images of each stream in a step, over all processes")
    steps_per_epoch: int | None = Field(
        None, ge=1, description="null: the longer of source and pool at the start, in full batches"
    )
    labelled_batches: Literal["even", "short_last"] = Field(
        "even",
        description="even: bought images in batches of nearly one size; "
        "short_last: published, the last batch of a pass may be one image, doubled",
    )
    together: Literal["apart", "target", "few"] = Field(
        "apart",
        description="apart: published, bought and unlabelled target images pass through the network one "
        "after the other; target: as one batch, so that few bought images do not set its batch statistics; "
        "few: so while a batch of bought images has less than half of a batch; of images, not of pixels",
    )
    source_sampling: Literal["shuffled", "rare_classes"] = Field(
        "shuffled",
        description="shuffled: each source image once in a pass; rare_classes: published for segmentation, "
        "images with classes that were seen little come more often",
    )
    lr: float = Field(4e-3, gt=0, description="learning rate at step 0")
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = Field(True)
    weight_decay: float = Field(1e-3, ge=0, description="on everything, biases and norms included")
    clip: float | None = Field(
        None,
        gt=0,
        description="longest gradient (norm over all weights), longer ones are shortened; null: any",
    )
    multipliers: dict[str, float] | None = Field(
        None,
        description="learning-rate factor by prefix of a parameter's name; "
        "null: what the model advises (a pretrained backbone: 0.1)",
    )
    schedule: Schedule = Field(Schedule())
    source_weight: dict[int, float] = Field(
        {0: 1.0},
        description="factor of the source's losses by the epoch from which it holds, counted from 0; "
        "published for VisDA: {0: 1.0, 1: 0.5}",
    )

    @field_validator("source_weight")
    @classmethod
    def _from_the_start(cls, value: dict[int, float]) -> dict[int, float]:
        if 0 not in value or min(value) < 0 or min(value.values()) < 0:
            raise ValueError("weights must not be negative, and must begin with epoch 0")
        return dict(sorted(value.items()))


class Ask(Strict):
    """When to ask, and for how much."""

    budget: int | str = Field(
        "5%",
        description="labels in all: a count (65), or a share of the pool (5%); of pixels also a count for "
        "each image (40/image); or people's time (30min, 1.5h), shared evenly by the rounds",
    )
    seconds: float = Field(
        5.0,
        gt=0,
        description="that an answer is thought to take, where ask.budget is a time and nobody's seconds are "
        "known: before the first answers, or with the truth as oracle",
    )
    rounds: int | None = Field(
        None, ge=0, description="in how many questions the budget is spent; null: as many as `after`, or 5"
    )
    after: tuple[int, ...] | None = Field(
        None,
        description="epochs after which to ask; null: from 20 % to 36 % of the training, an epoch apart",
    )
    growth: float = Field(
        1.0,
        gt=0,
        description="each round buys so many times as many labels as the one before; 1: all the same; "
        "not of pixels",
    )
    rounding: Literal["nearest_total", "ceil_per_round"] = Field(
        "nearest_total",
        description="nearest_total: round the whole, the rest goes to the last rounds; "
        "ceil_per_round: published, each round rounds up, so it spends a little more",
    )


class Evaluation(Strict):
    """On which images the model is measured, and when; nothing is ever chosen by it."""

    images: Literal["auto", "held_out", "unlabelled", "target", "published"] = Field(
        "auto",
        description="held_out: images that are never asked about (the data's own test set, or else a share "
        "of the target); unlabelled: the target without what was bought so far; target: all of it, bought "
        "images included; auto: the data's own test set, or else unlabelled where the target's labels are "
        "known to an oracle; published: the data's own test set, or else target",
    )
    share: float = Field(
        0.2, gt=0, lt=1, description="of each class, held out where the data has no test set of its own"
    )
    source_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="of each source class, never trained on: what `ducats tune` estimates the risk with; 0 "
        "trains on all of the source",
    )
    resolution: Literal["network", "original"] = Field(
        "original",
        description="segmentation: whether maps are compared as the network sees the images, or in the "
        "labels' own size",
    )
    flip: bool = Field(
        False,
        description="segmentation: average what is said of the image and of its mirror image (published)",
    )
    star_without: tuple[str, ...] = Field(
        (), description="classes left out of mIoU*; published for SYNTHIA: wall, fence, pole"
    )
    every: int | None = Field(
        None, ge=1, description="also measure after each so many epochs; published: 5, VisDA 2"
    )


class Engine(Strict):
    """Where and how to compute; of this, only precision and scoring_batch belong to a run's identity.

    What speeds up a GPU is on where it can be, and can be switched off: null means just that.
    """

    device: str = Field("auto", description="auto, cpu, cuda, mps")
    processes: int | None = Field(
        None, ge=1, description="processes on each machine; null: as many as torchrun or srun started, or one"
    )
    nodes: int | None = Field(
        None, ge=1, description="machines; null: as many as torchrun or srun started it on, or one"
    )
    strategy: Literal["auto", "ddp", "fsdp"] = Field(
        "auto",
        description="what several processes share: ddp, gradients; fsdp, also weights and momentum, where a "
        "network is too large for one device; auto: ddp",
    )
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed", "64-true"] = Field(
        "auto", description="auto: bf16-mixed on a GPU that has bfloat16, else 32-true"
    )
    images_on: Literal["auto", "device", "host"] = Field(
        "auto",
        description="where decoded images are kept; auto: on a GPU if they take at most half of its free "
        "memory",
    )
    channels_last: bool | None = Field(
        None, description="colours beside each other in memory, as tensor cores want it; null: on a GPU"
    )
    fused: bool | None = Field(None, description="the optimiser's update in one kernel; null: on a GPU")
    graphs: bool | None = Field(
        None,
        description="record a step once and replay it (CUDA graphs); null: on one CUDA device, unless "
        "objective or network are your own and might keep state in Python",
    )
    compiled: bool | None = Field(
        None,
        description="compile the losses over pixels, seconds once for milliseconds a step; null: for "
        "segmentation on a GPU with triton",
    )
    threads: int | None = Field(
        None, ge=1, description="CPU threads per process; null leaves torch's default"
    )
    deterministic: bool = Field(
        False,
        description="the same bits each time also on a GPU, where that is slower; a CPU gives them anyway",
    )
    scoring_batch: int = Field(256, ge=1, description="images in a batch when scoring and measuring")
    snapshot: int = Field(
        3000,
        ge=0,
        description="samples of the pool whose uncertainties are kept at each question and at the end, for "
        "reports and figures, with a third as many of the source and what was picked; 0 keeps none, and no "
        "pictures",
    )
    loggers: tuple[str, ...] = Field(
        (),
        description="who is told losses and metrics as they come: tensorboard, trackio, wandb, or your own, "
        "`package.module:function`; they are in the run's metrics.jsonl in any case",
    )


class Config(Strict):
    """Everything about one run."""

    method: str = Field("duc", description="a name for tables; says nothing by itself")
    seed: int = Field(0, ge=0)
    task: Task = Field(Task())
    data: Data = Field(Data())
    model: Model = Field(Model())
    objective: Objective = Field(Objective())
    query: Query = Field(Query())
    oracle: Oracle = Field(Oracle())
    train: Train = Field(Train())
    views: Views = Field(Views())
    ask: Ask = Field(Ask())
    evaluation: Evaluation = Field(Evaluation())
    engine: Engine = Field(Engine())

    @model_validator(mode="after")
    def _times(self) -> "Config":
        ask_epochs(self)
        if self.ask.growth != 1 and self.task.bought != "image":
            raise ValueError("ask.growth is for images: pixels are bought in equal rounds, ask.growth=1")
        if self.train.together != "apart" and self.task.name == "segmentation":
            raise ValueError(
                "train.together is for images, not pixels: what is bought and what is not lie in one image "
                "already; choose train.together=apart (methods/ducats-seg is methods/ducats without it)"
            )
        if self.ask.growth != 1 and self.ask.rounding == "ceil_per_round":
            raise ValueError("ask.growth needs ask.rounding=nearest_total: rounds that grow are not equal")
        return self

    def identity(self) -> dict[str, Any]:
        """What makes this run this run: all but where it is computed."""
        settings = self.model_dump(mode="json")
        settings["engine"] = {"precision": self.engine.precision, "scoring_batch": self.engine.scoring_batch}
        # Runs from before there were such settings stay valid.
        for part, names in LATER.items():
            _drop(settings[part], names, LATER_VIEWS if part == "views" else {})
        return settings

    def digest(self) -> str:
        """Eight characters that name the run."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


# Settings that came later, with the value that means what was before.
LATER: Mapping[str, Mapping[str, Any]] = {
    "ask": {"growth": 1.0, "seconds": 5.0},
    "evaluation": {"source_share": 0.0},
    "train": {"together": "apart"},
    "views": {"strong": None},
}
LATER_VIEWS: Mapping[str, Any] = {"randaugment": None, "cutout": 0.0}


def _drop(settings: dict[str, Any], names: Mapping[str, Any], inner: Mapping[str, Any]) -> None:
    for name in [name for name, value in names.items() if settings[name] == value]:
        del settings[name]
    for part in settings.values() if inner else ():
        if part is not None:
            _drop(part, inner, {})


def ask_epochs(config: Config) -> tuple[int, ...]:
    """Epochs after which the run asks, one per round."""
    ask, epochs = config.ask, config.train.epochs
    if ask.rounds == 0 or ask.after == ():
        return ()
    if ask.after is not None:
        _check_after(ask, epochs)
        return ask.after
    rounds = 5 if ask.rounds is None else ask.rounds
    if rounds > epochs:
        raise ValueError(f"{rounds} rounds do not fit into {epochs} epochs: lower ask.rounds")
    # The paper's 10, 12, 14, 16, 18 of 50, at any number of rounds and epochs; one epoch apart at the least.
    after: list[int] = []
    for number in range(rounds):
        wanted = max(1, round(epochs * (0.2 + 0.16 * number / max(rounds - 1, 1))))
        latest = epochs - rounds + number  # leaves room for the rounds that follow
        after.append(min(max(wanted, after[-1] + 1 if after else 0), latest))
    return tuple(after)


def _check_after(ask: Ask, epochs: int) -> None:
    assert ask.after is not None
    if list(ask.after) != sorted(set(ask.after)) or ask.after[0] < 0:
        raise ValueError(f"ask.after must rise from round to round, not {list(ask.after)}")
    if ask.after[-1] >= epochs:
        raise ValueError(
            f"ask.after names epoch {ask.after[-1]}, but training ends after epoch {epochs}: "
            "the labels of that round would never be learnt; ask.after=null places the rounds by itself"
        )
    if ask.rounds is not None and ask.rounds != len(ask.after):
        raise ValueError(f"ask.after names {len(ask.after)} rounds, but ask.rounds is {ask.rounds}: drop one")
