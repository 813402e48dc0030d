"""A timm backbone with the published head: linear to 256, batch norm, ReLU, linear."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ducats.errors import UserError
from ducats.models.backbone import Strides, check_name, make_backbone, normalisation, width_of


class Classifier(nn.Module):
    """Backbone, bottleneck, head; normalises as its weights expect."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        width: int,
        bottleneck: int,
        classes: int,
        channels: int,
        *,
        pretrained: bool,
    ) -> None:
        super().__init__()
        self.lr_multipliers = advice(pretrained)
        mean, std = normalisation(backbone, channels)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)
        self.backbone = backbone
        self.bottleneck = nn.Sequential(nn.Linear(width, bottleneck), nn.BatchNorm1d(bottleneck), nn.ReLU())
        self.head = nn.Linear(bottleneck, classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images in [0, 1] to logits and features."""
        try:
            seen = self.backbone((images - self.mean) / self.std)
        except torch.OutOfMemoryError:
            raise
        except (AssertionError, RuntimeError) as error:
            raise self._wrong_side(images) or error from error
        features = self.bottleneck(seen)
        return self.head(features), features

    def _wrong_side(self, images: Tensor) -> UserError | None:
        """The one sentence for a backbone that takes one size only, where another arrived.

        Asked after it failed, not before: many that timm lists with a fixed size take others too.
        """
        cfg = self.backbone.pretrained_cfg
        assert isinstance(cfg, dict)
        side, arrived = tuple(cfg["input_size"][-2:]), tuple(images.shape[-2:])
        if side == arrived or not cfg.get("fixed_input_size"):
            return None
        return UserError(
            f"the backbone {cfg['architecture']!r} takes images of {side[0]} x {side[1]}, not of "
            f"{arrived[0]} x {arrived[1]}: give every view that size (--set views.source.size={side[0]}, and "
            "likewise unlabelled, scoring, test), or choose a backbone that takes any, such as resnet50"
        )


def check_start(*, backbone: str = "resnet50", weights: str | None = None, **_: object) -> None:
    """Refuse a name or a file that is not there, before any image is read.

    Args:
        backbone: a name that timm should know.
        weights: a file that should be there.
    """
    check_name(backbone)
    if weights is not None and not Path(weights).expanduser().is_file():
        raise UserError(f"there is no file of weights {weights}: check model.knobs.weights")


def blank(**knobs: Any) -> "Classifier":
    """What ``timm_classifier`` builds, without its first weights: a checkpoint brings others.

    Nothing is read or fetched; the advice on learning rates is that of the network with its weights.
    """
    network = timm_classifier(**{**knobs, "weights": None, "pretrained": False})
    network.lr_multipliers = advice(knobs.get("pretrained", True) or knobs.get("weights") is not None)
    return network


def advice(learnt: bool) -> dict[str, float]:
    """Weights that know much already move at a tenth of the pace, as published."""
    return {"backbone": 0.1} if learnt else {}


def timm_classifier(
    *,
    classes: int,
    channels: int,
    backbone: str = "resnet50",
    pretrained: bool = True,
    weights: str | None = None,
    strides: Strides = "timm",
    bottleneck: int = 256,
) -> Classifier:
    """Build a classifier on any timm backbone.

    Args:
        classes: number of classes.
        channels: of the images.
        backbone: a name that timm knows, with or without a tag; it brings its normalisation.
        pretrained: start from ImageNet weights: timm's own (downloaded once), or those of `ducats[offline]`.
        weights: start from this file of the backbone's weights instead (.safetensors, .pth, .npz).
        strides: where a ResNet's blocks shrink their input: `timm`, or `first` (nets of 2015, Caffe, Keras).
        bottleneck: width of what the last layer sees.
    """
    trunk = make_backbone(
        backbone, channels=channels, pretrained=pretrained, weights=weights, strides=strides
    )
    learnt = pretrained or weights is not None
    return Classifier(trunk, width_of(trunk, channels), bottleneck, classes, channels, pretrained=learnt)
