"""Model builders. They return networks from images to logits, per image or on a grid of pixels.

A builder takes ``classes``, ``channels`` and its own parameters. Networks take float32 images in [0, 1] and
normalise them, because mean and standard deviation depend on the weights.
"""

from collections.abc import Callable, Mapping

from torch import nn

from ducats.models import classifier, deeplab
from ducats.models.classifier import timm_classifier
from ducats.models.deeplab import deeplab_v2, deeplab_v3plus
from ducats.models.evidential import EvidentialModel, find_head_weights
from ducats.models.small_cnn import small_cnn
from ducats.models.small_fcn import small_fcn

ModelBuilder = Callable[..., nn.Module]

MODELS: Mapping[str, ModelBuilder] = {
    "small_cnn": small_cnn,
    "timm": timm_classifier,
    "small_fcn": small_fcn,
    "deeplab_v2": deeplab_v2,
    "deeplab_v3plus": deeplab_v3plus,
}

# The same networks for resuming a run: no initial weights are read or downloaded. The other models have none.
MODELS_WITHOUT_WEIGHTS: Mapping[str, ModelBuilder] = {
    "timm": classifier.classifier_without_weights,
    "deeplab_v2": deeplab.deeplab_v2_without_weights,
    "deeplab_v3plus": deeplab.deeplab_v3plus_without_weights,
}

# Functions that validate a model's parameters before any image is read.
MODEL_CHECKS: Mapping[str, Callable[..., None]] = {
    "timm": classifier.check_classifier_params,
    "deeplab_v2": deeplab.check_deeplab_params,
    "deeplab_v3plus": deeplab.check_deeplab_params,
}

__all__ = [
    "MODELS",
    "MODELS_WITHOUT_WEIGHTS",
    "MODEL_CHECKS",
    "EvidentialModel",
    "ModelBuilder",
    "deeplab_v2",
    "deeplab_v3plus",
    "find_head_weights",
    "small_cnn",
    "small_fcn",
    "timm_classifier",
]
