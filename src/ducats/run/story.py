"""Active-learning loop: train, evaluate, query, label, repeat. Resumable at any line."""

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.optim import SGD

from ducats.dirichlet import compile_formulas
from ducats.domain import UNLABELLED, Labels
from ducats.errors import AwaitingLabels, UserError
from ducats.ledger import TargetMaps
from ducats.metrics import Tally, class_accuracy, compute_metrics, reliability_bins
from ducats.models import EvidentialModel
from ducats.objectives import RefreshContext
from ducats.parts import Parts, Plan, near_at_hand, settle
from ducats.progress import Event, Listener
from ducats.randomness import global_seed
from ducats.run.asking import Asking
from ducats.run.buying import buy
from ducats.run.keeping import Keeping
from ducats.run.looking import calibration, fitted, keep_snapshot
from ducats.rundir import RunDir
from ducats.training import placement
from ducats.training.auxiliary import DatasetPasses, build_auxiliaries
from ducats.training.distributed import (
    autocast_dtype,
    broadcast_buffers,
    on_rank_zero,
    peak_memory_over_ranks,
)
from ducats.training.evaluation import (
    TemperedEvaluation,
    describe_resolution,
    evaluate,
    evaluate_segmentation,
    segmentation_metrics,
)
from ducats.training.fit import fit_epoch, make_optimiser
from ducats.training.performance import PerformanceOptions
from ducats.training.sharding import check_shardable, unsharded
from ducats.training.step import Step
from ducats.training.streams import Streams, class_presence, steps_in_epoch
from ducats.training.task import headline_metric, label_grid_sizes

# Called with the round and the exception that reports open questions or an invalid answer; returns when the
# answers should be checked again.
Wait = Callable[[int, AwaitingLabels | UserError], None]


class Story:
    """Active-learning loop of one process."""

    def __init__(
        self,
        parts: Parts,
        plan: Plan,
        home: RunDir,
        fabric: Fabric,
        speed: PerformanceOptions,
        listen: Listener,
        wait: Wait | None = None,
    ) -> None:
        given, parts = parts, near_at_hand(parts, fabric.device, speed.image_placement)
        self.where = speed.image_placement
        self.parts, self.plan, self.home, self.fabric, self.listen = parts, plan, home, fabric, listen
        self.wait = wait
        self.steps = plan.steps_per_epoch or steps_in_epoch(
            len(parts.source), len(parts.pool), plan.batch_size
        )
        self.streams = Streams(
            parts.source,
            parts.pool,
            parts.views,
            plan.batch_size,
            self.steps,
            plan.seed,
            plan.labelled_batches,
            class_presence(parts.source) if plan.source_sampling == "rare_classes" else None,
            parts.training.needs_strong_view(),
        )
        own = copy.deepcopy(parts.model)
        self.bare = own if isinstance(own, EvidentialModel) else EvidentialModel(own)
        self.strategy, width = settle(given, self.bare)  # original data: the model is not on the device yet
        self.beside = build_auxiliaries(
            self.bare,
            parts.training,
            self.strategy,
            classes=len(parts.source.classes),
            n_features=width,
            pool_size=len(parts.pool),
            per_pixel=parts.source.of_pixels,
            seed=plan.seed,
            autocast=autocast_dtype(fabric),
        )
        if speed.channels_last:
            self.bare.to(memory_format=torch.channels_last)
        check_shardable(self.bare, fabric)
        fused = bool(speed.fused_optimiser)
        self.model = fabric.setup_module(self.bare)
        self.optimiser: SGD = make_optimiser(  # after the set-up, which may have sharded the weights
            self.bare.network, plan.optimisation, fused=fused, auxiliaries=self.bare.auxiliaries
        )
        stepper: Any = fabric.setup_optimizers(self.optimiser)
        graphs, clip = bool(speed.cuda_graphs), plan.optimisation.clip_grad_norm
        objective, witnesses = parts.training.bind_auxiliary(self.beside.objective_module), self.beside.probes
        self.step = Step(
            self.model,
            stepper,
            objective,
            fabric,
            graphs=graphs,
            clip=clip,
            probes=witnesses,
            auxiliary_parameters=self.bare.auxiliaries.parameters(),
            target_batching=plan.together,
        )
        self.compiled = bool(speed.compile)
        self.epoch, self.seconds = 0, 0.0
        self.keeping = Keeping(home, fabric, self.bare, self.optimiser, fused)
        if not home.finished:  # after the set-up: the state is loaded onto the device of the weights
            self.epoch, self.seconds = self.keeping.restore()
        on_rank_zero(fabric, self._open_ledger)
        self.asking = Asking(
            parts,
            plan,
            self.home,
            fabric,
            self.model,
            self.strategy,
            self.beside,
            self._maps,
            lambda: self.ledger,
        )
        self._targets: tuple[int, Labels] | None = None  # rounds, and the label maps known after them

    def tell(self) -> None:
        """Train, evaluate and query until the last epoch.

        Each step ends by writing the file that marks it as done.
        """
        if self.home.finished:
            return
        if self.epoch == 0:
            # The initial weights: a custom model may initialise differently the next time.
            self.keeping.save(0, 0.0)
        while True:
            started = time.monotonic()
            with unsharded(self.bare):
                started += self._look(started)
            if self.epoch == self.plan.epochs:
                break
            self._fit()
            self.seconds += time.monotonic() - started
            self.keeping.save(self.epoch, self.seconds)
        self.keeping.save_model()
        self._say("done")

    def _look(self, started: float) -> float:
        """Evaluate, query and save snapshots where due; return the seconds spent waiting for annotators."""
        waited = 0.0
        self._refresh()
        if self.epoch == self.plan.epochs or self.epoch in self.plan.ask_after:
            self._measure(started, "stage")
        elif self.plan.measure_every and self.epoch and self.epoch % self.plan.measure_every == 0:
            self._measure(started, "check")
        if self.epoch in self.plan.ask_after:
            waited = self._ask()
        if self.epoch == self.plan.epochs:
            keep_snapshot(self.asking, 0, self.epoch, self.answered)
        return waited

    @property
    def stage(self) -> int:
        """Number of rounds before this epoch, without a round in this epoch."""
        return sum(after < self.epoch for after in self.plan.ask_after)

    @property
    def answered(self) -> int:
        """Number of rounds up to this epoch, including a round in this epoch."""
        return sum(after <= self.epoch for after in self.plan.ask_after)

    def _open_ledger(self) -> None:
        pool, resolution = self.parts.pool, self.parts.task.resolution
        sizes = label_grid_sizes(pool, resolution) if self.parts.source.of_pixels else None
        self.ledger = self.home.ledger(pool.keys, sizes, resolution)

    def _maps(self, rounds: int) -> TargetMaps:
        """Return the pool's label maps after a number of rounds; each process reads the ledger."""
        ledger = self.ledger if self.fabric.is_global_zero else self.home.bought()
        pool, task = self.parts.pool, self.parts.task
        shape = (int(pool.pixels.shape[-2]), int(pool.pixels.shape[-1]))
        return TargetMaps(
            ledger, shape, rounds, void=pool.void, resolution=task.resolution, fill=task.label_downsampling
        )

    def _bought(self, rounds: int) -> Tensor:
        """Return the images with at least one label."""
        return self.ledger.counts(rounds).nonzero().squeeze(1)

    def _known(self) -> tuple[Labels, Tensor | None]:
        """Return the pool's known labels, and the labelled images where whole label maps are acquired."""
        if not self.parts.source.of_pixels:
            return on_rank_zero(self.fabric, lambda: self.ledger.targets(self.answered)), None
        if self._targets is None or self._targets[0] != self.answered:
            self._targets = None  # frees device memory for the new maps
            maps = self._maps(self.answered)
            self._targets = (self.answered, placement.place_label_maps(maps, self.fabric.device, self.where))
        bought = on_rank_zero(self.fabric, lambda: self._bought(self.answered))
        return self._targets[1], bought if self.parts.task.labels_whole_images else None

    def _fit(self) -> None:
        began = time.monotonic()
        targets, bought = self._known()
        anything = on_rank_zero(self.fabric, lambda: self.ledger.spent(self.answered) > 0)
        with (
            global_seed(self.plan.seed, "network", self.epoch, self.fabric.global_rank),
            compile_formulas(self.compiled),
        ):
            losses = fit_epoch(
                self.step,
                self.streams.epoch(
                    self.epoch,
                    targets,
                    self.fabric,
                    whole_images=bought,
                    has_labels=anything,
                    pseudo_labels=self.beside.pseudo_labels(),
                ),
                self.plan.schedule,
                first_step=self.epoch * self.steps,
                fabric=self.fabric,
                source_weight=weight_at(self.plan.source_weight, self.epoch),
                on_step=lambda step, means: self._say("train", step, means),
            )
        self.epoch += 1
        seconds = round(time.monotonic() - began, 3)
        record = {"kind": "epoch", "epoch": self.epoch, "losses": losses, "seconds": seconds}
        on_rank_zero(self.fabric, lambda: self.home.record(record))

    def _measure(self, started: float, kind: str) -> None:
        done = {r["epoch"] for r in on_rank_zero(self.fabric, lambda: self.home.lines(kind))}
        if self.epoch in done:
            return
        self._say("measure")
        record: dict[str, Any] = {"kind": kind, "stage": self.stage, "epoch": self.epoch}
        record["labels"] = on_rank_zero(self.fabric, lambda: self.ledger.spent(self.stage))
        if self.parts.source.of_pixels:
            record["clicks"] = on_rank_zero(self.fabric, lambda: self.ledger.clicks(self.stage))
        people = on_rank_zero(self.fabric, lambda: self.ledger.seconds(self.stage))
        if people is not None:
            record["people_seconds"] = round(people, 3)
        if self.parts.test is not None:
            known = on_rank_zero(self.fabric, lambda: fitted(self.home, self.stage))
            tempered = None if known is None else TemperedEvaluation(known.temperature)
            tally, counted = self._tally(tempered)
            record |= {"measured_on": self.parts.measured_on, **counted}
            if tally.total:  # nothing is left to evaluate once the whole target is labelled
                record |= self._numbers(tally)
                on_rank_zero(self.fabric, lambda: self._keep_confusion(tally))
                if known is not None and tempered is not None and tempered.tally is not None:
                    record["tempered"] = {**known._asdict(), **calibration(tempered.tally)}
        memory = peak_memory_over_ranks(self.fabric)
        record |= {} if memory is None else {"memory": memory}
        record["seconds"] = round(self.seconds + time.monotonic() - started, 3)
        on_rank_zero(self.fabric, lambda: self.home.record(record))
        if "accuracy" in record:
            first = headline_metric(self.parts.source)
            names = dict.fromkeys((first, "accuracy", "ece", "nll", "aurc"))
            self._say("measure", values={name: record[name] for name in names})

    def _tally(self, tempered: TemperedEvaluation | None) -> tuple[Tally, dict[str, Any]]:
        """Evaluate the test set; return the tally and the record's counts."""
        parts, test = self.parts, self.parts.test
        assert test is not None
        how: dict[str, Any] = {
            "view": parts.views.test,
            "batch_size": self.plan.scoring_batch,
            "fabric": self.fabric,
            "tempered": tempered,
        }
        if not parts.source.of_pixels:
            tally = evaluate(self.model, test, indices=self._measured(), **how)
            return tally, {"images": tally.total}
        task = parts.task
        bought = self._maps(self.stage).at if parts.measured_on == "unlabelled" else None
        tally = evaluate_segmentation(
            self.model,
            test,
            resolution=task.evaluated_at,
            flip=task.average_flipped,
            known_labels_of=bought,
            **how,
        )
        at = describe_resolution(test, task.evaluated_at)
        return tally, {"images": len(test), "pixels": tally.total, "resolution": at}

    def _numbers(self, tally: Tally) -> dict[str, Any]:
        """Return all metrics for the record."""
        numbers: dict[str, Any] = dict(compute_metrics(tally))
        numbers["class_accuracy"] = class_accuracy(tally.confusion)
        numbers["reliability"] = reliability_bins(tally)
        if self.parts.source.of_pixels:
            named = self.parts.source.classes, self.parts.task.miou_star_exclude
            numbers |= {"headline": "mean_iou", **segmentation_metrics(tally.confusion, *named)}
        return numbers

    def _keep_confusion(self, tally: Tally) -> None:
        self.home.save_confusion(self.epoch, self.parts.source.classes, tally.confusion)

    def _measured(self) -> Tensor | None:
        """Return the indices of the test images to evaluate; None for all."""
        if self.parts.measured_on != "unlabelled":
            return None
        targets = on_rank_zero(self.fabric, lambda: self.ledger.targets(self.stage))
        return (targets == UNLABELLED).nonzero().squeeze(1)

    def _ask(self) -> float:
        """Label the next round, unless it is done; return the seconds spent waiting for annotators."""
        number, waited = self.stage + 1, 0.0
        if on_rank_zero(self.fabric, lambda: self.ledger.rounds) >= number:
            return waited
        self._say("ask")
        if on_rank_zero(self.fabric, lambda: self.home.request(number)) is None:
            self.asking.choose(number)
        self.asking.note(number)
        keep_snapshot(self.asking, number, self.epoch, number - 1)
        awaited = False
        while True:
            try:
                on_rank_zero(self.fabric, lambda: self._buy(number))
            except (AwaitingLabels, UserError) as pause:
                # An invalid answer must not end a run that has waited for days: the annotator can correct it.
                awaited |= isinstance(pause, AwaitingLabels)
                if self.wait is None or not awaited:
                    raise
                since = time.monotonic()
                self.wait(number, pause)
                waited += time.monotonic() - since
            else:
                return waited

    def _refresh(self) -> None:
        """Refresh the auxiliary modules with a pass over the data, if due."""
        asks = self.plan.ask_after
        question = asks.index(self.epoch) + 1 if self.epoch in asks else 0
        moment = RefreshContext(self.epoch, self.plan.epochs, question, len(asks))
        if self.epoch == self.plan.epochs or not self.beside.is_due(moment):
            return
        maps = self.parts.source.of_pixels
        targets = None if maps else on_rank_zero(self.fabric, lambda: self.ledger.targets(self.stage))
        look = DatasetPasses(
            self.model,
            self.parts.source,
            self.parts.pool,
            view=self.parts.views.scoring,
            batch_size=self.plan.scoring_batch,
            seed=self.plan.seed,
            fabric=self.fabric,
            pool_labels=targets,
        )
        with global_seed(self.plan.seed, "refresh", self.epoch):
            self.beside.refresh(moment, look)
        broadcast_buffers(self.bare.auxiliaries, self.fabric)

    def _buy(self, number: int) -> None:
        request = self.home.request(number)
        assert request is not None
        classes, partly = len(self.parts.source.classes), self.plan.time is not None
        buy(self.parts.oracle, request, self.ledger, classes, partly=partly)

    def _say(self, phase: str, step: int | None = None, means: Any = None, values: Any = None) -> None:
        if not self.fabric.is_global_zero:
            return
        self.listen(
            Event(
                phase=phase,
                stage=self.stage if phase in ("measure", "ask") else self.answered,
                stages=len(self.plan.ask_after),
                epoch=self.epoch,
                epochs=self.plan.epochs,
                step=self.epoch * self.steps if step is None else step,
                steps=self.plan.epochs * self.steps,
                labels=len(self.ledger),
                values=means or (lambda: values or {}),
            )
        )


def weight_at(weights: Mapping[int, float], epoch: int) -> float:
    """Return the weight of an epoch.

    >>> weight_at({0: 1.0, 1: 0.5}, 0), weight_at({0: 1.0, 1: 0.5}, 7)
    (1.0, 0.5)
    """
    return weights[max(first for first in weights if first <= epoch)]
