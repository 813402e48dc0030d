"""Evaluation of a model on labelled images that it was not trained on."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ducats.data.views import View
from ducats.domain import UNLABELLED, Domain, original_map
from ducats.engine.forward import check_finite, luck_of, outputs, said
from ducats.engine.processes import add_up, share_of, together
from ducats.engine.task import Resolution
from ducats.grid import dense
from ducats.ledger.maps import resized
from ducats.metrics import Tally, class_iou, mean_iou_without
from ducats.randomness import fork
from ducats.rows import Output

TOGETHER = 2**24  # probabilities per group; larger groups are no faster, and several copies are in memory


class Tempered:
    """Evaluation of the same predictions at another temperature, in the same pass.

    Args:
        temperature: divisor of log alpha.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self.tally: Tally | None = None  # set by `evaluate` and `evaluate_maps`


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    test: Domain,
    *,
    view: View,
    batch_size: int,
    fabric: Fabric,
    only: Tensor | None = None,
    tempered: Tempered | None = None,
) -> Tally:
    """Compute the tally of a test set over all processes, in bounded memory.

    Args:
        only: indices of the images to evaluate; all by default.
        tempered: receives the tally at its own temperature.
    """
    tally, beside = (Tally.empty(len(test.classes)) for _ in range(2))
    counted = torch.arange(len(test)) if only is None else only
    luck = luck_of(test.images, view, fork(0, "test"))
    batches = share_of(counted.split(batch_size), fabric)

    def look() -> None:
        for index, columns in outputs(
            model, test.images, batches, view=view, luck=luck, needs=("z",), fabric=fabric
        ):
            z = columns["z"].double()
            tally.update(z.log_softmax(1), test.labels[index])
            if tempered is not None:
                beside.update((z / tempered.temperature).log_softmax(1), test.labels[index])

    together(fabric, look)
    if tempered is not None:
        tempered.tally = _of_all(beside, fabric)
    return _of_all(tally, fabric)


@torch.inference_mode()
def evaluate_maps(
    model: nn.Module,
    test: Domain,
    *,
    view: View,
    batch_size: int,
    fabric: Fabric,
    resolution: Resolution = "original",
    flip: bool = False,
    bought: Callable[[int], Tensor] | None = None,
    tempered: Tempered | None = None,
) -> Tally:
    """Compute the tally of a test set's pixels over all processes, a few maps at a time.

    Args:
        resolution: compare at the network's input size or at the labels' original size.
        flip: average the probabilities with those of the mirrored image.
        bought: known labels of an image; pixels with a known label are ignored. By default all pixels count.
        tempered: receives the tally at its own temperature.
    """
    tally, beside = (Tally.empty(len(test.classes), _where_to_count(fabric.device)) for _ in range(2))
    luck = luck_of(test.images, view, fork(0, "test"))
    batches = share_of(torch.arange(len(test)).split(batch_size), fabric)

    def look() -> None:
        for index, output in said(
            model, test.images, batches, view=view, luck=luck, fabric=fabric, mirrored=flip
        ):
            check_finite(output.z)
            maps = [_labels(test, image, resolution, bought) for image in index.tolist()]
            for places in _alike(maps, len(test.classes)):
                labels = torch.stack([maps[place] for place in places])
                size = (labels.shape[-2], labels.shape[-1])
                mirror = len(index) if flip else None
                log_p = log_probability(output, places, size, mirror)
                labels = labels.to(log_p.device)
                tally.update(log_p, labels)
                if tempered is not None:
                    del log_p  # there may be memory for only one such map
                    beside.update(log_probability(output, places, size, mirror, tempered.temperature), labels)

    together(fabric, look)
    if tempered is not None:
        tempered.tally = _of_all(beside, fabric)
    return _of_all(tally, fabric)


def at_resolution(test: Domain, resolution: Resolution) -> str:
    """Describe the resolution at which maps are compared, for records and reports."""
    height, width = test.images.pixels.shape[-2:]
    return f"{height}x{width} (network)" if resolution == "network" else "original"


def pixel_numbers(confusion: Tensor, classes: Sequence[str], star_without: Sequence[str]) -> dict[str, Any]:
    """Compute the segmentation metrics beyond ``metrics.compute``: the IoU of each class, and mIoU*.

    Args:
        confusion: ``(C, C)`` counts.
        star_without: names of classes excluded from ``mean_iou_star``. The key is absent if no class is
            excluded, or if none of the others occurs.
    """
    numbers: dict[str, Any] = {"class_iou": class_iou(confusion)}
    left_out = [list(classes).index(name) for name in star_without]
    others = [value for place, value in enumerate(numbers["class_iou"]) if place not in left_out]
    if left_out and any(value is not None for value in others):
        numbers["mean_iou_star"] = mean_iou_without(confusion, left_out)
    return numbers


def _labels(
    test: Domain, image: int, resolution: Resolution, bought: Callable[[int], Tensor] | None
) -> Tensor:
    """Return one image's labels ``(H, W)``, with pixels that do not count set to ``UNLABELLED``."""
    labels = original_map(test.labels, image) if resolution == "original" else test.labels[image]
    if bought is None:
        return labels
    known = resized(bought(image).cpu(), (labels.shape[0], labels.shape[1])) != UNLABELLED
    return labels.masked_fill(known.to(labels.device), UNLABELLED)


def _alike(maps: Sequence[Tensor], classes: int) -> Iterator[list[int]]:
    """Group consecutive maps of equal size, up to `REFRESH_GROUP_SIZE` probabilities per group."""
    places: list[int] = []
    for place, labels in enumerate(maps):
        full = len(places) >= max(1, TOGETHER // (classes * labels.numel()))
        if places and (full or maps[places[-1]].shape != labels.shape):
            yield places
            places = []
        places.append(place)
    if places:
        yield places


def log_probability(
    output: Output,
    places: Sequence[int],
    size: tuple[int, int],
    mirror: int | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Return the log of the expected class probabilities of some images' pixels, ``(N, C, H, W)``.

    Args:
        places: indices of the images in ``output``.
        size: height and width of the result.
        mirror: offset from an image to its mirrored image in ``output``; both are averaged. None: no mirror.
        temperature: divisor of log alpha, applied before averaging.
    """
    z = dense(output._replace(z=output.z[list(places)]), size)
    log_p = (z if temperature == 1 else z / temperature).log_softmax(1)
    if mirror is None:
        return log_p
    beside = log_probability(output, [place + mirror for place in places], size, None, temperature).flip(-1)
    return torch.logaddexp(log_p, beside) - math.log(2)


def _where_to_count(device: torch.device) -> torch.device:
    return torch.device("cpu") if device.type == "mps" else device  # mps has no float64


def _of_all(tally: Tally, fabric: Fabric) -> Tally:
    return Tally(**{name: add_up(tensor.cpu(), fabric) for name, tensor in tally.tensors().items()})
