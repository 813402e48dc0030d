"""The context of a run: everything that its steps read. State changes only in the model and in files."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning_fabric import Fabric
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.utils import ModelEmaV3  # type: ignore[attr-defined] # not marked as exported
from torch import Tensor, nn
from torch.optim import Optimizer

from ducats.acquisition.queries import QuerySpec
from ducats.data.domain import Images
from ducats.data.embedding_cache import EmbeddingCache
from ducats.ledger import Ledger, TargetMaps, load_ledger, open_ledger
from ducats.models import EvidentialModel
from ducats.models.classifier import Classifier
from ducats.models.freezing import embedding_network
from ducats.run.components import Components, RunPlan, place_data, probe_model, steps_per_epoch
from ducats.runfolder import checksums
from ducats.runfolder.run_folder import RunFolder
from ducats.settings import PerformanceOptions, View
from ducats.training.auxiliary import AuxiliaryModules, build_auxiliaries, compatible_view
from ducats.training.distributed import autocast_dtype, on_rank_zero
from ducats.training.ema import make_ema
from ducats.training.embed import Embedder, fixed_views
from ducats.training.fit import make_optimiser
from ducats.training.predictor import Predictor
from ducats.training.sharding import check_shardable
from ducats.training.step import Step
from ducats.training.streams import Streams, class_presence
from ducats.training.task import label_grid_sizes
from ducats.utils.errors import AwaitingLabels, UserError
from ducats.utils.progress import Event, EventListener
from ducats.utils.randomness import derive_seed

_T = TypeVar("_T")

# Called with the round and the exception that reports open questions or an invalid answer; returns when the
# answers should be checked again.
WaitCallback = Callable[[int, AwaitingLabels | UserError], None]


@dataclass(frozen=True)
class RunContext:
    """Everything that the steps of a run read, in one process."""

    components: Components  # with images and label maps where the device reads them fastest
    plan: RunPlan
    run_folder: RunFolder
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
    frozen_names: frozenset[str]  # tensors of a frozen backbone, which are not in the checkpoints
    ledger: Ledger | None  # on rank 0 only
    on_event: EventListener
    wait: WaitCallback | None

    def close(self) -> None:
        """Drop what would keep the model in memory: captured graphs, and modules that refer back to it."""
        self.train_step.release_graphs()
        self.model.auxiliaries.clear()

    def on_rank_zero(self, fn: Callable[[], _T]) -> _T:
        """Run on rank 0; broadcast the result or the exception."""
        return on_rank_zero(self.fabric, fn)

    def from_ledger(self, read: Callable[[Ledger], _T]) -> _T:
        """Read the ledger on rank 0; broadcast the result or the exception."""

        def read_ledger() -> _T:
            assert self.ledger is not None
            return read(self.ledger)

        return self.on_rank_zero(read_ledger)

    @property
    def per_pixel(self) -> bool:
        """Whether labels are maps."""
        return self.components.source.per_pixel

    def rounds_before(self, epoch: int) -> int:
        """Return the number of rounds after earlier epochs, without a round after this epoch."""
        return sum(after < epoch for after in self.plan.query_epochs)

    def rounds_through(self, epoch: int) -> int:
        """Return the number of rounds after earlier epochs and after this epoch."""
        return sum(after <= epoch for after in self.plan.query_epochs)

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

    @property
    def label_sizes(self) -> Tensor:
        """Height and width of the grid in which each pool image is labelled: int64 ``(N, 2)``."""
        return label_grid_sizes(self.components.pool, self.components.task.resolution)

    def label_maps(self, rounds: int) -> TargetMaps:
        """Return the pool's label maps after a number of rounds; each process reads the ledger."""
        pool, task = self.components.pool, self.components.task
        return TargetMaps(
            load_ledger(self.run_folder) if self.ledger is None else self.ledger,
            (int(pool.pixels.shape[-2]), int(pool.pixels.shape[-1])),
            rounds,
            void=pool.void_masks,
            resolution=task.resolution,
            fill=task.label_downsampling,
        )

    def emit(
        self,
        phase: str,
        epoch: int,
        *,
        stage: int,
        step: int | None = None,
        values: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """Report progress; only rank 0 does."""
        if self.ledger is None:
            return
        steps_per_epoch, epochs = self.streams.steps_per_epoch, self.plan.epochs
        self.on_event(
            Event(
                phase=phase,
                stage=stage,
                stages=len(self.plan.query_epochs),
                epoch=epoch,
                epochs=epochs,
                step=epoch * steps_per_epoch if step is None else step,
                steps=epochs * steps_per_epoch,
                labels=len(self.ledger),
                values=values,
            )
        )


def open_context(
    components: Components,
    plan: RunPlan,
    run_folder: RunFolder,
    fabric: Fabric,
    performance: PerformanceOptions,
    on_event: EventListener,
    wait: WaitCallback | None = None,
) -> RunContext:
    """Place the data, build model, auxiliary modules and optimiser, and open the ledger.

    Args:
        run_folder: claimed by rank 0.
        performance: resolved for the device.
    """
    copied = copy.deepcopy(components.model)
    model = copied if isinstance(copied, EvidentialModel) else EvidentialModel(copied)
    frozen_names = load_frozen_weights(run_folder, model)
    components = embed_images(components, model, fabric, performance)
    placed = place_data(components, fabric.device, performance.image_placement)
    query, n_features = probe_model(components, model)  # not `placed`: the model is not on the device yet
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
        class_presence(placed.source) if plan.source_sampling == "rare_classes" else None,
        components.objective_spec.needs_strong_view(),
        auxiliaries.read_stored_images,
    )
    ledger = _open_ledger(components, run_folder, fabric)
    return RunContext(
        placed,
        plan,
        run_folder,
        fabric,
        performance,
        model,
        wrapped_model,
        query,
        auxiliaries,
        optimiser,
        make_ema(model.network, plan.optimisation.ema_decay, fabric),
        train_step,
        streams,
        frozen_names,
        ledger,
        on_event,
        wait,
    )


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read named tensors from a .safetensors file of a run."""
    checksums.verify(path)
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise checksums.corrupt(path, error) from error


def load_frozen_weights(run_folder: RunFolder, model: EvidentialModel) -> frozenset[str]:
    """Load the weights of a frozen backbone if a run that is resumed has stored them; return their names."""
    network = embedding_network(model.network)
    if network is None:
        return frozenset()
    if run_folder.is_resumable:
        network.load_state_dict(load_weights(run_folder.frozen_path), strict=False)
    return frozenset(f"backbone.{name}" for name in network.backbone.state_dict())


def make_embedder(
    components: Components, network: Classifier, fabric: Fabric, performance: PerformanceOptions
) -> Embedder:
    """Return the frozen backbone with the fixed views and the cache of a run; moves it to the device."""
    cache = EmbeddingCache(performance.embedding_cache, performance.embedding_cache_gb)
    return Embedder.build(network, fixed_views(components.views), fabric, cache)


def unique_image_sets(components: Components) -> dict[int, Images]:
    """Return source, pool and test images by identity: the test set may be the pool."""
    test = [] if components.test is None else [components.test.images]
    return {id(images): images for images in (components.source.images, components.pool, *test)}


def embed_images(
    components: Components, model: EvidentialModel, fabric: Fabric, performance: PerformanceOptions
) -> Components:
    """Return the components with the embeddings of all images, if the model's backbone is frozen."""
    network = embedding_network(model.network)
    if network is None:
        return components
    embedder = make_embedder(components, network, fabric, performance)
    source, pool, test = components.source, components.pool, components.test
    image_sets = unique_image_sets(components)
    if fabric.world_size > 1:
        on_rank_zero(fabric, lambda: [embedder.embed(images) for images in image_sets.values()] and None)
    embedded = {key: replace(images, embeddings=embedder.embed(images)) for key, images in image_sets.items()}
    network.to("cpu")
    return replace(
        components,
        source=replace(source, images=embedded[id(source.images)]),
        pool=embedded[id(pool)],
        test=None if test is None else replace(test, images=embedded[id(test.images)]),
    )


def _open_ledger(components: Components, run_folder: RunFolder, fabric: Fabric) -> Ledger | None:
    """Open the ledger on rank 0."""
    pool, resolution = components.pool, components.task.resolution
    sizes = label_grid_sizes(pool, resolution) if components.source.per_pixel else None
    opened: list[Ledger] = []
    on_rank_zero(fabric, lambda: opened.append(open_ledger(run_folder, pool.keys, sizes, resolution)))
    return opened[0] if opened else None
