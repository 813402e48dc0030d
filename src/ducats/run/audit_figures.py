"""Figures of the audit: accuracy, IoU, overconfidence and gain of a model, with intervals."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ducats.data.domain import UNLABELLED, VOID
from ducats.evaluation import audit
from ducats.evaluation.audit import Interval
from ducats.evaluation.iou_intervals import PixelSample, class_iou_intervals, mean_iou_interval
from ducats.ledger import Ledger, PixelLabels
from ducats.runfolder.audit_files import PoolPredictions
from ducats.utils.npz_columns import AnyArray


def image_figures(
    ledger: Ledger,
    *,
    stage: int,
    rounds: int,
    n_stages: int,
    classes: Sequence[str],
    now: PoolPredictions,
    before: PoolPredictions | None,
    unanswered: AnyArray | None = None,
) -> dict[str, Any]:
    """Return the figures of a model: accuracy, accuracy of each class, overconfidence, and gain.

    The population is the images that the model was not trained on. Those that the query selected in the last
    round, after the model was trained, all have a label; the audit is a random sample of the others.

    Args:
        stage: number of rounds whose labels the model was trained on.
        rounds: number of rounds with labels, one more or equal.
        n_stages: number of models for which there may be figures, for intervals that hold for all of them
            together.
        now: predictions of the model for the whole pool.
        before: those of the model of the stage before.
        unanswered: mask of images that the query selected, but that nobody labelled. They are left out: the
            audit has no such image.
    """
    trained_on, labels = ledger.targets(stage).numpy(), ledger.targets(rounds).numpy()
    audit_labels = ledger.audit_labels(rounds).numpy()
    is_sampled = labels == UNLABELLED  # the population without those that are all labelled
    if unanswered is not None:
        is_sampled &= ~unanswered
    is_selected = (labels >= 0) & (trained_on == UNLABELLED)
    is_audit = is_sampled & (audit_labels >= 0)
    is_void = is_sampled & (audit_labels != UNLABELLED) & ~is_audit
    level = audit.stage_level(stage, n_stages)
    correct, is_correct = (now.predicted == audit_labels)[is_audit], now.predicted == labels
    n_sampled, n_void, n_selected = (int(mask.sum()) for mask in (is_sampled, is_void, is_selected))
    sampled_classes = audit.class_accuracy_intervals(
        correct,
        audit_labels[is_audit],
        num_classes=len(classes),
        pool_size=n_sampled,
        level=level,
        voids=n_void,
    )

    def class_accuracy(number: int) -> Interval:
        known = is_correct[is_selected & (labels == number)]
        n_judged = int((audit_labels[is_audit] == number).sum())
        sizes = {n_judged, n_sampled - n_void - (len(correct) - n_judged)} if len(known) else {1}
        pairs = [(size, size) for size in sorted(sizes)]
        return audit.with_known(sampled_classes[number], pairs, int(known.sum()), len(known))

    figures = _accuracy_figures(
        "images",
        correct,
        now.probability[is_audit],
        n_sampled=n_sampled,
        n_void=n_void,
        confidence_sum=float(now.probability[is_sampled].sum()),
        n_known=n_selected,
        known_correct=int(is_correct[is_selected].sum()),
        known_confidence_sum=float(now.probability[is_selected].sum()),
        level=level,
    )
    figures["classes"] = {name: asdict(class_accuracy(number)) for number, name in enumerate(classes)}
    if before is not None:
        was_correct = before.predicted == labels
        gain = gain_on_sample(
            now.predicted,
            before.predicted,
            audit_labels,
            is_sampled,
            level=level,
            known_gain=int(is_correct[is_selected].sum()) - int(was_correct[is_selected].sum()),
            n_known=n_selected,
        )
        figures["gain"] = asdict(gain)
    return figures


def gain_on_sample(
    now: AnyArray,
    before: AnyArray,
    audit_labels: AnyArray,
    is_sampled: AnyArray,
    *,
    level: float,
    known_gain: int = 0,
    n_known: int = 0,
) -> Interval:
    """Return the gain in accuracy between two predictions of the pool.

    Only images whose prediction has changed matter, and among these the audit is a random sample, too.

    Args:
        is_sampled: mask of the images of which the audit is a random sample.
        known_gain: number of images gained, minus those lost, among other images, which all have a label.
        n_known: number of these.
    """
    is_audit = is_sampled & (audit_labels >= 0)
    is_void = is_sampled & (audit_labels != UNLABELLED) & ~is_audit
    is_changed = is_sampled & (now != before)
    judged, n_changed = is_changed & is_audit, int((is_changed & ~is_void).sum())
    n_void = int(is_void.sum())
    level, void_level = audit.split_level(level, n_void)
    gain = Interval(0.0, 0.0, 0.0)
    if n_changed:
        gain = audit.gain_interval(
            (before == audit_labels)[judged],
            (now == audit_labels)[judged],
            size=n_changed,
            level=level,
            size_known=not n_void,
        )
    sizes = audit.population_sizes(int(is_audit.sum()), n_void, int(is_sampled.sum()), level=void_level)
    changed_sizes = (int(judged.sum()), n_changed) if n_void else (n_changed,)
    pairs = [(changed, max(changed, size)) for changed in changed_sizes for size in sizes]
    return audit.with_known(gain, pairs, known_gain, n_known)


@dataclass
class PoolTally:
    """Sums over the pixels that a model was not trained on, float64."""

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


def pixel_figures(
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
    n_known = int(known.sum())
    class_iou = class_iou_intervals(sample, level=level)
    figures = _accuracy_figures(
        "pixels",
        correct,
        confidence,
        n_sampled=sample.size,
        n_void=n_void,
        confidence_sum=float(tally.confidence.sum()),
        n_known=n_known,
        known_correct=int(np.trace(known)),
        known_confidence_sum=float(tally.known_confidence),
        level=level,
    )
    figures["miou"] = asdict(mean_iou_interval(sample, level=level))
    figures["classes"] = {name: asdict(one) for name, one in zip(classes, class_iou, strict=True)}
    if before is not None and not n_known:
        followed = _rows_of(before, audited)
        both = judged & (followed >= 0)
        gain: Interval = audit.gain_interval(
            before.predicted[followed[both]] == audited.label[both],
            now.predicted[_rows_of(now, audited)[both]] == audited.label[both],
            size=sample.size - n_void,
            level=level,
            size_known=n_void == 0,
        )
        figures["gain"] = asdict(gain)
    return figures


def _accuracy_figures(
    units: Literal["images", "pixels"],
    correct: AnyArray,
    confidence: AnyArray,
    *,
    n_sampled: int,
    n_void: int,
    confidence_sum: float,
    n_known: int,
    known_correct: int,
    known_confidence_sum: float,
    level: float,
) -> dict[str, Any]:
    """Return the accuracy and the overconfidence, and to how many images or pixels they refer.

    Args:
        correct: for each audit label with a class.
        confidence: of the same predictions.
        n_sampled: number of images or pixels of which the audit is a random sample, with the void ones.
        confidence_sum: over these.
        n_known: number of others, which all have a label.
        known_correct: how many of these are predicted correctly.
        known_confidence_sum: over these.
    """
    level, void_level = audit.split_level(level, n_void)
    sampled = audit.accuracy_interval(
        correct,
        confidence,
        pool_size=n_sampled,
        pool_confidence=confidence_sum / max(n_sampled, 1),
        level=level,
        voids=n_void,
    )
    sizes = audit.population_sizes(len(correct), n_void, n_sampled, level=void_level)
    accuracy = audit.with_known(sampled, [(size, size) for size in sizes], known_correct, n_known)
    mean_confidence = (confidence_sum + known_confidence_sum) / max(n_sampled + n_known, 1)
    return {
        "labels": len(correct),
        "void": n_void,
        units: sizes[-1] + n_known,
        "accuracy": accuracy.estimate,
        "low": accuracy.low,
        "high": accuracy.high,
        "overconfidence": asdict(audit.overconfidence(accuracy, mean_confidence)),
    }


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
