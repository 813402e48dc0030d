"""A tiny float64 network whose losses can be computed by hand."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ducats.models.output import Output
from ducats.objectives import OBJECTIVES, AuxiliaryContext, Batch, LabelledImages, Losses

CLASSES, WIDTH, INPUTS = 3, 4, 2


class TinyNetwork(nn.Module):
    """Maps two inputs to four features and three logits, per image or per pixel."""

    def __init__(self, pixels: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pixels = pixels
        self.body: nn.Linear | nn.Conv2d
        self.head: nn.Linear | nn.Conv2d
        if pixels:
            self.body, self.head = nn.Conv2d(INPUTS, WIDTH, 1), nn.Conv2d(WIDTH, CLASSES, 1)
        else:
            self.body, self.head = nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.double()

    def forward(self, images: Tensor) -> Output:
        features = torch.tanh(self.body(images))
        size = (images.shape[-2], images.shape[-1]) if self.pixels else None
        return Output(self.head(features), features, size)


def auxiliary_context(model: TinyNetwork, pool: int = 6) -> AuxiliaryContext:
    return AuxiliaryContext(model, CLASSES, WIDTH, pool, per_pixel=model.pixels)


def random_inputs(seed: int, count: int) -> Tensor:
    return torch.randn(count, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


SOURCE = LabelledImages(random_inputs(1, 6), torch.tensor([0, 1, 2, 0, 1, -2]))  # one without label
LABELLED = LabelledImages(random_inputs(2, 4), torch.tensor([2, 1, 0, 0]))
UNLABELLED_IMAGES = random_inputs(3, 5)


def image_batch() -> Batch:
    return Batch(SOURCE, LABELLED, UNLABELLED_IMAGES)


def map_batch() -> Batch:
    """Two source maps, and two target maps of 2 x 3 labelled, unlabelled and void pixels."""
    source, target = (random_inputs(seed, 12).reshape(2, 2, 3, INPUTS).movedim(-1, 1) for seed in (4, 5))
    source_labels = torch.tensor([[[0, 1, 2], [0, -2, 1]], [[2, 2, 0], [1, 1, 0]]], dtype=torch.int8)
    target_labels = torch.tensor([[[0, -1, -1], [-1, -2, 1]], [[-1, -1, -1], [2, -1, -2]]], dtype=torch.int8)
    return Batch(LabelledImages(source, source_labels), None, None, LabelledImages(target, target_labels))


def losses_of(name: str, model: TinyNetwork, batch: Batch, **params: Any) -> Losses:
    """Losses of a registered objective, with its auxiliary module if it has one."""
    spec = OBJECTIVES[name].bind(params)
    auxiliary = None if spec.auxiliary is None else spec.auxiliary(auxiliary_context(model))
    return spec.bind_auxiliary(auxiliary)(model, batch)


def assert_step_changes(part: nn.Module, value: Callable[[], Tensor], sign: int) -> None:
    """Assert that a gradient step of one part raises (1) or lowers (-1) a value; restore the part."""
    with torch.no_grad():
        start, before = copy.deepcopy(part.state_dict()), value()
        for parameter in part.parameters():
            assert parameter.grad is not None
            parameter.sub_(0.1 * parameter.grad)
        assert sign * (value() - before) > 1e-6
    part.load_state_dict(start)


def flatten_maps(maps: Tensor) -> Tensor:
    """Maps ``(N, K, H, W)`` as rows ``(N H W, K)``."""
    return maps.movedim(1, -1).flatten(0, -2)
