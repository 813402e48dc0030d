"""Model builders. They return networks from images to logits, per image or on a grid of pixels.

A builder takes ``classes``, ``channels`` and its own parameters. Networks take float32 images in [0, 1] and
normalise them, because mean and standard deviation depend on the weights.
"""

from collections.abc import Callable, Mapping

from torch import nn

from ducats.models import classifier, deeplab
from ducats.models.classifier import timm_classifier
from ducats.models.deeplab import deeplab_v2, deeplab_v3plus
from ducats.models.evidential import Evidential, head_of
from ducats.models.small import small_cnn
from ducats.models.small_fcn import small_fcn

Builder = Callable[..., nn.Module]

MODELS: Mapping[str, Builder] = {
    "small_cnn": small_cnn,
    "timm": timm_classifier,
    "small_fcn": small_fcn,
    "deeplab_v2": deeplab_v2,
    "deeplab_v3plus": deeplab_v3plus,
}

# The same networks for resuming a run: no initial weights are read or downloaded. The other models have none.
BLANK: Mapping[str, Builder] = {
    "timm": classifier.blank,
    "deeplab_v2": deeplab.blank_v2,
    "deeplab_v3plus": deeplab.blank_v3plus,
}

# Functions that validate a model's parameters before any image is read.
CHECK: Mapping[str, Callable[..., None]] = {
    "timm": classifier.check_start,
    "deeplab_v2": deeplab.check_start,
    "deeplab_v3plus": deeplab.check_start,
}

__all__ = [
    "BLANK",
    "CHECK",
    "MODELS",
    "Builder",
    "Evidential",
    "deeplab_v2",
    "deeplab_v3plus",
    "head_of",
    "small_cnn",
    "small_fcn",
    "timm_classifier",
]
