"""A timm backbone with the published head: linear to 256, batch norm, ReLU, linear."""

import logging
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file
from timm.data.config import resolve_model_data_config
from torch import Tensor, nn

from ducats.errors import UserError


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
        # Pretrained weights know much already: they move at a tenth of the pace, as published.
        self.lr_multipliers = {"backbone": 0.1} if pretrained else {}
        data = resolve_model_data_config(backbone)
        for name in ("mean", "std"):
            colours = torch.tensor(data[name])
            # Weights for three colours fold onto fewer or more channels as their average.
            fitting = colours if len(colours) == channels else colours.mean().expand(channels)
            self.register_buffer(name, fitting.reshape(-1, 1, 1).clone(), persistent=False)
        self.backbone = backbone
        self.bottleneck = nn.Sequential(nn.Linear(width, bottleneck), nn.BatchNorm1d(bottleneck), nn.ReLU())
        self.head = nn.Linear(bottleneck, classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images in [0, 1] to logits and features."""
        features = self.bottleneck(self.backbone((images - self.mean) / self.std))
        return self.head(features), features


def timm_classifier(
    *,
    classes: int,
    channels: int,
    backbone: str = "resnet50",
    pretrained: bool = True,
    weights: str | None = None,
    bottleneck: int = 256,
) -> Classifier:
    """Build a classifier on any timm backbone.

    Args:
        classes: number of classes.
        channels: of the images.
        backbone: a name that timm knows.
        pretrained: start from timm's own weights (downloaded once).
        weights: start from this file of the backbone's weights instead (.safetensors, .pth).
        bottleneck: width of what the last layer sees.
    """
    if not timm.is_model(backbone.split(".")[0]):
        near = timm.list_models(f"*{backbone.split('.')[0]}*")[:5]
        hint = f"; near: {', '.join(near)}" if near else ""
        raise UserError(f"timm has no model {backbone!r}{hint} (`timm.list_models()` names all)")
    pretrained = pretrained and weights is None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # ten retries are told in one sentence below
    try:
        trunk = timm.create_model(backbone, pretrained=pretrained, num_classes=0, in_chans=channels)
    except Exception as error:
        if not pretrained:
            raise
        raise UserError(
            f"timm could not fetch the weights of {backbone!r} ({type(error).__name__}): give a local file "
            "with --set model.knobs.weights=FILE, or start from random weights with "
            "--set model.knobs.pretrained=false"
        ) from error
    if weights is not None:
        _load(trunk, Path(weights))
    width = trunk.num_features
    assert isinstance(width, int)
    return Classifier(
        trunk, width, bottleneck, classes, channels, pretrained=pretrained or weights is not None
    )


def _load(trunk: nn.Module, path: Path) -> None:
    if not path.is_file():
        raise UserError(f"there is no file of weights {path}")
    try:
        state = load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
    except Exception as error:
        raise UserError(f"{path} is no file of weights that can be read safely ({error})") from error
    missing, unexpected = trunk.load_state_dict(state, strict=False)
    # The classifier of the pretraining task has no place here; everything else must fit.
    surplus = [name for name in unexpected if not name.startswith(("fc.", "head.", "classifier."))]
    if missing or surplus:
        raise UserError(
            f"{path} does not fit the backbone: {len(missing)} tensors are missing (e.g. {missing[:2]}), "
            f"{len(surplus)} have no place (e.g. {surplus[:2]})"
        )
