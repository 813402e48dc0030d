import copy
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ducats.errors import UserError
from ducats.models import Evidential, small_cnn, timm_classifier


def test_any_network_that_gives_logits_will_do() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))
    images = torch.rand(4, 3, 2, 2)
    output = Evidential(network)(images)
    assert torch.equal(output.z, network(images))
    assert output.features is not None
    assert torch.equal(output.features, network[:3](images))  # what the last linear layer sees


def test_a_network_without_linear_layer_has_no_features() -> None:
    output = Evidential(nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()))(
        torch.rand(2, 3, 4, 4)
    )
    assert output.features is None
    assert output.z.shape == (2, 4)


def test_evidence_is_applied_once_and_in_float32() -> None:
    class Half(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.full((len(images), 2), 20.0, dtype=torch.bfloat16)

    z = Evidential(Half(), "exp_clamped")(torch.rand(3, 1, 2, 2)).z
    assert z.dtype == torch.float32
    assert z.unique().tolist() == [10.0]


def test_no_step_keeps_the_last_one_alive() -> None:
    model = Evidential(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    model(torch.rand(2, 1, 2, 2))
    assert model._calls == []


@pytest.mark.parametrize(("channels", "size"), [(1, 16), (3, 8), (3, 33)])
def test_small_cnn(channels: int, size: int) -> None:
    logits, features = small_cnn(classes=7, channels=channels)(torch.rand(2, channels, size, size))
    assert logits.shape == (2, 7)
    assert features.shape == (2, 64)


def test_timm_classifier_has_the_published_head() -> None:
    model = timm_classifier(classes=5, channels=3, backbone="resnet18", pretrained=False)
    logits, features = model(torch.rand(2, 3, 64, 64))
    assert (logits.shape, features.shape) == ((2, 5), (2, 256))
    assert [type(m) for m in model.bottleneck] == [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert float(features.detach().min()) >= 0
    assert model.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert model.lr_multipliers == {}


def test_local_weights_are_loaded_and_checked(tmp_path: Path) -> None:
    trunk = timm.create_model("resnet18", pretrained=False)  # with its own classifier, as files have it
    save_file(trunk.state_dict(), tmp_path / "w.safetensors")
    torch.save(trunk.state_dict(), tmp_path / "w.pth")
    for name in ("w.safetensors", "w.pth"):
        model = timm_classifier(classes=2, channels=3, backbone="resnet18", weights=str(tmp_path / name))
        assert torch.equal(model.backbone.conv1.weight, trunk.conv1.weight)  # type: ignore[union-attr, arg-type]
        assert model.lr_multipliers == {"backbone": 0.1}
    with pytest.raises(UserError, match=r"does not fit the backbone"):
        timm_classifier(classes=2, channels=3, backbone="resnet34", weights=str(tmp_path / "w.pth"))
    with pytest.raises(UserError, match=r"no file of weights"):
        timm_classifier(classes=2, channels=3, backbone="resnet18", weights=str(tmp_path / "none.pth"))


def test_weights_that_would_execute_code_are_refused(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "boom",)  # type: ignore[return-value]

    torch.save({"conv1.weight": Bomb()}, tmp_path / "bomb.pth")
    with pytest.raises(UserError, match=r"no file of weights that can be read safely"):
        timm_classifier(classes=2, channels=3, backbone="resnet18", weights=str(tmp_path / "bomb.pth"))
    assert not (tmp_path / "boom").exists()


def test_an_unknown_backbone_names_near_ones() -> None:
    with pytest.raises(UserError, match=r"timm has no model 'resnet5'; near: .*resnet50"):
        timm_classifier(classes=2, channels=3, backbone="resnet5")


def test_features_are_those_of_the_layer_that_made_the_logits() -> None:
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
    model, images = Evidential(network), torch.rand(4, 3, 2, 2)
    for _ in range(2):  # the second time only the head is listened to
        features = model(images).features
        assert features is not None
        assert torch.equal(features, network.body(images.flatten(1)).relu())
    assert list(model._hooks) == [network.head]
    copied = copy.deepcopy(model)
    assert copied(images).features is not None
    assert list(copied._hooks) == [copied.network.head]


@pytest.mark.parametrize("channels", [1, 4])
def test_a_backbone_takes_other_than_three_channels(channels: int) -> None:
    model = timm_classifier(classes=2, channels=channels, backbone="resnet18", pretrained=False)
    assert model(torch.rand(2, channels, 32, 32))[0].shape == (2, 2)
