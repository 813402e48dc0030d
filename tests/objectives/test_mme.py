"""MME: the last layer maximises the target's entropy, the features minimise it."""

import pytest
import torch
from tiny_network import (
    CLASSES,
    SOURCE,
    UNLABELLED_IMAGES,
    TinyNetwork,
    assert_step_changes,
    image_batch,
    losses_of,
)
from torch import Tensor, nn

from ducats.models import small_cnn, small_fcn
from ducats.models.evidential import EvidentialModel
from ducats.objectives import AuxiliaryContext, Batch, softmax
from ducats.objectives.mme import LastLayerRef
from ducats.utils.errors import UserError


def mean_entropy(model: TinyNetwork, temperature: float = 1.0) -> Tensor:
    p: Tensor = (model(UNLABELLED_IMAGES).z / temperature).softmax(1)
    return -(p * p.log()).sum(1).mean()


def test_values_by_hand() -> None:
    model, batch = TinyNetwork(), image_batch()
    expected = softmax(model, batch) | {"unlabelled/entropy": -0.3 * mean_entropy(model, 0.5)}
    losses = losses_of("mme", model, batch, entropy=0.3, temperature=0.5)
    torch.testing.assert_close(losses, expected, rtol=1e-6, atol=1e-7)
    assert losses_of("mme", model, Batch(SOURCE, None, None)).keys() == {"source/nll"}


def test_last_layer_raises_and_features_lower_the_entropy() -> None:
    model = TinyNetwork()
    losses_of("mme", model, image_batch())["unlabelled/entropy"].backward()
    assert_step_changes(model.head, lambda: mean_entropy(model), 1)
    assert_step_changes(model.body, lambda: mean_entropy(model), -1)


@pytest.mark.parametrize("evidence", ["exp", "softplus_plus_one"])
@pytest.mark.parametrize("pixels", [False, True])
def test_last_layer_is_found(evidence: str, pixels: bool) -> None:
    torch.manual_seed(0)
    # Three features: two layers of the CNN have the same shape.
    network = (
        small_fcn(classes=3, channels=1, width=4)
        if pixels
        else small_cnn(classes=3, channels=1, width=4, features=3)
    )
    model = EvidentialModel(network, evidence).eval()
    output = model(torch.rand(2, 1, 8, 8))
    assert output.features is not None
    last = LastLayerRef(AuxiliaryContext(model, 3, output.features.shape[1], 1, per_pixel=pixels))
    found = last.apply_reversed(output)
    torch.testing.assert_close(found.z, output.z)
    assert found.features is output.features
    assert not list(last.parameters())
    assert not last.state_dict()


@pytest.mark.parametrize(("n_features", "message"), [(5, "linear"), (0, "features")])
def test_a_model_without_a_linear_last_layer_raises(n_features: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        LastLayerRef(AuxiliaryContext(nn.Linear(2, CLASSES), CLASSES, n_features, 1, per_pixel=False))
