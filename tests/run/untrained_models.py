"""Untrained models of images and of maps, for tests on one and on two processes."""

from ducats.models import EvidentialModel, small_cnn, small_fcn
from ducats.settings import View
from ducats.utils.randomness import global_seed

HEIGHT, WIDTH = 16, 32
RANDOM_VIEW = View(crop="random", pad=1)  # random augmentation, the harder case


def image_model() -> EvidentialModel:
    """Untrained model with four classes."""
    with global_seed(0, "model"):
        return EvidentialModel(small_cnn(classes=4, channels=3, width=4, features=8))


def map_model(classes: int) -> EvidentialModel:
    """Untrained segmentation model."""
    with global_seed(0, "model"):
        return EvidentialModel(small_fcn(classes=classes, channels=3, width=8))
