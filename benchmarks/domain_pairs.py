"""Small domain pairs for tuning: five pairs of digit data sets and four pairs of emoji styles.

Digits are read from an .npz file with arrays ``name`` and ``name_y`` (fonts, optdigits, mnist_train,
usps_train), emoji from a zip of ``style/class/name.png`` with alpha channel. Neither is part of the package.
"""

import io
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ducats.data.domain import AdaptationData, Domain, Images

SIZE = {"digits": 16, "emoji": 32}
DIGITS = ("fonts-optdigits", "fonts-usps", "fonts-mnist", "mnist-usps", "usps-mnist")
EMOJI = ("noto-twemoji", "noto-fluent3d", "twemoji-openmoji", "noto-openmoji_line")


def load_pair(name: str, digits: Path | None, emoji: Path | None) -> AdaptationData:
    """Load a pair by its name, ``SOURCE-TARGET``."""
    if name in DIGITS:
        assert digits is not None, "--digits FILE is missing"
        return _make_data(name, _digits(digits), 1500, tuple("0123456789"))
    assert emoji is not None, "--emoji FILE is missing"
    sets, classes = _emoji(emoji)
    return _make_data(name, sets, 500, classes)


def _make_data(
    name: str, sets: dict[str, tuple[Tensor, Tensor]], pool: int, classes: tuple[str, ...]
) -> AdaptationData:
    """Use the whole source; split the target into pool and test set."""
    source, target = name.split("-")
    images, labels = sets[target]
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    taken = min(pool, int(0.72 * len(labels)))
    pool_indices, test_indices = order[:taken], order[taken:][:2000]
    return AdaptationData(
        source=_domain(source, *sets[source], classes),
        pool=_domain("pool", images[pool_indices], labels[pool_indices], classes).images,
        ground_truth=labels[pool_indices],
        test=_domain("test", images[test_indices], labels[test_indices], classes),
    )


def _domain(name: str, images: Tensor, labels: Tensor, classes: tuple[str, ...]) -> Domain:
    return Domain(Images(tuple(f"{name}/{i}" for i in range(len(labels))), images), labels, classes)


@cache
def _digits(path: Path) -> dict[str, tuple[Tensor, Tensor]]:
    arrays = np.load(path)
    names = {"fonts": "fonts", "optdigits": "optdigits", "mnist": "mnist_train", "usps": "usps_train"}
    sets = {}
    for name, stored in names.items():
        grey = torch.from_numpy(arrays[stored]).float()[:, None]
        grey = grey * (255 / grey.max())
        small = F.interpolate(grey, (SIZE["digits"],) * 2, mode="bilinear", antialias=True)
        sets[name] = (small.round().clamp(0, 255).byte(), torch.from_numpy(arrays[f"{stored}_y"]).long())
    return sets


@cache
def _emoji(path: Path) -> tuple[dict[str, tuple[Tensor, Tensor]], tuple[str, ...]]:
    with zipfile.ZipFile(path) as archive:
        found = sorted(name for name in archive.namelist() if name.endswith(".png"))
        classes = tuple(sorted({name.split("/")[1] for name in found}))
        sets = {}
        for style in sorted({name.split("/")[0] for name in found}):
            own = [name for name in found if name.startswith(f"{style}/")]
            pixels = np.stack([_on_white(archive.read(name)) for name in own])
            labels = torch.tensor([classes.index(name.split("/")[1]) for name in own])
            sets[style] = (torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), labels)
    return sets, classes


def _on_white(png: bytes) -> np.typing.NDArray[np.uint8]:
    image = Image.open(io.BytesIO(png)).convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    flat = Image.alpha_composite(white, image).convert("RGB").resize((SIZE["emoji"],) * 2)
    return np.asarray(flat)
