"""A timm backbone by name: its weights, its strides, its width; as rows of features, or as maps."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import timm
import torch
from timm.data.config import resolve_model_data_config
from timm.models.resnet import Bottleneck
from torch import Tensor, nn

from ducats.errors import UserError
from ducats.models import hub, offline, weights_file

Strides = Literal["timm", "first"]
OUTPUT_STRIDES = (8, 16, 32)


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


class Features(NamedTuple):
    """A backbone that gives maps, and how many channels each has."""

    net: nn.Module  # images to a list of maps
    widths: list[int]


def make_features(
    name: str,
    *,
    channels: int,
    pretrained: bool,
    weights: str | None,
    strides: Strides,
    output_stride: int,
    reductions: Sequence[int],
) -> Features:
    """Build a backbone that gives maps, with the same weights as ``make_backbone`` would.

    Args:
        name: that timm knows.
        channels: of the images.
        pretrained: see ``make_backbone``.
        weights: see ``make_backbone``.
        strides: see ``make_backbone``.
        output_stride: of the last map; what later stages would shrink is dilated instead.
        reductions: which maps: of each of these strides the last, in this order.
    """
    check_name(name)
    _check_strides(strides)
    check_output_stride(output_stride)
    indices, widths = _stages(name, channels, output_stride, reductions)
    net = _feature_net(name, channels, output_stride, out_indices=indices)
    if pretrained or weights is not None:
        plain = make_backbone(name, channels=channels, pretrained=pretrained, weights=weights, strides="timm")
        _copy(plain, net, name)
    if strides == "first":
        stride_first(net, name, output_stride)
    return Features(net, widths)


def check_maps(name: str, output_stride: int) -> None:
    """Refuse a backbone that does not give maps at this stride."""
    check_output_stride(output_stride)
    _stages(name, 3, output_stride, (output_stride,))


def _feature_net(name: str, channels: int, output_stride: int, **knobs: Any) -> nn.Module:
    if output_stride != max(OUTPUT_STRIDES):  # not all can be dilated; at 32 they need not be
        knobs["output_stride"] = output_stride
    net: nn.Module = timm.create_model(name, pretrained=False, features_only=True, in_chans=channels, **knobs)
    return net


def _stages(
    name: str, channels: int, output_stride: int, reductions: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Index and width of the last stage of each of these strides, by asking the network's shapes.

    What timm notes as a stage's stride is not in all families that of the dilated network.
    """
    side = 4 * max(OUTPUT_STRIDES)
    try:
        with torch.device("meta"):  # shapes alone: nothing is computed
            net = _feature_net(name, channels, output_stride).eval()
            shapes = [tuple(maps.shape) for maps in net(torch.empty(1, channels, side, side))]
            known = [side // shape[2] if shape[2] == shape[3] else 0 for shape in shapes]
    except Exception as error:  # each family of timm refuses in its own way, or breaks
        said = str(error).partition("\n")[0]
        raise _no_maps(name, output_stride, f"{type(error).__name__}: {said}" if said else "") from error
    indices = [len(known) - 1 - known[::-1].index(r) if r in known else -1 for r in reductions]
    if known[-1] != output_stride or -1 in indices:
        raise _no_maps(name, output_stride, f"its stages have strides {', '.join(map(str, known))}")
    return indices, [shapes[index][1] for index in indices]


def _no_maps(name: str, output_stride: int, why: str) -> UserError:
    wider = "" if output_stride == max(OUTPUT_STRIDES) else ", or try model.knobs.output_stride=32"
    return UserError(
        f"the backbone {name!r} cannot give maps at output stride {output_stride}"
        + (f" ({why})" if why else "")
        + f": choose another, such as resnet101{wider}"
    )


def _copy(plain: nn.Module, net: nn.Module, name: str) -> None:
    """Copy a backbone's weights into its twin that gives maps, which lacks the last layers."""
    state = plain.state_dict()
    renamed = {}
    for key in net.state_dict():
        # timm's wrappers flatten `stages.0` to `stages_0`, or hold the whole as `model` or `body`.
        for old in (key, re.sub(r"^(\w+)_(\d+)\.", r"\1.\2.", key), re.sub(r"^(model|body)\.", "", key)):
            if old in state:
                renamed[key] = state[old]
                break
    try:
        net.load_state_dict(renamed)
    except RuntimeError as error:
        raise UserError(
            f"the weights of {name!r} cannot be moved to the network that gives maps: choose another "
            "backbone, such as resnet101"
        ) from error


def stride_first(trunk: nn.Module, name: str, output_stride: int = 32) -> None:
    """Move each down-sampling stride from the 3x3 convolution of its block to the 1x1 before it.

    So the ResNets of 2015 had it, and the Caffe and Keras weights that descend from them. The tensors have
    the same shapes either way, so weights load without complaint and then see the image wrongly.

    Args:
        trunk: changed in place.
        name: for the message.
        output_stride: from which on the trunk is dilated.
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
    # Where dilation stands for a stride, the 3x3 that came after the stride is already one of the dilated.
    stride, dilation = 4, 1
    for stage in ("layer2", "layer3", "layer4"):
        if stride < output_stride:
            stride *= 2
            continue
        dilation *= 2
        first = trunk.get_submodule(f"{stage}.0.conv2")
        first.dilation = first.padding = (dilation, dilation)  # type: ignore[assignment]


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


def normalisation(trunk: nn.Module, channels: int) -> tuple[Tensor, Tensor]:
    """Mean and deviation that the backbone's weights expect, ``(channels, 1, 1)`` each."""
    data = resolve_model_data_config(trunk)
    both = []
    for name in ("mean", "std"):
        colours = torch.tensor(data[name])
        # Weights for three colours fold onto fewer or more channels as their average.
        fitting = colours if len(colours) == channels else colours.mean().expand(channels)
        both.append(fitting.reshape(-1, 1, 1).clone())
    return both[0], both[1]


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


def check_output_stride(output_stride: int) -> None:
    """Refuse a stride that no backbone is dilated to."""
    if output_stride not in OUTPUT_STRIDES:
        raise UserError(f"model.knobs.output_stride is {output_stride}: choose 8, 16 or 32")
