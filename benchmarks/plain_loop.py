"""Plain PyTorch training loop: Pillow, one DataLoader per stream, float32, three forward passes, one step.

Baseline of ``training.py``.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from ducats.objectives import Batch, LabelledImages, duc

# The model normalises its input.
TO_TENSOR = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
TRAIN_TRANSFORM = v2.Compose(
    [
        v2.Resize((256, 256), interpolation=v2.InterpolationMode.BICUBIC),
        v2.RandomResizedCrop(224),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
        *TO_TENSOR,
    ]
)
TARGET_TRANSFORM = v2.Compose([v2.Resize(256), v2.RandomCrop(224), *TO_TENSOR])


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """Image files, decoded on every access."""

    def __init__(self, files: Sequence[Path], labels: Sequence[int], transform: v2.Transform) -> None:
        self.files, self.labels, self.transform = files, labels, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(self.files[index]) as image:
            return self.transform(image.convert("RGB")), self.labels[index]


def endless_batches(
    files: ImageFiles, batch_size: int, workers: int, *, persistent: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield shuffled full batches without end.

    By default the workers are restarted for each pass over the files. ``persistent`` uses persistent workers
    and pinned memory.
    """
    loader = DataLoader(
        files,
        batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=persistent and workers > 0,
        pin_memory=persistent and torch.cuda.is_available(),
    )
    while True:
        yield from loader


def train(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    streams: Sequence[Iterator[tuple[Tensor, Tensor]]],
    device: torch.device,
    steps: int,
) -> None:
    """Train for some steps on source, labelled and unlabelled target."""
    model.train()
    for _ in range(steps):
        batches = [next(stream) for stream in streams]
        moved = [(x.to(device, non_blocking=True), y.to(device, non_blocking=True)) for x, y in batches]
        batch = Batch(LabelledImages(*moved[0]), LabelledImages(*moved[1]), moved[2][0])
        losses = duc(model, batch)
        optimiser.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimiser.step()


@torch.inference_mode()
def score(model: nn.Module, files: ImageFiles, batch_size: int, workers: int, device: torch.device) -> Tensor:
    """Return the logits of all files."""
    model.eval()
    loader = DataLoader(files, batch_size, num_workers=workers)
    return torch.cat([model(images.to(device)).z.cpu() for images, _ in loader])
