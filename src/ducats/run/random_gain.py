"""Gain over random labels, from the audit alone: heads that are trained on as many random labels."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from ducats.acquisition.queries import QUERIES
from ducats.data.domain import UNLABELLED
from ducats.evaluation.audit import LEVEL
from ducats.ledger import Ledger
from ducats.models import EvidentialModel
from ducats.models.classifier import Classifier, EmbeddingClassifier
from ducats.models.freezing import embedding_network
from ducats.run.audit_draw import unanswered_images
from ducats.run.audit_figures import gain_on_sample
from ducats.run.context import RunContext
from ducats.run.training import (
    KnownTargets,
    TrainingContext,
    fit_streams,
    refresh_modules,
    set_up_training,
    weight_at,
)
from ducats.runfolder.records import Record
from ducats.training.ema import averaged_weights
from ducats.training.fit import adapt_optimiser_state
from ducats.training.sharding import is_sharded
from ducats.utils.npz_columns import AnyArray
from ducats.utils.progress import Activity, activity
from ducats.utils.randomness import make_generator

FOLDS = 5  # heads; each is judged on audit images that it was not trained on


@dataclass(frozen=True)
class RandomLabels:
    """Random labels for each head, as many as the model of a stage was trained on."""

    stage: int
    epoch: int  # completed epochs of that model
    counts: tuple[int, ...]  # labels of that model after each round, from 0
    image: Tensor  # (FOLDS, counts[stage]), in random order
    label: Tensor  # (FOLDS, counts[stage])
    judge: Tensor  # (pool,): the head that predicts each image; none of those it was trained on in the audit


def record_random_gain(context: RunContext) -> None:
    """Record the gain of the selected labels over random ones, or why it is not known, unless it is done.

    A query that reads nothing, such as random, is not compared.
    """
    folder = context.run_folder

    def is_due() -> bool:
        return bool(folder.read_records("audit")) and not folder.read_records("random_gain")

    if context.per_pixel or not context.query.needs or not context.on_rank_zero(is_due):
        return
    random_labels = draw(context)
    figures: Mapping[str, Any] = {"unknown": random_labels}
    if isinstance(random_labels, RandomLabels):
        predicted = predict_by_heads(context, random_labels)
        figures = compare(context, random_labels, predicted)
    record = {"kind": "random_gain", "epoch": context.plan.epochs, **figures}
    context.on_rank_zero(lambda: folder.save_record(record))


def draw(context: RunContext) -> RandomLabels | str:
    """Return random labels for the heads, or why there cannot be any."""
    if context.components.pool.embeddings is None or is_sharded(context.fabric):
        return "the network was trained as a whole, and heads can be compared on frozen features only"
    if context.classes.added or context.classes.groups is not None:
        return "classes were added or merged, and the heads cannot repeat that"
    folder, generator = context.run_folder, make_generator(context.plan.seed, "random labels")
    return context.from_ledger(
        lambda ledger: draw_random_labels(
            ledger,
            folder.read_records("audit"),
            unanswered=unanswered_images(folder, ledger, ledger.n_rounds),
            generator=generator,
        )
    )


def draw_random_labels(
    ledger: Ledger, audits: Sequence[Record], *, unanswered: Tensor, generator: torch.Generator
) -> RandomLabels | str:
    """Return random labels for each head, or why there are not enough.

    The audit is a random sample of the images that the query did not select, and those that it selected all
    have a label. A random sample of the pool is drawn from both, in proportion to their numbers.

    Args:
        audits: the figures of the audit. The last model with few enough labels is compared.
        unanswered: mask of images that the query selected, but that nobody labelled.
    """
    labels, audit_labels = ledger.targets(), ledger.audit_labels()
    selected = (labels >= 0).nonzero().squeeze(1)
    audited = ((labels == UNLABELLED) & (audit_labels >= 0)).nonzero().squeeze(1)
    is_other = (labels == UNLABELLED) & ~unanswered
    n_void = int((is_other & (audit_labels != UNLABELLED)).sum()) - len(audited)
    n_other = int(is_other.sum()) * len(audited) / max(1, len(audited) + n_void)
    selected_share = len(selected) / max(1.0, len(selected) + n_other)
    n_trained = len(audited) - ceil(len(audited) / FOLDS)  # audit labels that a head may be trained on
    counts = tuple(int((ledger.targets(rounds) >= 0).sum()) for rounds in range(ledger.n_rounds + 1))

    def from_audit(count: int) -> int:
        return count - round(selected_share * count)

    models = [(counts[one["stage"]], one["epoch"], one["stage"]) for one in audits if counts[one["stage"]]]
    comparable = [model for model in models if from_audit(model[0]) <= n_trained]
    if not comparable:
        if not models:
            return "the model was not trained on any label"
        fewest = min(models)[0]
        needed = ceil(from_audit(fewest) * FOLDS / (FOLDS - 1))
        return (
            f"the model had {fewest} labels after its first round already, and {len(audited)} audit labels "
            f"cannot stand in for as many random ones; with {needed} they could"
        )
    count, epoch, stage = max(comparable)
    judge = torch.randperm(len(labels), generator=generator) % FOLDS
    judge[audited[torch.randperm(len(audited), generator=generator)]] = torch.arange(len(audited)) % FOLDS
    images = []
    for head in range(FOLDS):
        others = audited[judge[audited] != head]
        parts = [(others, from_audit(count)), (selected, count - from_audit(count))]
        sample = torch.cat([part[torch.randperm(len(part), generator=generator)[:n]] for part, n in parts])
        images.append(sample[torch.randperm(count, generator=generator)])
    image = torch.stack(images)
    known = torch.where(labels >= 0, labels, audit_labels)
    return RandomLabels(stage, epoch, counts, image, known[image], judge)


def predict_by_heads(context: RunContext, random_labels: RandomLabels) -> AnyArray:
    """Train the heads as the run was; return the class of each pool image by the head that judges it.

    Before the first round, all heads are the same and are trained once.
    """
    training, end = _set_up(context), random_labels.epoch
    first = context.plan.query_epochs[0]
    unlabelled = torch.full((len(context.components.pool),), UNLABELLED)
    predicted = torch.zeros_like(unlabelled)
    try:
        with activity("comparing with random labels", total=first + FOLDS * (end - first)) as progress:
            _train(context, training, range(first), lambda _rounds: unlabelled, progress)
            start = _copy_state(training)
            for head in range(FOLDS):
                image, label = random_labels.image[head], random_labels.label[head]

                def targets(rounds: int, image: Tensor = image, label: Tensor = label) -> Tensor:
                    n = random_labels.counts[rounds]
                    return unlabelled.index_put((image[:n],), label[:n])

                _restore_state(training, start)
                _train(context, training, range(first, end), targets, progress)
                predictor = replace(training.predictor(), view=context.components.views.test)
                with averaged_weights(training.model.network, training.ema):
                    z = predictor.score_images(context.components.pool, ("z",)).z
                predicted = torch.where(random_labels.judge == head, z.argmax(1), predicted)
    finally:
        training.close()
    return predicted.numpy()


def compare(context: RunContext, random_labels: RandomLabels, predicted: AnyArray) -> dict[str, Any]:
    """Return the accuracy of the model minus that of the heads on images that the query did not select."""
    folder = context.run_folder

    def read(ledger: Ledger) -> dict[str, Any]:
        unanswered = unanswered_images(folder, ledger, ledger.n_rounds)
        is_other = ((ledger.targets() == UNLABELLED) & ~unanswered).numpy()
        audit_labels = ledger.audit_labels().numpy()
        model = folder.load_pool_predictions(random_labels.epoch).predicted
        gain = gain_on_sample(model, predicted, audit_labels, is_other, level=LEVEL)
        return {
            "stage": random_labels.stage,
            "labels": random_labels.counts[random_labels.stage],
            "all_labels": random_labels.counts[-1],
            "audit_labels": int((is_other & (audit_labels >= 0)).sum()),
            **asdict(gain),
        }

    return context.from_ledger(read)


def _set_up(context: RunContext) -> TrainingContext:
    """Return a new head with the initial weights of the run."""
    model = context.components.model
    network = embedding_network(model.network if isinstance(model, EvidentialModel) else model)
    assert isinstance(network, Classifier), "the pool has embeddings"
    head = EmbeddingClassifier(
        network.embedding_width,
        network.head.out_features,
        bottleneck=network.head.in_features,
        bottleneck_relu=any(isinstance(layer, nn.ReLU) for layer in network.bottleneck),
    )
    head.bottleneck.load_state_dict(network.bottleneck.state_dict())
    head.head.load_state_dict(network.head.state_dict())
    return set_up_training(
        replace(context.components, query=QUERIES["random"]),  # without probes for the query
        EvidentialModel(head, context.model.evidence),
        context.plan,
        context.fabric,
        # New labels change the shape of the batches too often for CUDA graphs.
        replace(context.performance, cuda_graphs=False),
    )


def _train(
    context: RunContext,
    training: TrainingContext,
    epochs: Iterable[int],
    targets: Callable[[int], Tensor],
    progress: Activity,
) -> None:
    """Train as the run does, with the given labels after each number of rounds."""
    for epoch in epochs:
        position, known = context.refresh_context(epoch), targets(context.rounds_before(epoch))
        if training.auxiliaries.is_due(position) and not training.has_nothing_to_train_on(known):
            refresh_modules(training, position, known)
        labels = targets(context.rounds_through(epoch))
        fit_streams(
            training,
            training.streams,
            epoch,
            KnownTargets(labels, None, has_labels=bool((labels >= 0).any())),
            first_step=epoch * training.streams.steps_per_epoch,
            source_weight=weight_at(context.plan.source_weight, epoch),
            on_step=lambda _step, _means: None,
        )
        progress.advance()


def _copy_state(training: TrainingContext) -> dict[str, Any]:
    """Return a copy of all that changes with training."""
    ema = {} if training.ema is None else training.ema.module.state_dict()
    return copy.deepcopy(
        {
            "network": training.model.network.state_dict(),
            "auxiliaries": training.model.auxiliaries.state_dict(),
            "optimiser": training.optimiser.state_dict(),
            "ema": ema,
        }
    )


def _restore_state(training: TrainingContext, state: dict[str, Any]) -> None:
    """Restore a copy of the state."""
    training.model.network.load_state_dict(state["network"])
    training.model.auxiliaries.load_state_dict(state["auxiliaries"])
    training.optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))
    adapt_optimiser_state(training.optimiser, fused=bool(training.performance.fused_optimiser))
    if training.ema is not None:
        training.ema.module.load_state_dict(state["ema"])
