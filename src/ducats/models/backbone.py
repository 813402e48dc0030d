"""timm backbones by name, with their weights: as feature vectors or as feature maps."""

import difflib
import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import timm
import torch
from timm.data.config import resolve_model_data_config
from timm.models.resnet import Bottleneck
from torch import Tensor, nn

from ducats.models import hub, offline, weights_file
from ducats.models.lora import add_lora
from ducats.utils.errors import UserError

Strides = Literal["timm", "first"]
OUTPUT_STRIDES = (8, 16, 32)


def make_backbone(
    name: str,
    *,
    channels: int,
    pretrained: bool,
    weights: str | None,
    strides: Strides,
    img_size: int | None = None,
    drop_path: float = 0.0,
    gradient_checkpointing: bool = False,
    lora_rank: int | None = None,
) -> nn.Module:
    """Build a backbone without classifier, with weights from a file, the offline package or timm.

    Args:
        img_size: side of the images, for a backbone that takes one size only; None: that of its weights.
            timm resamples position embeddings.
        drop_path: drop rate of residual branches (stochastic depth).
        gradient_checkpointing: recompute activations in the backward pass.
        lora_rank: train only low-rank updates of the linear layers, see `lora`.
    """
    check_backbone_name(name)
    _check_strides(strides)
    options = _timm_options(name, img_size, drop_path)
    if weights is None and pretrained and not offline.has_weights_for(name):
        trunk = hub.fetch_pretrained(name, channels, options)
    else:
        trunk = timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels, **options)
        if weights is not None:
            path = Path(weights).expanduser()
            weights_file.load_weights(
                trunk, weights_file.read_weights(path), name=name, channels=channels, origin=str(path)
            )
        elif pretrained:
            state = offline.load_state(trunk)
            weights_file.load_weights(
                trunk, state, name=name, channels=channels, origin=offline.OFFLINE_PACKAGE
            )
    if strides == "first":
        move_strides_first(trunk, name)
    if gradient_checkpointing:
        _enable_gradient_checkpointing(trunk, name)
    if lora_rank is not None:
        add_lora(trunk, lora_rank, torch.zeros(1, channels, *_input_size(trunk)), name)
    return trunk


def check_backbone_options(
    name: str,
    *,
    img_size: int | None = None,
    drop_path: float = 0.0,
    gradient_checkpointing: bool = False,
    lora_rank: int | None = None,
) -> None:
    """Raise if the backbone does not support these options of `make_backbone`."""
    if img_size is not None and (not isinstance(img_size, int) or img_size < 1):
        raise UserError(
            f"model.params.img_size is {img_size!r}; give the side of the images in pixels, or null"
        )
    if not isinstance(drop_path, int | float) or not 0 <= drop_path < 1:
        raise UserError(f"model.params.drop_path is {drop_path!r}; give a rate of at least 0 and less than 1")
    if lora_rank is not None and (not isinstance(lora_rank, int) or lora_rank < 1):
        raise UserError(f"model.params.lora_rank is {lora_rank!r}; give a number of at least 1, or null")
    options = _timm_options(name, img_size, drop_path)
    if drop_path or gradient_checkpointing or lora_rank is not None:
        try:
            trunk = _build_on_meta(name, **options)
        except TypeError:  # an unexpected keyword argument
            raise UserError(
                f"the backbone {name!r} has no drop path; set model.params.drop_path=0, or choose another, "
                "e.g. convnext_tiny"
            ) from None
        if gradient_checkpointing:
            _enable_gradient_checkpointing(trunk, name)
        if lora_rank is not None:
            add_lora(trunk, lora_rank, torch.zeros(1, 3, *_input_size(trunk), device="meta"), name)


def _input_size(trunk: nn.Module) -> tuple[int, int]:
    """Return the height and width that a backbone was built for."""
    cfg = trunk.pretrained_cfg
    assert isinstance(cfg, dict)
    return int(cfg["input_size"][-2]), int(cfg["input_size"][-1])


def _timm_options(name: str, img_size: int | None, drop_path: float) -> dict[str, Any]:
    """Return the options of `timm.create_model` for an image size and a drop rate."""
    size = {} if img_size is None else _size_options(name, img_size)
    return {**size, "drop_path_rate": drop_path} if drop_path else size


@functools.cache
def _size_options(name: str, side: int) -> dict[str, Any]:
    """Return timm's options for images of this size; none if the backbone takes them as it is."""
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or not cfg.fixed_input_size or tuple(cfg.input_size[-2:]) == (side, side):
        return {}
    options = {"img_size": side, "pretrained_cfg_overlay": {"input_size": (3, side, side)}}
    # Many backbones that timm lists with a fixed size take others too, and stay as they are.
    for each in ({}, options):
        try:
            with torch.device("meta"):
                _build_on_meta(name, **each)(torch.empty(1, 3, side, side))
            return each
        except (AssertionError, RuntimeError, TypeError, ValueError):
            continue
    raise UserError(
        f"the backbone {name!r} cannot be built for images of {side} x {side}; set the size of its weights, "
        f"--set views.size={cfg.input_size[-1]}, or a multiple of its patch size, or choose a backbone "
        "without a fixed size, e.g. resnet50"
    )


def _build_on_meta(name: str, **options: Any) -> nn.Module:
    with torch.device("meta"):  # only shapes, no memory
        trunk: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, **options)
    return trunk.eval()


def _enable_gradient_checkpointing(trunk: nn.Module, name: str) -> None:
    has_batch_norm = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in trunk.modules())
    try:
        if has_batch_norm:
            raise TypeError("its batch norms would count every batch twice")
        trunk.set_grad_checkpointing(True)  # type: ignore[operator]
    except (AssertionError, AttributeError, TypeError) as error:
        raise UserError(
            f"the backbone {name!r} does not support gradient checkpointing ({error}); set "
            "model.params.gradient_checkpointing=false"
        ) from None


def uses_gradient_checkpointing(network: nn.Module) -> bool:
    """Return whether a part of the network recomputes its activations in the backward pass."""
    return any(getattr(module, "grad_checkpointing", False) is True for module in network.modules())


def check_weights(build: Callable[..., nn.Module], **params: Any) -> None:
    """Raise if a model needs weights that are neither on this machine nor within reach.

    Args:
        build: builder with the parameters ``backbone``, ``pretrained`` and ``weights``.
        params: those that are given.
    """
    defaults = {name: parameter.default for name, parameter in inspect.signature(build).parameters.items()}
    backbone, pretrained, weights = (
        params.get(name, defaults[name]) for name in ("backbone", "pretrained", "weights")
    )
    check_backbone_name(backbone)
    if weights is None and pretrained and not offline.has_weights_for(backbone):
        hub.check_available(backbone)


class FeatureExtractor(NamedTuple):
    """Backbone that returns feature maps, and the channels of each map."""

    net: nn.Module  # from images to a list of maps
    widths: tuple[int, ...]


def make_feature_extractor(
    name: str,
    *,
    channels: int,
    pretrained: bool,
    weights: str | None,
    strides: Strides,
    output_stride: int,
    reductions: tuple[int, ...],
    earlier_stage: bool = False,
) -> FeatureExtractor:
    """Build a backbone that returns feature maps, with the same weights as ``make_backbone``.

    Args:
        output_stride: stride of the last map; later stages are dilated instead of strided.
        reductions: strides of the maps to return, in this order; of several maps with one stride, the last.
        earlier_stage: also return the map before the last one, in second to last place.
    """
    check_backbone_name(name)
    _check_strides(strides)
    check_output_stride(output_stride)
    indices, widths = _find_stages(name, channels, output_stride, reductions, earlier_stage)
    net = _feature_net(name, channels, output_stride, out_indices=indices)
    if pretrained or weights is not None:
        plain = make_backbone(name, channels=channels, pretrained=pretrained, weights=weights, strides="timm")
        _copy_weights(plain, net, name)
    if strides == "first":
        move_strides_first(net, name, output_stride)
    return FeatureExtractor(net, widths)


def check_feature_maps(name: str, output_stride: int) -> None:
    """Raise if the backbone cannot return feature maps at this stride."""
    check_output_stride(output_stride)
    _find_stages(name, 3, output_stride, (output_stride,))


def _feature_net(name: str, channels: int, output_stride: int, **params: Any) -> nn.Module:
    if output_stride != max(OUTPUT_STRIDES):  # 32 needs no dilation, which not all backbones support
        params["output_stride"] = output_stride
    net: nn.Module = timm.create_model(
        name, pretrained=False, features_only=True, in_chans=channels, **params
    )
    return net


@functools.cache
def _find_stages(
    name: str, channels: int, output_stride: int, reductions: tuple[int, ...], earlier_stage: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return index and width of the last stage of each stride, from the shapes of the network's outputs.

    In some families, timm's recorded strides are not those of the dilated network.
    """
    side = 4 * max(OUTPUT_STRIDES)
    try:
        with torch.device("meta"):  # only shapes, no computation
            net = _feature_net(name, channels, output_stride).eval()
            shapes = [tuple(maps.shape) for maps in net(torch.empty(1, channels, side, side))]
            strides = [side // shape[2] if shape[2] == shape[3] else 0 for shape in shapes]
    except Exception as error:  # timm's families raise different errors
        first_line = str(error).partition("\n")[0]
        raise _no_feature_maps_error(
            name, output_stride, f"{type(error).__name__}: {first_line}" if first_line else ""
        ) from error
    indices = tuple(len(strides) - 1 - strides[::-1].index(r) if r in strides else -1 for r in reductions)
    if strides[-1] != output_stride or -1 in indices:
        raise _no_feature_maps_error(
            name, output_stride, f"its stages have strides {', '.join(map(str, strides))}"
        )
    if earlier_stage and indices[-1] and indices[-1] - 1 not in indices:
        indices = (*indices[:-1], indices[-1] - 1, indices[-1])
    return indices, tuple(shapes[index][1] for index in indices)


def _no_feature_maps_error(name: str, output_stride: int, reason: str) -> UserError:
    stride_hint = "" if output_stride == max(OUTPUT_STRIDES) else ", or try model.params.output_stride=32"
    return UserError(
        f"the backbone {name!r} cannot return feature maps at output stride {output_stride}"
        + (f" ({reason})" if reason else "")
        + f"; choose another, e.g. resnet101{stride_hint}"
    )


def _copy_weights(plain: nn.Module, net: nn.Module, name: str) -> None:
    """Copy a backbone's weights into its feature-map version, which lacks the last layers."""
    state = plain.state_dict()
    renamed = {}
    for key in net.state_dict():
        # timm's wrappers flatten `stages.0` to `stages_0`, or add a prefix `model` or `body`.
        for old in (key, re.sub(r"^(\w+)_(\d+)\.", r"\1.\2.", key), re.sub(r"^(model|body)\.", "", key)):
            if old in state:
                renamed[key] = state[old]
                break
    try:
        net.load_state_dict(renamed)
    except RuntimeError as error:
        raise UserError(
            f"the weights of {name!r} cannot be loaded into its feature-map version; choose another "
            "backbone, e.g. resnet101"
        ) from error


def move_strides_first(trunk: nn.Module, name: str, output_stride: int = 32) -> None:
    """Move each down-sampling stride from the 3x3 convolution of its block to the 1x1 before it.

    The ResNets of 2015, and the Caffe and Keras weights derived from them, have this layout. The tensors have
    the same shapes in both layouts, so weights of the wrong one load without error and give wrong outputs.

    The backbone is dilated from ``output_stride`` on.
    """
    blocks = [
        block for block in trunk.modules() if isinstance(block, Bottleneck) and max(block.conv2.stride) > 1
    ]
    if not blocks:
        raise UserError(
            f"model.params.strides='first' is for ResNets with bottleneck blocks (resnet50, resnet101, …), "
            f"not for {name!r}; use 'timm'"
        )
    for block in blocks:
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    # Where dilation replaces a stride, the 3x3 that follows the stride is dilated too.
    stride, dilation = 4, 1
    for stage in ("layer2", "layer3", "layer4"):
        if stride < output_stride:
            stride *= 2
            continue
        dilation *= 2
        first = trunk.get_submodule(f"{stage}.0.conv2")
        first.dilation = first.padding = (dilation, dilation)  # type: ignore[assignment]


def feature_width(trunk: nn.Module, channels: int) -> int:
    """Return the width of a backbone's features, from a forward pass.

    timm's ``num_features`` is the width before the head's hidden layer, if there is one (MobileNetV3), and
    some backbones lack ``head_hidden_size``.
    """
    cfg = trunk.pretrained_cfg
    assert isinstance(cfg, dict)
    trunk.eval()
    with torch.no_grad():
        features = trunk(torch.zeros(1, channels, *_input_size(trunk)))
    trunk.train()
    if not isinstance(features, torch.Tensor) or features.ndim != 2 or not features.shape[1]:
        raise UserError(
            f"the backbone {cfg['architecture']!r} does not return one feature vector per image, which the "
            "classifier needs; choose another"
        )
    return features.shape[1]


def input_normalisation(trunk: nn.Module, channels: int) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation that the weights expect, ``(channels, 1, 1)`` each."""
    data = resolve_model_data_config(trunk)
    both = []
    for name in ("mean", "std"):
        colours = torch.tensor(data[name])
        # timm adapts weights for three colours to other channel counts, so use the average.
        fitting = colours if len(colours) == channels else colours.mean().expand(channels)
        both.append(fitting.reshape(-1, 1, 1).clone())
    return both[0], both[1]


def check_backbone_name(name: str) -> None:
    """Raise if timm does not know the backbone or its tag."""
    architecture = name.split(".")[0]
    if not timm.is_model(architecture):
        similar = timm.list_models(f"*{architecture}*")[:5]
        similar = similar or difflib.get_close_matches(architecture, timm.list_models(), n=3)
        hint = f"; similar: {', '.join(similar)}" if similar else ""
        raise UserError(f"timm has no model {name!r}{hint} (`timm.list_models()` lists all)")
    try:
        timm.get_pretrained_cfg(name)
    except RuntimeError:
        tagged = timm.list_models(f"{architecture}.*", pretrained=True)
        known = f"choose one of {', '.join(tagged)}" if tagged else f"use {architecture!r} without a tag"
        raise UserError(f"timm has no weights {name!r}; {known}") from None


def _check_strides(strides: str) -> None:
    if strides not in get_args(Strides):
        raise UserError(f"model.params.strides is {strides!r}; choose {' or '.join(get_args(Strides))}")


def check_output_stride(output_stride: int) -> None:
    """Raise if the output stride is not supported."""
    if output_stride not in OUTPUT_STRIDES:
        raise UserError(f"model.params.output_stride is {output_stride}; choose 8, 16 or 32")
