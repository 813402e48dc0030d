"""What a model says about many images: views, forward passes, and the way back to the host, overlapped."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ducats.criteria import TOLD, heard
from ducats.data.views import View, draw, look
from ducats.domain import Images
from ducats.engine import resident
from ducats.errors import UserError
from ducats.rows import Output

Said = dict[str, Tensor]
Tell = Callable[[Output], Mapping[str, Tensor]]  # what witnesses add to what the model says
HELD = 16  # batches whose answers wait on the device: the host asks for them together


def luck_of(images: Images, view: View, generator: torch.Generator) -> Tensor:
    """One draw per image, whatever the batches."""
    height, width = images.pixels.shape[-2:]
    return draw(view, len(images), height, width, generator, images.aspect)


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
    """Index and answers of each batch, in order, in float32 on the CPU.

    Args:
        model: images to ``Output``.
        images: what to look at.
        batches: indices of the images.
        view: how to look at each image.
        luck: one row per image, for a view with luck in it.
        needs: ``z``, ``features``, and columns that witnesses tell.
        fabric: device.
        tell: the witnesses, if one is needed.
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
    """Index and output of each batch, in order, as it comes from the model and where it is.

    Args:
        model: images to ``Output``.
        images: what to look at.
        batches: indices of the images.
        view: how to look at each image.
        luck: one row per image, for a view with luck in it.
        fabric: device.
        mirrored: of each image, then its mirror image: twice as many rows.
        tell: the witnesses, if one is needed.
    """
    model.eval()
    device, pixels = fabric.device, images.pixels
    near = resident.on_device(pixels, device)
    get = resident.take if near else resident.gather
    with closing(
        resident.in_order(lambda n: get(pixels, batches[n], device), len(batches), ahead=not near)
    ) as taken:
        for index, raw in zip(batches, taken, strict=True):
            shown = look(resident.send(raw, device), view, luck[index].to(device, non_blocking=True))
            output = model(torch.cat([shown, shown.flip(-1)]) if mirrored else shown)
            yield index, output if tell is None else output._replace(told=tell(output))


def _to_host(waiting: Sequence[tuple[Tensor, Said]]) -> Iterator[tuple[Tensor, Said]]:
    """Answers on the CPU, if they are any: a training that diverged ends here at the latest."""
    for index, columns in waiting:
        here = {name: column.cpu() for name, column in columns.items()}
        for column in here.values():
            check_finite(column)
        yield index, here


def check_finite(column: Tensor) -> None:
    """Refuse to go on with a training that diverged."""
    if not bool(column.isfinite().all()):
        raise UserError(
            "the model's logits are no longer finite: the training diverged; lower train.lr (a new run, "
            "in a new folder), or bound the evidence with model.evidence=exp_clamped"
        )


def _column(output: Output, name: str) -> Tensor:
    column = heard(name, output.told) if name in TOLD else getattr(output, name, None)
    if column is None:
        raise UserError(
            f"the query needs {name!r}, but the model gives none: let its forward return (logits, features)"
        )
    assert isinstance(column, Tensor)
    return column
