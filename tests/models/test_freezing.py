import pytest
import torch
from torch import nn

from ducats.models import timm_classifier
from ducats.models.classifier import Classifier
from ducats.models.freezing import backbone_digest, embedding_network, freeze_backbone
from ducats.utils.errors import UserError


def make_classifier(backbone: str = "test_resnet", seed: int = 0) -> Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return timm_classifier(classes=3, channels=3, backbone=backbone, pretrained=False)


def train_step(network: nn.Module) -> None:
    network.train()
    logits, _ = network(torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    logits.square().sum().backward()
    optimiser = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], 0.1)
    optimiser.step()


def changed(network: nn.Module, before: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, tensor in network.state_dict().items() if not torch.equal(tensor, before[name])}


def test_a_frozen_backbone_does_not_change() -> None:
    network = make_classifier()
    freeze_backbone(network, "backbone")
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    train_step(network)
    moved = changed(network, before)
    assert {name.split(".")[0] for name in moved} == {"bottleneck", "head"}
    assert embedding_network(network) is network
    assert network.lr_multipliers == {}


def test_first_stages_are_frozen_with_their_statistics() -> None:
    network = make_classifier()
    freeze_backbone(network, 2)  # the stem and the first stage
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    train_step(network)
    moved = changed(network, before)
    assert not [
        name for name in moved if name.startswith(("backbone.conv1", "backbone.bn1", "backbone.layer1"))
    ]
    assert any(name.startswith("backbone.layer2") for name in moved)
    assert any(name.startswith("backbone.layer4") and "running" in name for name in moved)
    assert embedding_network(network) is None


def test_freezing_keeps_the_outputs() -> None:
    network, images = make_classifier().eval(), torch.rand(2, 3, 32, 32)
    expected = network(images)[0]
    freeze_backbone(network, "backbone")
    torch.testing.assert_close(network.eval()(images)[0], expected)


@pytest.mark.parametrize("freeze", ["none", 0])
def test_nothing_is_frozen(freeze: str) -> None:
    network = make_classifier()
    freeze_backbone(network, freeze)  # type: ignore[arg-type]
    assert all(p.requires_grad for p in network.parameters())
    assert embedding_network(network) is None


def test_impossible_requests() -> None:
    with pytest.raises(UserError, match="'test_resnet' has 5 stages"):
        freeze_backbone(make_classifier(), 6)
    with pytest.raises(UserError, match=r"Linear does not have; set model\.freeze=none"):
        freeze_backbone(nn.Linear(3, 2), "backbone")


def test_embeddings_replace_images() -> None:
    network, images = make_classifier().eval(), torch.rand(2, 3, 32, 32)
    embeddings = network.embed(images)
    assert embeddings.shape == (2, network.embedding_width)
    assert torch.equal(network(embeddings)[0], network(images)[0])


def test_digest_shows_whatever_changes_the_embeddings() -> None:
    network, same, other = make_classifier(), make_classifier(), make_classifier(seed=1)
    assert backbone_digest(network) == backbone_digest(same)
    assert backbone_digest(network) != backbone_digest(other)
    with torch.no_grad():
        same.head.weight.add_(1)
        assert backbone_digest(network) == backbone_digest(same)
        same.mean.add_(0.1)
        assert backbone_digest(network) != backbone_digest(same)
    strided = make_classifier()
    conv = next(m for m in strided.backbone.modules() if isinstance(m, nn.Conv2d) and m.stride == (2, 2))
    conv.stride = (1, 1)
    assert backbone_digest(network) != backbone_digest(strided)


def test_networks_for_grey_images_have_a_digest() -> None:
    """Their mean is a view of one number."""
    grey, colour = (
        timm_classifier(classes=2, channels=channels, backbone="test_resnet", pretrained=False)
        for channels in (1, 3)
    )
    assert backbone_digest(grey) != backbone_digest(colour)
