"""Freeze the backbone of a network, or its first stages."""

import hashlib

import timm
import torch
from timm.models import group_parameters
from torch import Tensor, nn

from ducats.models.classifier import Classifier
from ducats.models.deeplab import DeepLab
from ducats.models.frozen_norm import freeze_norms
from ducats.settings import Freeze
from ducats.utils.errors import UserError

DEEPLAB_HEAD_RATE = 0.2  # of the published rate of the head, which is too high on a frozen backbone


def freeze_backbone(network: nn.Module, freeze: Freeze) -> None:
    """Exclude the backbone, or its first stages, from training, in place.

    Frozen batch norms keep their statistics.

    Args:
        freeze: ``backbone``, or a number of stages as timm counts them; the stem is the first.
    """
    if freeze in ("none", 0):
        return
    backbone = getattr(network, "backbone", None)
    if not isinstance(backbone, nn.Module):
        raise UserError(
            f"model.freeze={freeze} needs a network with an attribute `backbone`, which "
            f"{type(network).__name__} does not have; set model.freeze=none"
        )
    if freeze == "backbone":
        frozen = {name for name, _ in backbone.named_parameters()}
        is_deeplab = isinstance(network, DeepLab)
        network.lr_multipliers = {"head": DEEPLAB_HEAD_RATE} if is_deeplab else {}  # type: ignore[assignment]
    else:
        stages = _stages(backbone)
        if int(freeze) > len(stages):
            raise UserError(
                f"model.freeze={freeze}, but the backbone {_name(backbone)} has {len(stages)} stages; set a "
                "lower number, or backbone for all"
            )
        frozen = {name for stage in stages[: int(freeze)] for name in stage}
    for name, parameter in backbone.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    freeze_norms(backbone, names={name.rpartition(".")[0] for name in frozen})


def _stages(backbone: nn.Module) -> list[list[str]]:
    """Return the names of the parameters of each stage."""
    group_matcher = getattr(backbone, "group_matcher", None)
    if group_matcher is None:
        raise UserError(
            f"the backbone {_name(backbone)} has no stages that can be frozen one by one; set "
            "model.freeze=backbone or model.freeze=none"
        )
    groups = group_parameters(backbone, group_matcher(coarse=True))
    return [groups[index] for index in sorted(groups)]


def _name(backbone: nn.Module) -> str:
    cfg = getattr(backbone, "pretrained_cfg", None)
    return repr(cfg.get("architecture") if isinstance(cfg, dict) else type(backbone).__name__)


EmbeddingNetwork = Classifier | DeepLab  # networks whose heads accept embeddings instead of images


def embedding_network(network: nn.Module) -> EmbeddingNetwork | None:
    """Return the network if its backbone is frozen, so that images can be embedded once; else None."""
    if not isinstance(network, EmbeddingNetwork) or any(
        p.requires_grad for p in network.backbone.parameters()
    ):
        return None
    return network


def embedding_width(network: EmbeddingNetwork, image_size: tuple[int, int]) -> int:
    """Return the number of values of an embedding of an image of this height and width."""
    if isinstance(network, Classifier):
        return network.embedding_width
    return network.register_image_size(image_size)


def embedding_dtype(network: EmbeddingNetwork) -> torch.dtype:
    """Return the type in which embeddings are stored; feature maps are large."""
    return torch.float32 if isinstance(network, Classifier) else torch.float16


@torch.no_grad()
def backbone_digest(network: EmbeddingNetwork) -> str:
    """Return a digest of all that the embeddings of images depend on: weights, layers, normalisation."""
    # The text of the modules has strides and dilations, which the weights do not show.
    text, tensors = (
        f"{timm.__version__}\n{network.backbone}",
        dict[str, Tensor](network.backbone.state_dict()),
    )
    if isinstance(network, Classifier):
        tensors |= {"mean": network.mean, "std": network.std}
    else:
        text += f"\nmaps {network.head.map_indices}"
        tensors |= {"scale": network.get_buffer("scale"), "shift": network.get_buffer("shift")}
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).flatten()
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def backbone_name(network: EmbeddingNetwork) -> str:
    """Return timm's name of the backbone."""
    cfg = network.backbone.pretrained_cfg
    assert isinstance(cfg, dict)
    return str(cfg["architecture"])
