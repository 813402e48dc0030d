"""Scores of finished trials, by one of three criteria; none uses a test set."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats import dirichlet
from ducats.acquisition.samples import SampleTable
from ducats.config import Config
from ducats.data.domain import UNLABELLED, VOID, AdaptationData, Domain, Images
from ducats.data.evaluation_split import attach_test_set, hold_out_source
from ducats.deploy import TrainedModel, load_trained_model, supported_precision
from ducats.deploy.evaluation import images_not_trained_on
from ducats.evaluation.audit import proportion_limits, stage_level
from ducats.evaluation.model_selection import WeightNormalisation, dev_risk
from ducats.ledger import Request, load_ledger, load_request, open_ledger, save_request
from ducats.run.components import data_digest
from ducats.run.factory import load_data, make_oracle, prepare_images
from ducats.runfolder.run_folder import RunFolder
from ducats.sweep.tune.trials import Trial
from ducats.training.distributed import make_fabric
from ducats.utils.errors import UserError
from ducats.utils.randomness import derive_seed, make_generator

TuningLoss = Literal["error", "nll"]


@dataclass(frozen=True)
class RiskEstimate:
    """Estimate of a model's target risk."""

    risk: float  # lower is better
    standard_error: float  # standard error of the risk
    details: Mapping[str, float] = field(default_factory=dict)
    is_degenerate: bool = False  # whether the estimate is unreliable


TrialScorer = Callable[[Trial], RiskEstimate]  # scores a finished trial


@dataclass(frozen=True)
class TuningData:
    """Data shared by all trials, split as in their runs."""

    data: AdaptationData
    held_out_source: Domain | None  # source images that no run is trained on


def load_tuning_data(config: Config) -> TuningData:
    """Load the data and split it as a run does."""
    data, held_out_source = hold_out_source(load_data(config), config.evaluation.source_holdout_fraction)
    data, _ = attach_test_set(data, config.evaluation.split, config.evaluation.test_fraction)
    return TuningData(data, held_out_source)


@dataclass(frozen=True)
class DevScorer:
    """Scorer by deep embedded validation: held-out source labels, weighted towards the target."""

    tuning_data: TuningData
    loss: TuningLoss
    weight_normalisation: WeightNormalisation

    def __call__(self, trial: Trial) -> RiskEstimate:
        """Estimate the risk from the held-out source images; no target label is used."""
        trained, fabric = _load_trial(trial, self.tuning_data)
        held_out_source = self.tuning_data.held_out_source
        assert held_out_source is not None
        data, columns = self.tuning_data.data, ("z", "features")
        source_train, validation, target = (
            _predict(trained, fabric, images, columns)
            for images in (data.source.images, held_out_source.images, data.pool)
        )
        labelled = (held_out_source.labels[:] >= 0).nonzero().squeeze(1)
        if len(labelled) < 2:
            raise UserError(
                f"{len(labelled)} held-out source image(s) are too few; increase "
                "evaluation.source_holdout_fraction"
            )
        estimate = dev_risk(
            source_train.features,
            validation.features[labelled],
            target.features,
            per_image_losses(validation.z[labelled], held_out_source.labels[labelled], self.loss),
            seed=derive_seed(trained.config.seed, "dev"),
            weight_normalisation=self.weight_normalisation,
            device=fabric.device,
        )
        details = estimate.as_dict()
        risk, standard_error = details.pop("risk"), details.pop("standard_error")
        return RiskEstimate(risk, standard_error, details, estimate.is_degenerate)


@dataclass(frozen=True)
class TargetLabelScorer:
    """Scorer by labels of random target images, acquired for validation only."""

    tuning_data: TuningData
    loss: TuningLoss
    labels: Tensor  # (pool,): class, or negative if unknown

    def __call__(self, trial: Trial) -> RiskEstimate:
        """Return the mean loss on the validation images that the trial did not label itself.

        A query does not depend on the choice of validation images, so these are a random sample of the target
        images that the trial left unlabelled.
        """
        trained, fabric = _load_trial(trial, self.tuning_data)
        labelled = ((self.labels >= 0) & images_not_trained_on(trained)).nonzero().squeeze(1)
        if len(labelled) < 2:
            raise UserError(
                f"the trial itself labelled all but {len(labelled)} of the validation images; raise "
                "--validation-labels"
            )
        z = _predict(trained, fabric, self.tuning_data.data.pool, ("z",)).z[labelled]
        image_losses = per_image_losses(z, self.labels[labelled], self.loss)
        return RiskEstimate(
            float(image_losses.mean()),
            float(image_losses.std()) / math.sqrt(len(image_losses)),
            {"images": len(image_losses)},
        )


@dataclass(frozen=True)
class AuditScorer:
    """Scorer by the audit labels of the trials themselves.

    The intervals of the error rate hold for all trials together, and so for the best of them.
    """

    tuning_data: TuningData
    loss: TuningLoss
    n_trials: int

    def __call__(self, trial: Trial) -> RiskEstimate:
        """Return the mean loss on the trial's audit images."""
        ledger, releases = load_ledger(trial.run_folder), trial.config.acquisition.release_audit
        labels = ledger.audit_labels()
        if releases or int((labels >= 0).sum()) < 2:
            raise UserError(
                "the trial has no audit labels to judge it; give --audit 50, or --start-from a run with an "
                "audit, and keep acquisition.release_audit=false"
            )
        estimate = TargetLabelScorer(self.tuning_data, self.loss, labels)(trial)
        if self.loss != "error":
            return estimate
        n_images, n_void = int(estimate.details["images"]), int((labels == VOID).sum())
        low, high = proportion_limits(
            round(estimate.risk * n_images),
            n_images,
            int((ledger.targets() == UNLABELLED).sum()) - n_void,
            level=stage_level(0, self.n_trials),
            size_known=n_void == 0,
        )
        return replace(estimate, details={**estimate.details, "low": low, "high": high})


def per_image_losses(z: Tensor, labels: Tensor, loss: TuningLoss) -> Tensor:
    """Compute the loss per image: 0-1 error or negative log-likelihood."""
    if loss == "error":
        return (z.argmax(1) != labels).double()
    return dirichlet.negative_log_likelihood(z, labels).double()


def acquire_validation_labels(config: Config, tuning_data: TuningData, count: int, folder: Path) -> Tensor:
    """Acquire labels of random target images, once per folder; return the known labels of the pool.

    Args:
        folder: folder of the request and the ledger; existing labels are reused.

    Raises:
        AwaitingLabels: annotators have to answer first; call again afterwards.
    """
    pool, run_folder = tuning_data.data.pool, RunFolder(folder)
    if not 2 <= count <= len(pool):
        raise UserError(f"--validation-labels must be between 2 and {len(pool)} (target images), not {count}")
    ledger = open_ledger(run_folder, pool.keys)
    if not ledger.n_rounds:
        request = load_request(run_folder, 1)
        if request is None:
            sampled = torch.randperm(len(pool), generator=make_generator(config.seed, "validation"))[:count]
            request = Request(1, sampled, torch.zeros_like(sampled))
            save_request(run_folder, request)
        # The oracle may show the query and the budget to annotators, so both must be correct.
        query = replace(config.query, name="random", params={})
        acquisition = replace(config.acquisition, budget=count)
        oracle = config.oracle
        if tuning_data.data.ground_truth is None and oracle.name in (
            "auto",
            "human",
        ):  # trials fix the classes
            oracle = replace(oracle, params={**oracle.params, "allow_new_classes": False})
        validation_config = config.model_copy(
            update={"query": query, "acquisition": acquisition, "oracle": oracle}
        )
        ledger.append(request, make_oracle(validation_config, tuning_data.data, run_folder)(request))
    return ledger.targets()


def _load_trial(trial: Trial, tuning_data: TuningData) -> tuple[TrainedModel, Fabric]:
    """Load a trial's model; raise if the trial was run on other data."""
    trained = load_trained_model(trial.run_folder.path, trust_code=True)  # the user's own config
    source, pool = tuning_data.data.source, tuning_data.data.pool
    current_digests = {
        "source": data_digest(source.images.keys, source.labels),
        "pool": data_digest(pool.keys),
    }
    for name, current_digest in current_digests.items():
        if trained.run_folder.data_summary[name]["digest"] != current_digest:
            raise UserError(f"the {name} images have changed since this trial was run; use another --out")
    device = trial.config.engine.device
    return trained, make_fabric(device, precision=supported_precision(trained, device))


def _predict(trained: TrainedModel, fabric: Fabric, images: Images, columns: tuple[str, ...]) -> SampleTable:
    """Compute the model's outputs for images in the test view."""
    predictor = trained.predictor(fabric, seed=trained.config.seed, stream=("scoring",))
    return predictor.score_images(prepare_images(images, predictor.view), columns)
