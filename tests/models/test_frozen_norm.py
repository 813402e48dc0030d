import copy
from typing import Any

import pytest
import timm
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn

from ducats.models.frozen_norm import FrozenNorm, freeze_norms
from ducats.utils.errors import UserError


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def randomise_norm(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """Set random weights and statistics."""
    width = norm.num_features
    with torch.no_grad():
        if norm.affine:
            norm.weight.copy_(random_tensor(width, seed=1))
            norm.bias.copy_(random_tensor(width, seed=2))
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(random_tensor(width, seed=3))
        norm.running_var.copy_(random_tensor(width, seed=4).square() + 0.01)
    return norm


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(6),
        nn.BatchNorm2d(6, eps=0.1),
        nn.BatchNorm2d(6, affine=False),
        BatchNormAct2d(6, act_layer=nn.SiLU),
        BatchNormAct2d(6, apply_act=False),
    ],
    ids=["plain", "eps", "bare", "with activation", "without"],
)
def test_matches_a_batch_norm_in_evaluation_mode(norm: nn.BatchNorm2d, training: bool) -> None:
    maps = random_tensor(2, 6, 5, 3)
    norm = randomise_norm(norm)
    frozen = FrozenNorm(norm).train(training)
    assert torch.allclose(frozen(maps), norm.eval()(maps), atol=1e-5)
    assert list(frozen.parameters()) == []
    frozen = FrozenNorm(norm, eps=1e-12).train(training)
    norm.eps = 1e-12
    assert torch.allclose(frozen(maps), norm(maps), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtype_and_layout_are_preserved(dtype: torch.dtype) -> None:
    frozen = FrozenNorm(randomise_norm(nn.BatchNorm2d(4)))
    maps = random_tensor(2, 4, 5, 3).to(dtype, memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        normed = frozen(maps)
    assert normed.dtype == dtype
    assert normed.is_contiguous(memory_format=torch.channels_last)
    exact = frozen(maps.float())
    assert torch.allclose(normed.float(), exact, atol=0.05)


def test_only_the_scale_is_saved_for_the_backward_pass() -> None:
    frozen, maps = FrozenNorm(randomise_norm(nn.BatchNorm2d(4))), random_tensor(2, 4, 5, 3).requires_grad_()
    saved_sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved_sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        normed = frozen(maps)
    assert saved_sizes == [4]
    normed.sum().backward()
    assert maps.grad is not None
    scale = frozen.weight / (frozen.running_var + 1e-5).sqrt()
    assert torch.allclose(maps.grad, scale.reshape(1, 4, 1, 1).expand_as(maps))


def test_loaded_or_modified_tensors_are_used() -> None:
    norm, other = randomise_norm(nn.BatchNorm2d(4)), nn.BatchNorm2d(4)
    frozen, maps = FrozenNorm(other), random_tensor(2, 4, 5, 3)
    assert torch.allclose(frozen(maps), maps, atol=1e-4)
    frozen.load_state_dict(norm.state_dict())  # includes num_batches_tracked
    norm.eval()
    assert torch.allclose(frozen(maps), norm(maps), atol=1e-5)
    assert frozen.state_dict().keys() == norm.state_dict().keys() - {"num_batches_tracked"}
    copied = copy.deepcopy(frozen)
    frozen.bias += 1
    assert torch.allclose(frozen(maps), norm(maps) + 1, atol=1e-5)
    assert torch.allclose(copied(maps), norm(maps), atol=1e-5)
    assert torch.allclose(copied.double()(maps.double()), norm.double()(maps.double()))


def randomise_norms(network: nn.Module) -> nn.Module:
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            randomise_norm(module)
            module.weight.data.abs_()
            assert module.running_var is not None
            module.running_var += 1  # keeps dozens of layers within float32 range
    return network.eval()


@pytest.mark.parametrize("backbone", ["resnet18", "mobilenetv3_small_050", "regnety_002", "xception41"])
def test_frozen_network_matches_the_network_in_evaluation_mode(backbone: str) -> None:
    network: Any = randomise_norms(timm.create_model(backbone, features_only=True))
    images, count = torch.rand(1, 3, 64, 64), sum(isinstance(m, nn.BatchNorm2d) for m in network.modules())
    with torch.no_grad():
        expected = network(images)
        assert freeze_norms(network) == count > 10
        for actual, other in zip(network.train()(images), expected, strict=True):
            assert torch.allclose(actual, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))
    assert not any(isinstance(m, nn.BatchNorm2d) for m in network.modules())
    # Other norms are unchanged.
    network = nn.Sequential(nn.GroupNorm(2, 4), nn.BatchNorm2d(4, track_running_stats=False))
    assert freeze_norms(network) == 0


def test_zero_variance_needs_eps() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    network[1].running_var[2] = 0  # type: ignore[operator]
    with pytest.raises(UserError, match=r"'1' has a channel with variance 0.*norm_eps"):
        freeze_norms(network, eps=0)
    assert freeze_norms(network) == 1


@pytest.mark.parametrize("eps", [-1e-5, float("nan"), float("inf")])
def test_invalid_eps_raises(eps: float) -> None:
    with pytest.raises(UserError, match=r"norm_eps is .*must be 0, a small positive number"):
        freeze_norms(nn.Sequential(nn.BatchNorm2d(4)), eps=eps)


def test_can_be_moved_in_inference_mode_and_trained_after_inference() -> None:
    """Inference tensors have no version counter; models for prediction may be moved in inference mode."""
    norm = randomise_norm(nn.BatchNorm2d(4))
    frozen, maps = FrozenNorm(norm), random_tensor(2, 4, 3, 3)
    expected = norm.eval()(maps).double()
    with torch.inference_mode():
        moved = copy.deepcopy(frozen).double()
        for _ in range(2):  # computed, then cached
            assert torch.allclose(moved(maps.double()), expected, atol=1e-6)
        frozen(maps)
    maps.requires_grad_()
    frozen(maps).sum().backward()
    assert maps.grad is not None
