"""A model and all that the rest of the program must know about it."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

ModelBuilder = Callable[..., nn.Module]


@dataclass(frozen=True)
class ModelSpec:
    """A model and its properties."""

    build: ModelBuilder  # (*, classes, channels, params): a network from images in [0, 1] to logits
    per_pixel: bool | None = None  # whether it outputs logits per pixel; None: unknown until it is built
    build_without_weights: ModelBuilder | None = None  # the same network, but loads no weights
    check_params: Callable[..., None] | None = None  # rejects parameters before any image is read
    check_weights: Callable[..., None] | None = None  # raises if this machine cannot get the weights
    has_timm_backbone: bool = False  # whether ``backbone`` names a timm model, loaded if ``pretrained``


def as_model_spec(model: ModelBuilder | ModelSpec) -> ModelSpec:
    """Wrap a plain function; return a `ModelSpec` unchanged."""
    return model if isinstance(model, ModelSpec) else ModelSpec(model)
