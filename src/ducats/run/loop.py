"""Active-learning loop: train, evaluate, query, label, repeat. Resumable at any line."""

import time

from ducats.data.domain import UNLABELLED
from ducats.run.audit import record_audit, stop_querying
from ducats.run.checkpoint import restore_checkpoint, save_checkpoint, save_frozen_weights, save_model
from ducats.run.context import RunContext
from ducats.run.evaluate import evaluate_epoch, record_added_classes, record_pseudo_labels
from ducats.run.hints import save_hints
from ducats.run.label import acquire_labels, record_initial_labels
from ducats.run.random_gain import record_random_gain
from ducats.run.select import select_request
from ducats.run.snapshot import save_snapshot
from ducats.run.training import KnownTargets, fit_streams, refresh_modules, weight_at
from ducats.training.ema import averaged_weights
from ducats.training.placement import place_label_maps
from ducats.training.sharding import unsharded


def run_loop(context: RunContext) -> None:
    """Train, evaluate and query until the last epoch, from the latest checkpoint.

    Each step ends by writing the file that marks it as done, and is skipped if the file exists.
    """
    plan = context.plan
    first_epoch, seconds = restore_checkpoint(context)
    if first_epoch == 0:
        save_frozen_weights(context)
        save_checkpoint(context, 0, 0.0)  # a custom model may initialise differently the next time
    targets: KnownTargets | None = None
    for epoch in range(first_epoch, plan.epochs + 1):  # number of completed epochs
        started = time.monotonic()
        with unsharded(context.model):
            refresh_auxiliaries(context, epoch)
            with averaged_weights(context.model.network, context.ema):
                evaluate_epoch(context, epoch, seconds, started)
                if epoch in (*plan.query_epochs, plan.epochs):
                    record_added_classes(context, epoch)
                if epoch in plan.query_epochs:
                    started += query_and_label(context, epoch)  # without the time waiting for annotators
                if epoch == plan.epochs:
                    rounds = context.rounds_through(epoch)
                    record_audit(context, epoch, rounds, rounds)
                    record_random_gain(context)
                    save_snapshot(context, 0, epoch, rounds)
                    break
        if targets is None or epoch in plan.query_epochs:
            targets = None  # frees device memory for the new label maps
            targets = load_targets(context, context.rounds_through(epoch))
        train_epoch(context, epoch, targets)
        seconds += time.monotonic() - started
        save_checkpoint(context, epoch + 1, seconds)
    save_model(context)
    context.emit("done", plan.epochs, stage=context.rounds_through(plan.epochs))


def query_and_label(context: RunContext, epoch: int) -> float:
    """Run a round, as far as it is not done; return the seconds spent waiting for annotators."""
    round_number, initial = context.rounds_before(epoch) + 1, context.components.initial_labels
    if round_number == 1 and initial is not None:
        record_initial_labels(context, initial)
        context.check_classes()
        return 0.0
    is_labelled = context.from_ledger(lambda ledger: ledger.n_rounds) >= round_number
    if not is_labelled:
        context.emit("query", epoch, stage=round_number - 1)
    record_audit(context, epoch, round_number - 1, round_number - 1)
    if not stop_querying(context, round_number, epoch):
        select_request(context, round_number)
    save_hints(context, round_number)
    save_snapshot(context, round_number, epoch, round_number - 1)
    waiting_seconds = 0.0 if is_labelled else acquire_labels(context, round_number)
    context.check_classes()
    record_audit(context, epoch, round_number - 1, round_number)  # if these are the first audit labels
    return waiting_seconds


def load_targets(context: RunContext, rounds: int) -> KnownTargets:
    """Return the labels after a number of rounds; label maps are placed on the device if they fit."""
    if not context.per_pixel:
        targets = context.known_targets(rounds)
        return KnownTargets(targets, None, has_labels=bool((targets != UNLABELLED).any()))
    has_labels = context.from_ledger(lambda ledger: ledger.spent(rounds) > 0)
    label_maps = place_label_maps(
        context.label_maps(rounds), context.fabric.device, context.performance.image_placement
    )
    whole_images = None
    if context.components.task.labels_whole_images:
        whole_images = context.from_ledger(
            lambda ledger: ledger.labels_per_image(rounds).nonzero().squeeze(1)
        )
    return KnownTargets(label_maps, whole_images, has_labels)


def train_epoch(context: RunContext, epoch: int, targets: KnownTargets) -> None:
    """Train for one epoch and record its losses."""
    started, plan = time.monotonic(), context.plan
    first_step = epoch * context.streams.steps_per_epoch
    context.emit("train", epoch, stage=context.rounds_through(epoch), step=first_step)  # a step may be slow
    losses = fit_streams(
        context,
        context.streams,
        epoch,
        targets,
        first_step=first_step,
        source_weight=weight_at(plan.source_weight, epoch),
        on_step=lambda step, means: context.emit(
            "train", epoch, stage=context.rounds_through(epoch), step=step, values=means
        ),
    )
    seconds = round(time.monotonic() - started, 3)
    record = {"kind": "epoch", "epoch": epoch + 1, "losses": losses, "seconds": seconds}
    context.on_rank_zero(lambda: context.run_folder.save_record(record))


def refresh_auxiliaries(context: RunContext, epoch: int) -> None:
    """Refresh the auxiliary modules with a pass over the pool, if due."""
    refresh_context = context.refresh_context(epoch)
    if epoch == context.plan.epochs or not context.auxiliaries.is_due(refresh_context):
        return
    targets = None if context.per_pixel else context.known_targets(context.rounds_before(epoch))
    if targets is not None and context.has_nothing_to_train_on(targets):
        return
    refresh_modules(context, refresh_context, targets)
    if targets is not None:
        record_pseudo_labels(context, epoch, targets)
