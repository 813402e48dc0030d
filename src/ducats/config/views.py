"""Settings of views: how stored images become a model's input, in each of their uses."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from ducats.config.base import Strict


class View(Strict):
    """How a stored image becomes the model's input."""

    resize: Literal["squash", "short_side"] = Field(
        "squash",
        description="what the crop is cut from: the image squashed to a square, or (published for unlabelled "
        "target) in its own shape, the short side as long as the stored one",
    )
    crop: Literal["none", "center", "random", "resized"] = Field(
        "none", description="none; centre; random place; random place, scale and shape (RandomResizedCrop)"
    )
    size: int | tuple[int, int] | None = Field(
        None, description="side after the crop, or height and width; null keeps what is stored"
    )
    scale: tuple[float, float] = Field((0.08, 1.0), description="share of the area, for `resized`")
    ratio: tuple[float, float] = Field((0.75, 4 / 3), description="width over height, for `resized`")
    pad: int = Field(0, ge=0, description="edge pixels repeated on each side before a `random` crop")
    flip: float = Field(0.0, ge=0, le=1, description="probability of a left-right flip")
    jitter: tuple[float, float, float, float] = Field(
        (0.0, 0.0, 0.0, 0.0), description="brightness, contrast, saturation, hue (ColorJitter)"
    )

    randaugment: tuple[int, int] | None = Field(
        None, description="operations on each image and their strength, 0 to 30 (RandAugment)"
    )
    cutout: float = Field(0.0, ge=0, le=1, description="side of a grey square, as a share of the image's")

    @model_validator(mode="after")
    def _shape(self) -> "View":
        if self.resize == "short_side" and (self.crop not in ("random", "center") or self.pad):
            raise ValueError("resize=short_side is for crop=random or crop=center, without pad")
        return self

    @field_validator("size")
    @classmethod
    def _sides(cls, value: int | tuple[int, int] | None) -> int | tuple[int, int] | None:
        if value is not None and min(value if isinstance(value, tuple) else (value,)) < 1:
            raise ValueError("a view must be at least one pixel high and wide")
        return value

    @field_validator("randaugment")
    @classmethod
    def _strength(cls, value: tuple[int, int] | None) -> tuple[int, int] | None:
        if value is not None and not (value[0] >= 1 and 0 <= value[1] <= 30):
            raise ValueError("randaugment is at least one operation, of a strength from 0 to 30")
        return value

    @field_validator("scale", "ratio")
    @classmethod
    def _range(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] <= value[1]:
            raise ValueError("a range must rise from above 0")
        return value

    @field_validator("jitter")
    @classmethod
    def _hue(cls, value: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        if min(value) < 0 or value[3] > 0.5:
            raise ValueError("jitter must not be negative, and hue at most 0.5")
        return value


class Views(Strict):
    """One view per use of the images."""

    source: View = Field(View(crop="resized", size=224, flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1)))
    labelled: View | None = Field(None, description="bought target images in training; null: as the source")
    unlabelled: View = Field(View(crop="random", size=224), description="unlabelled target in training")
    scoring: View = Field(
        View(crop="center", size=224), description="the pool when it is scored; published: a random crop"
    )
    test: View = Field(View(crop="center", size=224), description="held-out images, and prediction")
    strong: View | None = Field(
        None,
        description="unlabelled target once more, for objectives that compare two views of an image; null: "
        "as `unlabelled`, with RandAugment (2 operations of strength 10) and a cut-out of half the side",
    )
