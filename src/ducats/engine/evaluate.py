"""Measure a model on labelled images that it never trained on."""

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

TOGETHER = 2**24  # probabilities: more would not be quicker, and stand in memory several times


class Tempered:
    """The same predictions at another temperature, counted in the same pass.

    Args:
        temperature: what log alpha is divided by.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self.tally: Tally | None = None  # once they were counted


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
    """Tally a test set, over all processes; bounded memory.

    Args:
        model: images to ``Output``.
        test: labelled images.
        view: how to look at each image.
        batch_size: images in a batch.
        fabric: device and processes.
        only: indices of the images that count; all by default.
        tempered: is given a tally of its own.
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
    """Tally the pixels of a test set, over all processes; a few maps at a time.

    Args:
        model: images to ``Output``.
        test: images with label maps.
        view: how to look at each image.
        batch_size: images in a batch.
        fabric: device and processes.
        resolution: whether maps are compared as the network sees the images, or in the labels' own size.
        flip: average the probabilities with those of the mirror image.
        bought: an image's map of what was bought, whose pixels then do not count; by default all count.
        tempered: is given a tally of its own.
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
                    del log_p  # there may be room for one such map
                    beside.update(log_probability(output, places, size, mirror, tempered.temperature), labels)

    together(fabric, look)
    if tempered is not None:
        tempered.tally = _of_all(beside, fabric)
    return _of_all(tally, fabric)


def at_resolution(test: Domain, resolution: Resolution) -> str:
    """At which resolution maps are compared, in words."""
    height, width = test.images.pixels.shape[-2:]
    return f"{height}x{width} (network)" if resolution == "network" else "original"


def pixel_numbers(confusion: Tensor, classes: Sequence[str], star_without: Sequence[str]) -> dict[str, Any]:
    """What is said of pixels beyond what is said of images: IoU of each class, and mIoU*.

    Args:
        confusion: ``(C, C)`` counts.
        classes: their names.
        star_without: those left out of ``mean_iou_star``; without any, or if no other occurs, there is none.
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
    """One image's labels that count, ``(H, W)``."""
    labels = original_map(test.labels, image) if resolution == "original" else test.labels[image]
    if bought is None:
        return labels
    known = resized(bought(image).cpu(), (labels.shape[0], labels.shape[1])) != UNLABELLED
    return labels.masked_fill(known.to(labels.device), UNLABELLED)


def _alike(maps: Sequence[Tensor], classes: int) -> Iterator[list[int]]:
    """Places of neighbours that have one size, as many at a time as are quick together."""
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
    """Log of the expected probabilities of some images' pixels, ``(N, C, H, W)``.

    Args:
        output: what a model said.
        places: of the images in it.
        size: height and width.
        mirror: so many places after an image lies its mirror image, and both are averaged; None: neither.
        temperature: what log alpha is divided by, of each before they are averaged.
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
