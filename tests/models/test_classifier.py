from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ducats.models import timm_classifier
from ducats.models.classifier import Classifier
from ducats.utils.errors import UserError


def random_classifier(backbone: str, channels: int = 3, **params: str | bool) -> Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return timm_classifier(classes=5, channels=channels, backbone=backbone, pretrained=False, **params)  # type: ignore[arg-type]


def some_images(count: int = 2, channels: int = 3, side: int = 64) -> Tensor:
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(0))


def test_head_matches_the_published_one() -> None:
    model = random_classifier("resnet18")
    logits, features = model(some_images())
    assert (logits.shape, features.shape) == ((2, 5), (2, 256))
    assert [type(m) for m in model.bottleneck] == [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert torch.equal(logits, model.head(features))
    assert float(features.detach().min()) >= 0
    assert model.lr_multipliers == {}
    assert model.training


def test_bottleneck_without_relu() -> None:
    """Features are the batch norm of a linear map: published for EADA, TQS, SDM and LADA."""
    model = random_classifier("resnet18", bottleneck_relu=False)
    linear, norm = model.bottleneck
    hidden = model.backbone((some_images(8) - model.mean) / model.std) @ linear.weight.T + linear.bias
    variance = hidden.var(0, correction=0) + norm.eps
    expected = (hidden - hidden.mean(0)) / variance.sqrt() * norm.weight + norm.bias
    logits, features = model(some_images(8))
    torch.testing.assert_close(features, expected, rtol=1e-3, atol=1e-3)
    assert 0.3 < (features < 0).float().mean() < 0.7
    assert torch.equal(logits, model.head(features))
    assert model.state_dict().keys() == random_classifier("resnet18").state_dict().keys()


@pytest.mark.parametrize(
    ("backbone", "side", "width"),
    [
        ("mobilenetv3_small_050", 64, 1024),  # timm's num_features is 288: its head has a hidden layer
        ("tf_efficientnet_lite0", 64, 1280),
        ("convnext_atto", 64, 320),
        ("regnety_002", 64, 368),
        ("poolformer_s12", 64, 512),  # has no head_hidden_size
        ("vit_tiny_patch16_224", 224, 192),
        ("swin_tiny_patch4_window7_224", 224, 768),
    ],
)
def test_head_width_for_families_of_backbones(backbone: str, side: int, width: int) -> None:
    model = random_classifier(backbone)
    logits, features = model(some_images(side=side))
    assert (logits.shape, features.shape) == ((2, 5), (2, 256))
    assert model.bottleneck[0].in_features == width


def test_normalisation_is_that_of_the_backbone() -> None:
    resnet, lite = random_classifier("resnet18"), random_classifier("tf_efficientnet_lite0")
    assert resnet.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert resnet.std.flatten().tolist() == pytest.approx([0.229, 0.224, 0.225])
    assert lite.mean.flatten().tolist() == lite.std.flatten().tolist() == [0.5, 0.5, 0.5]
    lite.eval()
    expected = lite.bottleneck(lite.backbone(2 * some_images() - 1))
    assert torch.allclose(lite(some_images())[1], expected, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 4])
def test_other_than_three_channels(channels: int) -> None:
    assert random_classifier("resnet18", channels)(some_images(channels=channels))[0].shape == (2, 5)


@pytest.mark.parametrize(
    "backbone", ["vit_tiny_patch16_224", "levit_128s"]
)  # one has an assertion, one just fails
def test_wrong_image_size_raises(backbone: str) -> None:
    with pytest.raises(UserError, match=rf"'{backbone}' needs images of 224 x 224, not 64 x 64.*size=224"):
        random_classifier(backbone)(some_images())


def test_other_errors_of_a_backbone_are_not_changed() -> None:
    with pytest.raises(RuntimeError, match=r"expected input"):
        random_classifier("resnet18", channels=1)(some_images(channels=3))


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ("resnet5", r"timm has no model 'resnet5'; similar: .*resnet50"),
        ("resnet18.nowhere", r"timm has no weights 'resnet18.nowhere'.*resnet18.tv_in1k"),
    ],
)
def test_unknown_backbone_raises(backbone: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        random_classifier(backbone)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_backbone_without_features_raises() -> None:
    with pytest.raises(UserError, match="does not return one feature vector per image"):
        random_classifier("inception_next_atto")


def test_strides_move_to_the_first_convolution() -> None:
    backbone = random_classifier("resnet26", strides="first").backbone
    strided = {name for name, module in backbone.named_modules() if getattr(module, "stride", 1) == (2, 2)}
    stages = [f"layer{i}.0" for i in (2, 3, 4)]
    assert strided == {"conv1", *(f"{s}.conv1" for s in stages), *(f"{s}.downsample.0" for s in stages)}


@pytest.mark.parametrize("backbone", ["resnet18", "convnext_atto"])
def test_strides_first_needs_bottleneck_blocks(backbone: str) -> None:
    with pytest.raises(UserError, match=rf"strides='first' is for ResNets .*'{backbone}'"):
        random_classifier(backbone, strides="first")
    with pytest.raises(UserError, match=r"strides is 'second'"):
        random_classifier("resnet18", strides="second")


def in_channels_last(model: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    assert images.shape[1] > 1  # one channel is the same in both formats
    return model.to(memory_format=torch.channels_last)(images.contiguous(memory_format=torch.channels_last))  # type: ignore[no-any-return]


def in_bf16(model: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        logits, features = model(images)
    assert logits.dtype == torch.bfloat16
    return logits.float(), features.float()


@pytest.mark.parametrize("backbone", ["resnet18", "convnext_atto"])
@pytest.mark.parametrize(("run_variant", "tolerance"), [(in_channels_last, 1e-4), (in_bf16, 0.1)])
def test_channels_last_and_bfloat16_give_the_same_result(
    run_variant: Callable[[Classifier, Tensor], tuple[Tensor, Tensor]], tolerance: float, backbone: str
) -> None:
    model = random_classifier(backbone)
    images = some_images(8)
    plain = model(images)
    for actual, other in zip(plain, run_variant(model, images), strict=True):
        assert actual.shape == other.shape
        assert float(((actual - other).abs().max() / actual.abs().max()).detach()) < tolerance
    loss = run_variant(model, images)[0].square().mean()
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
