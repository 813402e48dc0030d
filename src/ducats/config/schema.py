"""Schema of a run's settings: defaults, ranges and descriptions."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from ducats.config.base import Part, Strict
from ducats.config.views import Views


class Task(Strict):
    """The learning task and the unit of labelling."""

    name: Literal["classification", "segmentation"] = Field(
        "classification", description="one label per image, or one per pixel"
    )
    unit: Literal["image", "pixel", "region", "superpixel"] | None = Field(
        None,
        description="what one query labels; segmentation: a pixel, a square region, a superpixel or a whole "
        "image, with costs counted in pixels; null: image for classification, pixel for segmentation",
    )
    side: int = Field(3, ge=1, description="side of a region in pixels; odd")
    superpixels: int = Field(
        100, ge=2, description="approximate number per image (SLIC; needs ducats[superpixels])"
    )
    compactness: float = Field(
        10.0, gt=0, description="compactness of superpixels; higher values give squarer ones"
    )
    resolution: Literal["network", "original"] = Field(
        "network",
        description="pixel grid for labelling and for the budget: the network's input size "
        "(data.knobs.size) or the image's original size; published: original",
    )
    twice: bool = Field(
        False,
        description="resolution=original: upsample the logits to the network's input size, compute "
        "evidence, then upsample to the original size (published); false: upsample once",
    )
    fill: Literal["cell", "nearest"] = Field(
        "cell",
        description="resolution=original: how labels are mapped to the network's grid; cell: each label "
        "goes to the cell that contains it; nearest: nearest-neighbour resize, which drops labels "
        "(published)",
    )

    @field_validator("side")
    @classmethod
    def _odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError("the side of a region must be odd: a region has a centre pixel")
        return value

    @model_validator(mode="after")
    def _fitting(self) -> "Task":
        if self.name == "classification" and self.unit not in (None, "image"):
            raise ValueError(f"classification labels whole images, not {self.unit}s; set task.unit=image")
        return self

    @property
    def bought(self) -> Literal["image", "pixel", "region", "superpixel"]:
        """The unit, with null resolved."""
        return self.unit or ("image" if self.name == "classification" else "pixel")


class Model(Part):
    """The network and the mapping from logits to Dirichlet parameters."""

    name: str = Field(
        "timm",
        description="timm, small_cnn; for segmentation deeplab_v2, deeplab_v3plus, small_fcn; or "
        "`package.module:function`",
    )
    evidence: Literal["exp", "exp_clamped", "exp_at_most_10", "exp_plus_one", "softplus_plus_one"] = Field(
        "exp",
        description="function from logits to alpha; exp: as in the paper; exp_at_most_10: as in the "
        "published segmentation code",
    )


class Data(Part):
    """The data set."""

    name: str = Field(
        "folders",
        description="folders, manifest, digits, toy, a benchmark (office_home, office31, visda2017, pacs, "
        "mini_domainnet, domainnet, digit_sets); with label maps: map_folders, streets, gtav_cityscapes, "
        "synthia_cityscapes, carla_camvid; or `package.module:function`",
    )


class Objective(Part):
    """The training objective."""

    name: str = Field(
        "duc",
        description="duc, softmax, adversarial, waal, mme, tqs, eada, sdm, euq; for segmentation also mrkld, "
        "seg_uncertainty, tpld, proda, mada; or `package.module:function`",
    )


class Query(Part):
    """The query strategy."""

    name: str = Field("duc", description="a name listed by `ducats queries`, or `package.module:function`")


class Oracle(Part):
    """The source of target labels."""

    name: str = Field(
        "auto",
        description="truth, people, or `package.module:function`; auto: truth if the data has target "
        "labels, else people",
    )


class Schedule(Part):
    """Learning-rate schedule."""

    name: str = Field(
        "inverse_decay", description="inverse_decay, poly, constant, or `package.module:function`"
    )


class Train(Strict):
    """Training; one continuous training spans all rounds."""

    epochs: int = Field(50, ge=1)
    batch_size: int = Field(
        32, ge=2, description="images per step from each stream, summed over all processes"
    )
    steps_per_epoch: int | None = Field(
        None, ge=1, description="null: full batches in the larger of source and initial pool"
    )
    labelled_batches: Literal["even", "short_last"] = Field(
        "even",
        description="even: labelled target images in batches of nearly equal size; short_last: the last "
        "batch of a pass may be a single image, duplicated (published)",
    )
    together: Literal["apart", "target", "few"] = Field(
        "apart",
        description="apart: separate forward passes for labelled and unlabelled target images (published); "
        "target: one joint forward pass, so that batch statistics do not depend on few labelled images; few: "
        "joint while a batch of labelled images is less than half full; classification only",
    )
    source_sampling: Literal["shuffled", "rare_classes"] = Field(
        "shuffled",
        description="shuffled: each source image once per pass; rare_classes: images with rarely seen "
        "classes are sampled more often (published for segmentation)",
    )
    lr: float = Field(4e-3, gt=0, description="initial learning rate")
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = Field(True)
    weight_decay: float = Field(
        1e-3, ge=0, description="applied to all parameters, including biases and norms"
    )
    clip: float | None = Field(
        None,
        gt=0,
        description="maximum gradient norm over all parameters; null: no clipping",
    )
    multipliers: dict[str, float] | None = Field(
        None,
        description="learning-rate factor by prefix of the parameter name; null: the model's default (0.1 "
        "for a pretrained backbone)",
    )
    schedule: Schedule = Field(Schedule())
    source_weight: dict[int, float] = Field(
        {0: 1.0},
        description="weight of the source losses by the first epoch it applies to, counted from 0; "
        "published for VisDA: {0: 1.0, 1: 0.5}",
    )

    @field_validator("source_weight")
    @classmethod
    def _from_the_start(cls, value: dict[int, float]) -> dict[int, float]:
        if 0 not in value or min(value) < 0 or min(value.values()) < 0:
            raise ValueError("weights must not be negative, and epoch 0 must have one")
        return dict(sorted(value.items()))


class Ask(Strict):
    """When labels are acquired, and how many."""

    budget: int | str = Field(
        "5%",
        description="total number of labels: a count (65) or a percentage of the pool (5%); for pixels "
        "also a count per image (40/image); or annotation time (30min, 1.5h), split evenly over the rounds",
    )
    seconds: float = Field(
        5.0,
        gt=0,
        description="expected annotation time per answer, used if ask.budget is a time and no times have "
        "been measured: before the first answers, or with the oracle truth",
    )
    rounds: int | None = Field(None, ge=0, description="number of rounds; null: the length of `after`, or 5")
    after: tuple[int, ...] | None = Field(
        None,
        description="epochs after which labels are acquired; null: from 20 % to 36 % of the training, at "
        "least one epoch apart",
    )
    growth: float = Field(
        1.0,
        gt=0,
        description="ratio of the number of labels between consecutive rounds; 1: equal rounds; not for "
        "pixels",
    )
    rounding: Literal["nearest_total", "ceil_per_round"] = Field(
        "nearest_total",
        description="nearest_total: round the total, and give the remainder to the last rounds; "
        "ceil_per_round: round up in each round, which spends slightly more (published)",
    )


class Evaluation(Strict):
    """On which images the model is evaluated, and when; the result is never used for selection."""

    images: Literal["auto", "held_out", "unlabelled", "target", "published"] = Field(
        "auto",
        description="held_out: images that are never queried (the data's test set, or else a fraction of the "
        "target); unlabelled: the target without the images labelled so far; target: the whole target, "
        "labelled images included; auto: the data's test set, or else unlabelled if the data has target "
        "labels; published: the data's test set, or else target",
    )
    share: float = Field(
        0.2, gt=0, lt=1, description="fraction of each class to hold out if the data has no test set"
    )
    source_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="fraction of each source class excluded from training, on which `ducats tune` "
        "estimates the risk; 0: train on the whole source",
    )
    resolution: Literal["network", "original"] = Field(
        "original",
        description="segmentation: evaluate at the network's input size or at the labels' original size",
    )
    flip: bool = Field(
        False,
        description="segmentation: average the predictions for the image and its mirror image (published)",
    )
    star_without: tuple[str, ...] = Field(
        (), description="classes excluded from mIoU*; published for SYNTHIA: wall, fence, pole"
    )
    every: int | None = Field(
        None,
        ge=1,
        description="also evaluate every so many epochs; null: only before each round and at the end; "
        "published: 5, VisDA 2",
    )


class Engine(Strict):
    """Device, parallelism and performance; only precision and scoring_batch are part of a run's identity.

    For the performance options, null means: on where the device supports it.
    """

    device: str = Field("auto", description="auto, cpu, cuda, mps")
    processes: int | None = Field(
        None,
        ge=1,
        description="processes per machine; null: the number that torchrun or srun started, or one",
    )
    nodes: int | None = Field(
        None, ge=1, description="number of machines; null: the number that torchrun or srun started, or one"
    )
    strategy: Literal["auto", "ddp", "fsdp"] = Field(
        "auto",
        description="ddp: average gradients over processes; fsdp: also shard weights and optimiser state, "
        "for networks that do not fit on one device; auto: ddp",
    )
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed", "64-true"] = Field(
        "auto", description="auto: bf16-mixed on a GPU with bfloat16, else 32-true"
    )
    images_on: Literal["auto", "device", "host"] = Field(
        "auto",
        description="where decoded images are stored; auto: on a GPU if they take at most half of its free "
        "memory",
    )
    channels_last: bool | None = Field(
        None, description="channels-last memory format, preferred by tensor cores; null: on a GPU"
    )
    fused: bool | None = Field(None, description="fused optimiser kernel; null: on a GPU")
    graphs: bool | None = Field(
        None,
        description="record the training step as a CUDA graph and replay it; null: on a single CUDA device, "
        "unless the objective or network is user code, which may keep state in Python",
    )
    compiled: bool | None = Field(
        None,
        description="compile the per-pixel losses: seconds at the start, milliseconds saved per step; "
        "null: for segmentation on a GPU with triton",
    )
    threads: int | None = Field(None, ge=1, description="CPU threads per process; null: torch's default")
    deterministic: bool = Field(
        False,
        description="use deterministic GPU algorithms, which are slower; results on a CPU are always "
        "deterministic",
    )
    scoring_batch: int = Field(256, ge=1, description="batch size for scoring and evaluation")
    snapshot: int = Field(
        3000,
        ge=0,
        description="pool samples whose uncertainties are saved at each round and at the end, for reports "
        "and figures, together with the selected samples and a third as many source samples; 0: save no "
        "snapshots and no thumbnails",
    )
    loggers: tuple[str, ...] = Field(
        (),
        description="loggers of losses and metrics: tensorboard, trackio, wandb, or "
        "`package.module:function`; metrics.jsonl in the run folder is always written",
    )


class Config(Strict):
    """All settings of one run."""

    method: str = Field("duc", description="name shown in tables; has no other effect")
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
            raise ValueError(
                "ask.growth is for images; pixels are labelled in equal rounds: set ask.growth=1"
            )
        if self.train.together != "apart" and self.task.name == "segmentation":
            raise ValueError(
                "train.together is for images, not pixels: labelled and unlabelled pixels are in the same "
                "image already; choose train.together=apart (methods/ducats-seg is methods/ducats without "
                "it)"
            )
        if self.ask.growth != 1 and self.ask.rounding == "ceil_per_round":
            raise ValueError("ask.growth other than 1 needs ask.rounding=nearest_total")
        return self

    def identity(self) -> dict[str, Any]:
        """Return the settings that identify the run: all except those of the machine."""
        settings = self.model_dump(mode="json")
        settings["engine"] = {"precision": self.engine.precision, "scoring_batch": self.engine.scoring_batch}
        # Keep the identity of runs that are older than these settings.
        for part, names in LATER.items():
            _drop(settings[part], names, LATER_VIEWS if part == "views" else {})
        return settings

    def digest(self) -> str:
        """Return a hash of the identity, 8 hexadecimal characters."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


# Settings added later, with the value that matches the earlier behaviour.
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
    """Return the epochs after which labels are acquired, one per round."""
    ask, epochs = config.ask, config.train.epochs
    if ask.rounds == 0 or ask.after == ():
        return ()
    if ask.after is not None:
        _check_after(ask, epochs)
        return ask.after
    rounds = 5 if ask.rounds is None else ask.rounds
    if rounds > epochs:
        raise ValueError(f"{rounds} rounds do not fit into {epochs} epochs; lower ask.rounds")
    # Scale the paper's 10, 12, 14, 16, 18 of 50 to any number of rounds and epochs, at least one epoch apart.
    after: list[int] = []
    for number in range(rounds):
        wanted = max(1, round(epochs * (0.2 + 0.16 * number / max(rounds - 1, 1))))
        latest = epochs - rounds + number  # leaves an epoch for each later round
        after.append(min(max(wanted, after[-1] + 1 if after else 0), latest))
    return tuple(after)


def _check_after(ask: Ask, epochs: int) -> None:
    assert ask.after is not None
    if list(ask.after) != sorted(set(ask.after)) or ask.after[0] < 0:
        raise ValueError(f"ask.after must be strictly increasing and not negative, got {list(ask.after)}")
    if ask.after[-1] >= epochs:
        raise ValueError(
            f"ask.after names epoch {ask.after[-1]}, but training ends after epoch {epochs}, so the "
            "labels of that round would not be used; ask.after=null places the rounds automatically"
        )
    if ask.rounds is not None and ask.rounds != len(ask.after):
        raise ValueError(
            f"ask.after names {len(ask.after)} rounds, but ask.rounds is {ask.rounds}; remove one of them"
        )
