"""DeepLab on any timm backbone: v2, and v3+ with its decoder. Logits are on the network's own coarse grid."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ducats.errors import UserError
from ducats.models import classifier
from ducats.models.backbone import Features, Strides, check_maps, make_features, normalisation
from ducats.models.frozen import freeze_norms

HeadNorm = Literal["group", "batch", "none"]
LOW = 4  # stride of the map that v3+ takes its fine structure from


class DeepLab(nn.Module):
    """Backbone and head; normalises as its weights expect.

    Args:
        backbone: normalised images to maps.
        head: those maps to logits and features.
        channels: of the images.
        learnt: whether the backbone starts from weights that know much already.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, channels: int, *, learnt: bool) -> None:
        super().__init__()
        self.lr_multipliers = classifier.advice(learnt)
        mean, std = normalisation(backbone, channels)
        # (x - mean) / std as one multiply-add: images of a street are large.
        self.register_buffer("scale", 1 / std, persistent=False)
        self.register_buffer("shift", -mean / std, persistent=False)
        self.backbone = backbone
        self.head = head

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images in [0, 1] to logits ``(N, C, h, w)`` and what the last layer saw, ``(N, D, h, w)``."""
        maps = self.backbone(torch.addcmul(self.get_buffer("shift"), images, self.get_buffer("scale")))
        return self.head(maps)  # type: ignore[no-any-return]


class HeadV2(nn.Module):
    """The sum of parallel 3x3 convolutions that look ever further around them."""

    def __init__(self, width: int, classes: int, rates: Sequence[int], std: float) -> None:
        super().__init__()
        self.looks = nn.ModuleList(
            nn.Conv2d(width, classes, 3, padding=rate, dilation=rate) for rate in rates
        )
        for look in self.looks:
            nn.init.normal_(look.weight, std=std)  # type: ignore[arg-type]

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The last map to logits; the map itself is the features."""
        deep = maps[-1]
        logits = self.looks[0](deep)
        for look in list(self.looks)[1:]:
            logits += look(deep)
        return logits, deep


class HeadV3Plus(nn.Module):
    """A pyramid of looks at the deep map, then a decoder on the finer grid of an early one."""

    def __init__(
        self,
        widths: Sequence[int],
        classes: int,
        rates: Sequence[int],
        norm: HeadNorm,
        dropout: float,
        width: int = 512,
        low_width: int = 48,
    ) -> None:
        super().__init__()
        low, deep = widths
        self.point = _conv(deep, width, 1, norm)
        self.looks = nn.ModuleList(_separable(deep, width, norm, rate) for rate in rates)
        self.whole = _conv(deep, width, 1, norm)
        self.join = _conv(width * (len(rates) + 2), width, 3, norm)
        self.low = _conv(low, low_width, 1, norm)
        self.decode = nn.Sequential(
            _separable(width + low_width, width, norm), _separable(width, width, norm), nn.Dropout2d(dropout)
        )
        self.last = nn.Conv2d(width, classes, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """An early and the last map to logits and features on the grid of the early one."""
        low, deep = maps
        # Not pooled adaptively: that is not deterministic on a GPU.
        whole = self.whole(deep.mean((2, 3), keepdim=True)).expand(-1, -1, *deep.shape[-2:])
        seen = [self.point(deep), *(look(deep) for look in self.looks), whole]
        joined = self.join(torch.cat(seen, 1))
        fine = F.interpolate(joined, low.shape[-2:], mode="bilinear", align_corners=True)
        features = self.decode(torch.cat([fine, self.low(low)], 1))
        return self.last(features), features


class GroupNorm(nn.GroupNorm):
    """A group norm that keeps a half type under autocast; its sums are float32 inside all the same."""

    def forward(self, maps: Tensor) -> Tensor:
        """Maps to maps of their dtype."""
        with torch.autocast(device_type=maps.device.type, enabled=False):
            return F.group_norm(
                maps, self.num_groups, self.weight.to(maps.dtype), self.bias.to(maps.dtype), self.eps
            )


def _norm(kind: HeadNorm, width: int) -> list[nn.Module]:
    if kind == "batch":
        return [nn.BatchNorm2d(width)]
    # Sixteen channels a group divide 48 as they do 512.
    return [GroupNorm(width // 16 if width % 16 == 0 else 1, width)] if kind == "group" else []


def _conv(
    inputs: int, outputs: int, kernel: int, norm: HeadNorm, rate: int = 1, groups: int = 1
) -> nn.Sequential:
    conv = nn.Conv2d(
        inputs, outputs, kernel, padding=kernel // 2 * rate, dilation=rate, groups=groups, bias=False
    )
    return nn.Sequential(conv, *_norm(norm, outputs), nn.ReLU(inplace=True))


def _separable(inputs: int, outputs: int, norm: HeadNorm, rate: int = 1) -> nn.Sequential:
    """A 3x3 convolution of each channel by itself, then a 1x1 across them."""
    return nn.Sequential(
        *_conv(inputs, inputs, 3, norm, rate, groups=inputs), *_conv(inputs, outputs, 1, norm)
    )


def deeplab_v2(
    *,
    classes: int,
    channels: int,
    backbone: str = "resnet101",
    pretrained: bool = True,
    weights: str | None = None,
    strides: Strides = "timm",
    output_stride: int = 8,
    frozen: bool | None = None,
    norm_eps: float | None = None,
    rates: Sequence[int] = (6, 12, 18, 24),
    head_std: float = 0.001,
) -> DeepLab:
    """Build DeepLab-v2: a dilated backbone and a sum of dilated convolutions. Logits have its output stride.

    Args:
        classes: number of classes.
        channels: of the images.
        backbone: a name that timm knows, with or without a tag; it brings its normalisation.
        pretrained: start from ImageNet weights: timm's own (downloaded once), or those of `ducats[offline]`.
        weights: start from this file of the backbone's weights instead (.safetensors, .pth, .npz).
        strides: where a ResNet's blocks shrink their input: `timm`, or `first` (nets of 2015, Caffe, Keras).
        output_stride: pixels per position of the last map: 8, 16 or 32.
        frozen: keep the backbone's batch norms as they are; None: if it starts from weights.
        norm_eps: of the frozen norms; None for their own. The published networks have 0.
        rates: dilation of each convolution of the head.
        head_std: spread of the head's first weights; published: 0.01, with which a sum over some 70 000
            numbers begins with logits of 3, and a Dirichlet that claims to know. It should know nothing yet.
    """
    stages = make_features(
        backbone,
        channels=channels,
        pretrained=pretrained,
        weights=weights,
        strides=strides,
        output_stride=output_stride,
        reductions=(output_stride,),
    )
    learnt = pretrained or weights is not None
    _freeze(stages, learnt if frozen is None else frozen, norm_eps)
    head = HeadV2(stages.widths[0], classes, _checked(rates), head_std)
    return DeepLab(stages.net, head, channels, learnt=learnt)


def deeplab_v3plus(
    *,
    classes: int,
    channels: int,
    backbone: str = "resnet101",
    pretrained: bool = True,
    weights: str | None = None,
    strides: Strides = "timm",
    output_stride: int = 8,
    frozen: bool | None = None,
    norm_eps: float | None = None,
    rates: Sequence[int] = (6, 12, 18),
    head_norm: HeadNorm = "group",
    dropout: float = 0.1,
) -> DeepLab:
    """Build DeepLab-v3+: a dilated backbone, a pyramid, and a decoder. Logits have stride 4.

    Args:
        classes: number of classes.
        channels: of the images.
        backbone: a name that timm knows, with or without a tag; it brings its normalisation.
        pretrained: start from ImageNet weights: timm's own (downloaded once), or those of `ducats[offline]`.
        weights: start from this file of the backbone's weights instead (.safetensors, .pth, .npz).
        strides: where a ResNet's blocks shrink their input: `timm`, or `first` (nets of 2015, Caffe, Keras).
        output_stride: pixels per position of the last map: 8, 16 or 32.
        frozen: keep the backbone's batch norms as they are; None: if it starts from weights.
        norm_eps: of the frozen norms; None for their own. The published networks have 0.
        rates: dilation of each separable convolution of the pyramid.
        head_norm: of the head's convolutions: `group`, `batch`, or `none` as in the published code.
        dropout: share of the features' channels that are dropped in training.
    """
    _check_norm(head_norm)
    stages = make_features(
        backbone,
        channels=channels,
        pretrained=pretrained,
        weights=weights,
        strides=strides,
        output_stride=output_stride,
        reductions=(LOW, output_stride),
    )
    learnt = pretrained or weights is not None
    _freeze(stages, learnt if frozen is None else frozen, norm_eps)
    head = HeadV3Plus(stages.widths, classes, _checked(rates), head_norm, dropout)
    return DeepLab(stages.net, head, channels, learnt=learnt)


def blank_v2(**knobs: Any) -> DeepLab:
    """What ``deeplab_v2`` builds, without its first weights: a checkpoint brings others."""
    return _without_weights(deeplab_v2(**_no_start(knobs)), knobs)


def blank_v3plus(**knobs: Any) -> DeepLab:
    """What ``deeplab_v3plus`` builds, without its first weights: a checkpoint brings others."""
    return _without_weights(deeplab_v3plus(**_no_start(knobs)), knobs)


def _learnt(knobs: dict[str, Any]) -> bool:
    return bool(knobs.get("pretrained", True)) or knobs.get("weights") is not None


def _no_start(knobs: dict[str, Any]) -> dict[str, Any]:
    frozen = knobs.get("frozen")
    frozen = _learnt(knobs) if frozen is None else frozen
    return {**knobs, "weights": None, "pretrained": False, "frozen": frozen}


def _without_weights(network: DeepLab, knobs: dict[str, Any]) -> DeepLab:
    network.lr_multipliers = classifier.advice(_learnt(knobs))
    return network


def check_start(
    *,
    backbone: str = "resnet101",
    pretrained: bool = True,
    weights: str | None = None,
    output_stride: int = 8,
    frozen: bool | None = None,
    head_norm: HeadNorm = "group",
    **_: object,
) -> None:
    """Refuse what cannot start a run, before any image is read.

    Args:
        backbone: a name that timm should know.
        pretrained: whether weights are fetched.
        weights: a file that should be there.
        output_stride: one of three, and one that the backbone can give.
        frozen: not without weights: timm's ResNets start with norms that multiply by 0.
        head_norm: one of three.
    """
    classifier.check_start(backbone=backbone, weights=weights)
    check_maps(backbone, output_stride)
    _check_norm(head_norm)
    if frozen and not pretrained and weights is None:
        raise UserError(
            "model.knobs.frozen keeps the norms of random weights, which are to be learnt: leave it at null, "
            "or start from weights (model.knobs.pretrained, model.knobs.weights)"
        )


def _freeze(stages: Features, frozen: bool, eps: float | None) -> None:
    if frozen:
        freeze_norms(stages.net, eps)
    elif eps is not None:
        raise UserError(
            "model.knobs.norm_eps is of frozen norms, and these are not: leave it at null, or set "
            "model.knobs.frozen=true"
        )


def _checked(rates: Sequence[int]) -> list[int]:
    if not rates or any(not isinstance(rate, int) or rate < 1 for rate in rates):
        raise UserError(f"model.knobs.rates is {rates}: give one or more dilations, such as [6, 12, 18]")
    return list(rates)


def _check_norm(kind: str) -> None:
    if kind not in get_args(HeadNorm):
        raise UserError(f"model.knobs.head_norm is {kind!r}: choose {', '.join(get_args(HeadNorm))}")
