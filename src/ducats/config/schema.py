"""Schema of a run's settings: defaults, ranges and descriptions."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from ducats.config.base import ComponentConfig, StrictModel
from ducats.config.view_schema import ViewsConfig
from ducats.runfolder.records import METRICS_FILE


class TaskConfig(StrictModel):
    """The learning task and the unit of labelling."""

    name: Literal["classification", "segmentation"] = Field(
        "classification", description="one label per image, or one per pixel"
    )
    unit: Literal["image", "pixel", "region", "superpixel"] | None = Field(
        None,
        description="what one query labels; segmentation: a pixel, a square region, a superpixel or a whole "
        "image, with costs counted in pixels; null: image for classification, pixel for segmentation",
    )
    region_side: int = Field(3, ge=1, description="side of a region in pixels; odd")
    n_superpixels: int = Field(
        100, ge=2, description="approximate number per image (SLIC; needs ducats[superpixels])"
    )
    compactness: float = Field(
        10.0, gt=0, description="compactness of superpixels; higher values give squarer ones"
    )
    resolution: Literal["network", "original"] = Field(
        "network",
        description="pixel grid for labelling and for the budget: the network's input size "
        "(data.params.size) or the image's original size; published: original",
    )
    two_step_upsampling: bool = Field(
        False,
        description="resolution=original: upsample the logits to the network's input size, compute "
        "evidence, then upsample to the original size (published); false: upsample once",
    )
    label_downsampling: Literal["cell", "nearest"] = Field(
        "cell",
        description="resolution=original: how labels are mapped to the network's grid; cell: each label "
        "goes to the cell that contains it; nearest: nearest-neighbour resize, which drops labels "
        "(published)",
    )

    @field_validator("region_side")
    @classmethod
    def _check_side_is_odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError("the side of a region must be odd: a region has a centre pixel")
        return value

    @model_validator(mode="after")
    def _check_unit(self) -> "TaskConfig":
        if self.name == "classification" and self.unit not in (None, "image"):
            raise ValueError(f"classification labels whole images, not {self.unit}s; set task.unit=image")
        return self

    @property
    def resolved_unit(self) -> Literal["image", "pixel", "region", "superpixel"]:
        """The unit, with null resolved."""
        return self.unit or ("image" if self.name == "classification" else "pixel")


class ModelConfig(ComponentConfig):
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


class DataConfig(ComponentConfig):
    """The data set."""

    name: str = Field(
        "folders",
        description="folders, manifest, digits, toy, a benchmark (office_home, office31, visda2017, pacs, "
        "mini_domainnet, domainnet, digit_sets); with label maps: segmentation_folders, streets, "
        "gtav_cityscapes, synthia_cityscapes, carla_camvid; or `package.module:function`",
    )


class ObjectiveConfig(ComponentConfig):
    """The training objective."""

    name: str = Field(
        "duc",
        description="duc, softmax, adversarial, waal, mme, tqs, eada, sdm, euq; for segmentation also mrkld, "
        "seg_uncertainty, tpld, proda, mada; or `package.module:function`",
    )


class QueryConfig(ComponentConfig):
    """The query strategy."""

    name: str = Field("duc", description="a name listed by `ducats queries`, or `package.module:function`")


class OracleConfig(ComponentConfig):
    """The source of target labels."""

    name: str = Field(
        "auto",
        description="ground_truth, human, or `package.module:function`; auto: ground_truth if the data has "
        "target labels, else human",
    )


class ScheduleConfig(ComponentConfig):
    """Learning-rate schedule."""

    name: str = Field(
        "inverse_decay", description="inverse_decay, poly, constant, or `package.module:function`"
    )


class TrainConfig(StrictModel):
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
    target_batching: Literal["separate", "joint", "joint_if_few"] = Field(
        "separate",
        description="separate: separate forward passes for labelled and unlabelled target images "
        "(published); joint: one forward pass, so that batch statistics do not depend on few labelled "
        "images; joint_if_few: joint while a batch of labelled images is less than half full; "
        "classification only",
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
    clip_grad_norm: float | None = Field(
        None,
        gt=0,
        description="maximum gradient norm over all parameters; null: no clipping",
    )
    lr_multipliers: dict[str, float] | None = Field(
        None,
        description="learning-rate factor by prefix of the parameter name; null: the model's default (0.1 "
        "for a pretrained backbone)",
    )
    schedule: ScheduleConfig = Field(ScheduleConfig())
    source_weight: dict[int, float] = Field(
        {0: 1.0},
        description="weight of the source losses by the first epoch it applies to, counted from 0; "
        "published for VisDA: {0: 1.0, 1: 0.5}",
    )

    @field_validator("source_weight")
    @classmethod
    def _check_source_weight(cls, value: dict[int, float]) -> dict[int, float]:
        if 0 not in value or min(value) < 0 or min(value.values()) < 0:
            raise ValueError("weights must not be negative, and epoch 0 must have one")
        return dict(sorted(value.items()))


class AcquisitionConfig(StrictModel):
    """When labels are acquired, and how many."""

    budget: int | str = Field(
        "5%",
        description="total number of labels: a count (65) or a percentage of the pool (5%); for pixels "
        "also a count per image (40/image); or annotation time (30min, 1.5h), split evenly over the rounds",
    )
    seconds_per_label: float = Field(
        5.0,
        gt=0,
        description="expected annotation time per answer, used if acquisition.budget is a time and no times "
        "have been measured: before the first answers, or with the oracle ground_truth",
    )
    rounds: int | None = Field(
        None, ge=0, description="number of rounds; null: the length of `after_epochs`, or 5"
    )
    after_epochs: tuple[int, ...] | None = Field(
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


class EvaluationConfig(StrictModel):
    """On which images the model is evaluated, and when; the result is never used for selection."""

    split: Literal["auto", "held_out", "unlabelled", "target", "published"] = Field(
        "auto",
        description="held_out: images that are never queried (the data's test set, or else a fraction of the "
        "target); unlabelled: the target without the images labelled so far; target: the whole target, "
        "labelled images included; auto: the data's test set, or else unlabelled if the data has target "
        "labels; published: the data's test set, or else target",
    )
    test_fraction: float = Field(
        0.2, gt=0, lt=1, description="fraction of each class to hold out if the data has no test set"
    )
    source_holdout_fraction: float = Field(
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
    average_flipped: bool = Field(
        False,
        description="segmentation: average the predictions for the image and its mirror image (published)",
    )
    miou_star_exclude: tuple[str, ...] = Field(
        (), description="classes excluded from mIoU*; published for SYNTHIA: wall, fence, pole"
    )
    every_epochs: int | None = Field(
        None,
        ge=1,
        description="also evaluate every so many epochs; null: only before each round and at the end; "
        "published: 5, VisDA 2",
    )


class EngineConfig(StrictModel):
    """Device, parallelism and performance; only precision and scoring_batch_size are part of the identity.

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
    image_placement: Literal["auto", "device", "host"] = Field(
        "auto",
        description="where decoded images are stored; auto: on a GPU if they take at most half of its free "
        "memory",
    )
    channels_last: bool | None = Field(
        None, description="channels-last memory format, preferred by tensor cores; null: on a GPU"
    )
    fused_optimiser: bool | None = Field(None, description="fused optimiser kernel; null: on a GPU")
    cuda_graphs: bool | None = Field(
        None,
        description="record the training step as a CUDA graph and replay it; null: on a single CUDA device, "
        "unless the objective or network is user code, which may keep state in Python",
    )
    compile: bool | None = Field(
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
    scoring_batch_size: int = Field(256, ge=1, description="batch size for scoring and evaluation")
    snapshot_samples: int = Field(
        3000,
        ge=0,
        description="pool samples whose uncertainties are saved at each round and at the end, for reports "
        "and figures, together with the selected samples and a third as many source samples; 0: save no "
        "snapshots and no thumbnails",
    )
    loggers: tuple[str, ...] = Field(
        (),
        description="loggers of losses and metrics: tensorboard, trackio, wandb, or "
        f"`package.module:function`; {METRICS_FILE} in the run folder is always written",
    )


class Config(StrictModel):
    """All settings of one run."""

    method: str = Field("duc", description="name shown in tables; has no other effect")
    seed: int = Field(0, ge=0)
    task: TaskConfig = Field(TaskConfig())
    data: DataConfig = Field(DataConfig())
    model: ModelConfig = Field(ModelConfig())
    objective: ObjectiveConfig = Field(ObjectiveConfig())
    query: QueryConfig = Field(QueryConfig())
    oracle: OracleConfig = Field(OracleConfig())
    train: TrainConfig = Field(TrainConfig())
    views: ViewsConfig = Field(ViewsConfig())
    acquisition: AcquisitionConfig = Field(AcquisitionConfig())
    evaluation: EvaluationConfig = Field(EvaluationConfig())
    engine: EngineConfig = Field(EngineConfig())

    @model_validator(mode="after")
    def _check_acquisition(self) -> "Config":
        query_epochs(self)
        if self.acquisition.growth != 1 and self.task.resolved_unit != "image":
            raise ValueError(
                "acquisition.growth is for images; pixels are labelled in equal rounds: set "
                "acquisition.growth=1"
            )
        if self.train.target_batching != "separate" and self.task.name == "segmentation":
            raise ValueError(
                "train.target_batching is for images, not pixels: labelled and unlabelled pixels are in the "
                "same image already; choose train.target_batching=separate (methods/ducats-seg is "
                "methods/ducats without it)"
            )
        if self.acquisition.growth != 1 and self.acquisition.rounding == "ceil_per_round":
            raise ValueError("acquisition.growth other than 1 needs acquisition.rounding=nearest_total")
        return self

    def identity(self) -> dict[str, Any]:
        """Return the settings that identify the run: all except those of the machine."""
        settings = self.model_dump(mode="json")
        settings["engine"] = {
            "precision": self.engine.precision,
            "scoring_batch_size": self.engine.scoring_batch_size,
        }
        # Keep the identity of runs that are older than these settings.
        for section, defaults in CONFIG_IDENTITY_DEFAULTS.items():
            nested_defaults = VIEW_IDENTITY_DEFAULTS if section == "views" else {}
            _drop_defaults(settings[section], defaults, nested_defaults)
        return settings

    def digest(self) -> str:
        """Return a hash of the identity, 8 hexadecimal characters."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


# Settings added later, with the value that matches the earlier behaviour.
CONFIG_IDENTITY_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "acquisition": {"growth": 1.0, "seconds_per_label": 5.0},
    "evaluation": {"source_holdout_fraction": 0.0},
    "train": {"target_batching": "separate"},
    "views": {"strong": None},
}
VIEW_IDENTITY_DEFAULTS: Mapping[str, Any] = {"randaugment": None, "cutout": 0.0}


def _drop_defaults(
    settings: dict[str, Any], defaults: Mapping[str, Any], nested_defaults: Mapping[str, Any]
) -> None:
    for name in [name for name, value in defaults.items() if settings[name] == value]:
        del settings[name]
    for section in settings.values() if nested_defaults else ():
        if section is not None:
            _drop_defaults(section, nested_defaults, {})


def query_epochs(config: Config) -> tuple[int, ...]:
    """Return the epochs after which labels are acquired, one per round."""
    acquisition, epochs = config.acquisition, config.train.epochs
    if acquisition.rounds == 0 or acquisition.after_epochs == ():
        return ()
    if acquisition.after_epochs is not None:
        _check_after_epochs(acquisition, epochs)
        return acquisition.after_epochs
    rounds = 5 if acquisition.rounds is None else acquisition.rounds
    if rounds > epochs:
        raise ValueError(f"{rounds} rounds do not fit into {epochs} epochs; lower acquisition.rounds")
    # Scale the paper's 10, 12, 14, 16, 18 of 50 to any number of rounds and epochs, at least one epoch apart.
    after: list[int] = []
    for round_index in range(rounds):
        preferred = max(1, round(epochs * (0.2 + 0.16 * round_index / max(rounds - 1, 1))))
        latest = epochs - rounds + round_index  # leaves an epoch for each later round
        after.append(min(max(preferred, after[-1] + 1 if after else 0), latest))
    return tuple(after)


def _check_after_epochs(acquisition: AcquisitionConfig, epochs: int) -> None:
    assert acquisition.after_epochs is not None
    if (
        list(acquisition.after_epochs) != sorted(set(acquisition.after_epochs))
        or acquisition.after_epochs[0] < 0
    ):
        raise ValueError(
            "acquisition.after_epochs must be strictly increasing and not negative, got "
            f"{list(acquisition.after_epochs)}"
        )
    if acquisition.after_epochs[-1] >= epochs:
        raise ValueError(
            f"acquisition.after_epochs names epoch {acquisition.after_epochs[-1]}, but training ends after "
            f"epoch {epochs}, so the labels of that round would not be used; acquisition.after_epochs=null "
            "places the rounds automatically"
        )
    if acquisition.rounds is not None and acquisition.rounds != len(acquisition.after_epochs):
        raise ValueError(
            f"acquisition.after_epochs names {len(acquisition.after_epochs)} rounds, but acquisition.rounds "
            f"is {acquisition.rounds}; remove one of them"
        )
