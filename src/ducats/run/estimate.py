"""Estimate the time and memory of a classifier's run on a CPU from timed steps, before it starts."""

import copy
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ducats.acquisition.queries import QuerySpec
from ducats.data.domain import Images
from ducats.models import EvidentialModel
from ducats.models.classifier import Classifier
from ducats.models.freezing import embedding_network
from ducats.objectives import Batch, LabelledImages, ObjectiveSpec, RefreshContext
from ducats.run.components import Components, RunPlan
from ducats.run.context import make_embedder, unique_image_sets
from ducats.run.snapshot import source_samples
from ducats.settings import Optimisation, PerformanceOptions, StreamViews, View
from ducats.training.auxiliary import AuxiliaryModules, build_auxiliaries
from ducats.training.distributed import make_fabric
from ducats.training.embed import fixed_views
from ducats.training.fit import make_optimiser
from ducats.training.inputs import model_inputs
from ducats.training.step import Step, is_trusted_code
from ducats.training.streams import steps_in_epoch
from ducats.utils.findings import format_duration
from ducats.utils.progress import activity
from ducats.utils.randomness import global_seed
from ducats.utils.resources import free_memory_gb

SAMPLE_IMAGES = 2  # per stream in the first step
STEP_SECONDS = 3.0  # timed steps have so many images that they take about as long, at most a full batch
EMBEDDED_IMAGES = 8  # in a timed forward pass
MIN_TIMED_SECONDS = 0.5  # fast calls are repeated
MAX_WARM_UP_SECONDS = 2.0  # a slower first call is counted, and the only one
MAX_STREAMS = 5  # of a step: source, labelled, pseudo-labelled, unlabelled, strong
MAX_MEMORY_SHARE = 0.5  # of the free memory for timed steps
TRAINING_FORWARDS = 3  # a training step takes about as long as three forward passes


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

    def n_steps(self, *, head_only: bool) -> tuple[tuple[bool, int], ...]:
        """Return the training steps without (False) and with (True) target labels."""
        per_epoch = self.plan.steps_per_epoch or steps_in_epoch(
            self.n_source, self.n_pool, self.plan.batch_size, head_only=head_only
        )
        first_round = self.plan.query_epochs[0] if self.plan.query_epochs else self.plan.epochs
        return (False, first_round * per_epoch), (True, (self.plan.epochs - first_round) * per_epoch)


@dataclass(frozen=True)
class RunEstimate:
    """Estimated cost of a run."""

    seconds: float  # of training, scoring and evaluation
    memory_gb: float  # at most, besides the decoded images
    embedding_seconds: float | None = None  # of a frozen backbone; None: nothing is embedded

    def describe(self, finetuning: "RunEstimate | None" = None) -> str:
        """Describe the estimate in a line.

        >>> RunEstimate(9000, 3.2).describe()
        'training: about 2.5 h on this CPU, with 3.2 GB of memory besides the images'
        """
        memory = f"{self.memory_gb:.1f} GB of memory besides the images"
        if self.embedding_seconds is None:
            return f"training: about {format_duration(self.seconds)} on this CPU, with {memory}"
        is_embedded = self.embedding_seconds == 0
        text = (
            f"frozen backbone: about {format_duration(self.embedding_seconds)} to embed the images, once, and"
        )
        text = "frozen backbone, all images are embedded: about" if is_embedded else text
        text += f" {format_duration(self.seconds)} to train the head, with {memory}"
        if finetuning is None:
            return text
        hours = format_duration(finetuning.seconds)
        return f"{text}; --finetune trains the whole network: about {hours}, {finetuning.memory_gb:.1f} GB"


def estimate_components(
    components: Components, plan: RunPlan, performance: PerformanceOptions
) -> tuple[RunEstimate, RunEstimate | None] | None:
    """Estimate the run of a classifier on this CPU and, if its backbone is frozen, that of fine-tuning.

    Returns None for segmentation, for user code, which may not expect random images, and if this machine has
    too little memory for a step.
    """
    if components.source.per_pixel or not is_trusted_code(components.objective_spec.fn, components.model):
        return None
    model = (
        components.model
        if isinstance(components.model, EvidentialModel)
        else EvidentialModel(components.model)
    )
    pool, network, n_to_embed = components.pool, embedding_network(model.network), None
    if network is not None:
        embedder = make_embedder(components, copy.deepcopy(network), make_fabric("cpu"), performance)
        with activity("looking for embeddings"):
            n_to_embed = sum(map(embedder.count_missing, unique_image_sets(components).values()))
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
    )
    return estimate_run(model, components.objective_spec, components.query_spec, workload)


def estimate_run(
    model: EvidentialModel, objective: ObjectiveSpec, query: QuerySpec, workload: Workload
) -> tuple[RunEstimate, RunEstimate | None] | None:
    """Time steps of a copy of the model on random images; queries and reading are not included.

    Returns:
        The estimate and, if the backbone is frozen, that of fine-tuning; None if this machine has too little
        memory for a step.
    """
    network = embedding_network(model.network)
    with activity("estimating the time"), torch.random.fork_rng(devices=[]):
        if not _fits_in_memory(model, workload):
            return None
        trial = _Trial.build(
            model, objective, query, workload, None if network is None else network.embedding_width
        )
        memory = trial.memory_bytes() / 2**30  # also warms up
        trial = trial if network is not None else trial.with_larger_batch()
        seconds = trial.time_forward() * trial.n_scored()
        for has_labels, n_steps in workload.n_steps(head_only=network is not None):
            seconds += n_steps * trial.time_step(has_labels=has_labels) if n_steps else 0.0
        if network is None or workload.n_to_embed is None:
            return RunEstimate(seconds, memory), None
        per_image = _time_embedding(network, workload)
        estimate = RunEstimate(seconds, memory, workload.n_to_embed * per_image)
        return estimate, _estimate_finetuning(trial, network, per_image)


def _fits_in_memory(model: EvidentialModel, workload: Workload) -> bool:
    """Return whether timed steps need less than half of the free memory, judged by one image."""
    image = _augment(_random_images(workload, 1, None), workload.views.test)
    trial = copy.deepcopy(model).requires_grad_(True).eval()
    n_images = SAMPLE_IMAGES * MAX_STREAMS
    needed = n_images * _kept_bytes(lambda: trial(image)) + _state_bytes(trial, workload.plan.optimisation)
    free = free_memory_gb()
    return free is None or needed < MAX_MEMORY_SHARE * free * 2**30


def _estimate_finetuning(trial: "_Trial", network: Classifier, forward_seconds: float) -> RunEstimate:
    """Estimate the same run with a trained backbone, from forward passes only: backward ones may be slow.

    Args:
        trial: of the frozen network.
        forward_seconds: of the backbone, for one image.
    """
    work = trial.workload
    n_images, n_forwarded = trial.n_scored(), 0
    for has_labels, n_steps in work.n_steps(head_only=False):
        n_forwarded = trial.count_forwarded(has_labels=has_labels)
        n_images += TRAINING_FORWARDS * n_steps * n_forwarded
    trained = copy.deepcopy(network).requires_grad_(True)
    pixels = _augment(_random_images(work, SAMPLE_IMAGES, None), work.views.test)
    kept = _kept_bytes(lambda: trained.train()(pixels)) * n_forwarded // SAMPLE_IMAGES
    memory = _state_bytes(trained, work.plan.optimisation) + kept
    return RunEstimate(n_images * forward_seconds, memory / 2**30)


@torch.inference_mode()
def _time_embedding(network: Classifier, workload: Workload) -> float:
    """Return the seconds to embed one view of an image."""
    network = copy.deepcopy(network).eval().to(memory_format=torch.channels_last)
    images = _random_images(workload, EMBEDDED_IMAGES, None)
    views = itertools.cycle(reversed(fixed_views(workload.views)))  # crops take longer than the centre

    def embed() -> None:
        pixels = next(views).apply(images.pixels[:], None)
        network.embed(pixels.contiguous(memory_format=torch.channels_last))

    return _seconds_per_call(embed) / EMBEDDED_IMAGES


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
class _Trial:
    """A copy of a run's model and optimiser, trained on random images."""

    workload: Workload
    model: EvidentialModel
    auxiliaries: AuxiliaryModules
    step: Step
    query: QuerySpec
    needs_strong: bool
    embedding_width: int | None  # None: the network reads images
    stored: Images  # of each stream in a timed step; times are scaled to the batch size

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
                pool_size=workload.n_pool,
                per_pixel=False,
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
        stored = _random_images(workload, count, embedding_width)
        needs_strong = objective.needs_strong_view()
        return cls(workload, model, auxiliaries, step, query, needs_strong, embedding_width, stored)

    def with_larger_batch(self) -> "_Trial":
        """Return a trial whose steps take about `STEP_SECONDS`: small batches are slower per image."""
        self.step.model.train()
        seconds = _seconds_per_call(lambda: self.step(self._make_batch(has_labels=True), 1.0), warm_up=False)
        count = int(len(self.stored) * max(1.0, STEP_SECONDS / seconds))
        count = min(count, self.workload.plan.batch_size)
        return replace(self, stored=_random_images(self.workload, count, self.embedding_width))

    def time_step(self, *, has_labels: bool) -> float:
        """Return the seconds of a training step, its augmentation included."""
        self.step.model.train()
        seconds = _seconds_per_call(lambda: self.step(self._make_batch(has_labels), 1.0), warm_up=False)
        return seconds * self.workload.plan.batch_size / len(self.stored)

    @torch.inference_mode()
    def time_forward(self) -> float:
        """Return the seconds of a forward pass of one image, its view included."""
        self.model.eval()
        view = self.workload.views.scoring
        return _seconds_per_call(lambda: self.model(_augment(self.stored, view))) / len(self.stored)

    def n_scored(self) -> int:
        """Return the number of images in all passes without gradients."""
        work, plan = self.workload, self.workload.plan
        rounds = len(plan.query_epochs)
        refreshes = 0
        for epoch in range(plan.epochs):
            next_round = plan.query_epochs.index(epoch) + 1 if epoch in plan.query_epochs else 0
            rounds_done = sum(after < epoch for after in plan.query_epochs)
            refreshes += self.auxiliaries.is_due(
                RefreshContext(epoch, plan.epochs, next_round, rounds, rounds_done)
            )
        snapshot = min(plan.snapshot_samples, work.n_pool)
        snapshot += min(source_samples(plan.snapshot_samples), work.n_source)
        queries = rounds * work.n_pool if self.query.needs else 0
        return queries + refreshes * work.n_pool + (rounds + 1) * (work.n_evaluated + snapshot)

    def memory_bytes(self) -> int:
        """Return the memory of weights, optimiser state and what a step keeps for its backward pass."""
        self.step.model.train()
        kept = _kept_bytes(lambda: self.step(self._make_batch(has_labels=True), 1.0))
        weights = sum(p.numel() * p.element_size() for p in self.model.parameters())
        activations = max(0, kept - weights) * self.workload.plan.batch_size // len(self.stored)
        return _state_bytes(self.model, self.workload.plan.optimisation) + activations

    def count_forwarded(self, *, has_labels: bool) -> int:
        """Return the number of images that a step forwards; needs a network that reads embeddings."""
        count = 0

        def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            nonlocal count
            count += len(inputs[0])

        hook = self.model.network.register_forward_pre_hook(note)
        self.step(self._make_batch(has_labels), 1.0)
        hook.remove()
        return count

    def _make_batch(self, has_labels: bool) -> Batch:
        views, stored = self.workload.views, self.stored

        def augment(view: View) -> Tensor:
            return _augment(stored, view)

        def labelled(view: View) -> LabelledImages:
            return LabelledImages(augment(view), torch.randint(self.workload.classes, (len(stored),)))

        target_view = views.labelled_or_source
        has_pseudo_labels = has_labels and self.auxiliaries.pseudo_labels() is not None
        reads_stored = self.auxiliaries.read_stored_images
        raw = stored.embeddings if stored.embeddings is not None else stored.pixels[:]
        return Batch(
            labelled(views.source),
            labelled(target_view) if has_labels else None,
            augment(views.unlabelled),
            strong=augment(views.strong_or_default) if self.needs_strong else None,
            pseudo_labelled=labelled(target_view) if has_pseudo_labels else None,
            stored_source=raw if reads_stored else None,
            stored_labelled=raw if reads_stored and has_labels else None,
        )


def _random_images(workload: Workload, count: int, embedding_width: int | None) -> Images:
    """Return images of the stored shape, or with embeddings."""
    pixels = torch.randint(256, (count, *workload.stored_shape), dtype=torch.uint8)
    n_views = workload.views.embedded
    return Images(
        tuple(map(str, range(count))),
        pixels,
        bilinear_pixels=pixels,
        aspect=torch.ones(count),
        embeddings=None if embedding_width is None else torch.rand(count, n_views, embedding_width),
    )


def _augment(images: Images, view: View) -> Tensor:
    inputs, index = model_inputs(images, view), torch.arange(len(images))
    return inputs.apply(inputs.stored[index], inputs.sample_params(index, torch.Generator().manual_seed(0)))


def _seconds_per_call(call: Callable[[], object], *, warm_up: bool = True) -> float:
    """Return the mean seconds of a call, after a fast one that is not counted."""
    started = time.perf_counter()
    if warm_up:
        call()
        if (seconds := time.perf_counter() - started) > MAX_WARM_UP_SECONDS:
            return seconds
    started, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - started < MIN_TIMED_SECONDS:
        call()
        count += 1
    return (time.perf_counter() - started) / count
