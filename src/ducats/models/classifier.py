"""timm backbone with the published head: linear to 256, batch norm, ReLU (not in all methods), linear."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ducats.models.backbone import (
    Strides,
    check_backbone_name,
    check_backbone_options,
    feature_width,
    input_normalisation,
    make_backbone,
)
from ducats.utils.errors import UserError

_Network = TypeVar("_Network", bound=nn.Module)


class Classifier(nn.Module):
    """Backbone, bottleneck and head; normalises images as the backbone's weights expect."""

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
        is_pretrained: bool,
        bottleneck_relu: bool = True,
    ) -> None:
        super().__init__()
        self.lr_multipliers = default_lr_multipliers(is_pretrained)
        mean, std = input_normalisation(backbone, channels)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)
        self.backbone = backbone
        self.embedding_width = width
        self.bottleneck = _make_bottleneck(width, bottleneck, relu=bottleneck_relu)
        self.head = nn.Linear(bottleneck, classes)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and features for images in [0, 1], or for their embeddings ``(N, width)``."""
        features = self.bottleneck(self.embed(inputs) if inputs.ndim == 4 else inputs)
        return self.head(features), features

    def embed(self, images: Tensor) -> Tensor:
        """Return the output of the backbone, ``(N, width)``, for images in [0, 1]."""
        try:
            embeddings: Tensor = self.backbone((images - self.mean) / self.std)
        except torch.OutOfMemoryError:
            raise
        except (AssertionError, RuntimeError) as error:
            raise self._image_size_error(images) or error from error
        return embeddings

    def _image_size_error(self, images: Tensor) -> UserError | None:
        """Return an error if the images do not have the fixed input size of the backbone; else None.

        Called only after a failure: many backbones that timm lists with a fixed size accept others too.
        """
        cfg = self.backbone.pretrained_cfg
        assert isinstance(cfg, dict)
        expected, actual = tuple(cfg["input_size"][-2:]), tuple(images.shape[-2:])
        if expected == actual or not cfg.get("fixed_input_size"):
            return None
        return UserError(
            f"the backbone {cfg['architecture']!r} needs images of {expected[0]} x {expected[1]}, not "
            f"{actual[0]} x {actual[1]}; set the same size in every view (--set views.size={expected[0]}), "
            "build it for another one (model.params.img_size), or choose a backbone without a fixed size, "
            "e.g. resnet50"
        )


class EmbeddingClassifier(nn.Module):
    """Bottleneck and head of `Classifier` without a backbone, for given embeddings ``(N, width)``."""

    def __init__(
        self, width: int, classes: int, *, bottleneck: int = 256, bottleneck_relu: bool = True
    ) -> None:
        super().__init__()
        self.bottleneck = _make_bottleneck(width, bottleneck, relu=bottleneck_relu)
        self.head = nn.Linear(bottleneck, classes)

    def forward(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and features."""
        features = self.bottleneck(embeddings)
        return self.head(features), features


def _make_bottleneck(width: int, bottleneck: int, *, relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(width, bottleneck), nn.BatchNorm1d(bottleneck)]
    return nn.Sequential(*layers, *([nn.ReLU()] if relu else []))


def check_classifier_params(
    *,
    backbone: str = "resnet50",
    weights: str | None = None,
    img_size: int | None = None,
    drop_path: float = 0.0,
    gradient_checkpointing: bool = False,
    lora_rank: int | None = None,
    **_: object,
) -> None:
    """Raise if the backbone or its options are invalid, or its weights are missing; reads no image."""
    check_backbone_name(backbone)
    check_backbone_options(
        backbone,
        img_size=img_size,
        drop_path=drop_path,
        gradient_checkpointing=gradient_checkpointing,
        lora_rank=lora_rank,
    )
    if weights is not None and not Path(weights).expanduser().is_file():
        raise UserError(f"the weights file {weights} does not exist; check model.params.weights")


def build_without_weights(build: Callable[..., _Network], **params: Any) -> _Network:
    """Build a network without initial weights, to load a checkpoint into it; nothing is read or downloaded.

    Its learning-rate multipliers and frozen norms are those of the network with its weights.
    """
    is_pretrained = bool(params.get("pretrained", True)) or params.get("weights") is not None
    if "frozen" in inspect.signature(build).parameters and params.get("frozen") is None:
        params["frozen"] = is_pretrained
    network = build(**{**params, "weights": None, "pretrained": False})
    network.lr_multipliers = default_lr_multipliers(is_pretrained)  # type: ignore[assignment]
    return network


def default_lr_multipliers(is_pretrained: bool) -> dict[str, float]:
    """Return learning-rate multipliers: a pretrained backbone uses a tenth of the rate, as published."""
    return {"backbone": 0.1} if is_pretrained else {}


def timm_classifier(
    *,
    classes: int,
    channels: int,
    backbone: str = "resnet50",
    pretrained: bool = True,
    weights: str | None = None,
    strides: Strides = "timm",
    bottleneck: int = 256,
    bottleneck_relu: bool = True,
    img_size: int | None = None,
    drop_path: float = 0.0,
    gradient_checkpointing: bool = False,
    lora_rank: int | None = None,
) -> Classifier:
    """Build a classifier on any timm backbone.

    Args:
        backbone: timm model name, with or without tag; it also determines the normalisation.
        pretrained: start from ImageNet weights: those of timm (downloaded once) or of `ducats[offline]`.
        weights: file with weights of the backbone, used instead (.safetensors, .pth, .npz).
        strides: placement of the strides in ResNet blocks: `timm`, or `first` (2015 ResNets, Caffe, Keras).
        bottleneck: width of the features, the input of the last layer.
        bottleneck_relu: whether a ReLU follows the batch norm of the bottleneck.
        img_size: side of the images, for backbones that take one size only; None: that of their weights.
            timm resamples position embeddings. A run gives the size of its views.
        drop_path: drop rate of the backbone's residual branches (stochastic depth).
        gradient_checkpointing: recompute the backbone's activations in the backward pass, which takes less
            memory and more time; not with batch norms.
        lora_rank: freeze the backbone and train a low-rank update of each linear layer (LoRA); None: train
            the backbone.
    """
    trunk = make_backbone(
        backbone,
        channels=channels,
        pretrained=pretrained,
        weights=weights,
        strides=strides,
        img_size=img_size,
        drop_path=drop_path,
        gradient_checkpointing=gradient_checkpointing,
        lora_rank=lora_rank,
    )
    is_pretrained = pretrained or weights is not None
    return Classifier(
        trunk,
        feature_width(trunk, channels),
        bottleneck,
        classes,
        channels,
        is_pretrained=is_pretrained,
        bottleneck_relu=bottleneck_relu,
    )
