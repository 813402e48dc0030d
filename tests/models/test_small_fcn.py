import pytest
import torch
import torch.nn.functional as F

from ducats.models.small_fcn import small_fcn


@pytest.mark.parametrize(
    ("channels", "size", "grid"),
    [(3, (64, 128), (32, 64)), (1, (16, 24), (8, 12)), (3, (33, 50), (17, 25)), (2, (18, 15), (9, 8))],
    ids=str,
)
def test_logits_and_features_at_half_the_size(
    channels: int, size: tuple[int, int], grid: tuple[int, int]
) -> None:
    network = small_fcn(classes=7, channels=channels, width=8)
    logits, features = network(torch.rand(2, channels, *size))
    assert logits.shape == (2, 7, *grid)
    assert features.shape == (2, 16, *grid)
    assert torch.equal(logits, network.head(features))


@pytest.mark.parametrize("width", [8, 12, 24])
def test_output_does_not_depend_on_the_batch(width: int) -> None:
    torch.manual_seed(0)
    network = small_fcn(classes=3, channels=3, width=width).train()
    images = torch.rand(4, 3, 16, 32)
    batched, single = network(images)[0], network(images[2:3])[0]
    assert torch.allclose(batched[2:3], single, atol=1e-5)


@pytest.mark.parametrize(("dilations", "field"), [((), 11), ((1,), 19), ((1, 2, 4), 67)], ids=str)
def test_receptive_field(dilations: tuple[int, ...], field: int) -> None:
    torch.manual_seed(0)
    network = small_fcn(classes=2, channels=1, width=8, dilations=dilations)
    # Remove norms, which see the whole image, to measure the convolutions only.
    for stack in network.modules():
        if not isinstance(stack, torch.nn.Sequential):
            continue
        for i, layer in enumerate(stack):
            if isinstance(layer, torch.nn.GroupNorm):
                stack[i] = torch.nn.Identity()
    image = torch.rand(1, 1, 128, 128, requires_grad=True)
    network(image)[0][0, :, 32, 32].sum().backward()
    assert image.grad is not None
    columns = image.grad[0, 0].abs().sum(0).nonzero().flatten()
    assert int(columns[-1] - columns[0]) + 1 == field


def test_learns_a_label_map() -> None:
    torch.manual_seed(0)
    images = torch.rand(4, 3, 16, 32)
    images[:, 0, :, 16:] += 1
    labels = (torch.arange(32) >= 16).long().expand(4, 16, 32)
    network = small_fcn(classes=2, channels=3, width=8)
    optimiser = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    for _ in range(30):
        optimiser.zero_grad()
        logits = F.interpolate(network(images)[0], size=(16, 32), mode="bilinear", align_corners=True)
        F.cross_entropy(logits, labels).backward()
        optimiser.step()
    assert float((logits.argmax(1) == labels).float().mean()) > 0.95
