"""The context of a run: everything that its steps read. State changes only in the model and in files."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from lightning_fabric import Fabric
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ducats.data.domain import Images, no_images
from ducats.data.embedding_cache import EmbeddingCache
from ducats.ledger import Ledger, TargetMaps, load_ledger, open_ledger
from ducats.models import EvidentialModel
from ducats.models.freezing import EmbeddingNetwork, embedding_network
from ducats.objectives import RefreshContext
from ducats.run.class_growth import grow_model, with_class_list
from ducats.run.components import Components, RunPlan
from ducats.run.training import TrainingContext, set_up_training
from ducats.runfolder import checksums
from ducats.runfolder.class_changes import ClassList
from ducats.runfolder.run_folder import RunFolder
from ducats.settings import PerformanceOptions, View
from ducats.training.distributed import on_rank_zero
from ducats.training.embed import Embedder, count_pixel_views, embed_image_sets, fixed_views
from ducats.training.predictor import Predictor
from ducats.training.task import label_grid_sizes
from ducats.utils.errors import AwaitingLabels, UserError
from ducats.utils.progress import Event, EventListener

_T = TypeVar("_T")

# Called with the round and the exception that reports open questions or an invalid answer; returns when the
# answers should be checked again.
WaitCallback = Callable[[int, AwaitingLabels | UserError], None]


class ClassesAdded(Exception):  # noqa: N818 - not an error
    """Classes were added: the run must be opened again, from its checkpoint, with larger tensors."""


@dataclass(frozen=True, kw_only=True)
class RunContext(TrainingContext):
    """Everything that the steps of a run read, in one process."""

    run_folder: RunFolder
    classes: ClassList
    frozen_names: frozenset[str]  # tensors of a frozen backbone, which are not in the checkpoints
    ledger: Ledger | None  # on rank 0 only
    on_event: EventListener
    wait: WaitCallback | None

    def on_rank_zero(self, fn: Callable[[], _T]) -> _T:
        """Run on rank 0; broadcast the result or the exception."""
        return on_rank_zero(self.fabric, fn)

    def from_ledger(self, read: Callable[[Ledger], _T]) -> _T:
        """Read the ledger on rank 0; broadcast the result or the exception."""

        def read_ledger() -> _T:
            assert self.ledger is not None
            return read(self.ledger)

        return self.on_rank_zero(read_ledger)

    def open_ledger(self) -> Ledger:
        """Return the ledger; processes other than rank 0 open its files."""
        return load_ledger(self.run_folder) if self.ledger is None else self.ledger

    def rounds_before(self, epoch: int) -> int:
        """Return the number of rounds after earlier epochs, without a round after this epoch."""
        return sum(after < epoch for after in self.plan.query_epochs)

    def rounds_through(self, epoch: int) -> int:
        """Return the number of rounds after earlier epochs and after this epoch."""
        return sum(after <= epoch for after in self.plan.query_epochs)

    def refresh_context(self, epoch: int) -> RefreshContext:
        """Return the position of a refresh of the auxiliary modules after a number of epochs."""
        query_epochs = self.plan.query_epochs
        round_number = query_epochs.index(epoch) + 1 if epoch in query_epochs else 0
        rounds = self.rounds_before(epoch)
        return RefreshContext(epoch, self.plan.epochs, round_number, len(query_epochs), rounds)

    def known_targets(self, rounds: int) -> Tensor:
        """Return the pool's labels to train on after a number of rounds: ``(N,)``; classification only."""
        with_audit = self._releases_audit(rounds)
        return self.from_ledger(lambda ledger: ledger.targets(rounds, with_audit=with_audit))

    def _releases_audit(self, rounds: int) -> bool:
        """Return whether audit labels are trained on after a number of rounds."""
        return self.plan.release_audit and rounds == len(self.plan.query_epochs)

    @property
    def label_sizes(self) -> Tensor:
        """Height and width of the grid in which each pool image is labelled: int64 ``(N, 2)``."""
        return label_grid_sizes(self.components.pool, self.components.task.resolution)

    def label_maps(self, rounds: int, *, with_released: bool = True) -> TargetMaps:
        """Return the pool's labels to train on after a number of rounds; each process reads the ledger.

        Args:
            with_released: include audit labels if they are trained on by then.
        """
        pool, task = self.components.pool, self.components.task
        return TargetMaps(
            self.open_ledger(),
            (int(pool.pixels.shape[-2]), int(pool.pixels.shape[-1])),
            rounds,
            void=pool.void_masks,
            resolution=task.resolution,
            fill=task.label_downsampling,
            with_audit=with_released and self._releases_audit(rounds),
        )

    def check_classes(self) -> None:
        """Raise `ClassesAdded` if labels of the run have a class that the model has no logit for."""
        if len(self.on_rank_zero(lambda: self.run_folder.classes)) > len(self.classes):
            raise ClassesAdded

    def test_predictor(self) -> Predictor:
        """Return the model with the test view; it predicts the classes in use, without merged ones."""
        return replace(self.predictor(), view=self.components.views.test, groups=self.classes.groups)

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
    classes = on_rank_zero(fabric, lambda: run_folder.classes)
    model = grow_model(model, len(components.source.classes), len(classes))
    components = with_class_list(components, classes)
    frozen_names = load_frozen_weights(run_folder, model)
    components = embed_images(components, model, fabric, performance, has_audit=bool(plan.audit))
    training = set_up_training(components, model, plan, fabric, performance)
    ledger = _open_ledger(components, run_folder, fabric)
    return RunContext(
        **vars(training),
        run_folder=run_folder,
        classes=classes,
        frozen_names=frozen_names,
        ledger=ledger,
        on_event=on_event,
        wait=wait,
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
    components: Components, network: EmbeddingNetwork, fabric: Fabric, performance: PerformanceOptions
) -> Embedder:
    """Return the frozen backbone with the fixed views and the cache of a run; moves it to the device."""
    cache = EmbeddingCache(performance.embedding_cache, performance.embedding_cache_gb)
    views = fixed_views(components.views, per_pixel=components.source.per_pixel)
    return Embedder.build(network, views, fabric, cache)


def count_fixed_views(components: Components, images: Images, *, has_audit: bool) -> int | None:
    """Return how many fixed views of an image set are used; None for all.

    Args:
        has_audit: whether audit labels of the pool are evaluated.
    """
    if not components.source.per_pixel:
        return None
    views, trained_with = components.views, list[View]()
    is_pool, test = images is components.pool, components.test
    if is_pool:
        trained_with = [views.unlabelled, views.labelled_or_source]
    elif images is components.source.images:
        trained_with = [views.source]
    return count_pixel_views(
        trained_with,
        is_evaluated=(is_pool and has_audit) or (test is not None and images is test.images),
        average_flipped=components.evaluation.average_flipped,
    )


def unique_image_sets(components: Components) -> dict[int, Images]:
    """Return source, pool and test images by identity: the test set may be the pool."""
    test = [] if components.test is None else [components.test.images]
    source = [components.source.images] if len(components.source) else []
    return {id(images): images for images in (*source, components.pool, *test)}


def embed_images(
    components: Components,
    model: EvidentialModel,
    fabric: Fabric,
    performance: PerformanceOptions,
    *,
    has_audit: bool = False,
) -> Components:
    """Return the components with the embeddings of all images, if the model's backbone is frozen.

    Args:
        has_audit: whether audit labels of the pool are evaluated.
    """
    network = embedding_network(model.network)
    if network is None:
        return components
    embedder = make_embedder(components, network, fabric, performance)
    source, pool, test = components.source, components.pool, components.test
    image_sets = unique_image_sets(components)

    def embedder_for(images: Images) -> Embedder:
        n_views = count_fixed_views(components, images, has_audit=has_audit)
        return replace(embedder, views=embedder.views[:n_views])

    work = [(embedder_for(images), images) for images in image_sets.values()]
    if fabric.world_size > 1:
        on_rank_zero(fabric, lambda: embed_image_sets(work) and None)
    embeddings = embed_image_sets(work)
    embedded = {
        key: replace(images, embeddings=found)
        for (key, images), found in zip(image_sets.items(), embeddings, strict=True)
    }
    network.to("cpu")
    return replace(
        components,
        source=replace(
            source, images=embedded[id(source.images)] if len(source) else no_images(embedded[id(pool)])
        ),
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
