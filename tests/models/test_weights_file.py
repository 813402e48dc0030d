from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from ducats.models import timm_classifier
from ducats.models.classifier import Classifier
from ducats.utils.errors import UserError


@pytest.fixture(scope="module")
def saved() -> dict[str, Tensor]:
    """Weights of a ResNet-18 with its classifier."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return dict(timm.create_model("resnet18").state_dict())


def classifier(weights: Path, backbone: str = "resnet18", channels: int = 3) -> Classifier:
    return timm_classifier(classes=2, channels=channels, backbone=backbone, weights=str(weights))


def assert_same(model: Classifier, state: dict[str, Tensor]) -> None:
    for name, tensor in model.backbone.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def test_three_file_formats(tmp_path: Path, saved: dict[str, Tensor]) -> None:
    save_file(saved, tmp_path / "w.safetensors")
    torch.save(saved, tmp_path / "w.pth")
    np.savez(tmp_path / "w.npz", **{name: tensor.numpy() for name, tensor in saved.items()})  # type: ignore[arg-type]
    for name in ("w.safetensors", "w.pth", "w.npz"):
        model = classifier(tmp_path / name)
        assert_same(model, saved)
        assert model.lr_multipliers == {"backbone": 0.1}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state, "optimizer": {"lr": 0.1}},
        lambda state: {f"module.{name}": tensor for name, tensor in state.items()},
        lambda state: {"state_dict": {f"model._orig_mod.{name}": t for name, t in state.items()}},
        lambda state: {name: t for name, t in state.items() if not name.endswith("num_batches_tracked")},
    ],
    ids=["state_dict", "model", "module.", "two words", "old"],
)
def test_checkpoints_are_read(tmp_path: Path, saved: dict[str, Tensor], wrap: Any) -> None:
    torch.save(wrap(saved), tmp_path / "w.pth")
    assert_same(classifier(tmp_path / "w.pth"), saved)


@pytest.mark.parametrize("flat", [False, True])
def test_int8_arrays_are_scaled_per_output_channel(
    tmp_path: Path, saved: dict[str, Tensor], flat: bool
) -> None:
    arrays, expected = {}, dict(saved)
    for name, tensor in saved.items():
        if tensor.ndim == 4:
            scale = tensor.abs().amax(dim=(1, 2, 3), keepdim=True) / 127
            quantised = (tensor / scale).round().to(torch.int8)
            expected[name] = quantised.float() * scale
            arrays[f"{name}|q"] = quantised.numpy()
            arrays[f"{name}|s"] = scale.flatten().numpy() if flat else scale.numpy()
        else:
            arrays[name] = tensor.numpy()
    np.savez(tmp_path / "w.npz", **arrays)  # type: ignore[arg-type]
    model = classifier(tmp_path / "w.npz")
    assert_same(model, expected)
    assert not torch.equal(expected["conv1.weight"], saved["conv1.weight"])


@pytest.mark.parametrize(
    "backbone", ["convnext_atto", "mobilenetv3_small_050", "efficientvit_m0", "vit_tiny_patch16_224"]
)
def test_classifier_weights_are_ignored(tmp_path: Path, backbone: str) -> None:
    state = timm.create_model(backbone, num_classes=21).state_dict()  # head.fc., classifier., head.bn., head.
    torch.save(state, tmp_path / "w.pth")
    model = classifier(tmp_path / "w.pth", backbone)
    assert_same(model, state)
    assert len(model.backbone.state_dict()) < len(state)


def test_weights_for_three_colours_adapt_to_one_channel(tmp_path: Path, saved: dict[str, Tensor]) -> None:
    torch.save(saved, tmp_path / "w.pth")
    grey = classifier(tmp_path / "w.pth", channels=1).backbone.state_dict()["conv1.weight"]
    assert torch.allclose(grey, saved["conv1.weight"].sum(dim=1, keepdim=True))


def test_older_formats_are_converted_by_timm(tmp_path: Path) -> None:
    state = timm.create_model("vit_tiny_patch16_224").state_dict()
    state["pos_embed"] = torch.ones(1, 1 + 8 * 8, 192)  # trained on 128 pixels
    torch.save(state, tmp_path / "w.pth")
    model = classifier(tmp_path / "w.pth", "vit_tiny_patch16_224")
    resampled = model.backbone.state_dict()["pos_embed"]
    assert resampled.shape == (1, 1 + 14 * 14, 192)
    assert torch.allclose(resampled, torch.ones(()), atol=1e-5)


def test_weights_of_another_architecture_raise(tmp_path: Path, saved: dict[str, Tensor]) -> None:
    file = tmp_path / "w.pth"
    torch.save(saved, file)
    with pytest.raises(UserError, match=r"80 of 180 tensors are missing, e.g. layer1.2.conv1.weight"):
        classifier(file, "resnet34")
    with pytest.raises(UserError, match=r"layer1.0.conv1.weight is 64 x 64 x 3 x 3 instead of 64 x"):
        classifier(file, "resnet26")
    with pytest.raises(UserError, match=r"'convnext_atto': .* are unexpected, e.g. conv1.weight"):
        classifier(file, "convnext_atto")


def test_unreadable_file_raises(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.pth does not exist"):
        classifier(tmp_path / "none.pth")
    for name in ("w.safetensors", "w.npz", "w.pth"):
        (tmp_path / name).write_bytes(b"not weights at all")
        with pytest.raises(UserError, match=rf"{name} cannot be read safely"):
            classifier(tmp_path / name)
    np.savez(tmp_path / "half.npz", **{"conv1.weight|q": np.ones((2, 2), np.int8)})  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"half.npz cannot be read safely .*conv1.weight\|s"):
        classifier(tmp_path / "half.npz")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(UserError, match=r"list.pth has no named tensors"):
        classifier(tmp_path / "list.pth")


def test_weights_that_would_execute_code_raise(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (tmp_path / "boom",)

    torch.save({"conv1.weight": Bomb()}, tmp_path / "bomb.pth")
    np.savez(tmp_path / "bomb.npz", **{"conv1.weight": np.array([Bomb()], dtype=object)})  # type: ignore[arg-type]
    for name in ("bomb.pth", "bomb.npz"):
        with pytest.raises(UserError, match=r"cannot be read safely"):
            classifier(tmp_path / name)
    assert not (tmp_path / "boom").exists()
