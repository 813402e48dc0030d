"""Batched inference: views, forward passes and transfers to the host, overlapped."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ducats.acquisition.criteria import PROBE_COLUMNS, require_probe
from ducats.data.domain import Images
from ducats.data.views import apply_view, sample_view_params
from ducats.models.output import Output
from ducats.settings import View
from ducats.training import placement
from ducats.utils.errors import UserError

OutputColumns = dict[str, Tensor]
ExtraColumnsFn = Callable[[Output], Mapping[str, Tensor]]  # columns that probes add to the model's output
MAX_PENDING_BATCHES = 16  # batches kept on the device before they are copied to the host together


def sample_aug_params(images: Images, view: View, generator: torch.Generator) -> Tensor:
    """Sample augmentation parameters, one row per image, independent of the batching."""
    height, width = images.pixels.shape[-2:]
    return sample_view_params(view, len(images), height, width, generator, images.aspect)


def predict_columns(
    model: nn.Module,
    images: Images,
    batches: Sequence[Tensor],
    *,
    view: View,
    aug_params: Tensor,
    needs: Sequence[str],
    fabric: Fabric,
    extra_columns: ExtraColumnsFn | None = None,
) -> Iterator[tuple[Tensor, OutputColumns]]:
    """Yield the index and the requested columns of each batch, in order, as float32 on the CPU.

    Args:
        batches: image indices of each batch.
        aug_params: one row of augmentation parameters per image.
        needs: ``z``, ``features``, and columns of probes.
        extra_columns: computes the probes' columns; needed if ``needs`` names one of them.
    """
    pending: list[tuple[Tensor, OutputColumns]] = []
    for index, output in forward_batches(
        model, images, batches, view=view, aug_params=aug_params, fabric=fabric, extra_columns=extra_columns
    ):
        pending.append((index, {name: _column(output, name).float() for name in needs}))
        if len(pending) == (1 if fabric.device.type == "cpu" else MAX_PENDING_BATCHES):
            yield from _to_host(pending)
            pending = []
    yield from _to_host(pending)


def forward_batches(
    model: nn.Module,
    images: Images,
    batches: Sequence[Tensor],
    *,
    view: View,
    aug_params: Tensor,
    fabric: Fabric,
    append_flipped: bool = False,
    extra_columns: ExtraColumnsFn | None = None,
) -> Iterator[tuple[Tensor, Output]]:
    """Yield the index and the model output of each batch, in order, on the model's device and in its dtype.

    Args:
        batches: image indices of each batch.
        aug_params: one row of augmentation parameters per image.
        append_flipped: append the mirrored images to each batch, which doubles its length.
        extra_columns: computes the probes' columns; None if no probe is needed.
    """
    model.eval()
    device, pixels = fabric.device, images.pixels
    is_resident = placement.is_on_device(pixels, device)
    load_batch = placement.index_to_device if is_resident else placement.index_to_host
    with closing(
        placement.produce(
            lambda n: load_batch(pixels, batches[n], device), len(batches), prefetched=not is_resident
        )
    ) as raw_batches:
        for index, raw in zip(batches, raw_batches, strict=True):
            augmented = apply_view(
                placement.to_device(raw, device), view, aug_params[index].to(device, non_blocking=True)
            )
            output = model(torch.cat([augmented, augmented.flip(-1)]) if append_flipped else augmented)
            yield index, output if extra_columns is None else output._replace(extras=extra_columns(output))


def _to_host(pending: Sequence[tuple[Tensor, OutputColumns]]) -> Iterator[tuple[Tensor, OutputColumns]]:
    """Copy pending batches to the CPU and raise if a value is not finite."""
    for index, columns in pending:
        host_columns = {name: column.cpu() for name, column in columns.items()}
        for column in host_columns.values():
            check_finite(column)
        yield index, host_columns


def check_finite(column: Tensor) -> None:
    """Raise if training diverged."""
    if not bool(column.isfinite().all()):
        raise UserError(
            "training diverged: the model's logits are no longer finite. Start a new run in a new folder "
            "with a lower train.lr, or bound the evidence with model.evidence=exp_clamped"
        )


def _column(output: Output, name: str) -> Tensor:
    column = require_probe(name, output.extras) if name in PROBE_COLUMNS else getattr(output, name, None)
    if column is None:
        raise UserError(
            f"the query needs {name!r}, but the model does not return it; "
            "make its forward return (logits, features)"
        )
    assert isinstance(column, Tensor)
    return column
