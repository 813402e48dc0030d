"""Active-learning loop: train, evaluate, query, label, repeat. Resumable at any line."""

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.optim import SGD

from ducats.data.domain import UNLABELLED, Labels
from ducats.dirichlet import compile_formulas
from ducats.evaluation.evaluate import (
    TemperedEvaluation,
    describe_resolution,
    evaluate,
    evaluate_segmentation,
    segmentation_metrics,
)
from ducats.evaluation.metrics import Tally, class_accuracy, compute_metrics, reliability_bins
from ducats.ledger import TargetMaps, load_ledger, load_request, open_ledger
from ducats.models import EvidentialModel
from ducats.objectives import RefreshContext
from ducats.run.checkpoint import Checkpointer
from ducats.run.components import Components, RunPlan, place_data, probe_model
from ducats.run.label import acquire_labels
from ducats.run.select import RequestSelector
from ducats.run.snapshot import calibration_record, fit_temperature, save_snapshot
from ducats.runfolder.run_folder import RunFolder
from ducats.training import placement
from ducats.training.auxiliary import DatasetPasses, build_auxiliaries
from ducats.training.distributed import (
    autocast_dtype,
    broadcast_buffers,
    on_rank_zero,
    peak_memory_over_ranks,
)
from ducats.training.fit import fit_epoch, make_optimiser
from ducats.training.performance import PerformanceOptions
from ducats.training.sharding import check_shardable, unsharded
from ducats.training.step import Step
from ducats.training.streams import Streams, class_presence, steps_in_epoch
from ducats.training.task import headline_metric_of, label_grid_sizes
from ducats.utils.errors import AwaitingLabels, UserError
from ducats.utils.progress import Event, EventListener
from ducats.utils.randomness import global_seed

# Called with the round and the exception that reports open questions or an invalid answer; returns when the
# answers should be checked again.
WaitCallback = Callable[[int, AwaitingLabels | UserError], None]


class ActiveLearningLoop:
    """Active-learning loop of one process."""

    def __init__(
        self,
        components: Components,
        plan: RunPlan,
        run_folder: RunFolder,
        fabric: Fabric,
        performance: PerformanceOptions,
        on_event: EventListener,
        wait: WaitCallback | None = None,
    ) -> None:
        original, components = components, place_data(components, fabric.device, performance.image_placement)
        self.image_placement = performance.image_placement
        self.components, self.plan, self.run_folder, self.fabric = components, plan, run_folder, fabric
        self.on_event, self.wait = on_event, wait
        self.steps_per_epoch = plan.steps_per_epoch or steps_in_epoch(
            len(components.source), len(components.pool), plan.batch_size
        )
        self.streams = Streams(
            components.source,
            components.pool,
            components.views,
            plan.batch_size,
            self.steps_per_epoch,
            plan.seed,
            plan.labelled_batches,
            class_presence(components.source) if plan.source_sampling == "rare_classes" else None,
            components.objective_spec.needs_strong_view(),
        )
        model = copy.deepcopy(components.model)
        self.unwrapped_model = model if isinstance(model, EvidentialModel) else EvidentialModel(model)
        # Original data: the model is not on the device yet.
        self.query, n_features = probe_model(original, self.unwrapped_model)
        self.auxiliaries = build_auxiliaries(
            self.unwrapped_model,
            components.objective_spec,
            self.query,
            classes=len(components.source.classes),
            n_features=n_features,
            pool_size=len(components.pool),
            per_pixel=components.source.per_pixel,
            seed=plan.seed,
            autocast_dtype=autocast_dtype(fabric),
        )
        if performance.channels_last:
            self.unwrapped_model.to(memory_format=torch.channels_last)
        check_shardable(self.unwrapped_model, fabric)
        fused = bool(performance.fused_optimiser)
        self.model = fabric.setup_module(self.unwrapped_model)
        self.optimiser: SGD = make_optimiser(  # after the set-up, which may have sharded the weights
            self.unwrapped_model.network,
            plan.optimisation,
            fused=fused,
            auxiliaries=self.unwrapped_model.auxiliaries,
        )
        fabric_optimiser: Any = fabric.setup_optimizers(self.optimiser)
        objective, probes = (
            components.objective_spec.bind_auxiliary(self.auxiliaries.objective_module),
            self.auxiliaries.probes,
        )
        self.train_step = Step(
            self.model,
            fabric_optimiser,
            objective,
            fabric,
            use_cuda_graphs=bool(performance.cuda_graphs),
            max_grad_norm=plan.optimisation.clip_grad_norm,
            probes=probes,
            auxiliary_parameters=self.unwrapped_model.auxiliaries.parameters(),
            target_batching=plan.target_batching,
        )
        self.compile_losses = bool(performance.compile)
        self.epoch, self.elapsed_seconds = 0, 0.0
        self.checkpointer = Checkpointer(run_folder, fabric, self.unwrapped_model, self.optimiser, fused)
        if not run_folder.finished:  # after the set-up: the state is loaded onto the device of the weights
            self.epoch, self.elapsed_seconds = self.checkpointer.restore()
        on_rank_zero(fabric, self._open_ledger)
        self.selector = RequestSelector(
            components,
            plan,
            self.run_folder,
            fabric,
            self.model,
            self.query,
            self.auxiliaries,
            self._label_maps_after,
            lambda: self.ledger,
        )
        self._cached_targets: tuple[int, Labels] | None = None  # rounds, and the label maps known after them

    def run(self) -> None:
        """Train, evaluate and query until the last epoch.

        Each step ends by writing the file that marks it as done.
        """
        if self.run_folder.finished:
            return
        if self.epoch == 0:
            # The initial weights: a custom model may initialise differently the next time.
            self.checkpointer.save(0, 0.0)
        while True:
            started = time.monotonic()
            with unsharded(self.unwrapped_model):
                started += self._evaluate_and_query(started)
            if self.epoch == self.plan.epochs:
                break
            self._fit()
            self.elapsed_seconds += time.monotonic() - started
            self.checkpointer.save(self.epoch, self.elapsed_seconds)
        self.checkpointer.save_model()
        self._emit("done")

    def _evaluate_and_query(self, started: float) -> float:
        """Evaluate, query and save snapshots where due; return the seconds spent waiting for annotators."""
        waiting_seconds = 0.0
        self._refresh_auxiliaries()
        if self.epoch == self.plan.epochs or self.epoch in self.plan.query_epochs:
            self._evaluate(started, "stage")
        elif self.plan.evaluate_every and self.epoch and self.epoch % self.plan.evaluate_every == 0:
            self._evaluate(started, "interim")
        if self.epoch in self.plan.query_epochs:
            waiting_seconds = self._query_and_label()
        if self.epoch == self.plan.epochs:
            save_snapshot(self.selector, 0, self.epoch, self.rounds_done)
        return waiting_seconds

    @property
    def stage(self) -> int:
        """Number of rounds after earlier epochs, without a round after this epoch."""
        return sum(after < self.epoch for after in self.plan.query_epochs)

    @property
    def rounds_done(self) -> int:
        """Number of rounds after earlier epochs and after this epoch."""
        return sum(after <= self.epoch for after in self.plan.query_epochs)

    def _open_ledger(self) -> None:
        pool, resolution = self.components.pool, self.components.task.resolution
        sizes = label_grid_sizes(pool, resolution) if self.components.source.per_pixel else None
        self.ledger = open_ledger(self.run_folder, pool.keys, sizes, resolution)

    def _label_maps_after(self, rounds: int) -> TargetMaps:
        """Return the pool's label maps after a number of rounds; each process reads the ledger."""
        ledger = self.ledger if self.fabric.is_global_zero else load_ledger(self.run_folder)
        pool, task = self.components.pool, self.components.task
        shape = (int(pool.pixels.shape[-2]), int(pool.pixels.shape[-1]))
        return TargetMaps(
            ledger,
            shape,
            rounds,
            void=pool.void_masks,
            resolution=task.resolution,
            fill=task.label_downsampling,
        )

    def _labelled_images(self, rounds: int) -> Tensor:
        """Return the indices of the images with at least one label."""
        return self.ledger.labels_per_image(rounds).nonzero().squeeze(1)

    def _known_targets(self) -> tuple[Labels, Tensor | None]:
        """Return the pool's known labels and, if whole images are labelled, the indices of these images."""
        if not self.components.source.per_pixel:
            return on_rank_zero(self.fabric, lambda: self.ledger.targets(self.rounds_done)), None
        if self._cached_targets is None or self._cached_targets[0] != self.rounds_done:
            self._cached_targets = None  # frees device memory for the new maps
            label_maps = self._label_maps_after(self.rounds_done)
            self._cached_targets = (
                self.rounds_done,
                placement.place_label_maps(label_maps, self.fabric.device, self.image_placement),
            )
        labelled_images = on_rank_zero(self.fabric, lambda: self._labelled_images(self.rounds_done))
        return self._cached_targets[1], labelled_images if self.components.task.labels_whole_images else None

    def _fit(self) -> None:
        started = time.monotonic()
        targets, labelled_images = self._known_targets()
        has_labels = on_rank_zero(self.fabric, lambda: self.ledger.spent(self.rounds_done) > 0)
        with (
            global_seed(self.plan.seed, "network", self.epoch, self.fabric.global_rank),
            compile_formulas(self.compile_losses),
        ):
            losses = fit_epoch(
                self.train_step,
                self.streams.epoch(
                    self.epoch,
                    targets,
                    self.fabric,
                    whole_images=labelled_images,
                    has_labels=has_labels,
                    pseudo_labels=self.auxiliaries.pseudo_labels(),
                ),
                self.plan.schedule,
                first_step=self.epoch * self.steps_per_epoch,
                fabric=self.fabric,
                source_weight=weight_at(self.plan.source_weight, self.epoch),
                on_step=lambda step, means: self._emit("train", step, means),
            )
        self.epoch += 1
        seconds = round(time.monotonic() - started, 3)
        record = {"kind": "epoch", "epoch": self.epoch, "losses": losses, "seconds": seconds}
        on_rank_zero(self.fabric, lambda: self.run_folder.save_record(record))

    def _evaluate(self, started: float, kind: str) -> None:
        evaluated_epochs = {
            r["epoch"] for r in on_rank_zero(self.fabric, lambda: self.run_folder.read_records(kind))
        }
        if self.epoch in evaluated_epochs:
            return
        self._emit("evaluate")
        record: dict[str, Any] = {"kind": kind, "stage": self.stage, "epoch": self.epoch}
        record["labels"] = on_rank_zero(self.fabric, lambda: self.ledger.spent(self.stage))
        if self.components.source.per_pixel:
            record["clicks"] = on_rank_zero(self.fabric, lambda: self.ledger.clicks(self.stage))
        annotation_seconds = on_rank_zero(self.fabric, lambda: self.ledger.seconds(self.stage))
        if annotation_seconds is not None:
            record["annotation_seconds"] = round(annotation_seconds, 3)
        if self.components.test is not None:
            fitted_temperature = on_rank_zero(
                self.fabric, lambda: fit_temperature(self.run_folder, self.stage)
            )
            tempered = (
                None if fitted_temperature is None else TemperedEvaluation(fitted_temperature.temperature)
            )
            tally, counts = self._tally(tempered)
            record |= {"evaluated_on": self.components.evaluated_on, **counts}
            if tally.total:  # nothing is left to evaluate once the whole target is labelled
                record |= self._metrics(tally)
                on_rank_zero(self.fabric, lambda: self._save_confusion(tally))
                if fitted_temperature is not None and tempered is not None and tempered.tally is not None:
                    record["temperature_scaled"] = {
                        **fitted_temperature._asdict(),
                        **calibration_record(tempered.tally),
                    }
        memory = peak_memory_over_ranks(self.fabric)
        record |= {} if memory is None else {"peak_memory_bytes": memory}
        record["seconds"] = round(self.elapsed_seconds + time.monotonic() - started, 3)
        on_rank_zero(self.fabric, lambda: self.run_folder.save_record(record))
        if "accuracy" in record:
            headline_name = headline_metric_of(self.components.source)
            names = dict.fromkeys((headline_name, "accuracy", "ece", "nll", "aurc"))
            self._emit("evaluate", values={name: record[name] for name in names})

    def _tally(self, tempered: TemperedEvaluation | None) -> tuple[Tally, dict[str, Any]]:
        """Evaluate the test set; return the tally and the record's counts."""
        components, test = self.components, self.components.test
        assert test is not None
        predict_kwargs: dict[str, Any] = {
            "view": components.views.test,
            "batch_size": self.plan.scoring_batch_size,
            "fabric": self.fabric,
            "tempered": tempered,
        }
        if not components.source.per_pixel:
            tally = evaluate(self.model, test, indices=self._evaluated_images(), **predict_kwargs)
            return tally, {"images": tally.total}
        task = components.task
        known_labels_of = (
            self._label_maps_after(self.stage).at_label_resolution
            if components.evaluated_on == "unlabelled"
            else None
        )
        tally = evaluate_segmentation(
            self.model,
            test,
            resolution=task.evaluated_at,
            average_flipped=task.average_flipped,
            known_labels_of=known_labels_of,
            **predict_kwargs,
        )
        resolution = describe_resolution(test, task.evaluated_at)
        return tally, {"images": len(test), "pixels": tally.total, "resolution": resolution}

    def _metrics(self, tally: Tally) -> dict[str, Any]:
        """Return all metrics for the record."""
        metrics: dict[str, Any] = dict(compute_metrics(tally))
        metrics["class_accuracy"] = class_accuracy(tally.confusion)
        metrics["reliability"] = reliability_bins(tally)
        if self.components.source.per_pixel:
            class_names, excluded = self.components.source.classes, self.components.task.miou_star_exclude
            class_metrics = segmentation_metrics(tally.confusion, class_names, excluded)
            metrics |= {"headline_metric": "mean_iou", **class_metrics}
        return metrics

    def _save_confusion(self, tally: Tally) -> None:
        self.run_folder.save_confusion(self.epoch, self.components.source.classes, tally.confusion.tolist())

    def _evaluated_images(self) -> Tensor | None:
        """Return the indices of the test images to evaluate; None for all."""
        if self.components.evaluated_on != "unlabelled":
            return None
        targets = on_rank_zero(self.fabric, lambda: self.ledger.targets(self.stage))
        return (targets == UNLABELLED).nonzero().squeeze(1)

    def _query_and_label(self) -> float:
        """Label the next round, unless it is done; return the seconds spent waiting for annotators."""
        round_number, waiting_seconds = self.stage + 1, 0.0
        if on_rank_zero(self.fabric, lambda: self.ledger.n_rounds) >= round_number:
            return waiting_seconds
        self._emit("query")
        if on_rank_zero(self.fabric, lambda: load_request(self.run_folder, round_number)) is None:
            self.selector.select(round_number)
        self.selector.save_hints(round_number)
        save_snapshot(self.selector, round_number, self.epoch, round_number - 1)
        is_waiting = False
        while True:
            try:
                on_rank_zero(self.fabric, lambda: self._acquire_labels(round_number))
            except (AwaitingLabels, UserError) as pause:
                # An invalid answer must not end a run that has waited for days: the annotator can correct it.
                is_waiting |= isinstance(pause, AwaitingLabels)
                if self.wait is None or not is_waiting:
                    raise
                since = time.monotonic()
                self.wait(round_number, pause)
                waiting_seconds += time.monotonic() - since
            else:
                return waiting_seconds

    def _refresh_auxiliaries(self) -> None:
        """Refresh the auxiliary modules with a pass over the data, if due."""
        query_epochs = self.plan.query_epochs
        round_number = query_epochs.index(self.epoch) + 1 if self.epoch in query_epochs else 0
        context = RefreshContext(self.epoch, self.plan.epochs, round_number, len(query_epochs))
        if self.epoch == self.plan.epochs or not self.auxiliaries.is_due(context):
            return
        per_pixel = self.components.source.per_pixel
        targets = None if per_pixel else on_rank_zero(self.fabric, lambda: self.ledger.targets(self.stage))
        dataset_passes = DatasetPasses(
            self.model,
            self.components.source,
            self.components.pool,
            view=self.components.views.scoring,
            batch_size=self.plan.scoring_batch_size,
            seed=self.plan.seed,
            fabric=self.fabric,
            pool_labels=targets,
        )
        with global_seed(self.plan.seed, "refresh", self.epoch):
            self.auxiliaries.refresh(context, dataset_passes)
        broadcast_buffers(self.unwrapped_model.auxiliaries, self.fabric)

    def _acquire_labels(self, round_number: int) -> None:
        request = load_request(self.run_folder, round_number)
        assert request is not None
        classes, allow_partial = len(self.components.source.classes), self.plan.time_budget is not None
        acquire_labels(self.components.oracle, request, self.ledger, classes, allow_partial=allow_partial)

    def _emit(self, phase: str, step: int | None = None, get_values: Any = None, values: Any = None) -> None:
        if not self.fabric.is_global_zero:
            return
        self.on_event(
            Event(
                phase=phase,
                stage=self.stage if phase in ("evaluate", "query") else self.rounds_done,
                stages=len(self.plan.query_epochs),
                epoch=self.epoch,
                epochs=self.plan.epochs,
                step=self.epoch * self.steps_per_epoch if step is None else step,
                steps=self.plan.epochs * self.steps_per_epoch,
                labels=len(self.ledger),
                values=get_values or (lambda: values or {}),
            )
        )


def weight_at(weights: Mapping[int, float], epoch: int) -> float:
    """Return the weight of an epoch.

    >>> weight_at({0: 1.0, 1: 0.5}, 0), weight_at({0: 1.0, 1: 0.5}, 7)
    (1.0, 0.5)
    """
    return weights[max(start for start in weights if start <= epoch)]
