"""A timm backbone by name: its weights, its strides, its width."""

import difflib
from pathlib import Path
from typing import Literal, get_args

import timm
import torch
from timm.models.resnet import Bottleneck
from torch import nn

from ducats.errors import UserError
from ducats.models import hub, offline, weights_file

Strides = Literal["timm", "first"]


def make_backbone(
    name: str, *, channels: int, pretrained: bool, weights: str | None, strides: Strides
) -> nn.Module:
    """Build a backbone without classifier, from the first of: a file, the offline package, timm's own."""
    check_name(name)
    _check_strides(strides)
    if weights is None and pretrained and not offline.serves(name):
        trunk = hub.fetch(name, channels)
    else:
        trunk = timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels)
        if weights is not None:
            path = Path(weights).expanduser()
            weights_file.fit(trunk, weights_file.read(path), name=name, channels=channels, origin=str(path))
        elif pretrained:
            state = offline.state_for(trunk)
            weights_file.fit(trunk, state, name=name, channels=channels, origin=offline.PACKAGE)
    if strides == "first":
        stride_first(trunk, name)
    return trunk


def stride_first(trunk: nn.Module, name: str) -> None:
    """Move each down-sampling stride from the 3x3 convolution of its block to the 1x1 before it.

    So the ResNets of 2015 had it, and the Caffe and Keras weights that descend from them. The tensors have
    the same shapes either way, so weights load without complaint and then see the image wrongly.
    """
    blocks = [
        block for block in trunk.modules() if isinstance(block, Bottleneck) and max(block.conv2.stride) > 1
    ]
    if not blocks:
        raise UserError(
            f"strides 'first' is for ResNets of bottleneck blocks (resnet50, resnet101, …), and {name!r} has "
            "no such stride to move: leave model.knobs.strides at 'timm'"
        )
    for block in blocks:
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride


def width_of(trunk: nn.Module, channels: int) -> int:
    """How many features a backbone gives, by asking it.

    timm's ``num_features`` is what comes before the head's hidden layer where there is one (MobileNetV3),
    and ``head_hidden_size`` is not known by all.
    """
    cfg = trunk.pretrained_cfg
    assert isinstance(cfg, dict)
    trunk.eval()
    with torch.no_grad():
        features = trunk(torch.zeros(1, channels, *cfg["input_size"][-2:]))
    trunk.train()
    if not isinstance(features, torch.Tensor) or features.ndim != 2 or not features.shape[1]:
        raise UserError(
            f"the backbone {cfg['architecture']!r} does not give one row of features per image, "
            "so it cannot carry a classifier: choose another"
        )
    return features.shape[1]


def check_name(name: str) -> None:
    """Refuse a backbone, or a tag of it, that timm does not know."""
    architecture = name.split(".")[0]
    if not timm.is_model(architecture):
        near = timm.list_models(f"*{architecture}*")[:5]
        near = near or difflib.get_close_matches(architecture, timm.list_models(), n=3)
        hint = f"; near: {', '.join(near)}" if near else ""
        raise UserError(f"timm has no model {name!r}{hint} (`timm.list_models()` names all)")
    try:
        timm.get_pretrained_cfg(name)
    except RuntimeError:
        tagged = timm.list_models(f"{architecture}.*", pretrained=True)
        known = f"has {', '.join(tagged)}" if tagged else f"knows {architecture!r} without a tag only"
        raise UserError(f"timm has no weights {name!r}: it {known}") from None


def _check_strides(strides: str) -> None:
    if strides not in get_args(Strides):
        raise UserError(f"model.knobs.strides is {strides!r}: choose {' or '.join(get_args(Strides))}")
