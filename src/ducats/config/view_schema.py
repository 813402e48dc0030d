"""Settings of views: preprocessing and augmentation for each use of the images."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from ducats.config.base import StrictModel


class ViewConfig(StrictModel):
    """Transform from a stored image to the model's input."""

    resize: Literal["squash", "short_side"] = Field(
        "squash",
        description="image before the crop; squash: resized to a square; short_side: original aspect "
        "ratio, with the short side equal to the stored side (published for unlabelled target)",
    )
    crop: Literal["none", "center", "random", "random_resized"] = Field(
        "none", description="none; center; random: random position; random_resized: RandomResizedCrop"
    )
    size: int | tuple[int, int] | None = Field(
        None, description="side after the crop, or height and width; null: stored size"
    )
    scale: tuple[float, float] = Field(
        (0.08, 1.0), description="range of the area fraction, for crop=random_resized"
    )
    ratio: tuple[float, float] = Field(
        (0.75, 4 / 3), description="range of width / height, for crop=random_resized"
    )
    pad: int = Field(0, ge=0, description="padding on each side, with edge pixels, before crop=random")
    flip: float = Field(0.0, ge=0, le=1, description="probability of a horizontal flip")
    jitter: tuple[float, float, float, float] = Field(
        (0.0, 0.0, 0.0, 0.0), description="brightness, contrast, saturation, hue (ColorJitter)"
    )

    randaugment: tuple[int, int] | None = Field(
        None, description="RandAugment: number of operations and magnitude (0 to 30)"
    )
    cutout: float = Field(
        0.0, ge=0, le=1, description="side of a grey square, as a fraction of the image's side"
    )

    @model_validator(mode="after")
    def _check_resize(self) -> "ViewConfig":
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


class ViewsConfig(StrictModel):
    """One view per use."""

    source: ViewConfig = Field(
        ViewConfig(crop="random_resized", size=224, flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1))
    )
    labelled: ViewConfig | None = Field(None, description="labelled target in training; null: same as source")
    unlabelled: ViewConfig = Field(
        ViewConfig(crop="random", size=224), description="unlabelled target in training"
    )
    scoring: ViewConfig = Field(
        ViewConfig(crop="center", size=224),
        description="pool images during scoring; published: a random crop",
    )
    test: ViewConfig = Field(ViewConfig(crop="center", size=224), description="evaluation and prediction")
    strong: ViewConfig | None = Field(
        None,
        description="second view of unlabelled target, for objectives that compare two views; null: "
        "`unlabelled` plus RandAugment (2 operations of magnitude 10) and a cutout of half the side",
    )
