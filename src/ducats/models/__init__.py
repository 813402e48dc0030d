"""Models: builders that return a network from images to logits.

A builder takes ``classes`` and ``channels`` and its own knobs. Networks take images as float32 in [0, 1] and
normalise them themselves, since the right numbers come with the weights.
"""

from collections.abc import Callable, Mapping

from torch import nn

from ducats.models.classifier import timm_classifier
from ducats.models.evidential import Evidential
from ducats.models.small import small_cnn

Builder = Callable[..., nn.Module]

MODELS: Mapping[str, Builder] = {
    "small_cnn": small_cnn,
    "timm": timm_classifier,
}

__all__ = ["MODELS", "Builder", "Evidential", "small_cnn", "timm_classifier"]
