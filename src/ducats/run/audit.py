"""Audit of a run: the figures of each model are recorded, and may end the queries."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ducats.data.domain import UNLABELLED
from ducats.dirichlet import expected_probability
from ducats.evaluation.evaluate import log_probabilities
from ducats.ledger import Ledger, PixelLabels, save_request
from ducats.run.audit_draw import random_pixels, unanswered_images, unanswered_pixels
from ducats.run.audit_figures import PoolTally, image_figures, pixel_figures
from ducats.run.components import pixels_per_image
from ducats.run.context import RunContext
from ducats.run.select import empty_request
from ducats.runfolder.audit_files import PoolPredictions
from ducats.training.distributed import all_gather_rows, all_ranks_or_raise, all_reduce_sum
from ducats.training.predictor import Predictor, check_finite
from ducats.utils.npz_columns import AnyArray

SPARE_PIXELS = 1000  # further pixels of the random order whose predictions are kept, for later audit labels


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
        tally, now = _predict_pixels(context, predictor, stage, rounds)
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
            figures = pixel_figures(
                audited, tally, now, before, stage=stage, n_stages=n_stages, classes=classes
            )
        else:
            figures = image_figures(
                ledger,
                stage=stage,
                rounds=rounds,
                n_stages=n_stages,
                classes=classes,
                now=now,
                before=before,
                unanswered=unanswered_images(folder, ledger, rounds).numpy(),
            )
        folder.save_pool_predictions(epoch, now)
        folder.save_record({"kind": "audit", "stage": stage, "epoch": epoch, **figures})

    context.from_ledger(record)


def _predict_pixels(
    context: RunContext, predictor: Predictor, stage: int, rounds: int
) -> tuple[PoolTally, PoolPredictions]:
    """Predict the pool; all processes take part, and all get the sums and the predictions of single pixels.

    The population is the pixels that the model was not trained on. Those that the query selected in the last
    round, after the model was trained, all have a label.

    Args:
        stage: number of rounds whose labels the model was trained on.
        rounds: number of rounds with labels, one more or equal.
    """
    components, fabric = context.components, context.fabric
    ledger, classes = context.open_ledger(), len(context.classes)
    numbers = torch.tensor(context.classes.current_numbers)  # of the classes that the model predicts
    trained_on, labelled = (context.label_maps(n, with_released=False) for n in (stage, rounds))
    unanswered_of = unanswered_pixels(context.run_folder, ledger, rounds)
    image, position = _followed_pixels(context, ledger.audit_pixels(rounds))
    average_flipped, sizes = components.evaluation.average_flipped, context.label_sizes.tolist()
    tally = PoolTally.empty(classes)
    rows = [torch.zeros(0, 3, dtype=torch.float64)]

    def add_image(log_p: Tensor, number: int) -> None:
        probability = log_p.exp()
        confidence, index = (values.flatten().cpu() for values in probability.max(0))
        predicted = numbers[index]
        trained_labels = trained_on.at_label_resolution(number).flatten()
        labels = trained_labels if rounds == stage else labelled.at_label_resolution(number).flatten()
        is_sampled, is_known = labels == UNLABELLED, (labels >= 0) & (trained_labels == UNLABELLED)
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
