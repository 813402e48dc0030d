"""MME: the last layer maximises the target's entropy, the features minimise it."""

import pytest
import torch
from tiny_network import CLASSES, TinyNetwork, auxiliary_context, flatten_maps, image_batch, map_batch
from torch import Tensor, nn

from ducats.models import small_cnn, small_fcn
from ducats.models.evidential import EvidentialModel
from ducats.models.output import Output
from ducats.objectives import AuxiliaryContext
from ducats.objectives.mme import LastLayerRef, mme
from ducats.utils.errors import UserError


def entropy(z: Tensor, temperature: float) -> Tensor:
    p = (z / temperature).softmax(1)
    return -(p * p.log()).sum(1)


def test_values_by_hand() -> None:
    model, batch = TinyNetwork(), image_batch()
    losses = mme(model, batch, LastLayerRef(auxiliary_context(model)), entropy=0.3, temperature=0.5)
    assert batch.unlabelled is not None
    expected = -0.3 * entropy(model(batch.unlabelled).z, 0.5).mean()
    torch.testing.assert_close(losses["unlabelled/entropy"], expected, rtol=1e-6, atol=1e-7)
    assert losses.keys() == {"source/nll", "labelled/nll", "unlabelled/entropy"}


def test_last_layer_raises_and_features_lower_the_entropy() -> None:
    model, batch = TinyNetwork(), image_batch()
    assert batch.unlabelled is not None

    def mean_entropy() -> float:
        return float(entropy(model(batch.unlabelled).z, 1.0).mean().detach())

    before = mean_entropy()
    mme(model, batch, LastLayerRef(auxiliary_context(model)))["unlabelled/entropy"].backward()
    for part, sign in ((model.head, 1), (model.body, -1)):
        start = [p.detach().clone() for p in part.parameters()]
        with torch.no_grad():
            for p in part.parameters():
                assert p.grad is not None
                p.sub_(0.1 * p.grad)
        assert sign * (mean_entropy() - before) > 1e-6
        with torch.no_grad():
            for p, value in zip(part.parameters(), start, strict=True):
                p.copy_(value)


def test_pixels_count_as_samples() -> None:
    model, batch = TinyNetwork(pixels=True), map_batch()
    losses = mme(model, batch, LastLayerRef(auxiliary_context(model)), entropy=1.0)
    assert batch.target is not None
    z = flatten_maps(model(batch.target.images).z)[batch.target.labels.flatten() == -1]
    torch.testing.assert_close(losses["unlabelled/entropy"], -entropy(z, 1.0).mean(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("evidence", ["exp", "softplus_plus_one"])
def test_last_layer_is_found(evidence: str) -> None:
    torch.manual_seed(0)
    # Three features: two layers have the same shape.
    cnn, fcn = (
        small_cnn(classes=3, channels=1, width=4, features=3),
        small_fcn(classes=3, channels=1, width=4),
    )
    for network, pixels in ((cnn, False), (fcn, True)):
        model = EvidentialModel(network, evidence).eval()
        output = model(torch.rand(2, 1, 8, 8))
        assert output.features is not None
        last = LastLayerRef(AuxiliaryContext(model, 3, output.features.shape[1], 1, per_pixel=pixels))
        torch.testing.assert_close(last.apply_reversed(output).z, output.z)
        assert not list(last.parameters())
        assert not last.state_dict()


def test_a_model_without_a_linear_last_layer_raises() -> None:
    with pytest.raises(UserError, match="linear"):
        LastLayerRef(AuxiliaryContext(nn.Linear(2, CLASSES), CLASSES, 5, 1, per_pixel=False))
    with pytest.raises(UserError, match="features"):
        LastLayerRef(AuxiliaryContext(nn.Linear(2, CLASSES), CLASSES, 0, 1, per_pixel=False))


def test_no_unlabelled_images_no_entropy() -> None:
    model, batch = TinyNetwork(), image_batch()
    last, none = LastLayerRef(auxiliary_context(model)), type(batch)(batch.source, None, None)
    assert mme(model, none, last).keys() == {"source/nll"}
    with pytest.raises(ValueError, match="temperature"):
        mme(model, batch, last, temperature=0.0)


def test_other_outputs_are_unchanged() -> None:
    model = TinyNetwork()
    output = Output(torch.zeros(1, CLASSES), torch.ones(1, 4), None)
    assert LastLayerRef(auxiliary_context(model.float())).apply_reversed(output).features is output.features
