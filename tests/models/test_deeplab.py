from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from packaging.version import Version
from torch import Tensor, nn

from ducats.models import MODELS
from ducats.models.classifier import build_without_weights
from ducats.models.deeplab import DeepLab, HeadV3Plus, check_deeplab_params, deeplab_v2
from ducats.models.frozen_norm import FrozenNorm
from ducats.settings import Optimisation
from ducats.training.fit import make_optimiser
from ducats.utils.errors import UserError

BOTH = pytest.mark.parametrize("name", ["deeplab_v2", "deeplab_v3plus"])
STRIDE = {"deeplab_v2": 8, "deeplab_v3plus": 4}


def build_deeplab(name: str = "deeplab_v2", /, seed: int = 0, **params: Any) -> DeepLab:
    arguments = {"classes": 5, "channels": 3, "backbone": "resnet18", "pretrained": False, **params}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = MODELS[name].build(**arguments)
    assert isinstance(network, DeepLab)
    return network


def some_images(height: int = 33, width: int = 49, channels: int = 3, count: int = 2) -> Tensor:
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def weights_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Weights of a ResNet-18 whose blocks all contribute."""
    path = tmp_path_factory.mktemp("weights") / "w.pth"
    torch.save(timm.create_model("resnet18", zero_init_last=False).state_dict(), path)
    return str(path)


@pytest.mark.parametrize(
    ("size", "output_stride"), [((64, 96), 8), ((65, 97), 8), ((33, 70), 16), ((47, 31), 32)]
)
def test_v2_logits_have_the_output_stride(size: tuple[int, int], output_stride: int) -> None:
    logits, features = build_deeplab(output_stride=output_stride)(some_images(*size))
    grid = tuple(-(-side // output_stride) for side in size)
    assert logits.shape == (2, 5, *grid)
    assert features.shape == (2, 512, *grid)


@pytest.mark.parametrize(
    ("head_norm", "output_stride"), [("group", 8), ("batch", 8), ("none", 8), ("none", 16), ("group", 32)]
)
def test_v3plus_logits_have_stride_4(head_norm: str, output_stride: int) -> None:
    network = build_deeplab("deeplab_v3plus", head_norm=head_norm, output_stride=output_stride)
    logits, features = network(some_images(65, 98))
    assert logits.shape == (2, 5, 17, 25)
    assert features.shape == (2, 512, 17, 25)
    assert torch.equal(logits, network.head.classifier(features))  # type: ignore[operator]
    norms = {type(m).__name__ for m in network.head.modules() if "Norm" in type(m).__name__}
    assert norms == {"group": {"GroupNorm"}, "batch": {"BatchNorm2d"}, "none": set()}[head_norm]


NEEDS_NEW_TIMM = pytest.mark.skipif(
    Version(timm.__version__) < Version("1.0.30"),
    reason="RegNets cannot be built without memory in this timm",
)


@BOTH
@pytest.mark.parametrize(
    ("backbone", "channels"),
    [
        ("mobilenetv3_small_050", 3),
        ("convnext_atto", 3),
        pytest.param("regnety_002", 3, marks=NEEDS_NEW_TIMM),
        ("resnet18", 1),
        ("resnet18", 4),
    ],
)
def test_other_backbones_and_channels(name: str, backbone: str, channels: int) -> None:
    network = build_deeplab(name, backbone=backbone, channels=channels)
    side = 64 // STRIDE[name]
    assert network(some_images(64, 64, channels))[0].shape == (2, 5, side, side)


def test_strides_and_norm_eps_reach_the_backbone(weights_file: str) -> None:
    network = build_deeplab(weights=weights_file, norm_eps=0)
    assert {m.eps for m in network.modules() if isinstance(m, FrozenNorm)} == {0}
    network = build_deeplab(backbone="resnet26", strides="first")
    assert network.backbone.get_submodule("layer2.0.conv1").stride == (2, 2)


@pytest.mark.parametrize("arguments", [{}, {"head_std": 0.01}])
def test_v2_head_is_a_sum_of_convolutions(arguments: dict[str, Any]) -> None:
    network = build_deeplab(**arguments).eval()
    logits, features = network(some_images())
    state = network.head.state_dict()
    expected = sum(
        F.conv2d(features, state[f"branches.{i}.weight"], state[f"branches.{i}.bias"], padding=r, dilation=r)
        for i, r in enumerate((6, 12, 18, 24))
    )
    assert isinstance(expected, Tensor)
    assert torch.allclose(logits, expected, atol=1e-6)
    stacked = torch.cat([state[f"branches.{i}.weight"].flatten() for i in range(4)])
    assert float(stacked.std()) == pytest.approx(arguments.get("head_std", 0.001), rel=0.02)


def test_v3plus_head_matches_the_published_one() -> None:
    """Against a reimplementation, without norms and in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = HeadV3Plus([6, 10], 5, [6, 12, 18], "none", 0.1).eval()
    low, deep = torch.rand(2, 6, 9, 11), torch.rand(2, 10, 5, 6)
    w = {key.removesuffix(".weight"): tensor for key, tensor in head.state_dict().items()}

    def separable(maps: Tensor, key: str, rate: int) -> Tensor:
        each = F.conv2d(maps, w[f"{key}.0"], padding=rate, dilation=rate, groups=maps.shape[1]).relu()
        return F.conv2d(each, w[f"{key}.2"]).relu()

    pooled = F.conv2d(F.adaptive_avg_pool2d(deep, 1), w["image_pooling.0"]).relu()
    branch_outputs = [
        F.conv2d(deep, w["pointwise.0"]).relu(),
        *(separable(deep, f"branches.{i}", rate) for i, rate in enumerate((6, 12, 18))),
        F.interpolate(pooled, deep.shape[-2:], mode="bilinear"),
    ]
    joined = F.conv2d(torch.cat(branch_outputs, 1), w["projection.0"], padding=1).relu()
    fine = F.interpolate(joined, low.shape[-2:], mode="bilinear", align_corners=True)
    features = torch.cat([fine, F.conv2d(low, w["low_level.0"]).relu()], 1)
    assert features.shape[1] == 560
    for key in ("decoder.0", "decoder.1"):
        features = separable(features, key, 1)
    logits = F.conv2d(features, w["classifier"], w["classifier.bias"])
    output = head([low, deep])
    assert torch.allclose(output[1], features, atol=1e-4)
    assert torch.allclose(output[0], logits, atol=1e-4)
    assert float(w["projection.0"].std()) == pytest.approx((2 / (2560 * 9)) ** 0.5, rel=0.01)  # Kaiming


def test_parameters_of_the_published_network() -> None:
    """Counted by hand: a bottleneck of width p has 6 p channels to norm and 17 p^2 weights at 4 p inputs."""
    stages = [(64, 3, 64), (128, 4, 256), (256, 23, 512), (512, 3, 1024)]  # width, blocks, inputs
    weights = 3 * 64 * 49
    for p, blocks, inputs in stages:
        weights += p * inputs + 9 * p * p + 4 * p * p + 4 * p * inputs + (blocks - 1) * 17 * p * p
    head = 4 * (9 * 2048 * 19 + 19)
    frozen = build_without_weights(deeplab_v2, classes=19, channels=3)
    assert sum(p.numel() for p in frozen.parameters()) == weights + head == 43_795_724
    norms = [m for m in frozen.modules() if isinstance(m, FrozenNorm)]
    assert sum(m.weight.numel() for m in norms) == 64 + sum(6 * p * blocks + 4 * p for p, blocks, _ in stages)


@BOTH
def test_norms_are_frozen_with_pretrained_weights(name: str, weights_file: str) -> None:
    network = build_deeplab(name, weights=weights_file)
    norms = [m for m in network.backbone.modules() if isinstance(m, FrozenNorm)]
    assert len(norms) == 20
    assert not any(isinstance(m, nn.BatchNorm2d) for m in network.modules())
    assert not any(isinstance(m, FrozenNorm) for m in build_deeplab(name).modules())
    trainable = build_deeplab(name, weights=weights_file, frozen=False)
    assert not any(isinstance(m, FrozenNorm) for m in trainable.modules())
    images = some_images()
    eval_, train = (network.train(mode).backbone(images) for mode in (False, True))
    assert all(torch.equal(actual, other) for actual, other in zip(eval_, train, strict=True))
    same = trainable.eval().backbone(images)
    assert all(torch.allclose(actual, other, atol=1e-4) for actual, other in zip(eval_, same, strict=True))


@BOTH
def test_every_parameter_learns_and_the_backbone_has_its_own_rate(name: str, weights_file: str) -> None:
    network = build_deeplab(name, weights=weights_file)
    optimiser = make_optimiser(network, Optimisation(lr=3e-3))
    rates = {id(p): group["first_lr"] for group in optimiser.param_groups for p in group["params"]}
    for key, parameter in network.named_parameters():
        expected = 3e-4 if key.startswith("backbone.") else 3e-3
        assert rates[id(parameter)] == pytest.approx(expected)
    network(some_images())[0].square().mean().backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert bool(parameter.grad.isfinite().all()), key
        assert bool(parameter.grad.any()), key


@BOTH
@pytest.mark.parametrize("pretrained", [True, False])
def test_a_resumed_run_needs_no_weights(name: str, pretrained: bool, weights_file: str) -> None:
    network = build_deeplab(name, weights=weights_file if pretrained else None)
    params = {"classes": 5, "channels": 3, "backbone": "resnet18", "pretrained": False}
    build = MODELS[name].build_without_weights
    assert build is not None
    other = build(**params, weights="gone.npz" if pretrained else None)
    assert isinstance(other, DeepLab)
    assert other.lr_multipliers == network.lr_multipliers == ({"backbone": 0.1} if pretrained else {})
    other.load_state_dict(network.state_dict())
    assert torch.equal(other.eval()(some_images())[0], network.eval()(some_images())[0])


@BOTH
def test_bfloat16_outputs_are_close(name: str, weights_file: str) -> None:
    network = build_deeplab(name, weights=weights_file).eval()
    images = some_images()
    plain = network(images)
    with torch.autocast("cpu", torch.bfloat16):
        half = network(images)
    for actual, other in zip(half, plain, strict=True):
        assert actual.dtype == torch.bfloat16
        assert actual.shape == other.shape
        assert float((actual - other).detach().abs().max() / other.detach().abs().max()) < 0.1


def test_normalisation_is_that_of_the_backbone() -> None:
    resnet, images = build_deeplab().eval(), some_images()
    mean = torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)
    assert torch.allclose(resnet(images)[1], resnet.backbone((images - mean) / std)[-1], atol=1e-4)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"backbone": "resnet5"}, r"timm has no model 'resnet5'"),
        ({"backbone": "densenet121"}, r"'densenet121' cannot return feature maps"),
        ({"output_stride": 4}, r"output_stride is 4"),
        ({"weights": "gone.npz"}, r"gone.npz does not exist"),
        ({"frozen": True, "pretrained": False}, r"frozen=true needs pretrained weights"),
        ({"head_norm": "layer"}, r"head_norm is 'layer'"),
    ],
)
def test_check_rejects_invalid_parameters(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_deeplab_params(**params)


@BOTH
def test_check_accepts_valid_parameters(name: str) -> None:
    for spec in MODELS.values():
        assert (spec.build_without_weights is not None) == (spec.check_params is not None)
    check = MODELS[name].check_params
    assert check is not None
    check()
    check(backbone="convnext_atto", pretrained=False, output_stride=16)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"rates": []}, r"rates is \[\]"),
        ({"rates": [6, 0]}, r"rates is \[6, 0\]"),
        ({"norm_eps": 0.0}, r"norm_eps applies only to frozen norms"),
        ({"frozen": True, "norm_eps": -1.0}, r"norm_eps is -1.0"),
        ({"head_norm": "layer"}, r"head_norm is 'layer'; choose one of group, batch, none"),
    ],
)
def test_invalid_parameters_raise(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_deeplab("deeplab_v3plus" if "head_norm" in params else "deeplab_v2", **params)
