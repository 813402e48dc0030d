from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from ducats.models import hub, timm_classifier
from ducats.utils.errors import UserError


@pytest.fixture
def unreachable_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Simulate an unreachable hub and an empty cache; return the requested URLs."""
    requests: list[str] = []

    def head(address: str, timeout: float) -> None:
        requests.append(address)
        raise ConnectionError("name not known")

    monkeypatch.setattr(hub, "get_session", lambda: SimpleNamespace(head=head))
    monkeypatch.setattr("ducats.models.hub.time.sleep", lambda seconds: None)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return requests


def test_unreachable_hub_error_lists_the_options(unreachable_hub: list[str]) -> None:
    with pytest.raises(
        UserError,
        match=r"weights of 'resnet18' \(name not known\).*model.params.weights=FILE.*ducats\[offline\].*",
    ):
        timm_classifier(classes=2, channels=3, backbone="resnet18")
    assert unreachable_hub == [constants.ENDPOINT] * 2  # and none of timm's dozen attempts


@pytest.mark.parametrize("form", ["model.safetensors", "pytorch_model.bin"])
def test_a_cached_file_needs_no_hub(unreachable_hub: list[str], tmp_path: Path, form: str) -> None:
    state = timm.create_model("resnet18").state_dict()
    repository = tmp_path / "models--timm--resnet18.a1_in1k"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (torch.save if form.endswith("bin") else save_file)(state, snapshot / form)
    model = timm_classifier(classes=2, channels=3, backbone="resnet18")
    assert torch.equal(model.backbone.state_dict()["layer4.1.conv2.weight"], state["layer4.1.conv2.weight"])
    assert model.lr_multipliers == {"backbone": 0.1}
    assert unreachable_hub == []


def test_timm_downloads_if_the_hub_is_reachable(
    unreachable_hub: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(name: str, **params: Any) -> None:
        assert (name, params["pretrained"], params["in_chans"]) == ("resnet18", True, 3)
        raise OSError("connection lost") from TimeoutError("no byte in 10 s")

    monkeypatch.setattr(hub, "get_session", lambda: SimpleNamespace(head=lambda address, timeout: None))
    monkeypatch.setattr("ducats.models.hub.timm.create_model", cut_off)
    with pytest.raises(UserError, match=r"weights of 'resnet18' \(no byte in 10 s\)"):
        timm_classifier(classes=2, channels=3, backbone="resnet18")


def test_backbone_without_pretrained_weights_raises(unreachable_hub: list[str]) -> None:
    with pytest.raises(UserError, match=r"timm has no pretrained weights for 'resnet50t'"):
        timm_classifier(classes=2, channels=3, backbone="resnet50t")
    assert unreachable_hub == []
