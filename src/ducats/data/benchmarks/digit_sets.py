"""MNIST, USPS and SVHN: handwritten digits of two collections, and house numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ducats.data.benchmarks.benchmark import Benchmark, DomainInfo, Split, count_lists
from ducats.data.benchmarks.tasks import missing_images_error
from ducats.data.decoding import parse_size
from ducats.data.domain import AdaptationData, Domain, Images
from ducats.utils.errors import UserError

_CLASSES = tuple("0123456789")

DIGIT_SETS = Benchmark(
    title="MNIST, USPS and SVHN",
    domains=(DomainInfo("M", "MNIST"), DomainInfo("U", "USPS"), DomainInfo("S", "SVHN")),
    n_classes=len(_CLASSES),
    download_info=(
        "where torchvision does (torchvision.datasets.MNIST(ROOT, download=True), likewise USPS and SVHN;"
        " LeCun et al. 1998, Hull 1994, Netzer et al. 2011)"
    ),
    layout="""
MNIST/raw/train-images-idx3-ubyte   and the other three files of MNIST
usps.bz2, usps.t.bz2                (also in USPS/)
train_32x32.mat, test_32x32.mat     (of SVHN, also in SVHN/)
""",
    counts=count_lists(10, M=(60000, 10000), U=(7291, 2007), S=(73257, 26032)),
    has_test_lists=True,
    task_subset=("M-U", "U-M", "S-M"),
)


def digit_sets(*, root: str | Path, task: str, size: int = 32) -> AdaptationData:
    """Read a task of MNIST, USPS and SVHN.

    Source and pool are the train splits; the test set is the target's test split. Images are resized with
    Pillow's bicubic filter; grey images are repeated in three channels. Keys contain the index in the split,
    such as ``MNIST/train/00000``.

    Args:
        root: Root folder of torchvision's data sets; nothing is downloaded.
        task: ``M-U``, ``U-M`` or ``S-M``; spellings such as ``SVHN->MNIST`` also work.
        size: Height and width in pixels.
    """
    parse_size(size)
    folder = Path(root).expanduser()
    # Load all splits before resizing any: missing files are reported at once.
    splits = {
        role: _load_split(folder, domain, split)
        for role, (domain, split) in DIGIT_SETS.role_splits(task).items()
    }
    source, pool, test = (_make_domain(*splits[role], size) for role in ("source", "target", "test"))
    return AdaptationData(source=source, pool=pool.images, ground_truth=pool.labels, test=test)


def _load_split(
    root: Path, domain: DomainInfo, split: Split
) -> tuple[str, NDArray[np.uint8], NDArray[np.int64]]:
    """Load a split: its name, pixels (N, H, W) or (N, H, W, 3), and labels (N,)."""
    read, files = _split_reader(domain, split)
    for folder in (root, root / domain.name):
        if all((folder / file).is_file() for file in files):
            try:
                pixels, labels = read(folder)
            except Exception as error:  # gzip, scipy, NumPy and torchvision raise different types
                reason = " ".join(str(error).split()) or type(error).__name__
                raise UserError(
                    f"{folder / files[0]} cannot be read as {domain.name} ({reason}); download it again"
                ) from error
            return f"{domain.name}/{split}", np.asarray(pixels, np.uint8), np.asarray(labels, np.int64)
    raise missing_images_error(DIGIT_SETS, root, f"{domain.name} ({split})")


def _split_reader(domain: DomainInfo, split: Split) -> tuple[Callable[[Path], tuple[Any, Any]], list[str]]:
    """Return a function that reads pixels and labels from a folder, and the files that it needs."""
    from torchvision import datasets

    if domain.name == "SVHN":

        def read_svhn(folder: Path) -> tuple[Any, Any]:
            found = datasets.SVHN(folder, split=split)
            return found.data.transpose(0, 2, 3, 1), found.labels

        return read_svhn, [f"{split}_32x32.mat"]
    is_train = split == "train"
    if domain.name == "USPS":
        dataset, files = datasets.USPS, ["usps.bz2" if is_train else "usps.t.bz2"]
    else:
        parts = ("train", "t10k")  # torchvision requires all four files for either split
        kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
        dataset, files = datasets.MNIST, [f"MNIST/raw/{part}-{kind}" for part in parts for kind in kinds]

    def read(folder: Path) -> tuple[Any, Any]:
        found = dataset(folder, train=is_train)
        return found.data, found.targets

    return read, files


def _make_domain(name: str, pixels: NDArray[np.uint8], labels: NDArray[np.int64], size: int) -> Domain:
    keys = tuple(f"{name}/{i:05d}" for i in range(len(pixels)))
    return Domain(Images(keys, _resize(pixels, size)), torch.from_numpy(labels.copy()), _CLASSES)


def _resize(pixels: NDArray[np.uint8], size: int) -> Tensor:
    """Resize images to uint8 (N, 3, size, size)."""
    resized = np.empty((len(pixels), 3, size, size), np.uint8)
    for row, image in enumerate(pixels):
        resized_image = Image.fromarray(image).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
        resized[row] = np.asarray(resized_image).transpose(2, 0, 1)
    return torch.from_numpy(resized)
