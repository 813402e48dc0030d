"""Recipes for backbones: each is found by its models, builds, and trains."""

import re

import pytest
import timm
import torch

from commands import Capture, ducats
from ducats.config import Config, configs_folder, find_recipe, load_config
from ducats.config.options import RunOptions
from ducats.objectives import Batch, LabelledImages, duc
from ducats.run.factory import check_config, make_model, make_schedule
from ducats.training.distributed import make_fabric
from ducats.training.fit import make_optimiser
from ducats.training.step import Step
from ducats.utils.errors import UserError

RECIPES = sorted(path.stem for path in (configs_folder() / "backbones").glob("*.yaml"))
SMALL = {  # a small model of each family
    "clip": "vit_xsmall_patch16_clip_224",
    "convnext": "convnext_atto",
    "dinov2": "vit_small_patch14_dinov2",
    "dinov3": "vit_small_patch16_dinov3",
    "offline": "tf_efficientnet_lite0",
    "resnet": "resnet10t",
    "siglip": "vit_base_patch16_siglip_224",  # the smallest
    "vit": "vit_tiny_patch16_224",
}
SIDE = 112  # a multiple of 14 and 16


def test_every_recipe_is_tested_and_listed(capsys: Capture) -> None:
    assert list(SMALL) == RECIPES
    assert ducats("run", "--help") == 0
    words = set(re.findall(r"\w+", capsys.readouterr().out))
    assert set(RECIPES) <= words


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_names_a_pretrained_model_of_its_family(recipe: str) -> None:
    backbone = load_config([f"backbones/{recipe}"]).model.params["backbone"]
    assert timm.models.is_model_pretrained(backbone)
    if recipe != "offline":
        assert find_recipe(backbone) == find_recipe(SMALL[recipe]) == find_recipe(recipe)


@pytest.mark.parametrize(
    ("backbone", "recipe"),
    [
        ("vit_base_patch14_reg4_dinov2.lvd142m", "dinov2"),
        ("convnext_base.clip_laion2b", "convnext"),
        ("convnext_tiny.dinov3_lvd1689m", "convnext"),
        ("vit_so400m_patch14_siglip_gap_224.v2_webli", "siglip"),
        ("eva02_base_patch16_clip_224.merged2b", "clip"),
        ("resnet50_clip.openai", "resnet"),
        ("vit_base_patch16_224.augreg_in21k", "vit"),
        ("mobilenetv3_large_100", None),
    ],
)
def test_the_recipe_of_a_family_is_found(backbone: str, recipe: str | None) -> None:
    assert find_recipe(backbone) == (recipe and f"backbones/{recipe}")


def test_the_backbone_is_set_with_the_recipe_of_its_family() -> None:
    large = "vit_large_patch14_dinov2.lvd142m"
    config = RunOptions(config=["data/office-home"], backbone=large, set=["train.layer_decay=0.9"]).load()
    expected = load_config(
        ["data/office-home", "backbones/dinov2"],
        ["train.layer_decay=0.9", f"model.params.backbone={large}"],
    )
    assert config == expected
    assert (config.train.optimiser, config.train.lr, config.train.layer_decay) == ("adamw", 1e-3, 0.9)
    assert RunOptions(backbone="dinov2").load() == load_config(["backbones/dinov2"])
    model = RunOptions(backbone=large, finetune=True).load().model
    assert (model.params, model.freeze) == ({"backbone": large}, "none")
    other = RunOptions(backbone="mobilenetv3_large_100").load()
    assert other == load_config([], ["model.params.backbone=mobilenetv3_large_100"])


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains_two_steps_from_random_weights(recipe: str) -> None:
    side = 32 if recipe == "siglip" else SIDE  # 90 million weights
    settings = ["data.name=toy", "model.params.pretrained=false", f"views.size={side}"]
    config = RunOptions(backbone=SMALL[recipe], set=settings).load()
    check_config(config)
    assert all(torch.isfinite(loss) for loss in take_steps(config, side))


def take_steps(config: Config, side: int, count: int = 2) -> list[torch.Tensor]:
    model, fabric = make_model(config, classes=2, channels=3), make_fabric("cpu")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    wrapped, optimiser = fabric.setup(model, make_optimiser(model.network, config.train))
    wrapped.train()
    step = Step(wrapped, optimiser, duc, fabric, max_grad_norm=config.train.clip_grad_norm)
    schedule = make_schedule(config, count)
    images = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    batch = Batch(LabelledImages(images, torch.tensor([0, 1])), None, images)
    losses = [loss for n in range(count) for loss in step(batch, schedule(n)).values()]
    is_changed = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert sum(is_changed) > 0.8 * len(is_changed)
    return losses


def test_a_model_without_a_backbone_is_rejected_and_another_one_gets_it() -> None:
    options = RunOptions(config=["data/digits"], backbone="convnext", set=["model.params.pretrained=false"])
    with pytest.raises(UserError, match=r"'small_cnn' has no backbone to choose; .*model\.name=timm"):
        check_config(options.load())
    options.set = ["model.name=timm", *options.set]
    config = options.load()
    check_config(config)
    assert config.model.params == {"pretrained": False, "backbone": "convnext_tiny.fb_in22k"}


@pytest.mark.parametrize("recipe", ["convnext", "resnet"])
def test_convolutional_recipes_work_for_segmentation(recipe: str) -> None:
    settings = ["data.name=streets", "model.params.pretrained=false", "model.params.output_stride=32"]
    config = RunOptions(config=["segmentation"], backbone=recipe, set=settings).load()
    check_config(config)
    assert (config.model.name, config.train.layer_decay) == ("deeplab_v2", None)


def test_a_transformer_is_rejected_for_segmentation_with_the_reason(capsys: Capture) -> None:
    assert ducats("doctor", "-c", "segmentation", "--backbone", "dinov2") == 1
    assert "cannot return feature maps" in " ".join(capsys.readouterr().out.split())
