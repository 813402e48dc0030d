"""A tiny segmentation network, a pool of images, and plain references on whole maps."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ducats import dirichlet
from ducats.domain import UNLABELLED, VOID, Labels
from ducats.objectives import Batch, Beside, Labelled, Moment
from ducats.rows import Output

CLASSES, WIDTH, SIZE = 4, 5, (12, 16)
bounded = dirichlet.EVIDENCE["exp_at_most_10"]


class Painter(nn.Module):
    """Returns logits and features at half the image size."""

    def __init__(self, seed: int = 0, classes: int = CLASSES) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body, self.head = nn.Conv2d(3, WIDTH, 3, 2, 1), nn.Conv2d(WIDTH, classes, 1)
            nn.init.normal_(self.head.weight, std=3.0)

    def forward(self, images: Tensor) -> Output:
        features = self.body(images).relu()
        height, width = images.shape[-2:]
        return Output(self.head(features), features, (height, width), bounded)


def beside(model: nn.Module, pool: int = 6) -> Beside:
    return Beside(model, CLASSES, WIDTH, pool, pixels=True)


def pictures(seed: int, count: int = 2) -> Tensor:
    return torch.rand(count, 3, *SIZE, generator=torch.Generator().manual_seed(seed))


def maps(seed: int, count: int = 2, *, bought: bool = False) -> Tensor:
    """Label maps: full for the source; for the target a void row, and two labelled rows if ``bought``."""
    generator = torch.Generator().manual_seed(100 + seed)
    labels = torch.randint(0, CLASSES, (count, *SIZE), generator=generator).to(torch.int8)
    if seed:
        labels[:, 2 if bought else 0 :] = UNLABELLED
        labels[:, -1] = VOID
    return labels


def a_batch(*, bought: bool = False) -> Batch:
    """Source 0, target 1."""
    source = Labelled(pictures(0), maps(0))
    return Batch(source, None, None, Labelled(pictures(1), maps(1, bought=bought)), bought=bought)


class Pool:
    """Passes over some images, two at a time, without a source."""

    targets: Tensor | None = None

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        self.model, self.images = model, images
        self.labels: Labels = maps(0)

    def pool(self) -> Iterator[tuple[Tensor, Output]]:
        for index in torch.arange(len(self.images)).split(2):
            with torch.no_grad():
                yield index, self.model(self.images[index])

    def source(self) -> Iterator[tuple[Tensor, Output]]:
        raise AssertionError("must not be read")


def at_epoch(epoch: int, epochs: int = 10) -> Moment:
    return Moment(epoch, epochs, 0, 0)


def whole(z: Tensor, *, evident: bool = True) -> Tensor:
    """Upsample the coarse logits to every pixel."""
    dense = F.interpolate(z, SIZE, mode="bilinear", align_corners=True)
    return dense.clamp(max=10) if evident else dense


def change(model: nn.Module, seed: int = 1) -> None:
    """Perturb the weights, so they differ from a copy."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))


def slopes(losses: dict[str, Tensor], model: nn.Module) -> dict[str, Any]:
    """Gradient of the sum of all losses, by name of the model's parameter."""
    torch.stack(list(losses.values())).sum().backward()
    return {name: p.grad for name, p in model.named_parameters()}
