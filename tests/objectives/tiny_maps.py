"""A tiny segmentation network, a pool of images, and plain references on whole maps."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ducats import dirichlet
from ducats.data.domain import UNLABELLED, VOID, Labels
from ducats.models.output import Output
from ducats.objectives import AuxiliaryContext, Batch, LabelledImages, RefreshContext

CLASSES, WIDTH, SIZE = 4, 5, (12, 16)
bounded = dirichlet.EVIDENCE_FUNCTIONS["exp_at_most_10"]


class TinySegmenter(nn.Module):
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


def auxiliary_context(model: nn.Module, pool: int = 6) -> AuxiliaryContext:
    return AuxiliaryContext(model, CLASSES, WIDTH, pool, per_pixel=True)


def random_images(seed: int, count: int = 2) -> Tensor:
    return torch.rand(count, 3, *SIZE, generator=torch.Generator().manual_seed(seed))


def label_maps(seed: int, count: int = 2, *, labelled: bool = False) -> Tensor:
    """Label maps: full for the source; for the target a void row, and two labelled rows if ``labelled``."""
    generator = torch.Generator().manual_seed(100 + seed)
    labels = torch.randint(0, CLASSES, (count, *SIZE), generator=generator).to(torch.int8)
    if seed:
        labels[:, 2 if labelled else 0 :] = UNLABELLED
        labels[:, -1] = VOID
    return labels


def target_maps(*, labelled: bool = False) -> LabelledImages:
    return LabelledImages(random_images(1), label_maps(1, labelled=labelled))


def map_batch(*, labelled: bool = False) -> Batch:
    """Source 0, target 1."""
    source = LabelledImages(random_images(0), label_maps(0))
    return Batch(source, None, None, target_maps(labelled=labelled), has_target_labels=labelled)


class Pool:
    """Passes over some images, two at a time, without a source."""

    pool_labels: Tensor | None = None

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        self.model, self.images = model, images
        self.source_labels: Labels = label_maps(0)

    def pool(self) -> Iterator[tuple[Tensor, Output]]:
        for index in torch.arange(len(self.images)).split(2):
            with torch.no_grad():
                yield index, self.model(self.images[index])

    def source(self) -> Iterator[tuple[Tensor, Output]]:
        raise AssertionError("must not be read")


def at_epoch(epoch: int, epochs: int = 10) -> RefreshContext:
    return RefreshContext(epoch, epochs, 0, 0)


def upsample(z: Tensor, *, apply_evidence: bool = True) -> Tensor:
    """Upsample the coarse logits to every pixel."""
    dense = F.interpolate(z, SIZE, mode="bilinear", align_corners=True)
    return dense.clamp(max=10) if apply_evidence else dense


def perturb(model: nn.Module, seed: int = 1) -> None:
    """Perturb the weights, so they differ from a copy."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))


def gradients(losses: dict[str, Tensor], model: nn.Module) -> dict[str, Any]:
    """Gradient of the sum of all losses, by name of the model's parameter."""
    torch.stack(list(losses.values())).sum().backward()
    return {name: p.grad for name, p in model.named_parameters()}
