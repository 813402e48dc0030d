"""Figures of an audit of pixels: pixel accuracy, IoU and gain, from one pass over the pool."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ducats.data.domain import UNLABELLED, VOID
from ducats.evaluation import audit
from ducats.evaluation.audit import Interval
from ducats.evaluation.evaluate import log_probabilities
from ducats.evaluation.iou_intervals import PixelSample, class_iou_intervals, mean_iou_interval
from ducats.ledger import PixelLabels
from ducats.run.audit_pixels import random_pixels, unanswered_pixels
from ducats.run.components import pixels_per_image
from ducats.run.context import RunContext
from ducats.runfolder.audit_files import PoolPredictions
from ducats.training.distributed import all_gather_rows, all_ranks_or_raise, all_reduce_sum
from ducats.training.predictor import Predictor, check_finite
from ducats.utils.npz_columns import AnyArray

SPARE_PIXELS = 1000  # further pixels of the random order whose predictions are kept, for later audit labels


@dataclass
class PoolTally:
    """Sums over the pixels that a model was not taught, float64."""

    predicted: Tensor  # (C,), pixels without a label, by predicted class
    confidence: Tensor  # (C,), their predicted class's probability, by predicted class
    probability: Tensor  # (C,), their probability of each class
    known: Tensor  # (C, C), pixels with a label, by label and predicted class
    known_confidence: Tensor  # (), their predicted class's probability

    @classmethod
    def empty(cls, classes: int) -> "PoolTally":
        """Return a tally of no pixels."""
        shapes = [(classes,)] * 3 + [(classes, classes), ()]
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))


def stage_predictions(
    context: RunContext, predictor: Predictor, stage: int, rounds: int
) -> tuple[PoolTally, PoolPredictions]:
    """Predict the pool; all processes take part, and all get the sums and the predictions of single pixels.

    The population are the pixels on which the model was not taught. Those that the query selected in the last
    round, after the model was trained, all have a label.

    Args:
        stage: number of rounds whose labels the model was trained on.
        rounds: number of rounds with labels, one more or equal.
    """
    components, fabric = context.components, context.fabric
    ledger, classes = context.open_ledger(), len(context.classes)
    numbers = torch.tensor(context.classes.current_numbers)  # of the classes that the model predicts
    taught, labelled = (context.label_maps(n, with_released=False) for n in (stage, rounds))
    unanswered_of = unanswered_pixels(context.run_folder, ledger, rounds)
    image, position = _followed_pixels(context, ledger.audit_pixels(rounds))
    average_flipped, sizes = components.evaluation.average_flipped, context.label_sizes.tolist()
    tally = PoolTally.empty(classes)
    rows = [torch.zeros(0, 3, dtype=torch.float64)]

    def add_image(log_p: Tensor, number: int) -> None:
        probability = log_p.exp()
        confidence, index = (values.flatten().cpu() for values in probability.max(0))
        predicted = numbers[index]
        taught_labels = taught.at_label_resolution(number).flatten()
        labels = taught_labels if rounds == stage else labelled.at_label_resolution(number).flatten()
        is_sampled, is_known = labels == UNLABELLED, (labels >= 0) & (taught_labels == UNLABELLED)
        is_sampled[torch.from_numpy(unanswered_of(number))] = False
        mask = is_sampled.view(probability.shape[1:]).to(probability.device)
        tally.probability[numbers] += (probability * mask).sum((1, 2)).cpu().double()
        tally.predicted += predicted[is_sampled].bincount(minlength=classes)
        tally.confidence += predicted[is_sampled].bincount(confidence[is_sampled].double(), classes)
        pairs = labels[is_known].long() * classes + predicted[is_known]
        tally.known += pairs.bincount(minlength=classes**2).view(classes, classes)
        tally.known_confidence += confidence[is_known].double().sum()
        first, last = np.searchsorted(image, [number, number + 1]).tolist()
        place = torch.from_numpy(position[first:last])
        found = (torch.arange(first, last), predicted[place], confidence[place])
        rows.append(torch.stack([column.double() for column in found], 1))

    @torch.inference_mode()
    def add_images() -> None:
        batches = predictor.share(torch.arange(len(components.pool)))
        for index, output in predictor.forward(components.pool, batches, append_flipped=average_flipped):
            check_finite(output.z)
            mirror_offset = len(index) if average_flipped else None
            for i, number in enumerate(index.tolist()):
                height, width = sizes[number]
                add_image(log_probabilities(output, [i], (height, width), mirror_offset)[0], number)

    all_ranks_or_raise(fabric, add_images)
    tally = PoolTally(**{name: all_reduce_sum(total, fabric) for name, total in vars(tally).items()})
    row = all_gather_rows(torch.cat(rows), fabric)
    row = row[row[:, 0].argsort()]
    return tally, PoolPredictions(row[:, 1].long().numpy(), row[:, 2].numpy(), image, position)


def _followed_pixels(context: RunContext, audited: PixelLabels) -> tuple[AnyArray, AnyArray]:
    """Return the audit pixels and those that come next in the random order, by image and position."""
    count = 2 * sum(context.plan.audit) + SPARE_PIXELS
    blocks = [np.stack([audited.image, audited.position])]
    for block in random_pixels(pixels_per_image(context.components), context.plan.seed):
        blocks.append(np.stack(block)[:, :count])
        count -= blocks[-1].shape[1]
        if not count:
            break
    image, position = np.unique(np.concatenate(blocks, 1), axis=1)
    return image, position


def pixel_stage_figures(
    audited: PixelLabels,
    tally: PoolTally,
    now: PoolPredictions,
    before: PoolPredictions | None,
    *,
    stage: int,
    n_stages: int,
    classes: Sequence[str],
) -> dict[str, Any]:
    """Return the figures of a model: pixel accuracy, IoU, overconfidence, and gain in pixel accuracy.

    Args:
        audited: the audit labels.
        now: predictions of the model, at least for the audit pixels.
        before: those of the model of the stage before.
        n_stages: number of models for which there may be figures, for intervals that hold for all of them
            together.
    """
    level = audit.stage_level(stage, n_stages)
    judged = audited.label != VOID
    label, n_void = audited.label[judged], int((~judged).sum())
    rows = _rows_of(now, audited)[judged]
    predicted, confidence = now.predicted[rows], now.probability[rows]
    n_classes, correct = len(classes), predicted == label
    confusion = np.zeros((n_classes, n_classes), np.int64)
    np.add.at(confusion, (label, predicted), 1)
    known = tally.known.numpy().astype(np.int64)
    sample = PixelSample(
        confusion,
        tally.predicted.numpy().astype(np.int64),
        tally.confidence.numpy(),
        tally.probability.numpy(),
        n_void,
        known,
    )
    n_known, confidence_sum = int(known.sum()), float(tally.confidence.sum())
    sampled = audit.accuracy_interval(
        correct,
        confidence,
        pool_size=sample.size,
        pool_confidence=confidence_sum / max(sample.size, 1),
        level=level,
        voids=n_void,
    )
    sizes = audit.population_sizes(len(label), n_void, sample.size)
    pairs = [(size, size) for size in sizes]
    accuracy = audit.with_known(sampled, pairs, int(np.trace(known)), n_known)
    mean_confidence = (confidence_sum + float(tally.known_confidence)) / max(sample.size + n_known, 1)
    class_iou = class_iou_intervals(sample, level=level)
    figures: dict[str, Any] = {
        "labels": len(label),
        "void": n_void,
        "pixels": sizes[-1] + n_known,
        "accuracy": accuracy.estimate,
        "low": accuracy.low,
        "high": accuracy.high,
        "miou": asdict(mean_iou_interval(sample, level=level)),
        "overconfidence": asdict(audit.overconfidence(accuracy, mean_confidence)),
        "classes": {name: asdict(interval) for name, interval in zip(classes, class_iou, strict=True)},
    }
    if before is not None and not n_known:
        followed = _rows_of(before, audited)
        both = judged & (followed >= 0)
        gain: Interval = audit.gain_interval(
            before.predicted[followed[both]] == audited.label[both],
            now.predicted[_rows_of(now, audited)[both]] == audited.label[both],
            pool_size=sample.size,
            level=level,
            voids=n_void,
        )
        figures["gain"] = asdict(gain)
    return figures


def _rows_of(predictions: PoolPredictions, audited: PixelLabels) -> AnyArray:
    """Return the row of each audit pixel in the predictions; -1 if there is none."""
    assert predictions.image is not None
    assert predictions.position is not None
    row_of = {
        location: row
        for row, location in enumerate(
            zip(predictions.image.tolist(), predictions.position.tolist(), strict=True)
        )
    }
    locations = zip(audited.image.tolist(), audited.position.tolist(), strict=True)
    return np.array([row_of.get(location, -1) for location in locations], np.int64)
