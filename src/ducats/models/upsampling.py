"""Bilinear upsampling with aligned corners, by matrix products.

``F.interpolate`` gives the same values, but on a GPU its gradient is accumulated in non-deterministic order.
A product with a weight matrix is deterministic in both directions, and can compute any rows of the map alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ducats.models.output import Output


def interpolate(z: Tensor, size: tuple[int, int], rows: slice | None = None) -> Tensor:
    """Interpolate bilinearly with aligned corners: ``(N, C, h, w) -> (N, C, H, W)``, or some of its rows.

    Equal to ``F.interpolate(z, size, mode="bilinear", align_corners=True)`` up to rounding, forward and
    backward, and deterministic. Half precision is computed in float32; float64 stays float64.

    Args:
        z: ``(..., h, w)`` with any number of leading dimensions.
        size: height and width of the full result.
        rows: rows of the result to compute, without a step; all by default.

    >>> interpolate(torch.tensor([[[[0.0, 2.0]]]]), (1, 5))
    tensor([[[[0.0000, 0.5000, 1.0000, 1.5000, 2.0000]]]])
    """
    z = z if z.dtype == torch.float64 else z.float()
    rows = slice(*(rows or slice(None)).indices(size[0])[:2])
    needed_rows = coarse_rows(rows, size[0], z.shape[-2])
    row_weights = bilinear_weights(size[0], z.shape[-2], z.dtype, z.device)[rows, needed_rows]
    return bilinear_matmul(
        z[..., needed_rows, :], row_weights, bilinear_weights(size[1], z.shape[-1], z.dtype, z.device)
    )


def upsample(
    output: Output, size: tuple[int, int] | None = None, *, two_step_upsampling: bool = False
) -> Tensor:
    """Return log alpha of each pixel, ``(N, C, H, W)``; for whole images, return ``z`` unchanged.

    Args:
        size: height and width; by default those of the model's input images.
        two_step_upsampling: reach another size as in the published code: log alpha at the input size,
            interpolated again. Otherwise logits are interpolated once, and the evidence function is applied
            last.
    """
    if output.size is None:
        return output.z
    size = output.size if size is None else size
    if two_step_upsampling and size != output.size:
        return interpolate(output.evidence(interpolate(output.z, output.size)), size)
    return output.evidence(interpolate(output.z, size))


def bilinear_weights(fine: int, coarse: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the interpolation weights of ``coarse`` points at ``fine`` points: ``(fine, coarse)``.

    >>> bilinear_weights(5, 3, torch.float32, torch.device("cpu"))
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.0000, 1.0000, 0.0000],
            [0.0000, 0.5000, 0.5000],
            [0.0000, 0.0000, 1.0000]])
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        # A CUDA graph records memory addresses: it must not read a tensor that the cache may drop.
        return _weights(fine, coarse, dtype, device)
    return _cached_weights(fine, coarse, dtype, device)


def _weights(fine: int, coarse: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    # Integers until the division, because float32 would round the coordinate. A single point is the first
    # one, as in F.interpolate. Never an inference tensor, because training may reuse it from the cache.
    with torch.inference_mode(False), torch.no_grad():
        steps = max(fine - 1, 1)
        fine_points = torch.arange(fine, device=device).mul_(coarse - 1)
        coarse_points = torch.arange(coarse, device=device).mul_(steps)
        distance = (fine_points[:, None] - coarse_points).abs_()
        return (steps - distance).clamp_(min=0).to(dtype).div_(steps)


_cached_weights = lru_cache(maxsize=32)(_weights)


def coarse_rows(rows: slice, fine: int, coarse: int) -> slice:
    """Return the range of ``coarse`` rows that some of the ``fine`` rows are interpolated from.

    >>> coarse_rows(slice(3, 5), fine=9, coarse=3)
    slice(0, 2, None)
    """
    steps = max(fine - 1, 1)
    first, last = rows.start * (coarse - 1), (rows.stop - 1) * (coarse - 1)
    return slice(first // steps, -(-last // steps) + 1)


def bilinear_matmul(z: Tensor, row_weights: Tensor, column_weights: Tensor) -> Tensor:
    """Compute ``row_weights @ z @ column_weights.T`` in full precision.

    Shapes: ``(..., k, w), (r, k), (W, w) -> (..., r, W)``.
    """
    result: Tensor = _BilinearMatmul.apply(z, row_weights, column_weights)
    return result


class _BilinearMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, row_weights: Tensor, column_weights: Tensor) -> Tensor:
        ctx.save_for_backward(row_weights, column_weights)
        with _full_precision(z):
            return row_weights @ z @ column_weights.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        row_weights, column_weights = ctx.saved_tensors
        with _full_precision(upstream):
            return row_weights.T @ (upstream @ column_weights), None, None


@contextmanager
def _full_precision(z: Tensor) -> Iterator[None]:
    """Compute products in full float32, without autocast and TF32."""
    cuda, others = torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)
    backends: list[Any] = [backend for backend in (cuda, others) if backend is not None]
    # The flag in newer and in older versions of torch.
    name, exact = ("fp32_precision", "ieee") if others is not None else ("allow_tf32", False)
    # Set only flags that differ: torch treats a flag that was ever set as an explicit choice.
    before = [(b, getattr(b, name)) for b in backends if getattr(b, name) not in (exact, "none")]
    try:
        for backend, _ in before:
            setattr(backend, name, exact)
        with torch.autocast(device_type=z.device.type, enabled=False):
            yield
    finally:
        for backend, value in before:
            setattr(backend, name, value)
