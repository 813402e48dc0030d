"""Untrained models of images and of maps, and references of their outputs and uncertainties."""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import digamma
from torch import Tensor

from ducats.data.domain import Images
from ducats.data.views import apply_view
from ducats.models import EvidentialModel, small_cnn, small_fcn
from ducats.settings import View
from ducats.training.inputs import PixelInputs
from ducats.utils.randomness import global_seed, make_generator

Array = NDArray[np.float64]

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


def outputs_one_by_one(
    model: EvidentialModel, images: Images, view: View, seed: int
) -> tuple[Tensor, Tensor]:
    """Return logits and features, image by image, with the random crops of a predictor."""
    aug_params = PixelInputs(images, view).sample_params(
        torch.arange(len(images)), make_generator(seed, "scoring")
    )
    model.eval()
    with torch.no_grad():
        outputs = [
            model(apply_view(images.pixels[i : i + 1], view, aug_params[i : i + 1]))
            for i in range(len(images))
        ]
    return torch.cat([one.z for one in outputs]), torch.cat([one.features for one in outputs])


def reference_uncertainties(z: Tensor) -> tuple[Array, Array, Array]:
    """Return probabilities (N, C), U_dis and U_data of log alpha (N, C), by the paper's formulas."""
    alpha: Array = np.exp(z.double().numpy())
    total = alpha.sum(1, keepdims=True)
    p = alpha / total
    u_data = (p * (digamma(total + 1) - digamma(alpha + 1))).sum(1)
    return p, -(p * np.log(p)).sum(1) - u_data, u_data
