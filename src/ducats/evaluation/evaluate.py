"""Evaluation of a model on labelled images that it was not trained on."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats.data.domain import UNLABELLED, Domain, Images, original_map
from ducats.evaluation.metrics import Tally, class_iou, mean_iou_excluding
from ducats.ledger.target_maps import resize_nearest
from ducats.models.output import Output
from ducats.models.upsampling import upsample
from ducats.settings import GridResolution
from ducats.training.distributed import all_ranks_or_raise, all_reduce_sum
from ducats.training.predictor import Predictor, check_finite

# Probabilities per group; larger groups are no faster, and several copies are in memory.
MAX_GROUP_PROBABILITIES = 2**24


class TemperedEvaluation:
    """Evaluation of the same predictions at another temperature, in the same pass."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature  # divisor of log alpha
        self.tally: Tally | None = None  # set by `evaluate` and `evaluate_segmentation`


@torch.inference_mode()
def evaluate(
    predictor: Predictor,
    test: Domain,
    *,
    indices: Tensor | None = None,
    tempered: TemperedEvaluation | None = None,
) -> Tally:
    """Compute the tally of a test set over all processes, in bounded memory.

    Only ``indices`` are evaluated, by default all. ``tempered`` receives the tally at its own temperature.
    """
    fabric = predictor.fabric
    tally, tempered_tally = (Tally.empty(len(test.classes)) for _ in range(2))
    batches = predictor.share(torch.arange(len(test)) if indices is None else indices)

    def update_tallies() -> None:
        for index, columns in predictor.columns(test.images, batches, ("z",)):
            z = columns["z"].double()
            tally.update(_with_unknown_classes(z.log_softmax(1), len(test.classes)), test.labels[index])
            if tempered is not None:
                log_p = (z / tempered.temperature).log_softmax(1)
                tempered_tally.update(_with_unknown_classes(log_p, len(test.classes)), test.labels[index])

    all_ranks_or_raise(fabric, update_tallies)
    if tempered is not None:
        tempered.tally = _reduce_tally(tempered_tally, fabric)
    return _reduce_tally(tally, fabric)


@torch.inference_mode()
def evaluate_segmentation(
    predictor: Predictor,
    test: Domain,
    *,
    resolution: GridResolution = "original",
    average_flipped: bool = False,
    known_labels_of: Callable[[int], Tensor] | None = None,
    tempered: TemperedEvaluation | None = None,
) -> Tally:
    """Compute the tally of a test set's pixels over all processes, a few maps at a time.

    Args:
        resolution: compare at the network's input size or at the labels' original size.
        average_flipped: average the probabilities with those of the mirrored image.
        known_labels_of: known labels of an image; pixels with a known label are ignored. By default all
            pixels count.
        tempered: receives the tally at its own temperature.
    """
    fabric = predictor.fabric
    tally, tempered_tally = (Tally.empty(len(test.classes), _tally_device(fabric.device)) for _ in range(2))
    batches = predictor.share(torch.arange(len(test)))

    def update_tallies() -> None:
        for index, output in predictor.forward(test.images, batches, append_flipped=average_flipped):
            check_finite(output.z)
            maps = [_counted_labels(test, image, resolution, known_labels_of) for image in index.tolist()]
            for batch_indices in _same_size_groups(maps, len(test.classes)):
                labels = torch.stack([maps[i] for i in batch_indices])
                size = (labels.shape[-2], labels.shape[-1])
                mirror_offset = len(index) if average_flipped else None
                log_p = log_probabilities(output, batch_indices, size, mirror_offset)
                labels = labels.to(log_p.device)
                tally.update(_with_unknown_classes(log_p, len(test.classes)), labels)
                if tempered is not None:
                    del log_p  # there may be memory for only one such map
                    log_p = log_probabilities(
                        output, batch_indices, size, mirror_offset, tempered.temperature
                    )
                    tempered_tally.update(_with_unknown_classes(log_p, len(test.classes)), labels)

    all_ranks_or_raise(fabric, update_tallies)
    if tempered is not None:
        tempered.tally = _reduce_tally(tempered_tally, fabric)
    return _reduce_tally(tally, fabric)


@torch.inference_mode()
def count_predictions(predictor: Predictor, images: Images, classes: int) -> Tensor:
    """Return how often each class is predicted, ``(classes,)``, over all processes.

    Pixels are counted on the network's own grid.
    """
    counts = torch.zeros(classes, dtype=torch.long)

    def count() -> None:
        for _, output in predictor.forward(images, predictor.share(torch.arange(len(images)))):
            check_finite(output.z)
            predicted = output.evidence(output.z).argmax(1)
            counts.add_(torch.bincount(predicted.flatten(), minlength=classes).cpu())

    all_ranks_or_raise(predictor.fabric, count)
    return all_reduce_sum(counts, predictor.fabric)


UNKNOWN_LOG_PROBABILITY = -20.0  # of a class that the model has no logit for


def _with_unknown_classes(log_p: Tensor, classes: int) -> Tensor:
    """Return log probabilities ``(N, classes, ...)`` with classes that the model does not know."""
    missing = classes - log_p.shape[1]
    if not missing:
        return log_p
    unknown = log_p.new_full((len(log_p), missing, *log_p.shape[2:]), UNKNOWN_LOG_PROBABILITY)
    return torch.cat([log_p, unknown], 1)


def describe_resolution(test: Domain, resolution: GridResolution) -> str:
    """Describe the resolution at which maps are compared, for records and reports."""
    height, width = test.images.pixels.shape[-2:]
    return f"{height}x{width} (network)" if resolution == "network" else "original"


def segmentation_metrics(
    confusion: Tensor, classes: Sequence[str], miou_star_exclude: Sequence[str]
) -> dict[str, Any]:
    """Compute the segmentation metrics beyond ``metrics.compute_metrics``: the IoU of each class, and mIoU*.

    Args:
        confusion: ``(C, C)`` counts.
        miou_star_exclude: names of classes excluded from ``mean_iou_star``. The key is absent if no class is
            excluded, or if none of the others occurs.
    """
    metrics: dict[str, Any] = {"class_iou": class_iou(confusion)}
    excluded = [list(classes).index(name) for name in miou_star_exclude]
    other_ious = [value for i, value in enumerate(metrics["class_iou"]) if i not in excluded]
    if excluded and any(value is not None for value in other_ious):
        metrics["mean_iou_star"] = mean_iou_excluding(confusion, excluded)
    return metrics


def _counted_labels(
    test: Domain, image: int, resolution: GridResolution, known_labels_of: Callable[[int], Tensor] | None
) -> Tensor:
    """Return one image's labels ``(H, W)``, with pixels that do not count set to ``UNLABELLED``."""
    labels = original_map(test.labels, image) if resolution == "original" else test.labels[image]
    if known_labels_of is None:
        return labels
    is_known = resize_nearest(known_labels_of(image).cpu(), (labels.shape[0], labels.shape[1])) != UNLABELLED
    return labels.masked_fill(is_known.to(labels.device), UNLABELLED)


def _same_size_groups(maps: Sequence[Tensor], classes: int) -> Iterator[list[int]]:
    """Group consecutive maps of equal size, up to `MAX_GROUP_PROBABILITIES` probabilities per group."""
    batch_indices: list[int] = []
    for i, labels in enumerate(maps):
        full = len(batch_indices) >= max(1, MAX_GROUP_PROBABILITIES // (classes * labels.numel()))
        if batch_indices and (full or maps[batch_indices[-1]].shape != labels.shape):
            yield batch_indices
            batch_indices = []
        batch_indices.append(i)
    if batch_indices:
        yield batch_indices


def log_probabilities(
    output: Output,
    batch_indices: Sequence[int],
    size: tuple[int, int],
    mirror_offset: int | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Return the log of the expected class probabilities of some images' pixels, ``(N, C, H, W)``.

    Args:
        batch_indices: indices of the images in ``output``.
        size: height and width of the result.
        mirror_offset: offset from an image to its mirrored image in ``output``; both are averaged. None: no
            mirrored images.
        temperature: divisor of log alpha, applied before averaging.
    """
    z = upsample(output._replace(z=output.z[list(batch_indices)]), size)
    log_p = (z if temperature == 1 else z / temperature).log_softmax(1)
    if mirror_offset is None:
        return log_p
    mirrored = log_probabilities(
        output, [i + mirror_offset for i in batch_indices], size, None, temperature
    ).flip(-1)
    return torch.logaddexp(log_p, mirrored) - math.log(2)


def _tally_device(device: torch.device) -> torch.device:
    return torch.device("cpu") if device.type == "mps" else device  # mps has no float64


def _reduce_tally(tally: Tally, fabric: Fabric) -> Tally:
    return Tally(**{name: all_reduce_sum(tensor.cpu(), fabric) for name, tensor in tally.tensors().items()})
