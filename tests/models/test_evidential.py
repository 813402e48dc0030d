import copy

import pytest
import torch
from torch import Tensor, nn

from ducats.models import EvidentialModel, small_cnn


def test_any_network_that_returns_logits_is_supported() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))
    images = torch.rand(4, 3, 2, 2)
    model = EvidentialModel(network, "exp_clamped")
    output = model(images)
    assert model._calls == []
    assert torch.equal(output.z, network(images))
    assert output.features is not None
    assert torch.equal(output.features, network[:3](images))  # the input of the last linear layer
    assert output.size is None
    assert torch.equal(output.evidence(output.z * 100), output.z * 100)  # nothing is left to apply


def test_a_network_without_linear_layer_has_no_features() -> None:
    output = EvidentialModel(nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()))(
        torch.rand(2, 3, 4, 4)
    )
    assert output.features is None
    assert output.z.shape == (2, 4)


@pytest.mark.parametrize(("shape", "expected"), [((2,), 10.0), ((2, 1, 1), 20.0)])
def test_evidence_is_applied_once_and_in_float32(shape: tuple[int, ...], expected: float) -> None:
    """To maps it is applied after the interpolation."""

    class Half(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.full((len(images), *shape), 20.0, dtype=torch.bfloat16)

    z = EvidentialModel(Half(), "exp_clamped")(torch.rand(3, 1, 2, 2)).z
    assert z.dtype == torch.float32
    assert z.unique().tolist() == [expected]


@pytest.mark.parametrize(("channels", "size"), [(1, 16), (3, 8), (3, 33)])
def test_small_cnn(channels: int, size: int) -> None:
    logits, features = small_cnn(classes=7, channels=channels)(torch.rand(2, channels, size, size))
    assert logits.shape == (2, 7)
    assert features.shape == (2, 64)


def test_features_are_the_input_of_the_layer_that_computed_the_logits() -> None:
    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5, 3)  # registered before the layer below it
            self.body = nn.Linear(12, 5)
            self.aux = nn.Linear(5, 2)

        def forward(self, images: Tensor) -> Tensor:
            hidden = self.body(images.flatten(1)).relu()
            logits: Tensor = self.head(hidden)
            self.aux(hidden)  # called last
            return logits

    network = HeadFirst()
    model, images = EvidentialModel(network), torch.rand(4, 3, 2, 2)
    for _ in range(2):  # in the second pass only the head has a hook
        features = model(images).features
        assert features is not None
        assert torch.equal(features, network.body(images.flatten(1)).relu())
    assert list(model._hooks) == [network.head]
    copied = copy.deepcopy(model)
    assert copied(images).features is not None
    assert list(copied._hooks) == [copied.network.head]


class PositionwiseNetwork(nn.Module):
    """Linear layers at every position, as in some backbones."""

    def __init__(self, returns_features: bool) -> None:
        super().__init__()
        self.returns_features = returns_features
        self.body, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        features = self.body(images[..., ::2, ::2].movedim(1, -1)).relu()
        logits: Tensor = self.head(features).movedim(-1, 1)
        return (logits, features.movedim(-1, 1)) if self.returns_features else logits


@pytest.mark.parametrize("returns_features", [True, False])
def test_logit_maps_are_returned_unchanged(returns_features: bool) -> None:
    network = PositionwiseNetwork(returns_features)
    with torch.no_grad():
        network.head.bias.fill_(50)
    model, images = EvidentialModel(network, "exp_clamped"), torch.rand(2, 3, 5, 8)
    for _ in range(2):
        output = model(images)
        returned = network(images)
        assert torch.equal(output.z, returned[0] if returns_features else returned)
        assert output.z.shape == (2, 2, 3, 4)
        assert float(output.z.detach().min()) > 10  # the clamp comes after the interpolation
        assert output.size == (5, 8)
        assert output.evidence(output.z).unique().tolist() == [10.0]
        assert (output.features is None) is not returns_features
        assert model._calls == []
    assert list(model._hooks) == []  # no unused hooks remain
