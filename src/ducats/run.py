"""The story: train, measure, ask, and again. May be stopped at any line and started anew."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import SGD

from ducats.domain import Domain, Images
from ducats.engine.evaluate import evaluate
from ducats.engine.fit import Optimisation, fit_epoch, make_optimiser
from ducats.engine.processes import make_fabric, on_chief
from ducats.engine.schedules import Schedule, inverse_decay
from ducats.engine.score import choose, table
from ducats.engine.streams import Views, epoch_batches, steps_in_epoch
from ducats.errors import UserError
from ducats.ledger import Ledger
from ducats.metrics import class_accuracy, compute, reliability
from ducats.models import Evidential
from ducats.objectives import Objective, duc
from ducats.oracles import Oracle
from ducats.progress import Event, Listener, silence
from ducats.queries import QUERIES, Query, Strategy
from ducats.randomness import fork, global_seed, seed_of
from ducats.rundir import RunDir


@dataclass(frozen=True)
class Parts:
    """Everything that a run is made of. The pool has no labels; only the oracle may know them."""

    model: nn.Module  # images to logits, to (logits, features), or an Evidential
    source: Domain
    pool: Images
    oracle: Oracle
    query: Query | Strategy = QUERIES["duc"]
    objective: Objective = duc
    test: Domain | None = None  # held out; nothing is chosen by it
    views: Views = field(default_factory=Views)


@dataclass(frozen=True)
class Plan:
    """When to train, when to ask, for how much."""

    epochs: int = 50
    ask_after: Sequence[int] = (10, 12, 14, 16, 18)  # epochs after which a question is asked
    budget: Sequence[int] = ()  # labels to buy at each of them
    batch_size: int = 32  # of each stream
    steps_per_epoch: int | None = None
    labelled_batches: str = "even"  # or "short_last", as published
    optimisation: Optimisation = field(default_factory=Optimisation)
    schedule: Schedule = inverse_decay
    scoring_batch: int = 256
    seed: int = 0


def run(
    parts: Parts,
    plan: Plan,
    folder: str | Path,
    *,
    fabric: Fabric | None = None,
    identity: Mapping[str, Any] | None = None,
    listen: Listener = silence,
) -> RunDir:
    """Run the plan in a folder, or go on with it; return the folder.

    Args:
        parts: what to run.
        plan: when and how much.
        folder: the run's own; the same call on the same folder goes on after a kill or a pause.
        fabric: device, precision, processes; one process on the best device by default.
        identity: what the folder is checked against when the run goes on; the plan by default.
        listen: told of every step.

    Raises:
        UserError: bad input; says what to do.
        AwaitingLabels: people have to answer; call again when they have.
    """
    _check(parts, plan)
    fabric = fabric or _launched()
    home = RunDir(Path(folder))
    on_chief(fabric, lambda: home.claim(identity or {"plan": _plain(plan)}, _describe(parts)))
    try:
        _Story(parts, plan, home, fabric, listen).tell()
    finally:
        home.release()
    return home


class _Story:
    """One process's part in a run."""

    def __init__(self, parts: Parts, plan: Plan, home: RunDir, fabric: Fabric, listen: Listener) -> None:
        self.parts, self.plan, self.home, self.fabric, self.listen = parts, plan, home, fabric, listen
        self.steps = plan.steps_per_epoch or steps_in_epoch(
            len(parts.source), len(parts.pool), plan.batch_size
        )
        self.bare = parts.model if isinstance(parts.model, Evidential) else Evidential(parts.model)
        self.strategy = parts.query if isinstance(parts.query, Strategy) else Strategy(parts.query)
        self.optimiser: SGD = make_optimiser(self.bare.network, plan.optimisation)
        self.model, self.stepper = fabric.setup(self.bare, self.optimiser)
        self.epoch, self.seconds = 0, 0.0
        self._restore()  # after the set-up: state is loaded to where the weights now are
        self.ledger: Ledger = on_chief(fabric, lambda: home.ledger(parts.pool.keys))

    def tell(self) -> None:
        """Train, measure, ask; the file that says a step is done comes last in it."""
        if self.home.finished:
            return
        while True:
            started = time.monotonic()
            if self.epoch == self.plan.epochs or self.epoch in self.plan.ask_after:
                self._measure(started)
            if self.epoch in self.plan.ask_after:
                self._ask()
            if self.epoch == self.plan.epochs:
                break
            self._fit()
            self.seconds += time.monotonic() - started
            self._save()
        on_chief(self.fabric, lambda: self.home.save_model(self.bare.network.state_dict()))
        self._say("done")

    @property
    def stage(self) -> int:
        """Questions before this epoch's own, if it has one."""
        return sum(after < self.epoch for after in self.plan.ask_after)

    @property
    def answered(self) -> int:
        """Questions up to this epoch, its own included."""
        return sum(after <= self.epoch for after in self.plan.ask_after)

    def _fit(self) -> None:
        with global_seed(self.plan.seed, "network", self.epoch, self.fabric.global_rank):
            losses = fit_epoch(
                self.model,
                self.stepper,
                self.parts.objective,
                epoch_batches(
                    source=self.parts.source,
                    pool=self.parts.pool,
                    targets=self._targets(),
                    views=self.parts.views,
                    batch_size=self.plan.batch_size,
                    steps=self.steps,
                    seed=self.plan.seed,
                    epoch=self.epoch,
                    fabric=self.fabric,
                    labelled_batches=self.plan.labelled_batches,
                ),
                self.plan.schedule,
                first_step=self.epoch * self.steps,
                fabric=self.fabric,
                on_step=lambda step, means: self._say("train", step, means),
            )
        self.epoch += 1
        record = {"kind": "epoch", "epoch": self.epoch, "losses": losses}
        on_chief(self.fabric, lambda: self.home.record(record))

    def _measure(self, started: float) -> None:
        done = {r["epoch"] for r in on_chief(self.fabric, self.home.stages)}
        if self.epoch in done:
            return
        self._say("measure")
        record: dict[str, Any] = {"kind": "stage", "stage": self.stage, "epoch": self.epoch}
        record["labels"] = on_chief(self.fabric, lambda: len(self.ledger))
        if self.parts.test is not None:
            tally = evaluate(
                self.model,
                self.parts.test,
                view=self.parts.views.test,
                batch_size=self.plan.scoring_batch,
                fabric=self.fabric,
            )
            record |= compute(tally)
            record["class_accuracy"] = class_accuracy(tally.confusion)
            record["reliability"] = reliability(tally)
        record["seconds"] = round(self.seconds + time.monotonic() - started, 3)
        on_chief(self.fabric, lambda: self.home.record(record))
        self._say("measure", values={k: v for k, v in record.items() if isinstance(v, float)})

    def _ask(self) -> None:
        number = self.stage + 1
        if on_chief(self.fabric, lambda: self.ledger.rounds) >= number:
            return
        self._say("ask")
        if on_chief(self.fabric, lambda: self.home.request(number)) is None:
            self._choose(number)
        on_chief(self.fabric, lambda: self._buy(number))

    def _choose(self, number: int) -> None:
        rows = table(
            self.model,
            self.parts.pool,
            self.strategy.needs,
            view=self.parts.views.scoring,
            batch_size=self.plan.scoring_batch,
            seed=seed_of(self.plan.seed, "scoring", number),
            fabric=self.fabric,
        )
        generator = fork(self.plan.seed, "query", number)
        budget = self.plan.budget[number - 1]
        on_chief(
            self.fabric,
            lambda: self.home.keep_request(
                choose(self.strategy, rows, self.ledger.targets(), budget, number, generator)
            ),
        )

    def _buy(self, number: int) -> None:
        request = self.home.request(number)
        assert request is not None
        self.ledger.append(request, self.parts.oracle(request))

    def _targets(self) -> Tensor:
        return on_chief(self.fabric, lambda: self.ledger.targets())

    def _save(self) -> None:
        state = {
            "epoch": self.epoch,
            "seconds": self.seconds,
            "network": self.bare.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }
        on_chief(self.fabric, lambda: self.home.save_checkpoint(state))

    def _restore(self) -> None:
        state = self.home.checkpoint()
        if state is None:
            return
        self.epoch, self.seconds = state["epoch"], state["seconds"]
        self.bare.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])

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


def _launched() -> Fabric:
    fabric = make_fabric()
    fabric.launch()
    return fabric


def _check(parts: Parts, plan: Plan) -> None:
    if len(plan.budget) != len(plan.ask_after):
        raise UserError(f"{len(plan.ask_after)} questions but {len(plan.budget)} budgets: give one for each")
    if sum(plan.budget) > len(parts.pool):
        raise UserError(
            f"the budget of {sum(plan.budget)} labels exceeds the pool of {len(parts.pool)} images"
        )
    if plan.ask_after and not list(plan.ask_after) == sorted({*plan.ask_after}):
        raise UserError(f"ask_after must rise from question to question, not {list(plan.ask_after)}")
    if plan.ask_after and not 0 <= plan.ask_after[0] <= plan.ask_after[-1] < plan.epochs:
        raise UserError(
            f"questions after epochs {list(plan.ask_after)} must lie before the end, {plan.epochs}"
        )
    if parts.test is not None and tuple(parts.test.classes) != tuple(parts.source.classes):
        raise UserError("source and test must have the same classes in the same order")


def _describe(parts: Parts) -> dict[str, Any]:
    """Fingerprint the data, so that a run never goes on with other images than it began with."""

    def digest(keys: Sequence[str], labels: Tensor | None) -> str:
        text = "\n".join([*keys, *([] if labels is None else map(str, labels.tolist()))])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    test = parts.test
    return {
        "classes": list(parts.source.classes),
        "channels": int(parts.source.images.pixels.shape[1]),
        "size": int(parts.source.images.pixels.shape[-1]),
        "source": {
            "images": len(parts.source),
            "keys": digest(parts.source.images.keys, parts.source.labels),
        },
        "pool": {"images": len(parts.pool), "keys": digest(parts.pool.keys, None)},
        "test": None
        if test is None
        else {"images": len(test), "keys": digest(test.images.keys, test.labels)},
    }


def _plain(plan: Plan) -> dict[str, Any]:
    """The plan in plain numbers and words, for the folder's identity."""
    settings = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
    settings["optimisation"] = {
        k: getattr(plan.optimisation, k) for k in plan.optimisation.__dataclass_fields__
    }
    settings["schedule"] = getattr(plan.schedule, "__name__", repr(plan.schedule))
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}
