"""Interpolation by matrix products against F.interpolate, forward and backward."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ducats import dirichlet
from ducats.models import upsampling
from ducats.models.output import Output

SIZES = [  # h, w -> H, W
    ((3, 5), (17, 33)),
    ((4, 7), (9, 20)),
    ((1, 5), (6, 11)),
    ((5, 1), (6, 11)),
    ((1, 1), (3, 2)),
    ((5, 4), (1, 9)),
    ((5, 4), (9, 1)),
    ((9, 12), (4, 5)),  # downsampling
    ((3, 8), (3, 8)),
    ((9, 16), (72, 127)),
]


def random_tensor(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def reference(z: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(z, size, mode="bilinear", align_corners=True)


@pytest.mark.parametrize(("coarse", "fine"), SIZES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_it_is_bilinear_with_aligned_corners(
    coarse: tuple[int, int], fine: tuple[int, int], dtype: torch.dtype, bound: float
) -> None:
    z, upstream = random_tensor(2, 3, *coarse, dtype=dtype), random_tensor(2, 3, *fine, dtype=dtype)
    ours, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    found, expected = upsampling.interpolate(ours, fine), reference(theirs, fine)
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound)
    found.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=bound, atol=10 * bound)


@pytest.mark.parametrize(("coarse", "fine"), SIZES)
def test_some_rows_equal_those_of_the_full_map(coarse: tuple[int, int], fine: tuple[int, int]) -> None:
    z = random_tensor(2, 3, *coarse, dtype=torch.float64)
    whole = upsampling.interpolate(z, fine)
    for first in range(fine[0]):
        for last in {first + 1, min(first + 3, fine[0]), fine[0]}:
            some = upsampling.interpolate(z, fine, slice(first, last))
            torch.testing.assert_close(some, whole[:, :, first:last])


def test_gradient_of_some_rows_matches_finite_differences() -> None:
    z = random_tensor(1, 2, 4, 3, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: upsampling.interpolate(v, (11, 7), slice(4, 9)), (z,))


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_lower_matmul_precision_is_ignored_and_restored(precision: str) -> None:
    z, size = random_tensor(2, 3, 9, 16), (72, 127)
    expected = reference(z.double(), size).float()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = upsampling.interpolate(z, size)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_half_precision_is_computed_in_float32() -> None:
    z = random_tensor(1, 2, 3, 4).bfloat16()
    found = upsampling.interpolate(z, (9, 9))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, reference(z.float(), (9, 9)), rtol=1e-6, atol=1e-6)


def test_weights_cached_in_inference_mode_can_be_trained_on() -> None:
    z = random_tensor(1, 2, 5, 6)
    with torch.inference_mode():
        upsampling.interpolate(z, (23, 29))
    leaf = z.clone().requires_grad_()
    upsampling.interpolate(leaf, (23, 29)).sum().backward()
    assert leaf.grad is not None


def test_evidence_is_applied_last_in_one_step_and_before_the_second_step() -> None:
    logits, clamp = 12 * random_tensor(2, 3, 4, 5), dirichlet.EVIDENCE_FUNCTIONS["exp_clamped"]
    output, size = Output(logits, None, (16, 20), clamp), (33, 41)
    once = upsampling.upsample(output, size)
    twice = upsampling.upsample(output, size, two_step_upsampling=True)
    at_input_size = reference(logits, (16, 20)).clamp(-10, 10)
    for found, expected in (
        (upsampling.upsample(output), at_input_size),
        (upsampling.upsample(output, (16, 20), two_step_upsampling=True), at_input_size),
        (once, reference(logits, size).clamp(-10, 10)),
        (twice, reference(at_input_size, size)),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    assert (once - twice).abs().max() > 0.01


def test_outputs_per_image_are_unchanged() -> None:
    z = random_tensor(4, 3)
    assert upsampling.upsample(Output(z, None)) is z
