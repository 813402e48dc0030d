"""Figures of the audit: accuracy and gain of the model on images that it was not taught, with intervals."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from ducats.data.domain import UNLABELLED
from ducats.dirichlet import expected_probability
from ducats.evaluation import audit
from ducats.evaluation.audit import Interval
from ducats.ledger import Ledger, save_request
from ducats.run.context import RunContext
from ducats.run.pixel_audit import pixel_stage_figures, stage_predictions
from ducats.run.select import empty_request, unanswered_picks
from ducats.runfolder.audit_files import PoolPredictions
from ducats.utils.npz_columns import AnyArray


def record_audit(context: RunContext, epoch: int, stage: int, rounds: int) -> None:
    """Record the figures of the current model, from all audit labels so far, unless it is done.

    Args:
        epoch: number of completed epochs.
        stage: number of rounds whose labels the model was trained on.
        rounds: number of rounds with labels.
    """
    folder = context.run_folder
    plan, is_final = context.plan, stage == len(context.plan.query_epochs)
    if plan.release_audit and is_final:
        return

    def is_due(ledger: Ledger) -> bool:
        is_recorded = any(record["epoch"] == epoch for record in folder.read_records("audit"))
        is_stopped = not is_final and bool(folder.read_records("stop"))
        labels = ledger.audit_pixels(rounds).label if context.per_pixel else ledger.audit_labels(rounds)
        return not (is_recorded or is_stopped) and bool((labels >= 0).any())

    if not context.from_ledger(is_due):
        return
    predictor, per_pixel = context.test_predictor(), context.per_pixel
    if per_pixel:
        tally, now = stage_predictions(context, predictor, stage, rounds)
    else:
        z = predictor.score_images(context.components.pool, ("z",)).z
        probability, index = expected_probability(z).max(1)
        predicted = np.array(context.classes.current_numbers)[index.numpy()]
        now = PoolPredictions(predicted, probability.double().numpy())
    merged_into = np.array(context.classes.merged_into)

    def record(ledger: Ledger) -> None:
        earlier = folder.read_records("audit")
        before = folder.load_pool_predictions(earlier[-1]["epoch"]) if earlier else None
        if before is not None:
            before = replace(before, predicted=merged_into[before.predicted])
        # After a stop, which depends on the audit, the final model is another one for each possible round.
        n_stages = len(plan.query_epochs) + 1 + (0 if plan.until is None else len(plan.query_epochs))
        classes = context.classes.names
        if per_pixel:
            audited = ledger.audit_pixels(rounds)
            figures = pixel_stage_figures(
                audited, tally, now, before, stage=stage, n_stages=n_stages, classes=classes
            )
        else:
            figures = stage_figures(
                ledger,
                stage=stage,
                rounds=rounds,
                n_stages=n_stages,
                classes=classes,
                now=now,
                before=before,
                unanswered=unanswered_picks(folder, ledger, rounds).numpy(),
            )
        folder.save_pool_predictions(epoch, now)
        folder.save_record({"kind": "audit", "stage": stage, "epoch": epoch, **figures})

    context.from_ledger(record)


def stage_figures(
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

    The population are the images that the model was not taught. Those that the query selected in the last
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
    taught, labels = ledger.targets(stage).numpy(), ledger.targets(rounds).numpy()
    audit_labels = ledger.audit_labels(rounds).numpy()
    is_sampled = labels == UNLABELLED  # the population without those that are all labelled
    if unanswered is not None:
        is_sampled &= ~unanswered
    is_selected = (labels >= 0) & (taught == UNLABELLED)
    is_audit = is_sampled & (audit_labels >= 0)
    is_void = is_sampled & (audit_labels != UNLABELLED) & ~is_audit
    level = audit.stage_level(stage, n_stages)
    correct = (now.predicted == audit_labels)[is_audit]
    n_sampled, n_void = int(is_sampled.sum()), int(is_void.sum())
    sampled = audit.accuracy_interval(
        correct,
        now.probability[is_audit],
        pool_size=n_sampled,
        pool_confidence=float(now.probability[is_sampled].mean()) if n_sampled else 0.0,
        level=level,
        voids=n_void,
    )
    sizes = audit.population_sizes(int(is_audit.sum()), n_void, n_sampled)
    selected_correct = (now.predicted == labels)[is_selected]
    n_selected = len(selected_correct)
    pairs = [(size, size) for size in sizes]
    accuracy = audit.with_known(sampled, pairs, int(selected_correct.sum()), n_selected)
    class_accuracy = audit.class_accuracy_intervals(
        correct,
        audit_labels[is_audit],
        num_classes=len(classes),
        pool_size=n_sampled,
        level=level,
        voids=n_void,
    )
    figures: dict[str, Any] = {
        "labels": int(is_audit.sum()),
        "void": n_void,
        "images": sizes[-1] + n_selected,
        "accuracy": accuracy.estimate,
        "low": accuracy.low,
        "high": accuracy.high,
        "overconfidence": asdict(
            audit.overconfidence(accuracy, float(now.probability[is_sampled | is_selected].mean()))
        ),
        "classes": {name: asdict(interval) for name, interval in zip(classes, class_accuracy, strict=True)},
    }
    if before is not None:
        selected_before = (before.predicted == labels)[is_selected]
        gain = gain_on_sample(
            now.predicted,
            before.predicted,
            audit_labels,
            is_sampled,
            level=level,
            known_gain=int(selected_correct.sum()) - int(selected_before.sum()),
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
    n_changed, changed_void = int(is_changed.sum()), int((is_changed & is_void).sum())
    judged = is_changed & is_audit
    gain = Interval(0.0, 0.0, 0.0)
    if n_changed > changed_void:
        gain = audit.gain_interval(
            (before == audit_labels)[judged],
            (now == audit_labels)[judged],
            pool_size=n_changed,
            level=level,
            voids=changed_void,
        )
    sizes = audit.population_sizes(int(is_audit.sum()), int(is_void.sum()), int(is_sampled.sum()))
    changed_sizes = audit.population_sizes(int(judged.sum()), changed_void, n_changed)
    pairs = [(part, size) for part in changed_sizes for size in sizes if part <= size]
    return audit.with_known(gain, pairs, known_gain, n_known)


def stop_querying(context: RunContext, round_number: int, epoch: int) -> bool:
    """Return whether the stop rule ends the queries before a round; if so, its request is empty."""
    rule, folder = context.plan.until, context.run_folder
    if rule is None:
        return False

    def decide() -> bool:
        if folder.request_path(round_number).exists():
            return False
        stopped, audits = folder.read_records("stop"), folder.read_records("audit")
        reason = rule.reason(audits[-1]) if audits and not stopped else ""
        if reason:
            folder.save_record({"kind": "stop", "epoch": epoch, "round": round_number, "reason": reason})
        if reason or stopped:
            save_request(folder, empty_request(round_number))
        return bool(reason or stopped)

    return context.on_rank_zero(decide)
