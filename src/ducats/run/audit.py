"""Figures of the audit: accuracy and gain of the model on images that it was not taught, with intervals."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from ducats.data.domain import UNLABELLED
from ducats.dirichlet import expected_probability
from ducats.evaluation import audit
from ducats.evaluation.audit import Interval
from ducats.ledger import Ledger, save_request
from ducats.run.context import RunContext
from ducats.run.select import empty_request
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
    if not plan.audit or context.per_pixel or (plan.release_audit and is_final):
        return
    if context.on_rank_zero(lambda: any(r["epoch"] == epoch for r in folder.read_records("audit"))):
        return
    if not is_final and context.on_rank_zero(lambda: bool(folder.read_records("stop"))):
        return
    predictor = replace(context.predictor(), view=context.components.views.test)
    z = predictor.score_images(context.components.pool, ("z",)).z
    probability, predicted = expected_probability(z).max(1)

    def record(ledger: Ledger) -> None:
        earlier = folder.read_records("audit")
        before = folder.load_pool_predictions(earlier[-1]["epoch"]) if earlier else None
        now = PoolPredictions(predicted.numpy(), probability.double().numpy())
        # After a stop, which depends on the audit, the final model is another one for each possible round.
        n_stages = len(plan.query_epochs) + 1 + (0 if plan.until is None else len(plan.query_epochs))
        figures = stage_figures(
            ledger,
            stage=stage,
            rounds=rounds,
            n_stages=n_stages,
            classes=context.components.source.classes,
            now=now,
            before=before,
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
    """
    taught, labels = ledger.targets(stage).numpy(), ledger.targets(rounds).numpy()
    audit_labels = ledger.audit_labels(rounds).numpy()
    is_sampled = labels == UNLABELLED  # the population without those that are all labelled
    is_selected = (labels >= 0) & (taught == UNLABELLED)
    is_audit = audit_labels >= 0
    n_void = int(((audit_labels != UNLABELLED) & ~is_audit).sum())
    level = audit.stage_level(stage, n_stages)
    correct = (now.predicted == audit_labels)[is_audit]
    pool_probability = now.probability[is_sampled]
    sampled = audit.accuracy_interval(
        correct, now.probability[is_audit], pool_probability, level=level, voids=n_void
    )
    n_sampled = len(pool_probability) - n_void
    selected_correct = (now.predicted == labels)[is_selected]
    accuracy = _with_known(sampled, n_sampled, int(selected_correct.sum()), len(selected_correct))
    figures: dict[str, Any] = {
        "labels": int(is_audit.sum()),
        "void": n_void,
        "images": n_sampled + len(selected_correct),
        "accuracy": accuracy.estimate,
        "low": accuracy.low,
        "high": accuracy.high,
        "overconfidence": asdict(audit.overconfidence(accuracy, now.probability[is_sampled | is_selected])),
        "classes": {
            name: asdict(interval)
            for name, interval in zip(
                classes,
                audit.class_accuracy_intervals(
                    correct,
                    audit_labels[is_audit],
                    num_classes=len(classes),
                    pool_size=len(pool_probability),
                    level=level,
                    voids=n_void,
                ),
                strict=True,
            )
        },
    }
    if before is not None:
        changed = now.predicted != before.predicted
        selected_gain = selected_correct.astype(int) - (before.predicted == labels)[is_selected]
        gain = _gain(now, before, audit_labels, is_sampled & changed, level)
        share = int((is_sampled & changed).sum())
        total = n_sampled + len(selected_correct)
        figures["gain"] = asdict(_scaled(gain, share / total, float(selected_gain.sum()) / total))
    return figures


def _gain(
    now: PoolPredictions, before: PoolPredictions, audit_labels: AnyArray, is_changed: AnyArray, level: float
) -> Interval:
    """Return the gain among the images whose prediction has changed; that of all others is 0."""
    judged = is_changed & (audit_labels >= 0)
    n_void = int((is_changed & (audit_labels < 0) & (audit_labels != UNLABELLED)).sum())
    n_changed = int(is_changed.sum())
    if n_changed == n_void:
        return Interval(0.0, 0.0, 0.0)
    return audit.gain_interval(
        (before.predicted == audit_labels)[judged],
        (now.predicted == audit_labels)[judged],
        pool_size=n_changed,
        level=level,
        voids=n_void,
    )


def _with_known(sampled: Interval, n_sampled: int, n_correct: int, n_known: int) -> Interval:
    """Combine the interval of a part of the population with the rest, which is known."""
    total = n_sampled + n_known
    return _scaled(sampled, n_sampled / total, n_correct / total) if total else sampled


def _scaled(interval: Interval, factor: float, offset: float) -> Interval:
    values = (factor * value + offset for value in (interval.estimate, interval.low, interval.high))
    return Interval(*values)


def stop_querying(context: RunContext, round_number: int, epoch: int) -> bool:
    """Return whether the stop rule ends the queries before a round; if so, its request is empty."""
    rule, folder = context.plan.until, context.run_folder
    if rule is None or context.per_pixel:
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
