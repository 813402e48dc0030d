"""A tiny segmentation network, a pool of images, and plain references on whole maps."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ducats import dirichlet
from ducats.data.domain import UNLABELLED, VOID, Labels
from ducats.models.output import Output
from ducats.objectives import AuxiliaryContext, AuxiliaryModule, Batch, LabelledImages, RefreshContext

CLASSES, WIDTH, SIZE = 4, 5, (12, 16)
bounded = dirichlet.EVIDENCE_FUNCTIONS["exp_at_most_10"]


class TinySegmenter(nn.Module):
    """Returns logits and features at half the image size."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body, self.head = nn.Conv2d(3, WIDTH, 3, 2, 1), nn.Conv2d(WIDTH, CLASSES, 1)
            nn.init.normal_(self.head.weight, std=3.0)

    def forward(self, images: Tensor) -> Output:
        features = self.body(images).relu()
        height, width = images.shape[-2:]
        return Output(self.head(features), features, (height, width), bounded)


def auxiliary_context(model: nn.Module, *, per_pixel: bool = True) -> AuxiliaryContext:
    return AuxiliaryContext(model, CLASSES, WIDTH, len(POOL_IMAGES), per_pixel=per_pixel)


def random_images(seed: int, count: int = 2) -> Tensor:
    return torch.rand(count, 3, *SIZE, generator=torch.Generator().manual_seed(seed))


def target_labels(labelled_rows: int) -> Tensor:
    """Label maps with some labelled rows, a void one at the end, and unlabelled rows in between."""
    labels = torch.randint(0, CLASSES, (2, *SIZE), generator=torch.Generator().manual_seed(101))
    labels[:, labelled_rows:] = UNLABELLED
    labels[:, -1] = VOID
    return labels.to(torch.int8)


SOURCE = LabelledImages(
    random_images(0), torch.randint(0, CLASSES, (2, *SIZE), generator=torch.Generator().manual_seed(100))
)
TARGET = LabelledImages(random_images(1), target_labels(0))
PARTLY_LABELLED_TARGET = LabelledImages(random_images(1), target_labels(2))
OPEN = TARGET.labels == UNLABELLED
POOL_IMAGES = random_images(5, 6)


def map_batch(*, labelled: bool = False) -> Batch:
    target = PARTLY_LABELLED_TARGET if labelled else TARGET
    return Batch(SOURCE, None, None, target, has_target_labels=labelled)


class Pool:
    """Passes over the images of the pool, two at a time, without a source."""

    pool_labels: Tensor | None = None
    source_labels: Labels = SOURCE.labels

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def pool(self) -> Iterator[tuple[Tensor, Output]]:
        for index in torch.arange(len(POOL_IMAGES)).split(2):
            with torch.no_grad():
                yield index, self.model(POOL_IMAGES[index])

    def source(self) -> Iterator[tuple[Tensor, Output]]:
        raise AssertionError("must not be read")


def at_epoch(epoch: int, epochs: int = 10) -> RefreshContext:
    return RefreshContext(epoch, epochs, 0, 0, 0)


def due_epochs(auxiliary: AuxiliaryModule) -> list[int]:
    """Epochs of ten at which the module refreshes."""
    return [epoch for epoch in range(10) if auxiliary.is_due(at_epoch(epoch))]


def refresh(auxiliary: AuxiliaryModule, model: nn.Module, *epochs: int) -> None:
    """Refresh at some epochs of ten, and change the model after each."""
    for number, epoch in enumerate(epochs, 1):
        auxiliary.refresh(at_epoch(epoch), Pool(model))
        perturb(model, seed=number)


def perturb(model: nn.Module, seed: int = 1) -> None:
    """Perturb the weights, so they differ from a copy."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))


def upsample(coarse: Tensor) -> Tensor:
    return F.interpolate(coarse, SIZE, mode="bilinear", align_corners=True)


def coarse_probability(z: Tensor) -> Tensor:
    """Class probabilities on the network's grid."""
    return z.clamp(max=10).softmax(1)


def dense_probability(z: Tensor) -> Tensor:
    """Class probabilities of every pixel."""
    return upsample(z).clamp(max=10).softmax(1)


def nll(probability: Tensor, label: Tensor) -> Tensor:
    return F.nll_loss(probability.log(), label.long(), reduction="none")


def gradients(loss: Tensor, model: nn.Module) -> tuple[Tensor, ...]:
    parameters = list(model.parameters())
    return torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True, allow_unused=True)


def assert_losses(losses: Mapping[str, Tensor], expected: Mapping[str, Tensor], **tolerances: float) -> None:
    """Compare those of the losses that are expected."""
    torch.testing.assert_close({name: losses[name] for name in expected}, dict(expected), **tolerances)  # type: ignore[arg-type]
