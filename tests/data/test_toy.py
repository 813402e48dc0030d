from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ducats.data.toy import toy
from ducats.utils.errors import UserError


def test_shapes_and_balance() -> None:
    data: Any = toy(n_classes=3, n_source_per_class=5, n_pool=12, n_test=6, size=10)
    assert data.source.images.pixels.shape == (15, 3, 10, 10)
    assert data.source.images.pixels.dtype == torch.uint8
    assert data.source.labels[:].bincount().tolist() == [5, 5, 5]
    assert data.ground_truth[:].bincount().tolist() == [4, 4, 4]
    assert data.ground_truth.dtype == torch.int64
    assert data.test.labels[:].bincount().tolist() == [2, 2, 2]
    assert len(data.classes) == 3
    assert toy(n_test=0).test is None


def test_seed_determines_images_and_counts_are_independent() -> None:
    one, two, other = toy(), toy(n_source_per_class=50, n_test=7), toy(seed=1)
    assert torch.equal(one.pool.pixels[:], two.pool.pixels[:])
    assert torch.equal(one.source.images.pixels[:], toy().source.images.pixels[:])
    assert not torch.equal(one.pool.pixels[:], other.pool.pixels[:])


def test_rejects_invalid_numbers() -> None:
    wrong = {"n_classes": 1, "n_source_per_class": 0, "n_pool": 0, "n_test": -1, "size": 3}
    for name, value in wrong.items():
        with pytest.raises(UserError, match=f"toy: {name} must be at least"):
            toy(**{name: value})


def as_input(pixels: Tensor) -> Tensor:
    return pixels.float() / 127.5 - 1


def accuracy_after(data: Any, pixels: Tensor, labels: Tensor) -> float:
    """Return the test accuracy of a tiny CNN after 60 steps on these images."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, len(data.classes)),
    )
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(as_input(pixels)), labels).backward()
        optimiser.step()
    with torch.no_grad():
        right = model(as_input(data.test.images.pixels[:])).argmax(1) == data.test.labels
    return float(right.float().mean())


def test_target_labels_help_only_with_a_domain_shift() -> None:
    data, same = toy(), toy(domain_shift=0.0)
    assert data.ground_truth is not None
    source_only = accuracy_after(data, data.source.images.pixels[:], data.source.labels[:])
    assert 0.3 < source_only < 0.93
    assert accuracy_after(data, data.pool.pixels[:], data.ground_truth[:]) > 0.95
    assert accuracy_after(same, same.source.images.pixels[:], same.source.labels[:]) > 0.97
