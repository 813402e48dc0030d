import re
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

from ducats.models.backbone import FeatureExtractor, check_feature_maps, make_feature_extractor
from ducats.utils.errors import UserError


def feature_extractor(name: str, output_stride: int, *reductions: int, **params: object) -> FeatureExtractor:
    arguments = {"channels": 3, "pretrained": False, "weights": None, "strides": "timm", **params}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make_feature_extractor(
            name,
            output_stride=output_stride,
            reductions=reductions or (output_stride,),
            **arguments,  # type: ignore[arg-type]
        )


def some_images(height: int, width: int) -> Tensor:
    return torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(0))


def randomise_norms(network: nn.Module) -> nn.Module:
    """Set random norm weights: in timm's initial blocks the last norm multiplies by 0."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5, generator=torch.Generator().manual_seed(1))
    return network.eval()


@pytest.mark.parametrize(
    ("backbone", "strides", "size", "output_stride"),
    [
        ("resnet18", "timm", (64, 96), 8),
        ("resnet18", "timm", (70, 33), 16),
        ("resnet26", "timm", (65, 33), 8),
        ("resnet26", "first", (65, 33), 8),
        ("resnet26", "first", (70, 33), 16),
        ("resnet50", "first", (65, 64), 8),
    ],
)
def test_dilated_network_contains_the_map_of_the_strided_one(
    backbone: str, strides: str, size: tuple[int, int], output_stride: int
) -> None:
    """Dilation replaces stride exactly: every 4th position at stride 8 is a position at stride 32."""
    images, every = some_images(*size), 32 // output_stride
    with torch.no_grad():
        plain, dense = (
            randomise_norms(feature_extractor(backbone, stride, strides=strides).net)(images)[0]
            for stride in (32, output_stride)
        )
    assert dense.shape[-2:] == tuple(-(-side // output_stride) for side in size)
    assert float(plain.std()) > 0.01
    assert torch.allclose(dense[..., ::every, ::every], plain, atol=1e-4 * float(plain.abs().max()))


def test_strides_first_matches_the_plain_network() -> None:
    images = some_images(64, 64)
    plain_network = randomise_norms(timm.create_model("resnet26", num_classes=0, global_pool=""))
    for stage in ("layer2", "layer3", "layer4"):
        block = plain_network.get_submodule(f"{stage}.0")
        block.conv1.stride, block.conv2.stride = (2, 2), (1, 1)  # type: ignore[assignment]
    net = feature_extractor("resnet26", 32, strides="first").net
    net.load_state_dict(plain_network.state_dict())
    with torch.no_grad():
        assert torch.allclose(net.eval()(images)[0], plain_network(images), atol=1e-5)


@pytest.mark.parametrize(
    ("backbone", "widths"),
    [
        ("resnet18", [64, 512]),
        ("mobilenetv3_small_050", [8, 288]),
        ("convnext_atto", [40, 320]),  # its stages are flattened
        ("xception41", [256, 2048]),  # its maps are captured by hooks
    ],
)
def test_weights_file_sets_every_tensor(tmp_path: Path, backbone: str, widths: list[int]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        state = timm.create_model(backbone, num_classes=7).state_dict()
    torch.save(state, tmp_path / "w.pth")
    net, found = feature_extractor(backbone, 8, 4, 8, weights=str(tmp_path / "w.pth"))
    assert list(found) == widths
    assert [maps.shape[1] for maps in net.eval()(some_images(64, 64))] == widths
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, state[re.sub(r"_(\d+)\.", r".\1.", name, count=1)]), name


@pytest.mark.parametrize(
    ("backbone", "output_stride", "message"),
    [
        ("vit_tiny_patch16_224", 8, r"at output stride 8 .*output_stride=32"),
        ("vit_tiny_patch16_224", 32, r"at output stride 32 .*e.g. resnet101$"),
        ("poolformer_s12", 8, r"stride 8 \(its stages have strides 4, 8, 16, 32\)"),
        ("resnet18", 4, r"output_stride is 4"),
    ],
)
def test_backbone_without_feature_maps_raises(backbone: str, output_stride: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_feature_maps(backbone, output_stride)
    with pytest.raises(UserError, match=message):
        feature_extractor(backbone, output_stride)


def test_missing_stride_raises() -> None:
    with pytest.raises(UserError, match=r"'convnext_atto' .*its stages have strides 4, 8, 8, 8"):
        feature_extractor("convnext_atto", 8, 2, 8)
