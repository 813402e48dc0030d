"""DeepLab-v2 and DeepLab-v3+ on any timm backbone. Logits are on the network's own coarse grid."""

import copy
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ducats.models import classifier
from ducats.models.backbone import (
    FeatureExtractor,
    Strides,
    check_feature_maps,
    input_normalisation,
    make_feature_extractor,
)
from ducats.models.frozen_norm import freeze_norms
from ducats.utils.errors import UserError

HeadNorm = Literal["group", "batch", "none"]
MAX_SHIFTED_CHANNELS = 32  # of logits, see `_sum_of_dilated_convolutions`
LOW_LEVEL_STRIDE = 4  # stride of the low-level map in the decoder of v3+


class _EmbeddingLayout(NamedTuple):
    """What a flat embedding consists of."""

    image_size: tuple[int, int]  # height and width
    map_shapes: tuple[tuple[int, int, int], ...]  # channels, height and width of each map that the head reads

    def split(self, embeddings: Tensor) -> list[Tensor]:
        """Return the maps ``(N, C, h, w)`` of embeddings ``(N, width)``."""
        parts = embeddings.split([math.prod(shape) for shape in self.map_shapes], dim=1)
        return [part.unflatten(1, shape) for part, shape in zip(parts, self.map_shapes, strict=True)]


class DeepLab(nn.Module):
    """Backbone, from normalised images to a list of maps, and head, from these to logits and features.

    The maps of a frozen backbone can be computed once: `embed` flattens those that the head reads, and
    `forward` also accepts such embeddings.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: "HeadV2 | HeadV3Plus",
        channels: int,
        *,
        is_pretrained: bool,
        earlier_width: int,
    ) -> None:
        super().__init__()
        self.earlier_width, self.returns_earlier = earlier_width, False
        self.lr_multipliers = classifier.default_lr_multipliers(is_pretrained)
        mean, std = input_normalisation(backbone, channels)
        # (x - mean) / std as one multiply-add, since images are large.
        self.register_buffer("scale", 1 / std, persistent=False)
        self.register_buffer("shift", -mean / std, persistent=False)
        self.backbone = backbone
        self.head: HeadV2 | HeadV3Plus = head
        self._layouts: dict[int, _EmbeddingLayout] = {}  # by the width of the embeddings

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return logits ``(N, C, h, w)`` and features ``(N, D, h, w)``.

        Args:
            inputs: images in [0, 1], or their embeddings ``(N, width)``.
        """
        maps = self._maps(inputs) if inputs.ndim == 4 else self._layouts[inputs.shape[1]].split(inputs)
        logits, features = self.head(maps)
        return (logits, features, maps[-2]) if self.returns_earlier else (logits, features)

    def _maps(self, images: Tensor) -> list[Tensor]:
        normalised = torch.addcmul(self.get_buffer("shift"), images, self.get_buffer("scale"))
        maps: list[Tensor] = self.backbone(normalised)
        return maps

    def embed(self, images: Tensor) -> Tensor:
        """Return the maps that the head reads, flattened: ``(N, width)``, for images in [0, 1]."""
        maps = self._maps(images)
        return torch.cat([maps[index].flatten(1) for index in self.head.map_indices], 1)

    def register_image_size(self, image_size: tuple[int, int]) -> int:
        """Let `forward` accept embeddings of images of this height and width; return their width."""
        for width, layout in self._layouts.items():
            if layout.image_size == image_size:
                return width
        with torch.no_grad():
            channels = self.get_buffer("scale").shape[-3]
            maps = copy.deepcopy(self.backbone).to("meta")(
                torch.empty(1, channels, *image_size, device="meta")
            )
        shapes = tuple(
            (maps[index].shape[1], maps[index].shape[2], maps[index].shape[3])
            for index in self.head.map_indices
        )
        width = sum(map(math.prod, shapes))
        if width in self._layouts:
            sizes = [f"{h} x {w}" for h, w in (self._layouts[width].image_size, image_size)]
            raise UserError(
                f"images of {sizes[0]} and of {sizes[1]} pixels have feature maps of the same size, so their "
                "embeddings cannot be told apart; give source and target the same size "
                "(data.params.size), or set model.freeze=none"
            )
        self._layouts[width] = _EmbeddingLayout(image_size, shapes)
        return width

    def image_size(self, inputs: Tensor) -> tuple[int, int]:
        """Return height and width of images, or of those that embeddings are from."""
        if inputs.ndim == 4:
            return int(inputs.shape[-2]), int(inputs.shape[-1])
        return self._layouts[inputs.shape[1]].image_size


def request_earlier_features(model: nn.Module) -> int:
    """Let a DeepLab also return the map before the backbone's last one, and return its width.

    Returns 0 if the model has no DeepLab, or its backbone no such map.
    """
    for module in model.modules():
        if isinstance(module, DeepLab):
            module.returns_earlier = module.earlier_width > 0
            return module.earlier_width
    return 0


class HeadV2(nn.Module):
    """Sum of parallel 3x3 convolutions with different dilations."""

    map_indices = (-1,)  # of the backbone's maps that it reads

    def __init__(self, width: int, classes: int, rates: Sequence[int], std: float) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Conv2d(width, classes, 3, padding=rate, dilation=rate) for rate in rates
        )
        for branch in self.branches:
            nn.init.normal_(branch.weight, std=std)  # type: ignore[arg-type]

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Compute logits from the last map, which is returned as the features."""
        deep = maps[-1]
        branches = [branch for branch in self.branches if isinstance(branch, nn.Conv2d)]
        if self.training and deep.device.type == "cpu" and branches[0].out_channels <= MAX_SHIFTED_CHANNELS:
            return _sum_of_dilated_convolutions(deep, branches), deep
        logits: Tensor = branches[0](deep)
        for branch in branches[1:]:
            logits += branch(deep)
        return logits, deep


def _sum_of_dilated_convolutions(maps: Tensor, convolutions: Sequence[nn.Conv2d]) -> Tensor:
    """Return the sum of 3x3 convolutions whose padding is their dilation.

    With few output channels, one matrix product for all taps and a sum of shifted maps takes a third of the
    time of the convolutions in training on a CPU.
    """
    taps = torch.cat([conv.weight.permute(2, 3, 0, 1).flatten(0, 2) for conv in convolutions])
    products = F.conv2d(maps, taps[:, :, None, None]).unflatten(1, (len(convolutions), 9, -1))
    height, width = maps.shape[-2:]
    total = torch.stack([conv.bias for conv in convolutions if conv.bias is not None]).sum(0)[
        None, :, None, None
    ]
    for branch, conv in enumerate(convolutions):
        rate = conv.dilation[0]
        padded = F.pad(products[:, branch].flatten(1, 2), (rate,) * 4).unflatten(1, (9, -1))
        for tap in range(9):
            top, left = tap // 3 * rate, tap % 3 * rate
            total = total + padded[:, tap, :, top : top + height, left : left + width]
    return total


class HeadV3Plus(nn.Module):
    """Atrous spatial pyramid on the deep map, and a decoder on the finer grid of a low-level map."""

    map_indices = (0, -1)  # of the backbone's maps that it reads

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
        low, deep = widths[0], widths[-1]
        self.pointwise = _conv(deep, width, 1, norm)
        self.branches = nn.ModuleList(_separable(deep, width, norm, rate) for rate in rates)
        self.image_pooling = _conv(deep, width, 1, norm)
        self.projection = _conv(width * (len(rates) + 2), width, 3, norm)
        self.low_level = _conv(low, low_width, 1, norm)
        self.decoder = nn.Sequential(
            _separable(width + low_width, width, norm), _separable(width, width, norm), nn.Dropout2d(dropout)
        )
        self.classifier = nn.Conv2d(width, classes, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Compute logits and features on the grid of the low-level map, from it (first) and the last map."""
        low, deep = maps[0], maps[-1]
        # Adaptive pooling is not deterministic on a GPU.
        pooled = self.image_pooling(deep.mean((2, 3), keepdim=True)).expand(-1, -1, *deep.shape[-2:])
        branch_outputs = [self.pointwise(deep), *(branch(deep) for branch in self.branches), pooled]
        joined = self.projection(torch.cat(branch_outputs, 1))
        fine = F.interpolate(joined, low.shape[-2:], mode="bilinear", align_corners=True)
        features = self.decoder(torch.cat([fine, self.low_level(low)], 1))
        return self.classifier(features), features


class GroupNorm(nn.GroupNorm):
    """Group norm that keeps half precision under autocast; its sums are computed in float32."""

    def forward(self, maps: Tensor) -> Tensor:
        """Normalise maps and keep their dtype."""
        with torch.autocast(device_type=maps.device.type, enabled=False):
            return F.group_norm(
                maps, self.num_groups, self.weight.to(maps.dtype), self.bias.to(maps.dtype), self.eps
            )


def _norm(kind: HeadNorm, width: int) -> list[nn.Module]:
    if kind == "batch":
        return [nn.BatchNorm2d(width)]
    # 16 channels per group divide both 48 and 512.
    return [GroupNorm(width // 16 if width % 16 == 0 else 1, width)] if kind == "group" else []


def _conv(
    inputs: int, outputs: int, kernel: int, norm: HeadNorm, rate: int = 1, groups: int = 1
) -> nn.Sequential:
    conv = nn.Conv2d(
        inputs, outputs, kernel, padding=kernel // 2 * rate, dilation=rate, groups=groups, bias=False
    )
    return nn.Sequential(conv, *_norm(norm, outputs), nn.ReLU(inplace=True))


def _separable(inputs: int, outputs: int, norm: HeadNorm, rate: int = 1) -> nn.Sequential:
    """Build a depthwise separable convolution: 3x3 per channel, then 1x1 across channels."""
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
    """Build DeepLab-v2: a dilated backbone and a sum of dilated convolutions. Logits have the output stride.

    Args:
        backbone: timm model name, with or without tag; it also determines the normalisation.
        pretrained: start from ImageNet weights: those of timm (downloaded once) or of `ducats[offline]`.
        weights: file with weights of the backbone, used instead (.safetensors, .pth, .npz).
        strides: placement of the strides in ResNet blocks: `timm`, or `first` (2015 ResNets, Caffe, Keras).
        output_stride: stride of the last map: 8, 16 or 32.
        frozen: freeze the backbone's batch norms; None: only if it starts from pretrained weights.
        norm_eps: eps of the frozen norms; None: that of each norm. The published networks use 0.
        rates: dilations of the head's convolutions.
        head_std: standard deviation of the head's initial weights. With the published 0.01, a sum over some
            70 000 inputs gives initial logits of about 3, a Dirichlet with evidence before any training.
    """
    stages = make_feature_extractor(
        backbone,
        channels=channels,
        pretrained=pretrained,
        weights=weights,
        strides=strides,
        output_stride=output_stride,
        reductions=(output_stride,),
        earlier_stage=True,
    )
    is_pretrained = pretrained or weights is not None
    _freeze_if(stages, is_pretrained if frozen is None else frozen, norm_eps)
    head = HeadV2(stages.widths[-1], classes, _checked_rates(rates), head_std)
    return _assemble(stages, head, channels, is_pretrained)


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
    """Build DeepLab-v3+: a dilated backbone, a spatial pyramid and a decoder. Logits have stride 4.

    The parameters up to ``norm_eps`` are those of ``deeplab_v2``.

    Args:
        rates: dilations of the separable convolutions of the pyramid.
        head_norm: norm of the head's convolutions: `group`, `batch`, or `none` as in the published code.
        dropout: dropout rate of the features' channels.
    """
    _check_head_norm(head_norm)
    stages = make_feature_extractor(
        backbone,
        channels=channels,
        pretrained=pretrained,
        weights=weights,
        strides=strides,
        output_stride=output_stride,
        reductions=(LOW_LEVEL_STRIDE, output_stride),
        earlier_stage=True,
    )
    is_pretrained = pretrained or weights is not None
    _freeze_if(stages, is_pretrained if frozen is None else frozen, norm_eps)
    head = HeadV3Plus(stages.widths, classes, _checked_rates(rates), head_norm, dropout)
    return _assemble(stages, head, channels, is_pretrained)


def _assemble(
    stages: FeatureExtractor, head: HeadV2 | HeadV3Plus, channels: int, is_pretrained: bool
) -> DeepLab:
    earlier_width = stages.widths[-2] if len(stages.widths) > 1 else 0
    return DeepLab(stages.net, head, channels, is_pretrained=is_pretrained, earlier_width=earlier_width)


def check_deeplab_params(
    *,
    backbone: str = "resnet101",
    pretrained: bool = True,
    weights: str | None = None,
    output_stride: int = 8,
    frozen: bool | None = None,
    head_norm: HeadNorm = "group",
    **_: object,
) -> None:
    """Raise if the parameters are invalid, before any image is read.

    ``frozen`` needs pretrained weights: norms of timm's untrained ResNets multiply by 0.
    """
    classifier.check_classifier_params(backbone=backbone, weights=weights)
    check_feature_maps(backbone, output_stride)
    _check_head_norm(head_norm)
    if frozen and not pretrained and weights is None:
        raise UserError(
            "model.params.frozen=true needs pretrained weights (model.params.pretrained, "
            "model.params.weights); with random weights set it to null"
        )


def _freeze_if(stages: FeatureExtractor, frozen: bool, eps: float | None) -> None:
    if frozen:
        freeze_norms(stages.net, eps)
    elif eps is not None:
        raise UserError(
            "model.params.norm_eps applies only to frozen norms; set it to null, or model.params.frozen to "
            "true"
        )


def _checked_rates(rates: Sequence[int]) -> list[int]:
    if not rates or any(not isinstance(rate, int) or rate < 1 for rate in rates):
        raise UserError(f"model.params.rates is {rates}, but must be a list of dilations, e.g. [6, 12, 18]")
    return list(rates)


def _check_head_norm(kind: str) -> None:
    if kind not in get_args(HeadNorm):
        raise UserError(f"model.params.head_norm is {kind!r}; choose one of {', '.join(get_args(HeadNorm))}")
