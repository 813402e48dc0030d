"""Estimate the time and memory of a run on a CPU from timed epochs, before it starts."""

import copy
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from timm.utils import ModelEmaV3  # type: ignore[attr-defined] # not marked as exported
from torch import Tensor, nn

from ducats.acquisition.criteria import PROBE_COLUMNS
from ducats.acquisition.queries import QuerySpec
from ducats.acquisition.units import select_in_image
from ducats.data.domain import UNLABELLED, Domain, Images
from ducats.data.embedding_cache import EmbeddingCache
from ducats.evaluation.evaluate import evaluate_segmentation
from ducats.models import EvidentialModel
from ducats.models.freezing import (
    EmbeddingNetwork,
    embedding_dtype,
    embedding_network,
    embedding_width,
)
from ducats.models.output import Output
from ducats.models.upsampling import upsample
from ducats.objectives import ObjectiveSpec, RefreshContext
from ducats.run.components import Components, RunPlan
from ducats.run.context import count_fixed_views, make_embedder, unique_image_sets
from ducats.run.snapshot import source_samples
from ducats.runfolder import checksums
from ducats.runfolder.run_folder import RunFolder
from ducats.settings import Optimisation, PerformanceOptions, StreamViews, TaskOptions, View
from ducats.training.auxiliary import AuxiliaryModules, build_auxiliaries
from ducats.training.distributed import make_fabric
from ducats.training.ema import make_ema
from ducats.training.embed import BATCH_IMAGES, Embedder, fixed_views
from ducats.training.fit import fit_epoch, make_optimiser
from ducats.training.inputs import model_inputs
from ducats.training.predictor import Predictor
from ducats.training.step import Step, is_trusted_code
from ducats.training.streams import (
    LABELLED_BATCHES,
    BatchSplitter,
    Streams,
    full_batches,
    pad_batch,
    steps_in_epoch,
)
from ducats.utils.findings import format_duration
from ducats.utils.progress import activity
from ducats.utils.randomness import global_seed, make_generator
from ducats.utils.resources import free_memory_gb

LARGE_GB = 1.0  # embeddings of this size are mentioned
SAMPLE_IMAGES = 2  # per stream in the first step
STEP_SECONDS = 2.0  # timed steps have so many images that they take about as long, at most a full batch
MAX_TIMED_STEPS = 40  # of an epoch of a head on embeddings
MAX_TIMED_PIXEL_STEPS = 2  # the same in segmentation
PROBE_SIDE = 128  # in segmentation: side of the image from which memory is extrapolated
MIN_TIMED_SECONDS, MAX_TIMED_SECONDS = 0.5, 5.0  # of repeated calls
MIN_CALLS = 4  # unless they take longer
MAX_STREAMS = 5  # of a step: source, labelled, pseudo-labelled, unlabelled, strong
MAX_MEMORY_SHARE = 0.5  # of the free memory for timed steps
MAX_REFRESHED = 2000  # images in a timed refresh of auxiliary modules
TRAINING_FORWARDS = 3  # a training step takes about as long as three forward passes


class TargetCounts(NamedTuple):
    """Pool images that have a label or a pseudo-label during an epoch."""

    labelled: int
    pseudo_labelled: int

    @property
    def streams(self) -> tuple[bool, bool]:
        """Whether there are batches of labelled and of pseudo-labelled images."""
        return self.labelled > 0, self.pseudo_labelled > 0


@dataclass(frozen=True)
class Workload:
    """What a run has to do: numbers and shapes of the images, and the plan."""

    plan: RunPlan
    views: StreamViews
    n_source: int
    n_pool: int
    n_evaluated: int  # images of the test set; 0: none
    classes: int
    stored_shape: tuple[int, int, int]  # channels, height, width
    n_to_embed: int | None = None  # views of images for a frozen backbone; None: it is trained
    reading_seconds: float = 0.0  # to decode the images that are embedded
    task: TaskOptions | None = None  # None: classification
    average_flipped: bool = False  # whether evaluation forwards each image twice

    @property
    def per_pixel(self) -> bool:
        """Whether labels are maps."""
        return self.task is not None

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the stored images."""
        return self.stored_shape[1], self.stored_shape[2]

    def steps_per_epoch(self, *, head_only: bool) -> int:
        """Return the steps of an epoch."""
        return self.plan.steps_per_epoch or steps_in_epoch(
            self.n_source,
            self.n_pool,
            self.plan.batch_size,
            head_only=head_only,
            per_pixel=self.per_pixel,
        )

    def n_labelled(self, rounds: int) -> int:
        """Return the number of labels after so many rounds."""
        plan, n_rounds = self.plan, len(self.plan.query_epochs)
        if plan.time_budget is not None:
            per_round = plan.time_budget.questions_in_round(None, 0, 0, max(1, n_rounds))
            return min(self.n_pool, rounds * per_round)
        return min(self.n_pool, sum(plan.budget[:rounds]))

    @property
    def n_source_or_labelled(self) -> int:
        """Number of source images; without a source, all labelled images of the pool take its role."""
        return self.n_source or max(1, self.n_labelled(len(self.plan.query_epochs)))

    def images_per_step(self, counts: TargetCounts, batch_size: int, *, with_strong: bool) -> float:
        """Return the images of all streams in a step, on average over an epoch."""
        plan, split = self.plan, LABELLED_BATCHES[self.plan.labelled_batches]
        if self.per_pixel:  # labelled and unlabelled pixels are in the same images
            n_images = (self.n_source_or_labelled, self.n_pool)
            return sum(_mean_batch(count, batch_size, full_batches) for count in n_images)
        labelled, pseudo_labelled = counts
        n_unlabelled = self.n_pool - pseudo_labelled
        n_unlabelled -= 0 if plan.unlabelled_includes_labelled else labelled
        return sum(
            count * _mean_batch(n_images, batch_size, splitter)
            for n_images, splitter, count in (
                (self.n_source_or_labelled, full_batches, 1),
                (n_unlabelled, full_batches, 2 if with_strong else 1),
                (labelled, split, 1),
                (pseudo_labelled, split, 1),
            )
        )


def _mean_batch(n_images: int, batch_size: int, split: BatchSplitter) -> float:
    if n_images <= 0:
        return 0.0
    batches = split(torch.arange(n_images), batch_size)
    return sum(len(pad_batch(batch, 1)) for batch in batches) / len(batches)


@dataclass(frozen=True)
class RunEstimate:
    """Estimated cost of a run."""

    seconds: float  # of training, scoring and evaluation
    memory_gb: float  # at most, besides the decoded images
    embedding_seconds: float | None = None  # of a frozen backbone; None: nothing is embedded
    embeddings_gb: float = 0.0  # on disk

    def describe(self, finetuning: "RunEstimate | None" = None) -> str:
        """Describe the estimate in a line.

        >>> RunEstimate(9000, 3.2).describe()
        'training: about 2.5 h on this CPU, with 3.2 GB of memory besides the images'
        """
        memory = f"{self.memory_gb:.1f} GB of memory besides the images"
        if self.embedding_seconds is None:
            return f"training: about {format_duration(self.seconds)} on this CPU, with {memory}"
        is_embedded = self.embedding_seconds == 0
        size = f" ({self.embeddings_gb:.1f} GB on disk)" if self.embeddings_gb >= LARGE_GB else ""
        duration = format_duration(self.embedding_seconds)
        text = f"frozen backbone: about {duration} to embed the images, once{size}, and"
        text = "frozen backbone, all images are embedded: about" if is_embedded else text
        text += f" {format_duration(self.seconds)} to train the head, with {memory}"
        if finetuning is None:
            return text
        hours = format_duration(finetuning.seconds)
        return f"{text}; --finetune trains the whole network: about {hours}, {finetuning.memory_gb:.1f} GB"


def estimate_components(
    components: Components, plan: RunPlan, performance: PerformanceOptions
) -> tuple[RunEstimate, RunEstimate | None] | None:
    """Estimate a run on this CPU and, if its backbone is frozen, that of fine-tuning.

    Returns None for user code, which may not expect random images, and if this machine has too little memory
    for a step.
    """
    if not is_trusted_code(components.objective_spec.fn, components.model):
        return None
    model = (
        components.model
        if isinstance(components.model, EvidentialModel)
        else EvidentialModel(components.model)
    )
    pool, network = components.pool, embedding_network(model.network)
    n_to_embed, reading_seconds = None, 0.0
    if network is not None:
        embedder = make_embedder(components, copy.deepcopy(network), make_fabric("cpu"), performance)
        with activity("looking for embeddings"):
            image_sets = [
                (images, count_fixed_views(components, images, has_audit=bool(plan.audit)))
                for images in unique_image_sets(components).values()
            ]
            n_to_embed, reading_seconds = _embedding_work(embedder, image_sets)
    channels, height, width = pool.pixels.shape[1:]
    workload = Workload(
        plan=plan,
        views=components.views,
        n_source=len(components.source),
        n_pool=len(pool),
        n_evaluated=0 if components.test is None else len(components.test),
        classes=len(components.source.classes),
        stored_shape=(channels, height, width),
        n_to_embed=n_to_embed,
        reading_seconds=reading_seconds,
        task=components.task if components.source.per_pixel else None,
        average_flipped=components.evaluation.average_flipped,
    )
    return estimate_run(model, components.objective_spec, components.query_spec, workload)


def _embedding_work(embedder: Embedder, image_sets: Iterable[tuple[Images, int | None]]) -> tuple[int, float]:
    """Return the number of images in all forward passes, and the seconds to decode those that are not yet.

    Args:
        image_sets: images and the number of their fixed views; None for all.
    """
    n_forwarded, seconds = 0, 0.0
    for images, n_views in image_sets:
        missing = replace(embedder, views=embedder.views[:n_views]).find_missing(images)
        batch_size = embedder.batch_size(images)
        n_forwarded += sum(batch_size * -(-len(index) // batch_size) for index in missing)
        to_read = torch.cat(missing).unique()
        if sample := len(to_read[:BATCH_IMAGES]):
            started = time.perf_counter()
            images.pixels_for(embedder.views[0].view)[to_read[:BATCH_IMAGES]]
            seconds += (time.perf_counter() - started) * len(to_read) / sample
    return n_forwarded, seconds


def estimate_run(
    model: EvidentialModel, objective: ObjectiveSpec, query: QuerySpec, workload: Workload
) -> tuple[RunEstimate, RunEstimate | None] | None:
    """Time epochs of a copy of the model on random images; queries and snapshot files are not included.

    Returns:
        The estimate and, if the backbone is frozen, that of fine-tuning; None if this machine has too little
        memory for a step.
    """
    network = embedding_network(model.network)
    with activity("estimating the time"), torch.random.fork_rng(devices=[]):
        if not _fits_in_memory(model, workload):
            return None
        width = None if network is None else embedding_width(network, workload.image_size)
        trial = _Trial.build(model, objective, query, workload, width)
        epochs, refreshing = trial.simulate_targets()
        memory = trial.memory_bytes(max(epochs, key=sum))  # also warms up
        trial = trial if network is not None else trial.with_larger_batch(max(epochs, key=sum), memory)
        seconds = refreshing + trial.time_epochs(epochs) + trial.time_forward() * trial.n_scored()
        if workload.per_pixel:
            seconds += trial.time_pixel_queries() + trial.time_pixel_metrics()
        seconds += (len(epochs) + 1) * trial.time_files()
        if network is None or workload.n_to_embed is None:
            return RunEstimate(seconds, memory / 2**30), None
        per_image = _time_embedding(network, workload)
        embedding = workload.n_to_embed * per_image + workload.reading_seconds
        assert width is not None
        embeddings_gb = workload.n_to_embed * width * embedding_dtype(network).itemsize / 2**30
        estimate = RunEstimate(seconds, memory / 2**30, embedding, embeddings_gb)
        return estimate, _estimate_finetuning(trial, network, per_image, epochs)


def _fits_in_memory(model: EvidentialModel, workload: Workload) -> bool:
    """Return whether timed steps need less than half of the free memory, judged by one image."""
    network = embedding_network(model.network)
    if workload.per_pixel and network is not None:  # the head alone needs little
        return True
    trial = copy.deepcopy(model).requires_grad_(True).eval()
    n_images = SAMPLE_IMAGES * (2 if workload.per_pixel else MAX_STREAMS)
    needed = n_images * _kept_per_image(trial, workload, 1) + _state_bytes(trial, workload.plan.optimisation)
    return needed < _usable_bytes()


def _kept_per_image(network: nn.Module, workload: Workload, n_images: int) -> float:
    """Return the memory that a network keeps of an image for its backward pass, weights included.

    In segmentation, images may be so large that one is too much: it is extrapolated from a part of one.
    """
    pixels, share = _augment(_random_images(workload, n_images, None), workload.views.test), 1.0
    if workload.per_pixel:
        part = pixels[..., :PROBE_SIDE, :PROBE_SIDE]
        pixels, share = part, part.numel() / pixels.numel()
    return _kept_bytes(lambda: network(pixels)) / n_images / share


def _usable_bytes() -> float:
    """Return the memory that timed steps may use."""
    free = free_memory_gb()
    return math.inf if free is None else MAX_MEMORY_SHARE * free * 2**30


def _estimate_finetuning(
    trial: "_Trial", network: EmbeddingNetwork, forward_seconds: float, epochs: Sequence[TargetCounts]
) -> RunEstimate:
    """Estimate the same run with a trained backbone, from forward passes only: backward ones may be slow.

    Args:
        trial: of the frozen network.
        forward_seconds: of the backbone, for one image.
    """
    work = trial.workload
    steps = work.steps_per_epoch(head_only=False)
    per_step = {counts: trial.count_forwarded(counts) for counts in set(epochs)}
    n_trained = sum(steps * per_step[counts] for counts in epochs)
    trained = copy.deepcopy(network).requires_grad_(True).train()
    kept = _kept_per_image(trained, work, SAMPLE_IMAGES) * max(per_step.values())
    memory = _state_bytes(trained, work.plan.optimisation) + kept
    n_forwards = TRAINING_FORWARDS * n_trained + trial.n_scored()
    return RunEstimate(n_forwards * forward_seconds, memory / 2**30)


@torch.inference_mode()
def _time_embedding(network: EmbeddingNetwork, workload: Workload) -> float:
    """Return the seconds to embed one view of an image.

    Larger batches may be slower per image, so they are as large as those of `Embedder`, unless one takes
    more than `MAX_TIMED_SECONDS`.
    """
    views = fixed_views(workload.views, per_pixel=workload.per_pixel)
    embedder = Embedder(
        network=copy.deepcopy(network).eval().to(memory_format=torch.channels_last),
        views=views,
        fabric=make_fabric("cpu"),
        cache=EmbeddingCache(max_gb=0),
        backbone={},
    )
    batch_size = embedder.batch_size(_random_images(workload, 1, None))
    images = _random_images(workload, batch_size, None)
    few = _augment(_random_images(workload, min(SAMPLE_IMAGES, batch_size), None), workload.views.test)
    seconds = _seconds_per_call(lambda: embedder.network.embed(few)) / len(few)
    if seconds * batch_size > MAX_TIMED_SECONDS:
        return seconds
    index, cycle = torch.arange(batch_size), itertools.cycle(reversed(views))  # crops take longest
    return _seconds_per_call(lambda: embedder.forward(images, index, next(cycle))) / batch_size


def _state_bytes(model: nn.Module, options: Optimisation) -> int:
    """Return the memory of weights, gradients, the optimiser's state and the average of the weights."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    copies = {"sgd": 2, "adamw": 3}[options.optimiser]  # gradients and moments
    return weights + copies * trained + (0 if options.ema_decay is None else weights)


def _kept_bytes(call: Callable[[], object]) -> int:
    """Return the memory of all that a call keeps for its backward pass, weights included."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        call()
    return sum(kept.values())


@dataclass(frozen=True)
class _RandomPass:
    """Random outputs for a pool; implements `objectives.FullPass`."""

    pool_labels: Tensor
    output: Output

    def pool(self) -> Iterator[tuple[Tensor, Output]]:
        yield torch.arange(len(self.pool_labels)), self.output


@dataclass(frozen=True)
class _Trial:
    """A copy of a run's model and optimiser, trained on random images."""

    workload: Workload
    model: EvidentialModel
    auxiliaries: AuxiliaryModules
    step: Step
    ema: ModelEmaV3 | None
    query: QuerySpec
    needs_strong: bool
    embedding_width: int | None  # None: the network reads images
    batch_size: int  # of each stream in a timed step

    @classmethod
    def build(
        cls,
        model: EvidentialModel,
        objective: ObjectiveSpec,
        query: QuerySpec,
        workload: Workload,
        embedding_width: int | None,
    ) -> "_Trial":
        model, plan = copy.deepcopy(model), workload.plan
        images = _random_images(workload, 1, embedding_width)
        with torch.no_grad():
            features = model.eval()(_augment(images, workload.views.test)).features
        with global_seed(0, "estimate"):
            auxiliaries = build_auxiliaries(
                model,
                objective,
                query,
                classes=workload.classes,
                n_features=0 if features is None else int(features.shape[1]),
                pool_size=min(workload.n_pool, MAX_REFRESHED),
                per_pixel=workload.per_pixel,
                seed=0,
            )
        fabric = make_fabric("cpu")
        wrapped: Any = fabric.setup_module(model)
        optimiser: Any = fabric.setup_optimizers(
            make_optimiser(model.network, plan.optimisation, auxiliaries=model.auxiliaries)
        )
        assert plan.target_batching is not None, "filled in by `with_default_method`"
        step = Step(
            wrapped,
            optimiser,
            objective.bind_auxiliary(auxiliaries.objective_module),
            fabric,
            probes=auxiliaries.probes,
            auxiliary_parameters=model.auxiliaries.parameters(),
            target_batching=plan.target_batching,
        )
        count = plan.batch_size if embedding_width is not None else min(SAMPLE_IMAGES, plan.batch_size)
        return cls(
            workload=workload,
            model=model,
            auxiliaries=auxiliaries,
            step=step,
            ema=make_ema(model.network, plan.optimisation.ema_decay, fabric),
            query=query,
            needs_strong=objective.needs_strong_view(),
            embedding_width=embedding_width,
            batch_size=count,
        )

    def simulate_targets(self) -> tuple[list[TargetCounts], float]:
        """Return the target images of each epoch, and the seconds of all refreshes of auxiliary modules.

        Modules are refreshed with random outputs. The time of a larger pool grows with its square, as that
        of a search for neighbours.
        """
        work, plan = self.workload, self.workload.plan
        n_refreshed = min(work.n_pool, MAX_REFRESHED)
        share, seconds = work.n_pool / n_refreshed, 0.0
        epochs = list[TargetCounts]()
        known = dict[tuple[int, int], tuple[int, float]]()  # pseudo-labels and seconds of a refresh
        n_pseudo = 0
        for context in self._refresh_contexts():
            if self.auxiliaries.is_due(context) and not work.per_pixel:
                place = context.next_round, context.rounds_done
                if place not in known:
                    labelled = round(work.n_labelled(context.rounds_done) / share)
                    started = time.perf_counter()
                    self.auxiliaries.refresh(context, self._random_pass(n_refreshed, labelled))
                    found = self.auxiliaries.pseudo_labels()
                    count = 0 if found is None else round(share * int((found >= 0).sum()))
                    known[place] = count, share**2 * (time.perf_counter() - started)
                n_pseudo, passed = known[place]
                seconds += passed
            labelled = work.n_labelled(sum(after <= context.epochs_done for after in plan.query_epochs))
            epochs.append(TargetCounts(labelled if self.workload.n_source else 0, n_pseudo))
        return epochs, seconds

    def _refresh_contexts(self) -> Iterator[RefreshContext]:
        """Yield the position before each epoch."""
        plan = self.workload.plan
        rounds = len(plan.query_epochs)
        for epoch in range(plan.epochs):
            next_round = plan.query_epochs.index(epoch) + 1 if epoch in plan.query_epochs else 0
            rounds_done = sum(after < epoch for after in plan.query_epochs)
            yield RefreshContext(epoch, plan.epochs, next_round, rounds, rounds_done)

    def _random_pass(self, n_images: int, n_labelled: int) -> "_RandomPass":
        labels = torch.full((n_images,), UNLABELLED)
        labels[:n_labelled] = torch.randint(self.workload.classes, (min(n_labelled, n_images),))
        features = torch.rand(n_images, self.auxiliaries.n_features) if self.auxiliaries.n_features else None
        return _RandomPass(labels, Output(torch.randn(n_images, self.workload.classes), features))

    def with_larger_batch(self, counts: TargetCounts, needed_bytes: float) -> "_Trial":
        """Return a trial whose steps take about `STEP_SECONDS`: small batches are slower per image.

        Args:
            needed_bytes: the memory of a step with a full batch, see `memory_bytes`.
        """
        batch_size = self.workload.plan.batch_size
        count = self.batch_size * max(1.0, STEP_SECONDS / self._time_epoch(counts))
        state = _state_bytes(self.model, self.workload.plan.optimisation)
        fitting = batch_size * (_usable_bytes() - state) / max(1.0, needed_bytes - state)
        return replace(self, batch_size=int(max(self.batch_size, min(count, fitting, batch_size))))

    def time_epochs(self, epochs: Sequence[TargetCounts]) -> float:
        """Return the seconds of all epochs, from those of one for each set of streams.

        The time of a network that reads images grows with their number; that of a head hardly does.
        """
        work, is_head, total = self.workload, self.embedding_width is not None, 0.0
        steps = work.steps_per_epoch(head_only=is_head)
        for streams in sorted({counts.streams for counts in epochs}):
            similar = [counts for counts in epochs if counts.streams == streams]
            largest = max(similar, key=sum)
            per_step = self._time_epoch(largest) / self._timed_steps
            if is_head:
                total += len(similar) * steps * per_step
                continue
            n_timed = self._images_per_step(largest, self.batch_size)
            n_images = sum(self._images_per_step(counts, work.plan.batch_size) for counts in similar)
            total += steps * per_step * n_images / n_timed
        return total

    @property
    def _timed_steps(self) -> int:
        if self.embedding_width is None:
            return 1
        most = MAX_TIMED_PIXEL_STEPS if self.workload.per_pixel else MAX_TIMED_STEPS
        return min(most, self.workload.steps_per_epoch(head_only=True))

    def _time_epoch(self, counts: TargetCounts) -> float:
        """Return the seconds of an epoch of `_timed_steps`, with batches of `batch_size`."""
        streams = self._make_streams(self._timed_steps)
        return _seconds_per_call(lambda: self._train(streams, counts))

    def _make_streams(self, steps: int) -> Streams:
        work = self.workload
        source = _random_images(work, work.n_source_or_labelled, self.embedding_width)
        labels = _random_labels(work, work.n_source_or_labelled)
        return Streams(
            Domain(source, labels, tuple(map(str, range(work.classes)))),
            _random_images(work, work.n_pool, self.embedding_width),
            work.views,
            self.batch_size,
            steps,
            seed=0,
            labelled_batches=work.plan.labelled_batches,
            unlabelled_includes_labelled=work.plan.unlabelled_includes_labelled,
            with_strong_view=self.needs_strong,
            with_stored_images=self.auxiliaries.read_stored_images,
        )

    def _train(self, streams: Streams, counts: TargetCounts) -> None:
        """Train for an epoch, at a learning rate of 0: random images must not make the weights diverge."""
        work, (labelled, pseudo_labelled) = self.workload, counts
        targets, pseudo_labels = torch.full((2, work.n_pool), UNLABELLED)
        if work.per_pixel:
            targets = _random_labels(work, work.n_pool, labelled_share=0.01 if labelled else 0.0)
        else:
            targets[:labelled] = torch.randint(work.classes, (labelled,))
        pseudo_labels[labelled : labelled + pseudo_labelled] = 0

        def update_average(step: int, _: Callable[[], dict[str, float]]) -> None:
            if self.ema is not None:
                self.ema.update(self.model.network, step)

        fit_epoch(
            self.step,
            streams.epoch(0, targets, self.step.fabric, has_labels=labelled > 0, pseudo_labels=pseudo_labels),
            lambda _: 0.0,
            first_step=0,
            fabric=self.step.fabric,
            on_step=update_average,
        )

    @torch.inference_mode()
    def time_forward(self) -> float:
        """Return the seconds of a forward pass of one image, its view included."""
        self.model.eval()
        images = _random_images(self.workload, self.batch_size, self.embedding_width)
        view = self.workload.views.scoring
        return _seconds_per_call(lambda: self.model(_augment(images, view))) / len(images)

    @torch.inference_mode()
    def time_pixel_queries(self) -> float:
        """Return the seconds to select pixels in all images in all rounds, without forward passes.

        Queries for whole images need none, and those that read probes or the head are not timed.
        """
        work, task = self.workload, self.workload.task
        assert task is not None
        reads_more = self.query.needs_head or any(name in PROBE_COLUMNS for name in self.query.needs)
        if task.labels_whole_images or reads_more or not work.plan.budget:
            return 0.0
        output = self.model.eval()(
            _augment(_random_images(work, 1, self.embedding_width), work.views.scoring)
        )
        n_rounds = len(work.plan.budget)
        known = _random_labels(work, 1, labelled_share=0.001)[0]

        def select() -> object:
            return select_in_image(
                self.query,
                task,
                z=upsample(output)[0],
                features=None if output.features is None else output.features[0].float(),
                known_labels=known,
                image=0,
                pixels=_random_images(work, 1, None).pixels[0],
                budget=max(1, sum(work.plan.budget) // (n_rounds * work.n_pool)),
                generator=make_generator(0, "estimate"),
            )

        return _seconds_per_call(select) * work.n_pool * n_rounds

    def time_pixel_metrics(self) -> float:
        """Return the seconds to compute the metrics of all test images, besides their forward passes."""
        work = self.workload
        if not work.n_evaluated:
            return 0.0
        test = Domain(
            _random_images(work, 1, self.embedding_width),
            _random_labels(work, 1),
            tuple(map(str, range(work.classes))),
        )
        predictor = Predictor(model=self.model, view=work.views.test, batch_size=1, fabric=self.step.fabric)
        seconds = _seconds_per_call(lambda: evaluate_segmentation(predictor, test)) - self.time_forward()
        return max(0.0, seconds) * work.n_evaluated * (len(work.plan.query_epochs) + 1)

    def time_files(self) -> float:
        """Return the seconds to write the checkpoint and the record of an epoch, to a temporary folder."""
        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        averages = {} if self.ema is None else trained
        state, epochs = [trained, averages, self.step.optimiser.state_dict()], itertools.count()
        with tempfile.TemporaryDirectory(prefix="ducats-") as folder:
            run_folder = RunFolder(Path(folder))
            checksums.create(run_folder.path)

            def write() -> None:
                run_folder.save_record({"kind": "epoch", "epoch": next(epochs), "losses": {}, "seconds": 0.0})
                checksums.write(run_folder.checkpoint_path, lambda file: torch.save(state, file))

            return _seconds_per_call(write)

    def n_scored(self) -> int:
        """Return the number of images in all passes without gradients."""
        work, plan = self.workload, self.workload.plan
        rounds = len(plan.query_epochs)
        refreshes = sum(map(self.auxiliaries.is_due, self._refresh_contexts()))
        snapshot = min(plan.snapshot_samples, work.n_pool)
        snapshot += min(source_samples(plan.snapshot_samples), work.n_source)
        queries = rounds * work.n_pool if self.query.needs else 0
        evaluated = work.n_evaluated * (2 if work.average_flipped else 1)
        return queries + refreshes * work.n_pool + (rounds + 1) * (evaluated + snapshot)

    def memory_bytes(self, counts: TargetCounts) -> int:
        """Return the memory of weights, optimiser state and what a step keeps for its backward pass."""
        kept = _kept_bytes(lambda: self._train(self._make_streams(1), counts))
        weights = sum(p.numel() * p.element_size() for p in self.model.parameters())
        n_images, n_timed = (
            self._images_per_step(counts, size) for size in (self.workload.plan.batch_size, self.batch_size)
        )
        activations = max(0, kept - weights) * n_images / n_timed
        return _state_bytes(self.model, self.workload.plan.optimisation) + int(activations)

    def _images_per_step(self, counts: TargetCounts, batch_size: int) -> float:
        return self.workload.images_per_step(counts, batch_size, with_strong=self.needs_strong)

    def count_forwarded(self, counts: TargetCounts) -> int:
        """Return the number of images that a step forwards; needs a network that reads embeddings."""
        count = 0

        def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            nonlocal count
            count += len(inputs[0])

        hook = self.model.network.register_forward_pre_hook(note)
        self._train(self._make_streams(1), counts)
        hook.remove()
        return count


def _random_images(workload: Workload, count: int, embedding_width: int | None) -> Images:
    """Return images of the stored shape, or with embeddings; all are the same one, which takes no memory."""
    pixels = torch.randint(256, (1, *workload.stored_shape), dtype=torch.uint8).expand(count, -1, -1, -1)
    embeddings = None
    if embedding_width is not None:
        embeddings = torch.rand(1, workload.views.embedded, embedding_width).expand(count, -1, -1)
    return Images(
        tuple(map(str, range(count))),
        pixels,
        bilinear_pixels=pixels,
        aspect=torch.ones(count),
        embeddings=embeddings,
    )


def _random_labels(workload: Workload, count: int, labelled_share: float = 1.0) -> Tensor:
    """Return labels of images, ``(count,)``, or label maps, all the same one, ``(count, height, width)``.

    Args:
        labelled_share: fraction of the pixels that have a label.
    """
    if not workload.per_pixel:
        return torch.randint(workload.classes, (count,))
    labels = torch.randint(workload.classes, (1, *workload.image_size), dtype=torch.int16)
    unlabelled = torch.rand(labels.shape) >= labelled_share
    return labels.masked_fill_(unlabelled, UNLABELLED).expand(count, -1, -1)


def _augment(images: Images, view: View) -> Tensor:
    inputs, index = model_inputs(images, view), torch.arange(len(images))
    return inputs.apply(inputs.stored[index], inputs.sample_params(index, torch.Generator().manual_seed(0)))


def _seconds_per_call(call: Callable[[], object]) -> float:
    """Return the median seconds of a call, without the first one, which allocates memory."""
    seconds = list[float]()
    while sum(seconds) < (MIN_TIMED_SECONDS if len(seconds) >= MIN_CALLS else MAX_TIMED_SECONDS):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:] or seconds)
