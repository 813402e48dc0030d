"""Compute annotator hints on several processes. Run by test_hints.py."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from ducats.data import toy
from ducats.data.streets import streets
from ducats.ledger import Request
from ducats.models import EvidentialModel, small_cnn, small_fcn
from ducats.run.hints import image_hints, pixel_hints
from ducats.runfolder.hints import AnnotatorHints
from ducats.settings import View
from ducats.training.distributed import make_fabric
from ducats.training.predictor import Predictor
from ducats.training.task import label_grid_sizes
from ducats.utils.randomness import global_seed

HEIGHT, WIDTH = 16, 32
RANDOM_VIEW = View(crop="random", pad=1)  # random augmentation, the harder case


def image_model() -> EvidentialModel:
    """Untrained model with four classes."""
    with global_seed(0, "model"):
        return EvidentialModel(small_cnn(classes=4, channels=3, width=4, features=8))


def map_model(classes: int) -> EvidentialModel:
    """Untrained segmentation model."""
    with global_seed(0, "model"):
        return EvidentialModel(small_fcn(classes=classes, channels=3, width=8))


def request_images(count: int) -> Request:
    """Request some images, not in order."""
    image = torch.arange(count).flip(0)[::3]
    return Request(1, image, torch.zeros_like(image))


def request_pixels(count: int) -> Request:
    """Request a region and single pixels of all images but the second, then one more unit of the first."""
    region = (torch.arange(3)[:, None] * WIDTH + torch.arange(3)).flatten() + 2 * WIDTH + 4
    images = [i for i in range(count) if i != 1]
    position = torch.cat([torch.cat([region + i, torch.tensor([0, 500 - i])]) for i in images])
    image = torch.tensor(images).repeat_interleave(11)
    unit = torch.tensor([9, 1, 1] * len(images) + [2])
    more = torch.tensor([40, 41])
    return Request(1, torch.cat([image, torch.tensor([0, 0])]), torch.cat([position, more]), unit)


def main(processes: int, count: int, out: Path) -> None:
    torch.set_num_threads(1)
    fabric = make_fabric("cpu", processes)
    fabric.launch()
    found: dict[str, Any] = {}
    predictor = Predictor(
        model=fabric.setup(image_model()), view=RANDOM_VIEW, batch_size=2, fabric=fabric, seed=5
    )
    found["images"] = as_lists(image_hints(predictor, toy(n_pool=count).pool, request_images(count)))
    data = streets(n_source=1, n_pool=count, n_test=1, height=HEIGHT, width=WIDTH)
    found["pixels"] = as_lists(
        pixel_hints(
            replace(predictor, model=fabric.setup(map_model(len(data.classes))), view=View()),
            data.pool,
            request_pixels(count),
            label_grid_sizes(data.pool, "network"),
        )
    )
    if fabric.is_global_zero:
        out.write_text(json.dumps(found))


def as_lists(hints: AnnotatorHints) -> dict[str, list[float]]:
    return {name: column.tolist() for name, column in asdict(hints).items()}
