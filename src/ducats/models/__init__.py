"""Model builders. They return networks from images to logits, per image or on a grid of pixels.

A builder takes ``classes``, ``channels`` and its own parameters. Networks take float32 images in [0, 1] and
normalise them, because mean and standard deviation depend on the weights.
"""

from collections.abc import Callable, Mapping
from functools import partial

from ducats.models.backbone import check_weights
from ducats.models.classifier import build_without_weights, check_classifier_params, timm_classifier
from ducats.models.deeplab import check_deeplab_params, deeplab_v2, deeplab_v3plus
from ducats.models.evidential import EvidentialModel, find_head_weights
from ducats.models.small_cnn import small_cnn
from ducats.models.small_fcn import small_fcn
from ducats.models.spec import ModelBuilder, ModelSpec, as_model_spec
from ducats.utils.registry import resolve


def _timm_model(build: ModelBuilder, check_params: Callable[..., None], *, per_pixel: bool) -> ModelSpec:
    """Return the spec of a model with a timm backbone."""
    return ModelSpec(
        build,
        per_pixel=per_pixel,
        build_without_weights=partial(build_without_weights, build),
        check_params=check_params,
        check_weights=partial(check_weights, build),
        has_timm_backbone=True,
    )


MODELS: Mapping[str, ModelSpec] = {
    "timm": _timm_model(timm_classifier, check_classifier_params, per_pixel=False),
    "small_cnn": ModelSpec(small_cnn, per_pixel=False),
    "deeplab_v2": _timm_model(deeplab_v2, check_deeplab_params, per_pixel=True),
    "deeplab_v3plus": _timm_model(deeplab_v3plus, check_deeplab_params, per_pixel=True),
    "small_fcn": ModelSpec(small_fcn, per_pixel=True),
}


def resolve_model(name: str) -> ModelSpec:
    """Return a model by its name in `MODELS`, or a user's own as ``package.module:attribute``."""
    return resolve("model", MODELS, name, as_model_spec)


def model_names(*, per_pixel: bool, has_backbone: bool = False) -> str:
    """Return the names of the models that output logits per pixel, or per image, for a message.

    Args:
        has_backbone: only those with a timm backbone.
    """
    return " or ".join(
        name
        for name, spec in MODELS.items()
        if spec.per_pixel is per_pixel and spec.has_timm_backbone >= has_backbone
    )


__all__ = [
    "MODELS",
    "EvidentialModel",
    "ModelBuilder",
    "ModelSpec",
    "deeplab_v2",
    "deeplab_v3plus",
    "find_head_weights",
    "model_names",
    "resolve_model",
    "small_cnn",
    "small_fcn",
    "timm_classifier",
]
