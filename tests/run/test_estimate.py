"""The estimate counts what a run does; that its seconds are right is measured in benchmarks/estimate.py."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import FROZEN, Runner, quick, quick_pixels
from ducats.config import Config
from ducats.models.deeplab import DeepLab, HeadV2
from ducats.models.output import Output
from ducats.objectives import Batch
from ducats.run import estimate
from ducats.run.estimate import RunEstimate, estimate_components
from ducats.run.factory import build_run
from ducats.runfolder.run_folder import RunFolder
from ducats.settings import PerformanceOptions
from ducats.training.predictor import Predictor
from ducats.training.step import Step

PERFORMANCE = PerformanceOptions()


def estimate_config(config: Config) -> tuple[RunEstimate, RunEstimate | None]:
    components, plan = build_run(config, RunFolder(Path("unused")))
    estimates = estimate_components(components, plan, PERFORMANCE)
    assert estimates is not None
    return estimates


@pytest.fixture
def one_second_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def call_once(call: Callable[[], object]) -> float:
        call()
        return 1.0

    monkeypatch.setattr(estimate, "_seconds_per_call", call_once)
    monkeypatch.setattr(estimate, "STEP_SECONDS", 100.0)  # so that full batches are timed


METHODS = ["ducats", "duc", "random", "clue", "tqs", "duc-fixmatch", "euq"]


@pytest.mark.usefixtures("one_second_per_call")
@pytest.mark.parametrize("method", METHODS)
def test_counts_are_those_of_a_run(run_quickly: Runner, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """The images of all steps, and those of all passes without gradients."""
    settings = ("train.batch_size=8", "engine.snapshot_samples=30", "acquisition.budget=10")
    planned, trial = list[float](), list[estimate._Trial]()
    genuine_times = estimate._Trial.time_epochs

    def note(self: estimate._Trial, epochs: Sequence[estimate.TargetCounts]) -> float:
        trial.append(self)
        images = [self._images_per_step(counts, 8) for counts in epochs]
        planned.extend(count for count in images for _ in range(3))
        return genuine_times(self, epochs)

    monkeypatch.setattr(estimate._Trial, "time_epochs", note)
    estimated, _ = estimate_config(quick(*settings, method=method))
    assert estimated.embedding_seconds is None
    assert estimated.seconds >= len(planned)
    scored, trained = 0, list[int]()
    genuine_forward, genuine_step = Predictor.forward, Step.__call__

    def count_images(
        self: Predictor, images: Any, batches: Sequence[Tensor], **more: bool
    ) -> Iterator[tuple[Tensor, Output]]:
        nonlocal scored
        scored += sum(map(len, batches))
        return genuine_forward(self, images, batches, **more)

    def count_trained(self: Step, batch: Batch, *arguments: Any) -> dict[str, Tensor]:
        labelled = (batch.source, batch.labelled, batch.pseudo_labelled)
        images = [part.images for part in labelled if part is not None]
        images += [part for part in (batch.unlabelled, batch.strong) if part is not None]
        trained.append(sum(map(len, images)))
        return genuine_step(self, batch, *arguments)

    monkeypatch.setattr(Predictor, "forward", count_images)
    monkeypatch.setattr(Step, "__call__", count_trained)
    run_quickly(*settings, method=method)
    assert trained == pytest.approx(planned, abs=1)  # batches of labelled images differ by one
    assert trial[0].n_scored() == pytest.approx(scored, rel=0.1)  # picks are in the snapshots, too


def test_timed_steps_fit_in_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "STEP_SECONDS", 1e9)
    trials = list[estimate._Trial]()
    genuine = estimate._Trial.time_epochs

    def note(self: estimate._Trial, epochs: Sequence[estimate.TargetCounts]) -> float:
        trials.append(self)
        return genuine(self, epochs)

    monkeypatch.setattr(estimate._Trial, "time_epochs", note)
    config = quick("train.batch_size=64")
    needed = estimate_config(config)[0].memory_gb
    monkeypatch.setattr(estimate, "free_memory_gb", lambda: needed)  # half of it may be used
    estimate_config(config)
    assert trials[0].batch_size == 64
    assert estimate.SAMPLE_IMAGES < trials[1].batch_size < 40


@pytest.mark.usefixtures("one_second_per_call")
def test_a_frozen_backbone_is_compared_with_fine_tuning(run_quickly: Runner) -> None:
    settings = (*FROZEN, "model.params.bottleneck=9")  # embeddings of other tests do not count
    config = quick(*settings, "seed=11")
    frozen, finetuning = estimate_config(config)
    assert finetuning is not None
    assert frozen.embedding_seconds is not None
    assert frozen.embedding_seconds > 0
    assert finetuning.embedding_seconds is None
    assert finetuning.seconds > frozen.seconds
    assert finetuning.memory_gb > 2 * frozen.memory_gb
    run_quickly(*settings, "seed=11")
    frozen, _ = estimate_config(config)
    assert frozen.embedding_seconds == 0
    assert "all images are embedded" in frozen.describe(finetuning)


@pytest.mark.parametrize("make", [quick_pixels, quick])
def test_no_estimate_without_memory(make: Callable[[], Config], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "free_memory_gb", lambda: 1e-4)
    components, plan = build_run(make(), RunFolder(Path("unused")))
    assert estimate_components(components, plan, PERFORMANCE) is None


FROZEN_PIXELS = (
    "model={name: deeplab_v2, params: {backbone: test_resnet, pretrained: false, output_stride: 16}}",
    "model.freeze=backbone",
)


@pytest.mark.usefixtures("one_second_per_call")
@pytest.mark.parametrize("settings", [(), FROZEN_PIXELS])
@pytest.mark.parametrize("method", ["ducats", "random", "ripu"])
def test_counts_in_segmentation_are_those_of_a_run(
    run_pixels: Runner, monkeypatch: pytest.MonkeyPatch, settings: Sequence[str], method: str
) -> None:
    settings = (*settings, "engine.snapshot_samples=3", "evaluation.average_flipped=true")
    selections, tallies = 2 * 5, 3 * 3  # rounds * images; stages * test images
    trials = list[estimate._Trial]()
    genuine = estimate._Trial.time_pixel_metrics

    def note(self: estimate._Trial) -> float:
        trials.append(self)
        return genuine(self)

    monkeypatch.setattr(estimate._Trial, "time_pixel_metrics", note)
    estimate_config(quick_pixels(*settings, method=method))
    (trial,) = trials
    assert trial.time_pixel_queries() == selections
    monkeypatch.setattr(estimate._Trial, "time_forward", lambda _: 0.0)
    assert genuine(trial) == tallies
    forwarded, genuine_forward = 0, Predictor.forward

    def count_images(
        self: Predictor, images: Any, batches: Sequence[Tensor], *, append_flipped: bool = False
    ) -> Iterator[tuple[Tensor, Output]]:
        nonlocal forwarded
        forwarded += sum(map(len, batches)) * (2 if append_flipped else 1)
        return genuine_forward(self, images, batches, append_flipped=append_flipped)

    monkeypatch.setattr(Predictor, "forward", count_images)
    run_pixels(*settings, method=method)
    assert trial.n_scored() == pytest.approx(forwarded, rel=0.2)  # the sources of snapshots are rounded


def test_small_images_with_many_classes_are_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More images per forward pass than for photos, and class numbers that take two bytes."""
    monkeypatch.setenv("DUCATS_CACHE", str(tmp_path))
    components, plan = build_run(quick_pixels(*FROZEN_PIXELS), RunFolder(Path("unused")))
    network = components.model.network
    assert isinstance(network, DeepLab)
    network.head = HeadV2(96, 200, (1,), std=0.01)
    source = replace(components.source, classes=tuple(map(str, range(200))))
    estimates = estimate_components(replace(components, source=source), plan, PERFORMANCE)
    assert estimates is not None
    assert estimates[0].embedding_seconds


@pytest.mark.usefixtures("one_second_per_call")
def test_mirror_images_are_estimated_where_they_are_embedded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six source, five pool and three test images, which need two views; batches of one image."""
    monkeypatch.setenv("DUCATS_CACHE", str(tmp_path))
    plain = (*FROZEN_PIXELS, "model.params.rates=[1]", "views.source.flip=0", "views.unlabelled.flip=0")
    for flipped, expected in ((False, 14), (True, 17)):
        config = quick_pixels(*plain, f"evaluation.average_flipped={str(flipped).lower()}")
        components, plan = build_run(config, RunFolder(Path("unused")))
        counted = list[estimate.Workload]()

        def note(_model: object, _objective: object, _query: object, workload: estimate.Workload) -> None:
            counted.append(workload)  # noqa: B023 - called at once

        monkeypatch.setattr(estimate, "estimate_run", note)
        monkeypatch.setattr("ducats.training.embed.BATCH_PIXELS", 1)
        estimate_components(components, plan, PERFORMANCE)
        assert counted[0].n_to_embed == expected


def test_an_estimate_changes_nothing() -> None:
    components, plan = build_run(quick(*FROZEN), RunFolder(Path("unused")))
    before = {name: tensor.clone() for name, tensor in components.model.state_dict().items()}
    trainable = [p.requires_grad for p in components.model.parameters()]
    state = torch.random.get_rng_state()
    estimate_components(components, plan, PERFORMANCE)
    assert torch.equal(state, torch.random.get_rng_state())
    assert trainable == [p.requires_grad for p in components.model.parameters()]
    after = components.model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


@pytest.mark.usefixtures("one_second_per_call")
def test_memory_grows_with_batch_and_optimiser() -> None:
    small, large = (estimate_config(quick(f"train.batch_size={size}"))[0].memory_gb for size in (8, 64))
    assert large > 4 * small
    sgd, adamw = (
        estimate_config(quick("model.params.features=4096", f"train.optimiser={name}"))[0].memory_gb
        for name in ("sgd", "adamw")
    )
    assert adamw > sgd
