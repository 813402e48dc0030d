"""Settings that components use: type, default, range and description of each, written once. Imports no torch.

These frozen dataclasses validate their values, whether they come from YAML or from Python. The sections of a
config extend them, so a component takes a section of the config or the same settings made in Python. It
never sees a whole config.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator
from pydantic.dataclasses import dataclass

STRICT = ConfigDict(extra="forbid")  # unknown names are errors

UnitName = Literal["image", "pixel", "region", "superpixel"]
GridResolution = Literal["network", "original"]
LabelDownsampling = Literal["cell", "nearest"]
LabelledBatches = Literal["even", "short_last"]
TargetBatching = Literal["separate", "joint", "joint_if_few"]
Rounding = Literal["nearest_total", "ceil_per_round"]
TestSplit = Literal["auto", "held_out", "unlabelled", "target", "published"]
Placement = Literal["auto", "device", "host"]
Interpolation = Literal["bicubic", "bilinear"]
Freeze = Literal["none", "backbone"] | Annotated[int, Field(ge=0)]


# ---- views


@dataclass(frozen=True, config=STRICT)
class View:
    """Transform from a stored image to the model's input."""

    resize: Literal["squash", "short_side"] = Field(
        default="squash",
        description="image before the crop; squash: resized to a square; short_side: original aspect "
        "ratio, with the short side equal to the stored side (published for unlabelled target)",
    )
    interpolation: Interpolation = Field(
        default="bicubic",
        description="Pillow's filter that resizes an image to the stored size; published for unlabelled "
        "target: bilinear, which stores the images twice",
    )
    crop: Literal["none", "center", "random", "random_resized"] = Field(
        default="none", description="none; center; random: random position; random_resized: RandomResizedCrop"
    )
    size: int | tuple[int, int] | None = Field(
        default=None, description="side after the crop, or height and width; null: stored size"
    )
    scale: tuple[float, float] = Field(
        default=(0.08, 1.0), description="range of the area fraction, for crop=random_resized"
    )
    ratio: tuple[float, float] = Field(
        default=(0.75, 4 / 3), description="range of width / height, for crop=random_resized"
    )
    pad: int = Field(
        default=0, ge=0, description="padding on each side, with edge pixels, before crop=random"
    )
    flip: float = Field(default=0.0, ge=0, le=1, description="probability of a horizontal flip")
    jitter: tuple[float, float, float, float] = Field(
        default=(0.0, 0.0, 0.0, 0.0), description="brightness, contrast, saturation, hue (ColorJitter)"
    )
    randaugment: tuple[int, int] | None = Field(
        default=None, description="RandAugment: number of operations and magnitude (0 to 30)"
    )
    cutout: float = Field(
        default=0.0, ge=0, le=1, description="side of a grey square, as a fraction of the image's side"
    )

    @model_validator(mode="after")
    def _check_resize(self) -> "View":
        if self.resize == "short_side" and (self.crop not in ("random", "center") or self.pad):
            raise ValueError("resize=short_side needs crop=random or crop=center, and no pad")
        return self

    @field_validator("size")
    @classmethod
    def _check_size(cls, value: int | tuple[int, int] | None) -> int | tuple[int, int] | None:
        if value is not None and min(value if isinstance(value, tuple) else (value,)) < 1:
            raise ValueError("height and width of a view must be at least 1 pixel")
        return value

    @field_validator("randaugment")
    @classmethod
    def _check_randaugment(cls, value: tuple[int, int] | None) -> tuple[int, int] | None:
        if value is not None and not (value[0] >= 1 and 0 <= value[1] <= 30):
            raise ValueError("randaugment needs at least 1 operation and a magnitude from 0 to 30")
        return value

    @field_validator("scale", "ratio")
    @classmethod
    def _check_range(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] <= value[1]:
            raise ValueError("a range must be increasing and positive")
        return value

    @field_validator("jitter")
    @classmethod
    def _check_jitter(cls, value: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        if min(value) < 0 or value[3] > 0.5:
            raise ValueError("jitter must not be negative, and hue must be at most 0.5")
        return value

    @property
    def is_random(self) -> bool:
        """Whether two applications to the same image may differ."""
        augments = self.flip > 0 or any(self.jitter) or self.randaugment is not None or self.cutout > 0
        return augments or self.crop in ("random", "random_resized")

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the output for stored images of this height and width.

        >>> [View(size=size).output_size(8, 9) for size in (5, (4, 6), None)]
        [(5, 5), (4, 6), (8, 9)]
        """
        if self.size is None:
            return height, width
        return (self.size, self.size) if isinstance(self.size, int) else self.size


STRONG_AUGMENTATION: dict[str, Any] = {"randaugment": (2, 10), "cutout": 0.5}


@dataclass(frozen=True, config=STRICT)
class StreamViews:
    """One view per use of the images; the defaults of a config differ.

    In segmentation, target images with labelled and unlabelled pixels use ``unlabelled``.
    """

    source: View = Field(default=View(), description="source in training")
    labelled: View | None = Field(
        default=View(), description="labelled target in training; null: same as source"
    )
    unlabelled: View = Field(default=View(), description="unlabelled target in training")
    scoring: View = Field(default=View(), description="pool images during scoring; published: a random crop")
    test: View = Field(default=View(), description="evaluation and prediction")
    strong: View | None = Field(
        default=None,
        description="second view of unlabelled target, for objectives that compare two views; null: "
        "`unlabelled` plus RandAugment (2 operations of magnitude 10) and a cutout of half the side",
    )
    embedded: int = Field(
        default=4,
        ge=1,
        description="frozen backbone: number of fixed views of each image that are embedded; the first is "
        "`test`, the second its mirror image, the others are crops, the same for all images. Random views "
        "choose one of them. Not in segmentation, which has the first two",
    )

    @property
    def uses_bilinear(self) -> bool:
        """Whether a view needs pixels that were resized with a bilinear filter."""
        views = (self.source, self.labelled, self.unlabelled, self.scoring, self.test, self.strong)
        return any(view is not None and view.interpolation == "bilinear" for view in views)

    @property
    def labelled_or_source(self) -> View:
        """The view of labelled target images."""
        return self.source if self.labelled is None else self.labelled

    @property
    def strong_or_default(self) -> View:
        """The strong view; by default `unlabelled` with RandAugment and cutout."""
        return self.strong or replace(self.unlabelled, **STRONG_AUGMENTATION)


# ---- task


@dataclass(frozen=True, config=STRICT)
class Unit:
    """What one query labels."""

    unit: UnitName | None = Field(
        default=None,
        description="what one query labels; segmentation: a pixel, a square region, a superpixel or a whole "
        "image, with costs counted in pixels; null: image for classification, pixel for segmentation",
    )
    region_side: int = Field(default=3, ge=1, description="side of a region in pixels; odd")
    n_superpixels: int = Field(
        default=100, ge=2, description="approximate number per image (SLIC; needs ducats[superpixels])"
    )
    compactness: float = Field(
        default=10.0, gt=0, description="compactness of superpixels; higher values give squarer ones"
    )

    @field_validator("region_side")
    @classmethod
    def _check_side_is_odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError("the side of a region must be odd: a region has a centre pixel")
        return value

    @property
    def resolved_unit(self) -> UnitName:
        """The unit, with null resolved."""
        return self.unit or "pixel"

    @property
    def labels_whole_images(self) -> bool:
        """Whether an image is labelled as a whole, with all of its pixels."""
        return self.resolved_unit == "image"


@dataclass(frozen=True, config=STRICT)
class TaskOptions(Unit):
    """Unit and grid of labels in segmentation; unused in classification."""

    resolution: GridResolution = Field(
        default="network",
        description="pixel grid for labelling and for the budget: the network's input size "
        "(data.params.size) or the image's original size; published: original",
    )
    two_step_upsampling: bool = Field(
        default=False,
        description="resolution=original: upsample the logits to the network's input size, compute "
        "evidence, then upsample to the original size (published); false: upsample once",
    )
    label_downsampling: LabelDownsampling = Field(
        default="cell",
        description="resolution=original: how labels are mapped to the network's grid; cell: each label "
        "goes to the cell that contains it; nearest: nearest-neighbour resize, which drops labels "
        "(published)",
    )


@dataclass(frozen=True, config=STRICT)
class EvaluationOptions:
    """How, and how often, the model is evaluated on the test set."""

    resolution: GridResolution = Field(
        default="original",
        description="segmentation: evaluate at the network's input size or at the labels' original size",
    )
    average_flipped: bool = Field(
        default=False,
        description="segmentation: average the predictions for the image and its mirror image (published)",
    )
    miou_star_exclude: tuple[str, ...] = Field(
        default=(), description="classes excluded from mIoU*; published for SYNTHIA: wall, fence, pole"
    )
    every_epochs: int | None = Field(
        default=None,
        ge=1,
        description="number of epochs between further evaluations; null: only before each round and at the "
        "end; published: 5, VisDA 2",
    )


# ---- training


@dataclass(frozen=True, config=STRICT)
class TrainingOptions:
    """Length and batches of the training; one continuous training spans all rounds."""

    epochs: int = Field(default=50, ge=1, description="passes over the data, of `steps_per_epoch` steps each")
    batch_size: int = Field(
        default=32, ge=2, description="images per step from each stream, summed over all processes"
    )
    steps_per_epoch: int | None = Field(
        default=None,
        ge=1,
        description="null: full batches in the larger of source and initial pool; in segmentation, at most "
        "1000, as published; with a frozen backbone, at most 40",
    )
    labelled_batches: LabelledBatches = Field(
        default="even",
        description="even: labelled target images in batches of nearly equal size; short_last: the last "
        "batch of a pass may be a single image, duplicated (published)",
    )
    target_batching: TargetBatching = Field(
        default="separate",
        description="separate: separate forward passes for labelled and unlabelled target images "
        "(published); joint: one forward pass, so that batch statistics do not depend on few labelled "
        "images; joint_if_few: joint while a batch of labelled images is less than half full; "
        "classification only",
    )
    unlabelled_includes_labelled: bool = Field(
        default=False,
        description="labelled target images stay in the unlabelled stream and are trained on in both "
        "(published for CLUE); false: they leave it; classification only",
    )
    source_sampling: Literal["shuffled", "rare_classes"] = Field(
        default="shuffled",
        description="shuffled: each source image once per pass; rare_classes: images with rarely seen "
        "classes are sampled more often (published for segmentation)",
    )
    source_weight: dict[int, float] = Field(
        default={0: 1.0},
        description="weight of the source losses by the first epoch it applies to, counted from 0; "
        "published for VisDA: {0: 1.0, 1: 0.5}",
    )

    @field_validator("source_weight")
    @classmethod
    def _check_source_weight(cls, value: dict[int, float]) -> dict[int, float]:
        if 0 not in value or min(value) < 0 or min(value.values()) < 0:
            raise ValueError("weights must not be negative, and epoch 0 must have one")
        return dict(sorted(value.items()))


@dataclass(frozen=True, config=STRICT)
class Optimisation:
    """Settings of the optimiser; the defaults are the published ones for Office-Home."""

    optimiser: Literal["sgd", "adamw"] = Field(
        default="sgd",
        description="sgd (published), or adamw, preferred for transformers and ConvNeXts, with a lower "
        "train.lr, such as 0.001",
    )
    lr: float = Field(default=4e-3, gt=0, description="initial learning rate")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="momentum of SGD")
    nesterov: bool = Field(default=True, description="Nesterov momentum of SGD")
    weight_decay: float = Field(
        default=1e-3,
        ge=0,
        description="sgd: applied to all parameters, including biases and norms (published); adamw: not to "
        "biases, norms and position embeddings",
    )
    clip_grad_norm: float | None = Field(
        default=None, gt=0, description="maximum gradient norm over all parameters; null: no clipping"
    )
    lr_multipliers: dict[str, float] | None = Field(
        default=None,
        description="learning-rate factor by prefix of the parameter name; null: the model's default (0.1 "
        "for a pretrained backbone; 0.2 for the head of a DeepLab on a frozen one)",
    )
    layer_decay: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="layer-wise learning-rate decay: the rate of each layer of a timm backbone is that of "
        "the next layer times this factor; null: the same rate for all layers",
    )
    ema_decay: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="decay per step of an exponential moving average of the weights (0.999), which is "
        "evaluated, queried with and saved at the end; the decay is smaller in the first steps; null: none",
    )


# Newer than the first run folders: at its default, such a setting leaves the identity of a run as it was.
LATER_OPTIMISATION = ("optimiser", "layer_decay", "ema_decay")


@dataclass(frozen=True, config=STRICT)
class ScoringOptions:
    """Batches of scoring and evaluation, and size of the snapshots."""

    scoring_batch_size: int = Field(default=256, ge=1, description="batch size for scoring and evaluation")
    snapshot_samples: int = Field(
        default=3000,
        ge=0,
        description="pool samples whose uncertainties are saved at each round and at the end, for reports "
        "and figures, together with the selected samples and a third as many source samples; 0: save no "
        "snapshots and no thumbnails",
    )


@dataclass(frozen=True, config=STRICT)
class PerformanceOptions:
    """Image placement and execution of training steps; none of them changes results beyond rounding.

    Null means: on where the device supports it.
    """

    image_placement: Placement = Field(
        default="auto",
        description="where decoded images are stored; auto: on a GPU if they take at most half of its free "
        "memory",
    )
    channels_last: bool | None = Field(
        default=None, description="channels-last memory format, preferred by tensor cores; null: on a GPU"
    )
    fused_optimiser: bool | None = Field(default=None, description="fused optimiser kernel; null: on a GPU")
    cuda_graphs: bool | None = Field(
        default=None,
        description="record the training step as a CUDA graph and replay it; null: on a single CUDA device, "
        "unless the objective or network is user code, which may keep state in Python",
    )
    compile: bool | None = Field(
        default=None,
        description="compile the per-pixel losses: seconds at the start, milliseconds saved per step; "
        "null: for segmentation on a GPU with triton",
    )
    embedding_cache: str | None = Field(
        default=None,
        description="folder of the embeddings of frozen backbones, shared by all runs; null: "
        "$DUCATS_CACHE, or ducats in the user's cache folder",
    )
    embedding_cache_gb: float = Field(
        default=20.0,
        ge=0,
        description="maximum size of that folder; the least recently used embeddings are removed first; "
        "0: store none",
    )
