"""Window statistics against loops over pixels."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ducats.acquisition.neighbourhoods import (
    window_impurity,
    window_log_mean,
    window_max,
    window_mean,
    window_size,
)


def reference(values: Tensor, radius: int, reduce: Callable[[Tensor], Tensor | float]) -> Tensor:
    """Apply a function to the pixels of each window."""
    height, width = values.shape
    found = torch.zeros(height, width, dtype=torch.float64)
    for y in range(height):
        for x in range(width):
            near = values[max(0, y - radius) : y + radius + 1, max(0, x - radius) : x + radius + 1]
            found[y, x] = reduce(near)
    return found


def entropy_of_histogram(near: Tensor, classes: int) -> float:
    shares = [int((near == c).sum()) / near.numel() for c in range(classes)]
    return -sum(p * math.log(p) for p in shares if p > 0) / math.log(classes)


@pytest.mark.parametrize("shape", [(1, 1), (4, 6), (7, 3), (1, 9)])
@pytest.mark.parametrize("radius", [0, 1, 2, 3, 32])
def test_windows_equal_loops(shape: tuple[int, int], radius: int) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    size = window_size(*shape, radius, values.device)
    assert torch.equal(size.double(), reference(values, radius, Tensor.numel))
    torch.testing.assert_close(window_mean(values, radius), reference(values, radius, Tensor.mean))
    whole = torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    assert torch.equal(window_max(whole, radius).double(), reference(whole, radius, Tensor.amax))
    expected = reference(values, radius, lambda near: near.exp().mean().log())
    torch.testing.assert_close(window_log_mean(values, radius), expected)
    predicted = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(0))
    expected = reference(predicted, radius, lambda near: entropy_of_histogram(near, 5))
    found = window_impurity(predicted, 5, radius)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-6)


def test_batched_maps() -> None:
    predicted = torch.randint(0, 3, (2, 5, 4), generator=torch.Generator().manual_seed(0))
    one_by_one = torch.stack([window_impurity(p, 3, 1) for p in predicted])
    assert torch.equal(window_impurity(predicted, 3, 1), one_by_one)
    assert torch.equal(window_mean(predicted.float(), 1)[1], window_mean(predicted[1].float(), 1))
    assert window_impurity(torch.zeros(3, 3, dtype=torch.long), 1, 1).abs().max() == 0


def test_log_mean_of_tiny_numbers() -> None:
    logs = torch.tensor([[-300.0, -300.0, -math.inf]])
    expected = [[-300.0, -300.0 + math.log(2 / 3), -300.0 - math.log(2)]]
    torch.testing.assert_close(window_log_mean(logs, 1), torch.tensor(expected))
