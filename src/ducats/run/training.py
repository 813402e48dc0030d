"""Training in one process: model, optimiser and streams, without files. A run adds a folder and a ledger."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric
from timm.utils import ModelEmaV3  # type: ignore[attr-defined] # not marked as exported
from torch import Tensor, nn
from torch.optim import Optimizer

from ducats.acquisition.queries import QuerySpec
from ducats.data.domain import VOID, Domain, Labels, labelled_subset
from ducats.dirichlet import compile_formulas
from ducats.models import EvidentialModel
from ducats.objectives import RefreshContext
from ducats.run.components import Components, RunPlan, place_data, probe_model, steps_per_epoch
from ducats.settings import PerformanceOptions, View
from ducats.training.auxiliary import AuxiliaryModules, PredictorPass, build_auxiliaries, compatible_view
from ducats.training.distributed import autocast_dtype, average_buffers, broadcast_buffers
from ducats.training.ema import make_ema
from ducats.training.fit import fit_epoch, make_optimiser
from ducats.training.predictor import Predictor
from ducats.training.sharding import check_shardable
from ducats.training.step import Step
from ducats.training.streams import Streams, class_presence
from ducats.utils.randomness import derive_seed, global_seed


@dataclass(frozen=True, kw_only=True)
class TrainingContext:
    """Everything that training, scoring and queries read, in one process."""

    components: Components  # with images and label maps where the device reads them fastest
    plan: RunPlan
    fabric: Fabric
    performance: PerformanceOptions  # resolved for the device
    model: EvidentialModel
    wrapped_model: nn.Module  # the same, set up by Fabric
    query: QuerySpec
    auxiliaries: AuxiliaryModules
    optimiser: Optimizer
    ema: ModelEmaV3 | None  # moving average of the network's weights
    train_step: Step
    streams: Streams

    def close(self) -> None:
        """Drop what would keep the model in memory: captured graphs, and modules that refer back to it."""
        self.train_step.release_graphs()
        self.model.auxiliaries.clear()

    @property
    def per_pixel(self) -> bool:
        """Whether labels are maps."""
        return self.components.source.per_pixel

    @property
    def has_source(self) -> bool:
        """Whether there are labelled source images."""
        return len(self.components.source) > 0

    def has_nothing_to_train_on(self, labels: Labels) -> bool:
        """Return whether there is nothing to train on: neither a source nor a label of the pool."""
        return not self.has_source and not bool((torch.as_tensor(labels[:]) >= 0).any())

    def source_or_labelled(self, labels: Labels) -> Domain:
        """Return the source; without one, the labelled images of the pool."""
        source = self.components.source
        if self.has_source:
            return source
        return labelled_subset(self.components.pool, torch.as_tensor(labels[:]), source.classes)

    def predictor(self, *, seed: int = 0) -> Predictor:
        """Return the model with the scoring view; the seed is that of its random augmentation."""
        return Predictor(
            model=self.wrapped_model,
            view=self.components.views.scoring,
            batch_size=self.plan.scoring_batch_size,
            fabric=self.fabric,
            seed=seed,
            two_step_upsampling=self.components.task.two_step_upsampling,
        )

    def round_predictor(self, round_number: int) -> Predictor:
        """Return the predictor of a round, 0 at the end of the run.

        A view with random augmentation shows the pool in the same way to the query, to the hints for
        annotators and to the snapshot.
        """
        stream = "query" if self.per_pixel else "scoring"
        return self.predictor(seed=derive_seed(self.plan.seed, stream, round_number) if round_number else 0)

    def source_view(self) -> View:
        """Return the scoring view as far as it applies to source images."""
        return compatible_view(self.components.source.images, self.components.views.scoring)


def set_up_training(
    components: Components,
    model: EvidentialModel,
    plan: RunPlan,
    fabric: Fabric,
    performance: PerformanceOptions,
) -> TrainingContext:
    """Place the data, and build auxiliary modules, optimiser and streams.

    Args:
        components: their model is not used.
        model: trained in place.
        performance: resolved for the device.
    """
    placed = place_data(components, fabric.device, performance.image_placement)
    # Not `placed`: the model is not on the device yet.
    has_pool = len(components.pool) > 0
    query, n_features = probe_model(
        components if has_pool else replace(components, pool=components.source.images), model
    )
    auxiliaries = build_auxiliaries(
        model,
        components.objective_spec,
        query,
        classes=len(components.source.classes),
        n_features=n_features,
        pool_size=len(components.pool),
        per_pixel=components.source.per_pixel,
        seed=plan.seed,
        autocast_dtype=autocast_dtype(fabric),
    )
    if performance.channels_last:
        model.to(memory_format=torch.channels_last)
    check_shardable(model, fabric)
    wrapped_model = fabric.setup_module(model)
    optimiser = make_optimiser(  # after the set-up, which may have sharded the weights
        model.network,
        plan.optimisation,
        fused=bool(performance.fused_optimiser),
        capturable=bool(performance.cuda_graphs),
        auxiliaries=model.auxiliaries,
    )
    fabric_optimiser: Any = fabric.setup_optimizers(optimiser)
    assert plan.target_batching is not None, "filled in by `with_default_method`"
    train_step = Step(
        wrapped_model,
        fabric_optimiser,
        components.objective_spec.bind_auxiliary(auxiliaries.objective_module),
        fabric,
        use_cuda_graphs=bool(performance.cuda_graphs),
        max_grad_norm=plan.optimisation.clip_grad_norm,
        probes=auxiliaries.probes,
        auxiliary_parameters=model.auxiliaries.parameters(),
        target_batching=plan.target_batching,
        source_is_target=not len(components.source),
    )
    streams = Streams(
        placed.source,
        placed.pool,
        placed.views,
        plan.batch_size,
        steps_per_epoch(placed, plan),
        plan.seed,
        plan.labelled_batches,
        plan.unlabelled_includes_labelled,
        _presence(placed.source, plan),
        components.objective_spec.needs_strong_view(),
        auxiliaries.read_stored_images,
    )
    return TrainingContext(
        components=placed,
        plan=plan,
        fabric=fabric,
        performance=performance,
        model=model,
        wrapped_model=wrapped_model,
        query=query,
        auxiliaries=auxiliaries,
        optimiser=optimiser,
        ema=make_ema(model.network, plan.optimisation.ema_decay, fabric),
        train_step=train_step,
        streams=streams,
    )


def _presence(source: Domain, plan: RunPlan) -> Tensor | None:
    return class_presence(source) if plan.source_sampling == "rare_classes" else None


class KnownTargets(NamedTuple):
    """Labels of the pool that training may use."""

    labels: Labels  # of images or pixels; UNLABELLED and VOID are negative
    whole_images: Tensor | None  # indices of the images that were labelled whole, if that is the unit
    has_labels: bool  # whether any label was acquired


def fit_streams(
    context: TrainingContext,
    streams: Streams,
    epoch: int,
    targets: KnownTargets,
    *,
    first_step: int,
    source_weight: float = 1.0,
    on_step: Callable[[int, Callable[[], dict[str, float]]], None],
) -> dict[str, float]:
    """Train on one epoch of the streams; return the mean of each loss.

    Without a source, labelled images of the pool take its role; before the first label, nothing is trained.

    Args:
        epoch: determines the batches, together with the seed.
        first_step: number of steps before this epoch.
        on_step: see `fit_epoch`.
    """
    plan, fabric, labels = context.plan, context.fabric, targets.labels
    if not context.has_source:
        if context.has_nothing_to_train_on(labels):
            return {}
        assert isinstance(labels, Tensor)
        source = context.source_or_labelled(labels)
        streams, source_weight = replace(streams, source=source, class_presence=_presence(source, plan)), 1.0
        labels = torch.where(labels >= 0, VOID, labels)  # not trained on twice
    batches = streams.epoch(
        epoch,
        labels,
        fabric,
        whole_images=targets.whole_images,
        has_labels=targets.has_labels,
        pseudo_labels=context.auxiliaries.pseudo_labels(),
    )

    def update_ema(step: int, means: Callable[[], dict[str, float]]) -> None:
        if context.ema is not None:
            context.ema.update(context.model.network, step)
        on_step(step, means)

    with (
        global_seed(plan.seed, "network", epoch, fabric.global_rank),
        compile_formulas(bool(context.performance.compile)),
    ):
        losses = fit_epoch(
            context.train_step,
            batches,
            plan.schedule,
            first_step=first_step,
            fabric=fabric,
            source_weight=source_weight,
            on_step=update_ema,
        )
    if context.ema is not None:
        average_buffers(context.ema.module, fabric)
    return losses


def refresh_modules(
    context: TrainingContext, refresh_context: RefreshContext, targets: Tensor | None
) -> None:
    """Refresh the auxiliary modules that are due with a pass over the pool.

    Args:
        targets: known labels of the pool; None in segmentation.
    """
    seed = context.plan.seed
    full_pass = PredictorPass(context.predictor(seed=seed), context.components.pool, targets)
    with global_seed(seed, "refresh", refresh_context.epochs_done):
        context.auxiliaries.refresh(refresh_context, full_pass)
    broadcast_buffers(context.model.auxiliaries, context.fabric)


def weight_at(weights: Mapping[int, float], epoch: int) -> float:
    """Return the weight of an epoch.

    >>> weight_at({0: 1.0, 1: 0.5}, 0), weight_at({0: 1.0, 1: 0.5}, 7)
    (1.0, 0.5)
    """
    return weights[max(start for start in weights if start <= epoch)]
