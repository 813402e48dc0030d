"""Batched inference: views, forward passes and transfers to the host, overlapped."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ducats.criteria import TOLD, heard
from ducats.data.views import View, apply_view, sample_view_params
from ducats.domain import Images
from ducats.engine import resident
from ducats.errors import UserError
from ducats.rows import Output

Said = dict[str, Tensor]
Tell = Callable[[Output], Mapping[str, Tensor]]  # columns that probes add to the model's output
HELD = 16  # batches kept on the device before they are copied to the host together


def luck_of(images: Images, view: View, generator: torch.Generator) -> Tensor:
    """Sample augmentation parameters, one row per image, independent of the batching."""
    height, width = images.pixels.shape[-2:]
    return sample_view_params(view, len(images), height, width, generator, images.aspect)


def outputs(
    model: nn.Module,
    images: Images,
    batches: Sequence[Tensor],
    *,
    view: View,
    luck: Tensor,
    needs: Sequence[str],
    fabric: Fabric,
    tell: Tell | None = None,
) -> Iterator[tuple[Tensor, Said]]:
    """Yield the index and the requested columns of each batch, in order, as float32 on the CPU.

    Args:
        batches: image indices of each batch.
        luck: one row of augmentation parameters per image.
        needs: ``z``, ``features``, and columns of probes.
        tell: computes the probes' columns; needed if ``needs`` names one of them.
    """
    waiting: list[tuple[Tensor, Said]] = []
    for index, output in said(model, images, batches, view=view, luck=luck, fabric=fabric, tell=tell):
        waiting.append((index, {name: _column(output, name).float() for name in needs}))
        if len(waiting) == (1 if fabric.device.type == "cpu" else HELD):
            yield from _to_host(waiting)
            waiting = []
    yield from _to_host(waiting)


def said(
    model: nn.Module,
    images: Images,
    batches: Sequence[Tensor],
    *,
    view: View,
    luck: Tensor,
    fabric: Fabric,
    mirrored: bool = False,
    tell: Tell | None = None,
) -> Iterator[tuple[Tensor, Output]]:
    """Yield the index and the model output of each batch, in order, on the model's device and in its dtype.

    Args:
        batches: image indices of each batch.
        luck: one row of augmentation parameters per image.
        mirrored: append the mirrored images to each batch, which doubles its length.
        tell: computes the probes' columns; None if no probe is needed.
    """
    model.eval()
    device, pixels = fabric.device, images.pixels
    near = resident.on_device(pixels, device)
    get = resident.take if near else resident.gather
    with closing(
        resident.in_order(lambda n: get(pixels, batches[n], device), len(batches), ahead=not near)
    ) as taken:
        for index, raw in zip(batches, taken, strict=True):
            shown = apply_view(resident.send(raw, device), view, luck[index].to(device, non_blocking=True))
            output = model(torch.cat([shown, shown.flip(-1)]) if mirrored else shown)
            yield index, output if tell is None else output._replace(told=tell(output))


def _to_host(waiting: Sequence[tuple[Tensor, Said]]) -> Iterator[tuple[Tensor, Said]]:
    """Copy pending batches to the CPU and raise if a value is not finite."""
    for index, columns in waiting:
        here = {name: column.cpu() for name, column in columns.items()}
        for column in here.values():
            check_finite(column)
        yield index, here


def check_finite(column: Tensor) -> None:
    """Raise if training diverged."""
    if not bool(column.isfinite().all()):
        raise UserError(
            "training diverged: the model's logits are no longer finite. Start a new run in a new folder "
            "with a lower train.lr, or bound the evidence with model.evidence=exp_clamped"
        )


def _column(output: Output, name: str) -> Tensor:
    column = heard(name, output.told) if name in TOLD else getattr(output, name, None)
    if column is None:
        raise UserError(
            f"the query needs {name!r}, but the model does not return it; "
            "make its forward return (logits, features)"
        )
    assert isinstance(column, Tensor)
    return column
