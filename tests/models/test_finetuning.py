"""Options of backbones for fine-tuning: image size, drop path, gradient checkpointing, LoRA."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from conftest import Runner
from ducats.config import load_config
from ducats.deploy.trained_model import load_trained_model
from ducats.models.backbone import uses_gradient_checkpointing
from ducats.models.classifier import (
    Classifier,
    build_without_weights,
    check_classifier_params,
    timm_classifier,
)
from ducats.models.lora import LoRALinear, add_lora, merge_lora
from ducats.run.factory import check_config, model_params, resolve_for_machine
from ducats.utils.errors import UserError

FIXED = "test_vit3"  # takes images of 160 x 160, and has a position embedding


def make(backbone: str, **params: Any) -> Classifier:
    torch.manual_seed(0)
    return timm_classifier(
        classes=3, channels=3, **{"backbone": backbone, "pretrained": False, "bottleneck": 8, **params}
    )


def some_images(side: int, count: int = 4) -> Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0))


# ---- image size


def test_a_vit_is_built_for_the_image_size_and_its_position_embedding_is_resampled(tmp_path: Path) -> None:
    original = timm.create_model(FIXED, num_classes=0)
    save_file(original.state_dict(), tmp_path / "weights.safetensors")
    network = make(FIXED, img_size=96, weights=str(tmp_path / "weights.safetensors"))
    assert network(some_images(96))[0].shape == (4, 3)
    # After the class token, 6 x 6 patches of 16 pixels instead of 10 x 10.
    token, patches = original.get_parameter("pos_embed").split([1, 100], 1)
    grid = patches.reshape(1, 10, 10, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(grid, (6, 6), mode="bicubic", antialias=True).permute(0, 2, 3, 1)
    expected = torch.cat([token, resized.reshape(1, 36, -1)], 1)
    torch.testing.assert_close(network.backbone.get_parameter("pos_embed"), expected)
    with pytest.raises(UserError, match="needs images of 96 x 96, not 160 x 160"):
        network(some_images(160))


@pytest.mark.parametrize("backbone", ["test_resnet", "test_vit"])
def test_a_backbone_that_takes_any_size_stays_as_it_is(backbone: str) -> None:
    """Earlier runs with another size than timm's resume, because their network is the same."""
    network, default = make(backbone, img_size=96), make(backbone)
    assert network.state_dict().keys() == default.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), default.parameters(), strict=True))
    assert network(some_images(96))[0].shape == (4, 3)


@pytest.mark.parametrize(
    ("settings", "side"),
    [
        ((), 224),
        (("views.size=96",), 96),
        (("views.size=96", "model.params.img_size=64"), 64),
        (("views.test.size=96",), None),  # not the same in all views
        (("views.size=96", "views.labelled={size: null}"), None),
    ],
)
def test_a_network_is_built_for_the_size_of_the_views(settings: tuple[str, ...], side: int | None) -> None:
    assert model_params(load_config([], settings)).get("img_size") == side


def test_dinov2_is_accepted_at_the_default_size() -> None:
    """Its weights are for 518 x 518."""
    dinov2 = ("data.name=toy", "model.params={backbone: vit_small_patch14_dinov2, pretrained: false}")
    check_config(load_config([], dinov2))


# ---- drop path and gradient checkpointing


def test_drop_path_drops_residual_branches_in_training_only() -> None:
    network = make("test_vit", drop_path=0.5)
    rates = [float(m.drop_prob) for m in network.modules() if type(m).__name__ == "DropPath"]  # type: ignore[arg-type]
    assert max(rates) == pytest.approx(0.5)
    images = some_images(96)
    network.eval()
    assert torch.equal(network(images)[0], make("test_vit").eval()(images)[0])
    network.backbone.train()
    assert not torch.equal(network.backbone(images), network.backbone(images))


@pytest.mark.parametrize("backbone", ["test_vit", "test_convnext"])
def test_gradient_checkpointing_gives_the_same_gradients(backbone: str) -> None:
    def gradients(**params: bool) -> list[Tensor]:
        network = make(backbone, drop_path=0.3, **params)
        assert uses_gradient_checkpointing(network) is bool(params)
        torch.manual_seed(1)
        network(some_images(64))[0].square().sum().backward()
        return [p.grad for p in network.parameters() if p.grad is not None]

    plain, checkpointed = gradients(), gradients(gradient_checkpointing=True)
    for mine, theirs in zip(checkpointed, plain, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"backbone": "vgg11", "drop_path": 0.1}, "'vgg11' has no drop path"),
        ({"drop_path": 1.0}, r"drop_path is 1\.0"),
        ({"drop_path": "high"}, "drop_path is 'high'"),
        ({"img_size": 0}, "img_size is 0"),
        ({"backbone": "resnet18", "gradient_checkpointing": True}, "does not support gradient checkpointing"),
        ({"backbone": "resnet18", "lora_rank": 4}, "needs a backbone with linear layers"),
        ({"backbone": "test_vit", "lora_rank": 0}, "lora_rank is 0"),
        ({"backbone": "maxvit_nano_rw_256", "img_size": 100}, "cannot be built for images of 100 x 100"),
    ],
)
def test_invalid_options_are_rejected_before_any_image_is_read(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_classifier_params(**params)


# ---- LoRA


def fit_a_little(network: nn.Module, images: Tensor) -> None:
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(3):
        optimiser.zero_grad()
        network(images)[0].square().sum().backward()
        optimiser.step()


def test_lora_starts_at_the_weights_and_trains_only_the_updates() -> None:
    images = some_images(64)
    network, plain = make("test_vit", lora_rank=2), make("test_vit")
    plain.bottleneck.load_state_dict(network.bottleneck.state_dict())
    plain.head.load_state_dict(network.head.state_dict())
    assert torch.equal(network.eval()(images)[0], plain.eval()(images)[0])
    before = {name: tensor.clone() for name, tensor in network.backbone.state_dict().items()}
    fit_a_little(network.train(), images)
    changed = [n for n, t in network.backbone.state_dict().items() if not torch.equal(t, before[n])]
    assert {name.rpartition(".")[2] for name in changed} == {"lora_a", "lora_b"}
    blocks = len(network.backbone.blocks)  # type: ignore[arg-type]
    assert len(changed) == 2 * 4 * blocks  # queries, keys and values; projection; two layers of the MLP


def test_merged_weights_give_the_same_outputs_without_lora() -> None:
    images = some_images(64)
    network = make("test_vit", lora_rank=2)
    fit_a_little(network, images)
    expected = network.eval()(images)[0]
    state = merge_lora(network, network.state_dict())
    assert state.keys() == make("test_vit").state_dict().keys()
    params = {"classes": 3, "channels": 3, "backbone": "test_vit", "bottleneck": 8}
    for lora in ({}, {"lora_rank": 2}):  # a run has the parameter in its config
        loaded = build_without_weights(timm_classifier, **params, **lora)
        loaded.load_state_dict(state)
        torch.testing.assert_close(loaded.eval()(images)[0], expected)


def test_lora_leaves_layers_alone_whose_weights_are_read_by_others() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.called = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.called(x @ self.read.weight)
            return outputs

    network = Reader()
    add_lora(network, 1, torch.zeros(1, 3), "reader")
    assert isinstance(network.called, LoRALinear)
    assert type(network.read) is nn.Linear


def test_lora_equals_peft() -> None:
    peft = pytest.importorskip("peft")
    images, network = some_images(64), make("test_vit", lora_rank=2)
    fit_a_little(network, images)
    config = peft.LoraConfig(r=2, lora_alpha=2, target_modules=r".*\.blocks\..*\.(qkv|proj|fc1|fc2)")
    theirs = peft.inject_adapter_in_model(config, make("test_vit"))
    renamed = {
        name.replace(".base_layer.", ".")
        .replace("lora_A.default.weight", "lora_a")
        .replace("lora_B.default.weight", "lora_b"): name
        for name in theirs.state_dict()
    }
    theirs.load_state_dict({renamed[name]: tensor for name, tensor in network.state_dict().items()})
    torch.testing.assert_close(network.eval()(images)[0], theirs.eval()(images)[0])


def test_a_run_with_lora_is_deployed_without_it(run_quickly: Runner) -> None:
    params = f"{{backbone: {FIXED}, pretrained: false, bottleneck: 8, lora_rank: 2, drop_path: 0.1}}"
    sizes = "views={source: {size: 32}, unlabelled: {size: 32}, scoring: {size: 32}, test: {size: 32}}"
    model = f"model={{name: timm, params: {params}}}"
    run_folder = run_quickly(model, sizes, "train.ema_decay=0.9", "train.epochs=3")
    network = load_trained_model(run_folder.path).model.network
    assert not any("lora" in name for name in network.state_dict())


def test_lora_is_not_frozen_by_default() -> None:
    config = load_config([], ["data.name=toy", "model.params={backbone: test_vit, lora_rank: 2}"])
    assert resolve_for_machine(config).model.freeze == "none"
    frozen = config.model_copy(update={"model": replace(config.model, freeze="backbone")})
    with pytest.raises(UserError, match=r"but model\.freeze is backbone"):
        check_config(frozen, is_resumable=True)
