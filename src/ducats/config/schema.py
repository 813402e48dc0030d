"""Schema of a run's config. Its sections extend ``ducats.settings``, which components use."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.dataclasses import dataclass

from ducats.acquisition.stop_rule import StopRule
from ducats.config.layers import default_method, merge_layers, names_method
from ducats.runfolder.records import METRICS_FILE
from ducats.settings import (
    LATER_OPTIMISATION,
    STRICT,
    STRONG_AUGMENTATION,
    EvaluationOptions,
    Freeze,
    Optimisation,
    PerformanceOptions,
    Rounding,
    ScoringOptions,
    StreamViews,
    TaskOptions,
    TestSplit,
    TrainingOptions,
    UnitName,
    View,
)
from ducats.utils.findings import pluralise


@dataclass(frozen=True, config=STRICT)
class ViewsConfig(StreamViews):
    """One view per use of the images, and their size."""

    size: int | None = Field(
        default=None,
        ge=8,
        description="side of the network's input: the default of the size of every view, and of "
        "data.params.size, which is 8/7 of it; null: 224, stored as 256",
    )

    @property
    def stored_size(self) -> int | None:
        """Side of the stored images for `size`, with the published margin for crops.

        >>> [ViewsConfig(size=size).stored_size for size in (224, 128, None)]
        [256, 146, None]
        """
        return None if self.size is None else round(self.size * 8 / 7)


DEFAULT_VIEWS = ViewsConfig(
    source=View(crop="random_resized", size=224, flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1)),
    labelled=None,
    unlabelled=View(crop="random", size=224),
    scoring=View(crop="center", size=224),
    test=View(crop="center", size=224),
)


@dataclass(frozen=True, config=STRICT)
class _TaskName:
    name: Literal["classification", "segmentation"] = Field(
        default="classification", description="one label per image, or one per pixel"
    )


@dataclass(frozen=True, config=STRICT)
class TaskConfig(TaskOptions, _TaskName):
    """The learning task and the unit of labelling."""

    @model_validator(mode="after")
    def _check_unit(self) -> "TaskConfig":
        if self.name == "classification" and self.unit not in (None, "image"):
            raise ValueError(f"classification labels whole images, not {self.unit}s; set task.unit=image")
        return self

    @property
    def resolved_unit(self) -> UnitName:
        """The unit, with null resolved."""
        return self.unit or ("image" if self.name == "classification" else "pixel")


NAME_DESCRIPTION = "a name listed by `ducats config --explain`, or `package.module:function`"


@dataclass(frozen=True, config=STRICT)
class ComponentConfig:
    """A component by name, with keyword arguments that are checked against its signature."""

    name: str = Field(description="a registered name, or `package.module:function`")
    params: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the component")


@dataclass(frozen=True, config=STRICT)
class ModelConfig(ComponentConfig):
    """The network and the mapping from logits to Dirichlet parameters."""

    name: str = Field(default="timm", description=NAME_DESCRIPTION)
    evidence: Literal["exp", "exp_clamped", "exp_at_most_10", "exp_plus_one", "softplus_plus_one"] = Field(
        default="exp",
        description="function from logits to alpha; exp: as in the paper; exp_at_most_10: as in the "
        "published segmentation code",
    )
    freeze: Freeze | Literal["auto"] = Field(
        default="auto",
        description="what is not trained: none; backbone: images are embedded once, and only the head is "
        "trained, which takes minutes on a CPU; or the number of the backbone's first stages; auto: backbone "
        "for a head on a pretrained timm backbone without a GPU, else none",
    )
    bottleneck_relu: bool = Field(
        default=True,
        description="a ReLU after the batch norm of the bottleneck, so that features are not negative (DUC); "
        "false: none (published for EADA, TQS, SDM, LADA); only for models with this parameter, such as timm",
    )


@dataclass(frozen=True, config=STRICT)
class DataConfig(ComponentConfig):
    """The data set."""

    name: str = Field(default="folders", description=NAME_DESCRIPTION)
    strict: bool = Field(
        default=False,
        description="refuse data with unreadable files; false: skip them, and list them in unreadable.csv",
    )


@dataclass(frozen=True, config=STRICT)
class ObjectiveConfig(ComponentConfig):
    """The training objective."""

    name: str = Field(default="duc", description=NAME_DESCRIPTION)


@dataclass(frozen=True, config=STRICT)
class QueryConfig(ComponentConfig):
    """The query strategy."""

    name: str = Field(default="duc", description=NAME_DESCRIPTION)


@dataclass(frozen=True, config=STRICT)
class OracleConfig(ComponentConfig):
    """The source of target labels."""

    name: str = Field(
        default="auto",
        description="ground_truth, human, or `package.module:function`; auto: ground_truth if the data has "
        "target labels, else human",
    )


@dataclass(frozen=True, config=STRICT)
class ScheduleConfig(ComponentConfig):
    """Learning-rate schedule."""

    name: str = Field(default="inverse_decay", description=NAME_DESCRIPTION)


@dataclass(frozen=True, config=STRICT)
class TrainConfig(Optimisation, TrainingOptions):
    """Training; one continuous training spans all rounds."""

    schedule: ScheduleConfig = Field(default=ScheduleConfig(), description="learning-rate schedule")
    warmup_fraction: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="fraction of the training steps in which the learning rates rise linearly to those of "
        "the schedule; 0: no warm-up (published)",
    )


@dataclass(frozen=True, config=STRICT)
class AcquisitionConfig:
    """When labels are acquired, and how many."""

    budget: int | str = Field(
        default="5%",
        description="total number of labels: a count (65) or a percentage of the pool (5%); for pixels "
        "also a count per image (40/image); or annotation time (30min, 1.5h), split evenly over the rounds",
    )
    seconds_per_label: float = Field(
        default=5.0,
        gt=0,
        description="expected annotation time per answer, used if acquisition.budget is a time and no times "
        "have been measured: before the first answers, or with the oracle ground_truth",
    )
    rounds: int | None = Field(
        default=None, ge=0, description="number of rounds; null: the length of `after_epochs`, or 5"
    )
    after_epochs: tuple[int, ...] | None = Field(
        default=None,
        description="epochs after which labels are acquired; null: from 20 % to 36 % of the training, at "
        "least one epoch apart",
    )
    start_from: str | None = Field(
        default=None,
        description="folder of an earlier run with the same target images, such as one of live labelling: "
        "its labels are the first round, before any training, and count towards the budget; null: none",
    )
    audit: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        default="auto",
        description="how many of the labels are for the audit: images or pixels drawn at random, which are "
        "not trained on and give the accuracy of the model with an interval; 0: none; auto: a tenth of the "
        "budget, from 20 to 10,000, but none if there is a test set, if 20 are more than a third of the "
        "budget, or if whole label maps are labelled (task.unit=image)",
    )
    release_audit: bool = Field(
        default=False,
        description="also train on the audit labels after the last round; the last figures are then those of "
        "the model before that round",
    )
    until: str | None = Field(
        default=None,
        description="ask for no more labels once the audit shows this with 95 % certainty: gain<0.5 (points "
        "of accuracy that the last round can have gained), accuracy>95% or, in segmentation, miou>60%; null: "
        "spend the budget",
    )
    growth: float = Field(
        default=1.0,
        gt=0,
        description="ratio of the number of labels between consecutive rounds; 1: equal rounds; not for "
        "pixels",
    )
    rounding: Rounding = Field(
        default="nearest_total",
        description="nearest_total: round the total, and give the remainder to the last rounds; "
        "ceil_per_round: round up in each round, which spends slightly more (published)",
    )


@dataclass(frozen=True, config=STRICT)
class _TestSet:
    split: TestSplit = Field(
        default="auto",
        description="held_out: images that are never queried (the data's test set, or else a fraction of the "
        "target); unlabelled: the target without the images labelled so far; target: the whole target, "
        "labelled images included; auto: the data's test set, or else unlabelled if the data has target "
        "labels; published: the data's test set, or else target",
    )
    test_fraction: float = Field(
        default=0.2, gt=0, lt=1, description="fraction of each class to hold out if the data has no test set"
    )
    source_holdout_fraction: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="fraction of each source class excluded from training, on which `ducats tune` "
        "estimates the risk; 0: train on the whole source",
    )


@dataclass(frozen=True, config=STRICT)
class EvaluationConfig(EvaluationOptions, _TestSet):
    """On which images the model is evaluated, and when; the result is never used for selection."""


@dataclass(frozen=True, config=STRICT)
class _Device:
    device: str = Field(default="auto", description="auto, cpu, cuda, mps")
    processes: int | None = Field(
        default=None,
        ge=1,
        description="processes per machine; null: the number that torchrun or srun started, or one",
    )
    nodes: int | None = Field(
        default=None,
        ge=1,
        description="number of machines; null: the number that torchrun or srun started, or one",
    )
    strategy: Literal["auto", "ddp", "fsdp"] = Field(
        default="auto",
        description="ddp: average gradients over processes; fsdp: also shard weights and optimiser state, "
        "for networks that do not fit on one device; auto: ddp",
    )
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed", "64-true"] = Field(
        default="auto", description="auto: bf16-mixed on a GPU with bfloat16, else 32-true"
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        description="CPU threads per process; null: OMP_NUM_THREADS, or one per core that the process may "
        "use; on a CPU, the last digits of results depend on it",
    )
    deterministic: bool = Field(
        default=False,
        description="use deterministic GPU algorithms, which are slower; results on a CPU are always "
        "deterministic",
    )


@dataclass(frozen=True, config=STRICT)
class EngineConfig(ScoringOptions, PerformanceOptions, _Device):
    """Device, parallelism and performance; only precision and scoring_batch_size are part of the identity."""

    loggers: tuple[str, ...] = Field(
        default=(),
        description="loggers of losses and metrics: tensorboard, trackio, wandb, or "
        f"`package.module:function`; {METRICS_FILE} in the run folder is always written",
    )


class Config(BaseModel):
    """All settings of one run.

    The default method, `ducats`, is filled in unless a method, an objective or a query is named. If only one
    of objective and query is named, the other one is DUC's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str = Field(default="duc", description="name shown in tables; --method chooses a method")
    seed: int = Field(default=0, ge=0, description="random seed")
    task: TaskConfig = Field(default=TaskConfig())
    data: DataConfig = Field(default=DataConfig())
    model: ModelConfig = Field(default=ModelConfig())
    objective: ObjectiveConfig = Field(default=ObjectiveConfig())
    query: QueryConfig = Field(default=QueryConfig())
    oracle: OracleConfig = Field(default=OracleConfig())
    train: TrainConfig = Field(default=TrainConfig())
    views: ViewsConfig = Field(default=DEFAULT_VIEWS)
    acquisition: AcquisitionConfig = Field(default=AcquisitionConfig())
    evaluation: EvaluationConfig = Field(default=EvaluationConfig())
    engine: EngineConfig = Field(default=EngineConfig())

    @model_validator(mode="before")
    @classmethod
    def _fill_in_default_method(cls, settings: Any) -> Any:
        """Merge the settings over the default method. A section that is an object replaces the method's."""
        if not isinstance(settings, Mapping) or names_method(settings):
            return settings
        task = settings.get("task")
        name = task.get("name") if isinstance(task, Mapping) else getattr(task, "name", None)
        return merge_layers(default_method(name or TaskConfig().name), settings)

    @field_validator("views", mode="before")
    @classmethod
    def _fill_views(cls, views: Any) -> Any:
        """Take the fields that a view omits from the default view, not from the defaults of ``View``."""
        if not isinstance(views, Mapping):
            return views
        names, size = ("source", "unlabelled", "scoring", "test"), views.get("size")
        default = DEFAULT_VIEWS
        if type(size) is int and size > 0:  # else refused by the field itself
            given = [views[name] for name in names if isinstance(views.get(name), Mapping)]
            others = [view["size"] for view in given if "size" in view and view["size"] != size]
            if len(others) == len(names):
                raise ValueError(
                    f"views.size={size} has no effect, because every view has a size of its own; remove it, "
                    "or set data.params.size if they are null (as in segmentation)"
                )
            default = replace(default, **{name: replace(getattr(default, name), size=size) for name in names})
        filled = {**vars(default), **views}

        def fill(name: str, base: Any, **changes: Any) -> None:
            if isinstance(filled[name], Mapping):
                base = vars(base) if isinstance(base, View) else base
                filled[name] = {**(base if isinstance(base, Mapping) else {}), **changes, **filled[name]}

        for name in names:
            fill(name, getattr(default, name))
        fill("labelled", filled["source"])
        fill("strong", filled["unlabelled"], **STRONG_AUGMENTATION)
        return filled

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
                "same image already; choose train.target_batching=separate"
            )
        if self.acquisition.growth != 1 and self.acquisition.rounding == "ceil_per_round":
            raise ValueError("acquisition.growth other than 1 needs acquisition.rounding=nearest_total")
        return self

    @model_validator(mode="after")
    def _check_audit(self) -> "Config":
        acquisition, is_segmentation = self.acquisition, self.task.name == "segmentation"
        labels_maps = is_segmentation and self.task.labels_whole_images
        if acquisition.audit not in ("auto", 0) and labels_maps:
            raise ValueError(
                "acquisition.audit needs labels of single pixels, but task.unit=image asks for whole label "
                "maps; set acquisition.audit=0 or another task.unit"
            )
        if acquisition.until is not None:
            rule = StopRule.parse(acquisition.until)
            if acquisition.audit == 0 or labels_maps:
                raise ValueError(
                    "acquisition.until needs audit labels; remove it, or set acquisition.audit and, in "
                    "segmentation, a task.unit other than image"
                )
            if rule.quantity == "miou" and not is_segmentation:
                raise ValueError(
                    f"acquisition.until={rule} is for segmentation; use a rule such as accuracy>95%"
                )
        return self

    @model_validator(mode="after")
    def _check_ema(self) -> "Config":
        if self.train.ema_decay is not None and self.engine.strategy == "fsdp":
            raise ValueError(
                "train.ema_decay cannot be combined with engine.strategy=fsdp: set train.ema_decay=null, or "
                "use engine.strategy=ddp"
            )
        return self

    def identity(self) -> dict[str, Any]:
        """Return the settings that identify the run: all except data.strict and those of the machine."""
        settings = self.model_dump(mode="json")
        settings["engine"] = {
            "precision": self.engine.precision,
            "scoring_batch_size": self.engine.scoring_batch_size,
        }
        del settings["data"]["strict"]  # skipped files change the digests of the data
        if self.views.size is None:
            del settings["views"]["size"]
        # A default leaves the identity as it was before the setting existed.
        if self.model.freeze in ("auto", "none", 0):
            del settings["model"]["freeze"]
        if self.model.freeze != "backbone":
            del settings["views"]["embedded"]
        if self.model.bottleneck_relu:
            del settings["model"]["bottleneck_relu"]
        for name in ("start_from", "audit", "release_audit", "until"):
            if getattr(self.acquisition, name) == getattr(AcquisitionConfig(), name):
                del settings["acquisition"][name]
        for name in ("unlabelled_includes_labelled", "warmup_fraction", *LATER_OPTIMISATION):
            if getattr(self.train, name) == getattr(TrainConfig(), name):
                del settings["train"][name]
        if not self.views.uses_bilinear:
            for view in settings["views"].values():
                if isinstance(view, dict):
                    del view["interpolation"]
        return settings

    def digest(self) -> str:
        """Return a hash of the identity, 8 hexadecimal characters."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def has_source(config: Config) -> bool:
    """Return whether there are labelled source images: only folders of images can be without."""
    params = config.data.params
    return config.data.name != "folders" or params.get("target") is None or params.get("source") is not None


def query_epochs(config: Config) -> tuple[int, ...]:
    """Return the epochs after which labels are acquired, one per round.

    The labels of `start_from` are a round of their own, before the first epoch.
    """
    acquisition, epochs = config.acquisition, config.train.epochs
    starts_with_labels = acquisition.start_from is not None
    initial = (0,) if starts_with_labels else ()
    if acquisition.rounds == 0 or acquisition.after_epochs == ():
        return initial
    if acquisition.after_epochs is not None:
        _check_after_epochs(acquisition, epochs)
        return (*initial, *acquisition.after_epochs)
    rounds = 5 if acquisition.rounds is None else acquisition.rounds
    if rounds + len(initial) > epochs:
        raise ValueError(
            f"{rounds} rounds do not fit into {pluralise(epochs, 'epoch')}; choose fewer --rounds or more "
            "--epochs"
        )
    # Scale the paper's 10, 12, 14, 16, 18 of 50 to any number of rounds and epochs, at least one epoch apart.
    # Without a source there is nothing to train on before the first round.
    has_labels = has_source(config) or starts_with_labels
    first, span, earliest = (0.2, 0.16, 1) if has_labels else (0.0, 0.36, 0)
    after: list[int] = []
    for round_index in range(rounds):
        preferred = max(earliest, round(epochs * (first + span * round_index / max(rounds - 1, 1))))
        latest = epochs - rounds + round_index  # leaves an epoch for each later round
        after.append(min(max(preferred, after[-1] + 1 if after else 0), latest))
    return (*initial, *after)


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
    if acquisition.start_from is not None and acquisition.after_epochs[0] == 0:
        raise ValueError(
            "acquisition.after_epochs starts with 0, but the round before the first epoch is that of "
            "acquisition.start_from; remove the 0"
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
