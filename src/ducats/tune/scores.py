"""What a finished trial is worth, by one of two criteria; neither looks at a test set."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats import dirichlet
from ducats.assemble import load_data, make_oracle, make_views, with_aspect
from ducats.config import Config
from ducats.data.exam import examine, hold_out_source
from ducats.dev import Normalise, dev_risk
from ducats.domain import UNLABELLED, Domain, Images, Shift
from ducats.engine.processes import make_fabric
from ducats.engine.score import table
from ducats.errors import UserError
from ducats.inference import Trained, load_trained, usable_precision
from ducats.ledger import Request
from ducats.parts import digest
from ducats.randomness import fork, seed_of
from ducats.rows import Rows
from ducats.rundir import RunDir
from ducats.tune.trials import Trial

Loss = Literal["error", "nll"]


@dataclass(frozen=True)
class Score:
    """An estimate of a model's risk on the target."""

    risk: float  # lower is better
    deviation: float  # its standard error
    parts: Mapping[str, float] = field(default_factory=dict)
    degenerate: bool = False  # whether it says little


class Judge(Protocol):
    """Scores trials of one problem."""

    def __call__(self, trial: Trial) -> Score:
        """The score of a finished trial."""


@dataclass(frozen=True)
class Problem:
    """What all trials share: the data as their runs see it, and the source images that no run was taught."""

    shift: Shift
    held: Domain | None  # the source's held-out share


def problem_of(config: Config) -> Problem:
    """Read the data once, split as a run splits it."""
    shift, held = hold_out_source(load_data(config), config.evaluation.source_share)
    shift, _ = examine(shift, config.evaluation.images, config.evaluation.share)
    return Problem(shift, held)


@dataclass(frozen=True)
class ByDev:
    """Deep embedded validation: held-out source labels, weighted towards the target."""

    problem: Problem
    loss: Loss
    normalise: Normalise

    def __call__(self, trial: Trial) -> Score:
        """Estimate the risk from the source's held-out share; no target label is read."""
        trained, fabric = _ready(trial, self.problem)
        held = self.problem.held
        assert held is not None
        shift, needs = self.problem.shift, ("z", "features")
        taught, validation, target = (
            _say(trained, fabric, images, needs) for images in (shift.source.images, held.images, shift.pool)
        )
        known = (held.labels[:] >= 0).nonzero().squeeze(1)
        if len(known) < 2:
            raise UserError(
                f"{len(known)} held-out source image(s) are too few: raise evaluation.source_share"
            )
        found = dev_risk(
            taught.features,
            validation.features[known],
            target.features,
            losses(validation.z[known], held.labels[known], self.loss),
            seed=seed_of(trained.config.seed, "dev"),
            normalise=self.normalise,
            device=fabric.device,
        )
        parts = found.numbers()
        return Score(parts.pop("risk"), parts.pop("deviation"), parts, found.degenerate)


@dataclass(frozen=True)
class ByBought:
    """Labels of random target images that were bought for this, and that no run was taught for it."""

    problem: Problem
    loss: Loss
    labels: Tensor  # (pool,): a class, or below zero where nothing is known

    def __call__(self, trial: Trial) -> Score:
        """The mean loss on those of them that the trial did not ask about itself.

        What a query picks does not depend on which images were drawn for validation, so these are a random
        sample of the target images that the trial left without a label.
        """
        trained, fabric = _ready(trial, self.problem)
        unasked = trained.home.bought().targets() == UNLABELLED
        known = ((self.labels >= 0) & unasked).nonzero().squeeze(1)
        if len(known) < 2:
            raise UserError(
                f"the trial bought all but {len(known)} of the validation images itself: raise --validation"
            )
        z = _say(trained, fabric, self.problem.shift.pool, ("z",)).z[known]
        found = losses(z, self.labels[known], self.loss)
        return Score(float(found.mean()), float(found.std()) / math.sqrt(len(found)), {"images": len(found)})


def losses(z: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """One loss per image: whether it is wrong, or the negative logarithm of its class's probability."""
    if loss == "error":
        return (z.argmax(1) != labels).double()
    return dirichlet.negative_log_likelihood(z, labels).double()


def buy_validation(config: Config, problem: Problem, count: int, folder: Path) -> Tensor:
    """Ask the oracle about random target images, once; return what is known of each image of the pool.

    Args:
        config: names the oracle, and seeds the draw.
        problem: the data.
        count: labels to buy.
        folder: the request and the ledger of these labels; the same folder asks nothing again.

    Raises:
        AwaitingLabels: people have to answer; call again when they have.
    """
    pool, home = problem.shift.pool, RunDir(folder)
    if not 2 <= count <= len(pool):
        raise UserError(f"--validation {count} of {len(pool)} target images: give 2 to {len(pool)}")
    ledger = home.ledger(pool.keys)
    if not ledger.rounds:
        request = home.request(1)
        if request is None:
            drawn = torch.randperm(len(pool), generator=fork(config.seed, "validation"))[:count]
            request = Request(1, drawn, torch.zeros_like(drawn))
            home.keep_request(request)
        # Who answers is told the truth: these were drawn, and all of them are needed.
        query = config.query.model_copy(update={"name": "random", "knobs": {}})
        ask = config.ask.model_copy(update={"budget": count})
        asked = config.model_copy(update={"query": query, "ask": ask})
        ledger.append(request, make_oracle(asked, problem.shift, home)(request))
    return ledger.targets()


def _ready(trial: Trial, problem: Problem) -> tuple[Trained, Fabric]:
    """A trial's model, if it was made from this data."""
    trained = load_trained(trial.home.folder)
    source, pool = problem.shift.source, problem.shift.pool
    now = {"source": digest(source.images.keys, source.labels), "pool": digest(pool.keys)}
    for name, known in now.items():
        if trained.home.data[name]["keys"] != known:
            raise UserError(f"the {name} has other images than when this trial was run: give another --out")
    device = trial.config.engine.device
    return trained, make_fabric(device, precision=usable_precision(trained, device))


def _say(trained: Trained, fabric: Fabric, images: Images, needs: tuple[str, ...]) -> Rows:
    """What the model says about some images, all seen in the view of a test."""
    view = make_views(trained.config).test
    return table(
        fabric.setup(trained.model),
        with_aspect(images, view),
        needs,
        view=view,
        batch_size=trained.config.engine.scoring_batch,
        seed=trained.config.seed,
        fabric=fabric,
    )
