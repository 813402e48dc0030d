"""The logarithm that replaces an operator missing in ONNX, and the exported graph."""

import numpy as np
import pytest
import torch
from mpmath import mp
from torch import Tensor, nn

from ducats import dirichlet
from ducats.deploy.inference_graph import InferenceGraph, accurate_log1p
from ducats.models import EvidentialModel
from ducats.models.frozen_norm import FrozenNorm, freeze_norms
from ducats.models.small_cnn import small_cnn
from ducats.models.small_fcn import small_fcn
from ducats.models.upsampling import upsample

mp.dps = 40


def test_log1p_is_exact_to_rounding() -> None:
    x = torch.cat([torch.logspace(-30, 30, 400), torch.linspace(0.4, 0.6, 200), torch.tensor([0.5])])
    for value, result in zip(x.tolist(), accurate_log1p(x).tolist(), strict=True):
        exact = mp.log1p(mp.mpf(value))
        assert abs(result - exact) <= 3e-7 * exact
    assert accurate_log1p(torch.tensor([0.0])).item() == 0


def segmentation_model() -> EvidentialModel:
    torch.manual_seed(0)
    return EvidentialModel(small_fcn(classes=3, channels=3, width=8), "exp_at_most_10").eval()


@pytest.mark.parametrize("flip", [False, True])
def test_graph_matches_the_library_for_segmentation(flip: bool) -> None:
    model, images = segmentation_model(), torch.rand(2, 3, 11, 14, generator=torch.Generator().manual_seed(1))
    graph = InferenceGraph(model, (11, 14), 3, flip=flip)

    def library_outputs(images: Tensor) -> list[Tensor]:
        z = upsample(model(images))
        uncertainties = dirichlet.uncertainties(z)
        return [dirichlet.expected_probability(z), uncertainties.distribution, uncertainties.data]

    with torch.inference_mode():
        outputs, expected = graph(images), library_outputs(images)
        if flip:
            expected = [
                (a + b.flip(-1)) / 2 for a, b in zip(expected, library_outputs(images.flip(-1)), strict=True)
            ]
    for a, b in zip(outputs, [*expected, expected[0].argmax(1)], strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_frozen_norms_are_folded_in_a_copy() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    norm = network[1]
    assert isinstance(norm, nn.BatchNorm2d)
    for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        assert tensor is not None
        nn.init.uniform_(tensor, 0.5, 2)
    images = torch.rand(2, 3, 8, 8)
    before = EvidentialModel(network).eval()(images).z
    assert freeze_norms(network) == 1
    model = EvidentialModel(network)
    graph = InferenceGraph(model, (8, 8), 3)
    assert not [module for module in graph.modules() if isinstance(module, FrozenNorm)]
    assert [module for module in model.modules() if isinstance(module, FrozenNorm)]
    torch.testing.assert_close(graph.model(images).z, before)


def test_running_statistics_are_unchanged() -> None:
    model = EvidentialModel(small_cnn(classes=3, channels=1, width=4, features=8))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    graph = InferenceGraph(model, (9, 9), 1)
    for state in (model.state_dict(), graph.model.state_dict()):
        assert all(torch.equal(tensor, before[name]) for name, tensor in state.items())


def test_graph_matches_the_library_for_images() -> None:
    model = EvidentialModel(nn.Flatten(), "softplus_plus_one")
    images = torch.rand(4, 5, 1, 1, generator=torch.Generator().manual_seed(1))
    probability, u_dis, u_data, label = InferenceGraph(model, (1, 1), 5)(images)
    z = model(images).z
    torch.testing.assert_close(probability, z.softmax(1))
    torch.testing.assert_close(u_dis, dirichlet.distribution_uncertainty(z))
    torch.testing.assert_close(u_data, dirichlet.data_uncertainty(z))
    assert label.tolist() == images.flatten(1).argmax(1).tolist()
