"""Model builders. They return networks from images to logits, per image or on a grid of pixels.

A builder takes ``classes``, ``channels`` and its own parameters. Networks take float32 images in [0, 1] and
normalise them, because mean and standard deviation depend on the weights.
"""

from collections.abc import Mapping

from ducats.models.classifier import TIMM_SPEC, timm_classifier
from ducats.models.deeplab import DEEPLAB_V2_SPEC, DEEPLAB_V3PLUS_SPEC, deeplab_v2, deeplab_v3plus
from ducats.models.evidential import EvidentialModel, find_head_weights
from ducats.models.small_cnn import SMALL_CNN_SPEC, small_cnn
from ducats.models.small_fcn import SMALL_FCN_SPEC, small_fcn
from ducats.models.spec import ModelBuilder, ModelSpec, as_model_spec
from ducats.utils.registry import resolve

MODELS: Mapping[str, ModelSpec] = {
    "timm": TIMM_SPEC,
    "small_cnn": SMALL_CNN_SPEC,
    "deeplab_v2": DEEPLAB_V2_SPEC,
    "deeplab_v3plus": DEEPLAB_V3PLUS_SPEC,
    "small_fcn": SMALL_FCN_SPEC,
}


def resolve_model(name: str) -> ModelSpec:
    """Return a model by its name in `MODELS`, or a user's own as ``package.module:attribute``."""
    return resolve("model", MODELS, name, as_model_spec)


def model_names(*, per_pixel: bool) -> str:
    """Return the names of the models that output logits per pixel, or per image, for a message."""
    return " or ".join(name for name, spec in MODELS.items() if spec.per_pixel is per_pixel)


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
