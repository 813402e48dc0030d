"""Unlabelled target images of ``parity`` against the published transforms, computed with torchvision."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as TF

from ducats.config import load_config
from ducats.data.domain import UNLABELLED, AdaptationData, Domain
from ducats.data.folders import read_image_folder
from ducats.models.output import Output
from ducats.run.factory import prepare_for_views, prepare_images
from ducats.settings import StreamViews, View
from ducats.training.distributed import make_fabric
from ducats.training.predictor import Predictor
from ducats.training.streams import Streams

STORED, SIDE = 32, 28  # published: 256 and 224
PARITY = load_config(["data/office31", "parity"], ["data.params.root=."])


def write_images(folder: Path, count: int, sides: tuple[int, int]) -> None:
    """Write images of noise, in which filters differ most."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for index in range(count):
        pixels = generator.integers(0, 256, (sides[1], sides[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")


def published_crops(path: Path) -> Tensor:
    """Return all crops of ``Resize(STORED), RandomCrop(SIDE)``: ``(positions, 3, SIDE, SIDE)``."""
    resized = TF.pil_to_tensor(TF.resize(Image.open(path), [STORED], TF.InterpolationMode.BILINEAR))
    windows = resized.unfold(1, SIDE, 1).unfold(2, SIDE, 1)
    crops: Tensor = windows.permute(1, 2, 0, 3, 4).flatten(0, 1)
    return crops


class RecordInputs(nn.Module):
    """A model that records its input."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.inputs = inputs

    def forward(self, images: Tensor) -> Output:
        """Record the images; the output has no meaning."""
        self.inputs.append(images)
        return Output(images.mean((2, 3)), None)


@pytest.mark.parametrize("stream", ["unlabelled", "scoring"])
def test_parity_shows_the_published_pixels(tmp_path: Path, stream: str) -> None:
    write_images(tmp_path / "pool", 2, (40, 40))
    unlabelled, scoring = (
        replace(view, size=SIDE) for view in (PARITY.views.unlabelled, PARITY.views.scoring)
    )
    views = StreamViews(unlabelled=unlabelled, scoring=scoring)
    images = prepare_images(read_image_folder(tmp_path / "pool", size=STORED), views.unlabelled)
    assert images.files is not None
    crops = [published_crops(path) for path in images.files]
    fabric, shown = make_fabric("cpu"), list[Tensor]()
    if stream == "unlabelled":
        source = Domain(images, torch.tensor([0, 1]), ("a", "b"))
        streams = Streams(source, images, views, batch_size=2, steps_per_epoch=3, seed=0)
        batches = streams.epoch(0, torch.full((2,), UNLABELLED), fabric)
        shown = [batch.unlabelled for batch in batches if batch.unlabelled is not None]
    else:
        model = RecordInputs(shown)
        predictor = Predictor(model=model, view=views.scoring, batch_size=2, fabric=fabric)
        assert len(list(predictor.forward(images, [torch.arange(2)]))) == 1
    assert shown
    for image in torch.cat(shown):
        assert min(float((255 * image - crop).abs().amax((1, 2, 3)).min()) for crop in crops) < 1e-2


def test_both_versions_share_the_memory(tmp_path: Path) -> None:
    write_images(tmp_path / "pool", 2, (40, 40))
    images = read_image_folder(tmp_path / "pool", size=STORED)
    source = Domain(images, torch.tensor([0, 1]), ("a", "b"))
    views = StreamViews(scoring=View(interpolation="bilinear"))
    size_gb = images.pixels.shape.numel() / 2**30
    for memory_gb, n_cached in ((2 * size_gb, 0), (1.9 * size_gb, 1)):
        cache = tmp_path / str(n_cached)
        cache.mkdir()
        data = prepare_for_views(AdaptationData(source, images), views, cache=cache, memory_gb=memory_gb)
        assert data.pool.bilinear_pixels is not None
        assert data.source.images.bilinear_pixels is None
        assert len(list(cache.iterdir())) == n_cached
