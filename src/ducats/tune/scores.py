"""Scores of finished trials, by one of two criteria; neither uses a test set."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats import dirichlet
from ducats.config import Config
from ducats.data.evaluation_split import attach_test_set, hold_out_source
from ducats.dev import Normalise, dev_risk
from ducats.domain import UNLABELLED, Domain, Images, Shift
from ducats.engine.processes import make_fabric
from ducats.engine.score import table
from ducats.errors import UserError
from ducats.factory import load_data, make_oracle, make_views, with_aspect_ratio
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
    """Estimate of a model's target risk."""

    risk: float  # lower is better
    deviation: float  # standard error of the risk
    parts: Mapping[str, float] = field(default_factory=dict)
    degenerate: bool = False  # whether the estimate is unreliable


class Judge(Protocol):
    """Function that scores finished trials."""

    def __call__(self, trial: Trial) -> Score:
        """Return the score of a finished trial."""


@dataclass(frozen=True)
class Problem:
    """Data shared by all trials, split as in their runs."""

    shift: Shift
    held: Domain | None  # source images that no run is trained on


def problem_of(config: Config) -> Problem:
    """Load the data and split it as a run does."""
    shift, held = hold_out_source(load_data(config), config.evaluation.source_holdout_fraction)
    shift, _ = attach_test_set(shift, config.evaluation.split, config.evaluation.test_fraction)
    return Problem(shift, held)


@dataclass(frozen=True)
class ByDev:
    """Scorer by deep embedded validation: held-out source labels, weighted towards the target."""

    problem: Problem
    loss: Loss
    normalise: Normalise

    def __call__(self, trial: Trial) -> Score:
        """Estimate the risk from the held-out source images; no target label is used."""
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
                f"{len(known)} held-out source image(s) are too few; increase evaluation.source_holdout_fraction"
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
    """Scorer by labels of random target images, acquired for validation only."""

    problem: Problem
    loss: Loss
    labels: Tensor  # (pool,): class, or negative if unknown

    def __call__(self, trial: Trial) -> Score:
        """Return the mean loss on the validation images that the trial did not label itself.

        A query does not depend on the choice of validation images, so these are a random sample of the target
        images that the trial left unlabelled.
        """
        trained, fabric = _ready(trial, self.problem)
        unasked = trained.home.bought().targets() == UNLABELLED
        known = ((self.labels >= 0) & unasked).nonzero().squeeze(1)
        if len(known) < 2:
            raise UserError(
                f"the trial itself labelled all but {len(known)} of the validation images; raise --validation-labels"
            )
        z = _say(trained, fabric, self.problem.shift.pool, ("z",)).z[known]
        found = losses(z, self.labels[known], self.loss)
        return Score(float(found.mean()), float(found.std()) / math.sqrt(len(found)), {"images": len(found)})


def losses(z: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """Compute the loss per image: 0-1 error or negative log-likelihood."""
    if loss == "error":
        return (z.argmax(1) != labels).double()
    return dirichlet.negative_log_likelihood(z, labels).double()


def buy_validation(config: Config, problem: Problem, count: int, folder: Path) -> Tensor:
    """Acquire labels of random target images, once per folder; return the known labels of the pool.

    Args:
        config: provides the oracle and the seed.
        count: number of labels.
        folder: folder of the request and the ledger; existing labels are reused.

    Raises:
        AwaitingLabels: annotators have to answer first; call again afterwards.
    """
    pool, home = problem.shift.pool, RunDir(folder)
    if not 2 <= count <= len(pool):
        raise UserError(f"--validation-labels must be between 2 and {len(pool)} (target images), not {count}")
    ledger = home.ledger(pool.keys)
    if not ledger.rounds:
        request = home.request(1)
        if request is None:
            drawn = torch.randperm(len(pool), generator=fork(config.seed, "validation"))[:count]
            request = Request(1, drawn, torch.zeros_like(drawn))
            home.keep_request(request)
        # The oracle may show the query and the budget to annotators, so both must be correct.
        query = config.query.model_copy(update={"name": "random", "params": {}})
        ask = config.acquisition.model_copy(update={"budget": count})
        asked = config.model_copy(update={"query": query, "acquisition": ask})
        ledger.append(request, make_oracle(asked, problem.shift, home)(request))
    return ledger.targets()


def _ready(trial: Trial, problem: Problem) -> tuple[Trained, Fabric]:
    """Load a trial's model; raise if the trial was run on other data."""
    trained = load_trained(trial.home.folder)
    source, pool = problem.shift.source, problem.shift.pool
    now = {"source": digest(source.images.keys, source.labels), "pool": digest(pool.keys)}
    for name, known in now.items():
        if trained.home.data[name]["keys"] != known:
            raise UserError(f"the {name} images have changed since this trial was run; use another --out")
    device = trial.config.engine.device
    return trained, make_fabric(device, precision=usable_precision(trained, device))


def _say(trained: Trained, fabric: Fabric, images: Images, needs: tuple[str, ...]) -> Rows:
    """Compute the model's outputs for images in the test view."""
    view = make_views(trained.config).test
    return table(
        fabric.setup(trained.model),
        with_aspect_ratio(images, view),
        needs,
        view=view,
        batch_size=trained.config.engine.scoring_batch_size,
        seed=trained.config.seed,
        fabric=fabric,
    )
