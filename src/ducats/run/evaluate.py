"""Evaluate the model and the pseudo-labels after an epoch, if due, and record the metrics."""

import time
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from ducats.annotation.oracles import GroundTruthOracle
from ducats.data.domain import UNLABELLED
from ducats.evaluation.evaluate import (
    TemperedEvaluation,
    count_predictions,
    describe_resolution,
    evaluate,
    evaluate_segmentation,
    segmentation_metrics,
)
from ducats.evaluation.metrics import Tally, class_accuracy, compute_metrics, reliability_bins
from ducats.ledger import Request
from ducats.run.context import RunContext
from ducats.run.temperature import calibration_record, fit_temperature
from ducats.training.distributed import peak_memory_over_ranks
from ducats.training.task import headline_metric_of


def evaluate_epoch(context: RunContext, epoch: int, seconds: float, started: float) -> None:
    """Evaluate before each round, at the end, and every ``every_epochs``; record the metrics.

    Args:
        epoch: number of completed epochs.
        seconds: time that they took, without waiting for annotators.
        started: `time.monotonic` since then.
    """
    plan, every_epochs = context.plan, context.components.evaluation.every_epochs
    if epoch == 0 and context.components.initial_labels is not None:
        return  # the model has neither seen them nor been trained
    kind: Literal["stage", "interim"] = "stage"
    if epoch not in (plan.epochs, *plan.query_epochs):
        if not (every_epochs and epoch and epoch % every_epochs == 0):
            return
        kind = "interim"
    earlier = context.on_rank_zero(lambda: context.run_folder.read_records(kind))
    if any(record["epoch"] == epoch for record in earlier):
        return
    rounds = context.rounds_before(epoch)
    context.emit("evaluate", epoch, stage=rounds)
    record: dict[str, Any] = {"kind": kind, "stage": rounds, "epoch": epoch}
    record |= _spent(context, rounds)
    if context.components.test is not None:
        record |= _evaluate_test_set(context, epoch, rounds)
    memory = peak_memory_over_ranks(context.fabric)
    record |= {} if memory is None else {"peak_memory_bytes": memory}
    record["seconds"] = round(seconds + time.monotonic() - started, 3)
    context.on_rank_zero(lambda: context.run_folder.save_record(record))
    if "accuracy" in record:
        headline_name = headline_metric_of(context.components.source)
        names = dict.fromkeys((headline_name, "accuracy", "ece", "nll", "aurc"))
        values = {name: record[name] for name in names}
        context.emit("evaluate", epoch, stage=rounds, values=lambda: values)


def record_pseudo_labels(context: RunContext, epoch: int, targets: Tensor) -> None:
    """Record the number of pseudo-labels, and how many are correct if the oracle has the ground truth.

    Args:
        epoch: number of completed epochs.
        targets: acquired labels of the pool, which take precedence.
    """
    pseudo_labels = context.auxiliaries.pseudo_labels()
    if pseudo_labels is None:
        return
    image = ((pseudo_labels >= 0) & (targets == UNLABELLED)).nonzero().squeeze(1)
    rounds, oracle = context.rounds_before(epoch), context.components.oracle
    record = {"kind": "pseudo_labels", "stage": rounds, "epoch": epoch, "count": len(image)}

    def save() -> None:
        if any(earlier["epoch"] == epoch for earlier in context.run_folder.read_records("pseudo_labels")):
            return
        if isinstance(oracle, GroundTruthOracle):
            truth = oracle.known_labels(Request(rounds, image, torch.zeros_like(image)))
            record["correct"] = int((truth == pseudo_labels[image]).sum())
        context.run_folder.save_record(record)

    context.on_rank_zero(save)


def record_added_classes(context: RunContext, epoch: int) -> None:
    """Record how many images or pixels of the pool seem to belong to each class that was added.

    Args:
        epoch: number of completed epochs.
    """
    kind, rounds, classes = "added_classes", context.rounds_before(epoch), context.classes
    learnt = [name for name, added_in in classes.added if added_in <= rounds]
    if not learnt or context.on_rank_zero(
        lambda: any(record["epoch"] == epoch for record in context.run_folder.read_records(kind))
    ):
        return
    counts = count_predictions(context.test_predictor(), context.components.pool, len(classes.current))
    predicted = {str(classes.number(name)): int(counts[classes.current.index(name)]) for name in learnt}
    record = {
        "kind": kind,
        "stage": rounds,
        "epoch": epoch,
        "predicted": predicted,
        "total": int(counts.sum()),
    }
    context.on_rank_zero(lambda: context.run_folder.save_record(record))


def _spent(context: RunContext, rounds: int) -> dict[str, Any]:
    """Return what was spent in the first rounds: labels, clicks, seconds of annotators."""
    spent: dict[str, Any] = {"labels": context.from_ledger(lambda ledger: ledger.spent(rounds))}
    if context.per_pixel:
        spent["clicks"] = context.from_ledger(lambda ledger: ledger.clicks(rounds))
    seconds = context.from_ledger(lambda ledger: ledger.seconds(rounds))
    if seconds is None:
        return spent
    n_units, n_timed = context.from_ledger(
        lambda ledger: (ledger.n_units(rounds), ledger.n_timed_units(rounds))
    )
    return {
        **spent,
        "annotation_seconds": round(seconds, 3),
        "annotation_units": n_units,
        "timed_units": n_timed,
    }


def _evaluate_test_set(context: RunContext, epoch: int, rounds: int) -> dict[str, Any]:
    """Return the metrics and the counts of what was evaluated; save the confusion matrix."""
    components = context.components
    fitted = context.on_rank_zero(lambda: fit_temperature(context.run_folder, rounds))
    tempered = None if fitted is None else TemperedEvaluation(fitted.temperature)
    tally, counts = _tally(context, rounds, tempered)
    record = {"evaluated_on": components.evaluated_on, **counts}
    if not tally.total:  # nothing is left to evaluate once the whole target is labelled
        return record
    record |= _metrics(context, tally)
    assert components.test is not None
    names = components.test.classes
    if names != context.classes.names:
        record["class_names"] = list(names)  # some are not known yet, or were merged
    context.on_rank_zero(lambda: context.run_folder.save_confusion(epoch, names, tally.confusion.tolist()))
    if fitted is not None and tempered is not None and tempered.tally is not None:
        record["temperature_scaled"] = {**fitted._asdict(), **calibration_record(tempered.tally)}
    return record


def _tally(
    context: RunContext, rounds: int, tempered: TemperedEvaluation | None
) -> tuple[Tally, dict[str, Any]]:
    """Evaluate the test set; return the tally and the record's counts."""
    components, test, options = context.components, context.components.test, context.components.evaluation
    assert test is not None
    predictor = replace(context.test_predictor(), stream=("test",))
    skips_labelled = components.evaluated_on == "unlabelled"
    if not context.per_pixel:
        indices = None
        if skips_labelled:
            targets = context.known_targets(rounds)
            indices = (targets == UNLABELLED).nonzero().squeeze(1)
        tally = evaluate(predictor, test, indices=indices, tempered=tempered)
        return tally, {"images": tally.total}
    tally = evaluate_segmentation(
        predictor,
        test,
        resolution=options.resolution,
        average_flipped=options.average_flipped,
        known_labels_of=context.label_maps(rounds).at_label_resolution if skips_labelled else None,
        tempered=tempered,
    )
    resolution = describe_resolution(test, options.resolution)
    return tally, {"images": len(test), "pixels": tally.total, "resolution": resolution}


def _metrics(context: RunContext, tally: Tally) -> dict[str, Any]:
    metrics: dict[str, Any] = dict(compute_metrics(tally))
    metrics["class_accuracy"] = class_accuracy(tally.confusion)
    metrics["reliability"] = reliability_bins(tally)
    if context.per_pixel:
        test, excluded = context.components.test, context.components.evaluation.miou_star_exclude
        assert test is not None
        class_metrics = segmentation_metrics(tally.confusion, test.classes, excluded)
        metrics |= {"headline_metric": "mean_iou", **class_metrics}
    return metrics
