"""Freeze the backbone of a network, or its first stages."""

import hashlib

import timm
import torch
from timm.models import group_parameters
from torch import nn

from ducats.models.classifier import Classifier
from ducats.models.frozen_norm import freeze_norms
from ducats.settings import Freeze
from ducats.utils.errors import UserError


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
        network.lr_multipliers = {}  # type: ignore[assignment]
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


def embedding_network(network: nn.Module) -> Classifier | None:
    """Return the network if its backbone is frozen, so that images can be embedded once; else None."""
    if not isinstance(network, Classifier) or any(p.requires_grad for p in network.backbone.parameters()):
        return None
    return network


@torch.no_grad()
def backbone_digest(network: Classifier) -> str:
    """Return a digest of all that the embeddings of images depend on: weights, layers, normalisation."""
    # The text of the modules has strides and dilations, which the weights do not show.
    digest = hashlib.blake2b(f"{timm.__version__}\n{network.backbone}".encode(), digest_size=16)
    tensors = {**network.backbone.state_dict(), "mean": network.mean, "std": network.std}
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).flatten()
        digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()


def backbone_name(network: Classifier) -> str:
    """Return timm's name of the backbone."""
    cfg = network.backbone.pretrained_cfg
    assert isinstance(cfg, dict)
    return str(cfg["architecture"])
