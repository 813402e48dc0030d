"""Parameter groups of the optimiser (learning rates, layer-wise decay, weight decay), and its saved state."""

import copy

import pytest
import torch
from torch import Tensor, nn

from conftest import quick
from ducats.models import small_cnn
from ducats.models.classifier import timm_classifier
from ducats.run.factory import check_config
from ducats.settings import Optimisation
from ducats.training.fit import adapt_optimiser_state, make_optimiser
from ducats.utils.errors import UserError

DECAY = 0.5


def make_network(backbone: str) -> nn.Module:
    return timm_classifier(classes=3, channels=3, backbone=backbone, pretrained=False, bottleneck=4)


def settings_by_name(network: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, tuple[float, float]]:
    """Return the first learning rate and the weight decay of each parameter."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    return {
        names[id(parameter)]: (group["first_lr"], group["weight_decay"])
        for group in optimiser.param_groups
        for parameter in group["params"]
    }


def vit_layer(name: str, depth: int) -> int:
    """Return the layer of a parameter of a ViT: the embeddings, then each block; the norm is in the last."""
    if name.startswith("blocks."):
        return 1 + int(name.split(".")[1])
    is_embedding = name.split(".")[0] in ("cls_token", "pos_embed", "patch_embed", "reg_token")
    return 0 if is_embedding else depth


def test_layer_decay_of_a_vit_multiplies_the_rate_once_per_layer() -> None:
    network = make_network("test_vit")
    optimisation = Optimisation(
        optimiser="adamw", lr=1.0, weight_decay=0.1, layer_decay=DECAY, lr_multipliers={"backbone": 0.2}
    )
    found = settings_by_name(network, make_optimiser(network, optimisation))
    depth = len(network.backbone.blocks)  # type: ignore[union-attr,arg-type]
    assert len({rate for rate, _ in found.values()}) == depth + 2  # with the embeddings and our head
    for name, parameter in network.named_parameters():
        inner = name.removeprefix("backbone.")
        rate = 0.2 * DECAY ** (depth - vit_layer(inner, depth)) if name != inner else 1.0
        is_decayed = parameter.ndim > 1 and inner not in ("cls_token", "pos_embed")
        assert found[name] == pytest.approx((rate, 0.1 if is_decayed else 0.0)), name


@pytest.mark.parametrize("backbone", ["test_resnet", "test_convnext", "test_efficientnet"])
def test_layer_decay_knows_the_layers_of_convolutional_backbones(backbone: str) -> None:
    network = make_network(backbone)
    found = settings_by_name(network, make_optimiser(network, Optimisation(lr=1.0, layer_decay=DECAY)))
    rates = [rate for name, (rate, _) in found.items() if name.startswith("backbone.")]
    assert min(rates) < DECAY**2
    assert max(rates) == 1.0
    assert {decay for _, decay in found.values()} == {1e-3}  # SGD decays all parameters


def test_layer_decay_needs_a_backbone_with_known_layers() -> None:
    with pytest.raises(UserError, match=r"train\.layer_decay needs a timm backbone"):
        make_optimiser(small_cnn(classes=3, channels=3), Optimisation(layer_decay=0.9))
    with pytest.raises(UserError, match=r"train\.layer_decay needs a timm backbone"):
        check_config(quick("train.layer_decay=0.9"))


def test_adamw_equals_torch_with_groups_written_by_hand() -> None:
    def train(make: object) -> list[Tensor]:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2))
        optimiser = make(network)  # type: ignore[operator]
        for _ in range(5):
            optimiser.zero_grad()
            network(torch.rand(8, 3, 6, 6)).square().mean().backward()
            optimiser.step()
        return [parameter.detach() for parameter in network.parameters()]

    def by_hand(network: nn.Module) -> torch.optim.Optimizer:
        parameters = list(network.parameters())
        matrices, vectors = ([p for p in parameters if (p.ndim > 1) is many] for many in (True, False))
        groups = [{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=0.01, foreach=False)

    optimisation = Optimisation(optimiser="adamw", lr=0.01, weight_decay=0.3)
    for mine, theirs in zip(train(lambda n: make_optimiser(n, optimisation)), train(by_hand), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("fused", [False, True])
def test_the_state_of_adamw_is_adapted_to_this_process(fused: bool) -> None:
    """A checkpoint of a process with the other kernel and memory format loads and continues alike."""
    optimisation, images = Optimisation(optimiser="adamw"), torch.rand(2, 3, 5, 5)

    def make(layout: torch.memory_format, is_fused: bool) -> tuple[nn.Conv2d, torch.optim.Optimizer]:
        torch.manual_seed(0)
        network = nn.Conv2d(3, 4, 3).to(memory_format=layout)
        return network, make_optimiser(network, optimisation, fused=is_fused)

    def step(network: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        optimiser.zero_grad()
        network(images).square().sum().backward()
        optimiser.step()

    network, optimiser = make(torch.contiguous_format, fused)
    other, its_optimiser = make(torch.channels_last, not fused)
    step(other, its_optimiser)
    network.load_state_dict(other.state_dict())
    optimiser.load_state_dict(copy.deepcopy(its_optimiser.state_dict()))
    adapt_optimiser_state(optimiser, fused=fused)
    assert optimiser.param_groups[0]["fused"] is fused
    assert optimiser.state[network.weight]["exp_avg"].stride() == network.weight.stride()
    for each in ((network, optimiser), (other, its_optimiser)):
        step(*each)
    torch.testing.assert_close(network.weight, other.weight)
