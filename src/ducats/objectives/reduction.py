"""Masked means over images or pixels; the full-resolution map of pixels is never built.

At 1280 x 720 with 19 classes, log alpha of two images takes 140 MB in float32, and so does each of the
hundred operations from there to a loss and its gradient. Values and gradients are therefore computed in
chunks of a few rows. Each chunk leaves only sums and a gradient on the network's coarse grid.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ducats.models import upsampling
from ducats.models.output import Output
from ducats.objectives.batch import Batch, ForwardFn, Losses, is_labelled, is_unlabelled

# From log alpha (N, C, ...) and labels (N, ...) to values (N, ...), elementwise over positions.
Formula = Callable[[Tensor, Tensor], tuple[Tensor, ...]]

# Elements (positions x classes) per chunk. On a CPU the temporaries stay in a core's cache. On a GPU a chunk
# is large enough to keep it busy, and small compared with the network's activations.
CPU_CHUNK_ELEMENTS = 2**17
GPU_CHUNK_ELEMENTS = 2**23
INDEXING_DEVICES = ("cpu",)  # devices that index the positions that count; on a GPU this would synchronise


def masked_means(
    output: Output,
    formula: Formula,
    labels: Tensor,
    mask_fn: Callable[[Tensor], Tensor],
    *,
    neighbours: int = 0,
) -> tuple[Tensor, ...]:
    """Compute the means of a formula's values over the positions that count; zero if there are none.

    Args:
        output: model output; gradients flow to its ``z``.
        formula: from log alpha and labels to one or several values per position. It must be elementwise over
            positions, as it is called with arbitrary subsets of them.
        labels: ``(N,)``, or maps ``(N, H, W)`` of the size of ``output``.
        mask_fn: from labels to a mask of the positions that count.
        neighbours: if positive, the formula may read pixels up to this distance, and is called with maps of
            some adjacent rows, ``(N, C, rows, W)``. Only an edge of the image ends such a map where it
            matters, so the formula pads all edges as those of the image.

    >>> z, labels = torch.tensor([[1.0, 0.0], [5.0, 0.0]]), torch.tensor([0, -1])
    >>> masked_means(Output(z, None), lambda z, _: (z[:, 0],), labels, lambda labels: labels >= 0)
    (tensor(1.),)
    """
    if output.size is None:
        mask = mask_fn(labels)
        count = mask.sum().clamp(min=1)
        return tuple((values * mask).sum() / count for values in formula(output.z, labels))
    expected = (len(output.z), *output.size)
    if tuple(labels.shape) != expected:
        raise ValueError(f"the label maps have shape {tuple(labels.shape)}, but the images need {expected}")
    spec = _MeanSpec(output.size, output.evidence, formula, labels, mask_fn(labels), neighbours)
    needs_grad = output.z.requires_grad and torch.is_grad_enabled()
    results: tuple[Tensor, ...] = _MaskedMeans.apply(output.z, spec, needs_grad)
    return results


@torch.no_grad()
def pixel_values(outputs: Sequence[Output], formula: Callable[..., Tensor], labels: Tensor) -> Tensor:
    """Compute one value per pixel without gradients, ``(N, H, W)``; the map of classes is never built.

    Args:
        outputs: for the same images, possibly on different grids.
        formula: from log alpha of each output, ``(N, C, ...)``, and labels to one value per position.
        labels: maps ``(N, H, W)``.
    """
    device, size = labels.device, (labels.shape[1], labels.shape[2])
    channels = sum(output.z.shape[1] for output in outputs)
    results: Tensor | None = None
    with torch.autocast(device_type=device.type, enabled=False):
        for images, rows in _chunks(len(labels), channels, size, device):
            log_alphas = (o.evidence(upsampling.interpolate(o.z[images], size, rows)) for o in outputs)
            values = formula(*log_alphas, labels[images, rows].long())
            if results is None:
                results = values.new_empty(labels.shape)
            results[images, rows] = values
    assert results is not None
    return results


def labelled_losses(
    model: ForwardFn,
    batch: Batch,
    formula: Formula,
    weights: Mapping[str, float],
    *,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Compute weighted means over labelled positions.

    Their names are ``source/NAME``, ``labelled/NAME`` and ``pseudo_labelled/NAME``.

    Args:
        formula: from log alpha and labels to one value per position for each name.
        weights: weights by name, in the order of the values; zero skips a term.
        source: weight of the terms on the source.
        target: weight of the terms on labelled and pseudo-labelled target data.
    """
    losses: Losses = {}
    streams = (
        ("source", batch.source, source),
        # Labelled pixels; whole labelled images are a separate stream.
        ("labelled", batch.target if batch.has_target_labels else None, target),
        ("labelled", batch.labelled, target),
        ("pseudo_labelled", batch.pseudo_labelled, target),
    )
    for stream, data, stream_weight in streams:
        if data is None or not stream_weight:
            continue
        values = masked_means(model(data.images), formula, data.labels, is_labelled)
        for (name, weight), value in zip(weights.items(), values, strict=True):
            if weight:
                key, loss = f"{stream}/{name}", stream_weight * weight * value
                losses[key] = losses[key] + loss if key in losses else loss
    return losses


def unlabelled_means(
    model: ForwardFn,
    batch: Batch,
    formula: Callable[[Tensor], tuple[Tensor, ...]],
    mask_fn: Callable[[Tensor], Tensor] = is_unlabelled,
) -> tuple[Tensor, ...] | None:
    """Compute the means of a formula's values; None if the batch has no unlabelled target data.

    Args:
        formula: from log alpha ``(N, C, ...)`` to one or several values per position, ``(N, ...)``.
        mask_fn: from labels to a mask of the pixels that count; segmentation only.
    """
    if batch.target is not None:
        return masked_means(model(batch.target.images), lambda z, _: formula(z), batch.target.labels, mask_fn)
    if batch.unlabelled is not None:
        return tuple(values.mean() for values in formula(model(batch.unlabelled).z))
    return None


class _MeanSpec(NamedTuple):
    """Arguments of the chunked computation."""

    size: tuple[int, int]
    evidence: Callable[[Tensor], Tensor]
    formula: Formula
    labels: Tensor  # (N, H, W)
    mask: Tensor  # bool (N, H, W)
    neighbours: int  # distance up to which the formula reads other pixels


class _MaskedMeans(torch.autograd.Function):
    """Means with precomputed gradients on the coarse grid, which backward only scales."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, spec: _MeanSpec, needs_grad: bool) -> tuple[Tensor, ...]:
        with torch.autocast(device_type=z.device.type, enabled=False):
            sums, gradients = _chunked_sums(z.detach(), spec, needs_grad)
        count = spec.mask.sum().clamp(min=1)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(g.div_(count).transpose(0, 1).to(z.dtype) for g in gradients))
        return tuple(s / count for s in sums)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, None, None]:
        pairs = zip(ctx.saved_tensors, upstream, strict=True)
        terms = [gradient * weight for gradient, weight in pairs if weight is not None]
        return (sum(terms[1:], terms[0]) if terms else None), None, None


def _chunked_sums(z: Tensor, spec: _MeanSpec, needs_grad: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Sum of each value, and the gradient of each sum, ``(C, N, h, w)``, if ``needs_grad``."""
    z = (z if z.dtype == torch.float64 else z.float()).transpose(0, 1)  # classes first: avoids copies later
    height, width = spec.size
    row_weights = upsampling.bilinear_weights(height, z.shape[2], z.dtype, z.device)
    column_weights = upsampling.bilinear_weights(width, z.shape[3], z.dtype, z.device)
    sums: list[list[Tensor]] = []  # by chunk, by value
    gradients: list[Tensor] = []
    for images, rows in _chunks(z.shape[1], z.shape[0], spec.size, z.device):
        read_rows = slice(max(rows.start - spec.neighbours, 0), min(rows.stop + spec.neighbours, height))
        coarse_rows = upsampling.coarse_rows(read_rows, height, z.shape[2])
        with torch.set_grad_enabled(needs_grad):
            leaf = z[:, images, coarse_rows].requires_grad_(needs_grad)
            logits = upsampling.bilinear_matmul(leaf, row_weights[read_rows, coarse_rows], column_weights)
            chunk_sums = _chunk_sums(spec, logits, images, rows, read_rows)
        sums.append([chunk_sum.detach() for chunk_sum in chunk_sums])
        if needs_grad and not gradients:
            gradients = [torch.zeros_like(z, memory_format=torch.contiguous_format) for _ in chunk_sums]
        for number, gradient in enumerate(gradients):
            if not chunk_sums[number].requires_grad:  # such as a count
                continue
            (gradient_part,) = torch.autograd.grad(
                chunk_sums[number], leaf, retain_graph=number + 1 < len(gradients)
            )
            gradient[:, images, coarse_rows] += gradient_part
    return [torch.stack(column).sum() for column in zip(*sums, strict=True)], gradients


def _chunk_sums(
    spec: _MeanSpec, logits: Tensor, images: slice, rows: slice, read_rows: slice
) -> tuple[Tensor, ...]:
    """Sum of each value over the positions of ``rows`` that count, from logits ``(C, N, read_rows, W)``."""
    labels, mask = spec.labels[images, read_rows], spec.mask[images, rows]
    if spec.neighbours:
        values = spec.formula(spec.evidence(logits.transpose(0, 1)), labels.long())
        n_before = rows.start - read_rows.start
        return tuple(torch.where(mask, v.narrow(1, n_before, mask.shape[1]), 0.0).sum() for v in values)
    logits, labels, mask = logits.flatten(1), labels.flatten(), mask.flatten()
    if logits.device.type in INDEXING_DEVICES:  # labelled pixels are few
        chosen = mask.nonzero().squeeze(1)
        if len(chosen) < len(mask):
            logits, labels, mask = logits.index_select(1, chosen), labels[chosen], mask[chosen]
    values = spec.formula(spec.evidence(logits[None]), labels[None].long())
    return tuple(torch.where(mask, v[0], 0.0).sum() for v in values)


def _chunks(
    n_images: int, n_classes: int, size: tuple[int, int], device: torch.device
) -> Iterator[tuple[slice, slice]]:
    """Slices of images and rows of each chunk: several small images, or some rows of a large one."""
    height, width = size
    elements = CPU_CHUNK_ELEMENTS if device.type == "cpu" else GPU_CHUNK_ELEMENTS
    max_rows = max(1, elements // (n_classes * width))
    images_per_chunk = max(1, max_rows // height)
    chunks_per_image = -(-height // max_rows)
    rows_per_chunk = -(-height // chunks_per_image)  # about equal heights, which lets buffers be reused
    for image in range(0, max(n_images, 1), images_per_chunk):
        for row in range(0, height, rows_per_chunk):
            yield (
                slice(image, min(image + images_per_chunk, n_images)),
                slice(row, min(row + rows_per_chunk, height)),
            )
