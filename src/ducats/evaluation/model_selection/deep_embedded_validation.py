"""Deep embedded validation (You et al., ICML 2019): a model's target risk, estimated from source labels.

Losses on held-out source samples are weighted by the density ratio of target to source features. The weights
have a known mean of 1, so the deviation from it serves as a control variate.
"""

import math
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor

from ducats.evaluation.model_selection.importance_weights import MAX_SAMPLES_PER_DOMAIN, domain_weights

WeightNormalisation = Literal["none", "max", "standardize"]
WEIGHT_NORMALISATIONS: tuple[WeightNormalisation, ...] = ("none", "max", "standardize")

MIN_RELATIVE_DEVIATION = 1e-3  # weights with a smaller relative deviation count as equal
MIN_EFFECTIVE_FRACTION = 0.05  # below this effective sample fraction, few samples decide the estimate


@dataclass(frozen=True)
class ControlVariateEstimate:
    """Weighted mean of losses, with and without the control variate."""

    risk: float  # mean(w l) + eta mean(w) - eta
    uncorrected_risk: float  # mean(w l)
    eta: float  # -Cov(w l, w) / Var(w); 0 if all weights are equal
    standard_error: float  # standard error of the risk, with the weights treated as exact


@dataclass(frozen=True)
class DevEstimate:
    """Estimate of the target risk, with diagnostics."""

    risk: float  # lower is better
    uncorrected_risk: float  # without the control variate
    source_risk: float  # unweighted mean of the losses
    eta: float
    standard_error: float  # standard error of the risk, with the weights treated as exact
    weight_mean: float  # before normalisation; near 1 if the weights are right
    weight_max: float
    effective_fraction: float  # effective sample size, as a fraction of the samples
    domain_accuracy: float  # near 0.5: domains are similar; near 1: no source sample represents the target
    weight_decay: float

    @property
    def is_degenerate(self) -> bool:
        """Whether a few samples dominate the weights, which makes the risk unreliable."""
        return self.effective_fraction < MIN_EFFECTIVE_FRACTION

    def as_dict(self) -> dict[str, float]:
        """Return all fields by name."""
        return asdict(self)


def dev_risk(
    source_train: Tensor,
    source_validation: Tensor,
    target: Tensor,
    losses: Tensor,
    *,
    seed: int,
    weight_normalisation: WeightNormalisation = "none",
    max_samples: int = MAX_SAMPLES_PER_DOMAIN,
    device: torch.device | str = "cpu",
) -> DevEstimate:
    """Estimate the mean loss on the target.

    Args:
        source_train: features ``(S, D)`` of source samples that the model was trained on.
        source_validation: features ``(V, D)`` of held-out source samples.
        target: features ``(T, D)`` of target samples.
        losses: losses of the validation samples, ``(V,)``.
        weight_normalisation: ``max`` divides the weights by the largest; ``standardize`` gives them mean 1
            and standard deviation 1. Both limit the influence of a few samples, and both make the estimate
            biased.
        max_samples: maximum number of samples per domain for training the domain classifier.
    """
    _check_inputs(source_train, source_validation, target, losses)
    importance = domain_weights(
        source_train, source_validation, target, seed=seed, max_samples=max_samples, device=device
    )
    weights, losses = importance.values, losses.double().cpu()
    estimate = control_variate_estimate(normalise_weights(weights, weight_normalisation), losses)
    return DevEstimate(
        risk=estimate.risk,
        uncorrected_risk=estimate.uncorrected_risk,
        source_risk=float(losses.mean()),
        eta=estimate.eta,
        standard_error=estimate.standard_error,
        weight_mean=float(weights.mean()),
        weight_max=float(weights.max()),
        effective_fraction=effective_sample_fraction(weights),
        domain_accuracy=importance.domain_accuracy,
        weight_decay=importance.weight_decay,
    )


def control_variate_estimate(weights: Tensor, losses: Tensor) -> ControlVariateEstimate:
    """Compute the weighted mean of losses, with the mean of the weights as control variate.

    >>> control_variate_estimate(torch.ones(4), torch.tensor([0.0, 1.0, 1.0, 1.0])).risk
    0.75
    """
    weights, losses = weights.double(), losses.double()
    weighted = weights * losses
    uncorrected_risk, eta = float(weighted.mean()), 0.0
    centred = weights - weights.mean()
    variance = float((centred**2).sum()) / (len(weights) - 1)
    # If nearly equal weights have a mean other than 1, it is not by chance, and eta would amplify it.
    if math.sqrt(variance) > MIN_RELATIVE_DEVIATION * float(weights.abs().mean()):
        eta = -float((centred * (weighted - uncorrected_risk)).sum()) / (len(weights) - 1) / variance
    risk = uncorrected_risk + eta * float(weights.mean()) - eta
    deviation = float((weighted + eta * weights).std())
    return ControlVariateEstimate(risk, uncorrected_risk, eta, deviation / math.sqrt(len(weights)))


def normalise_weights(weights: Tensor, method: WeightNormalisation) -> Tensor:
    """Normalise weights to limit the influence of a few large ones."""
    if method not in WEIGHT_NORMALISATIONS:
        raise ValueError(
            f"weight_normalisation must be one of {', '.join(WEIGHT_NORMALISATIONS)}, not {method!r}"
        )
    if method == "max":
        return weights / weights.max()
    if method == "standardize":
        deviation = weights.std()
        return torch.ones_like(weights) if deviation == 0 else 1 + (weights - weights.mean()) / deviation
    return weights


def effective_sample_fraction(weights: Tensor) -> float:
    """Return the effective sample size as a fraction of the samples: ``(sum w)^2 / (n sum w^2)``.

    >>> effective_sample_fraction(torch.tensor([1.0, 1.0, 0.0, 0.0]))
    0.5
    """
    scaled = weights.double() / weights.max()  # squares of large weights would overflow
    return float(scaled.sum() ** 2 / (scaled**2).sum() / len(scaled))


def _check_inputs(source_train: Tensor, source_validation: Tensor, target: Tensor, losses: Tensor) -> None:
    features_by_name = {
        "source_train": source_train,
        "source_validation": source_validation,
        "target": target,
    }
    for name, features in features_by_name.items():
        if features.ndim != 2 or features.shape[1] != target.shape[-1]:
            shapes = ", ".join(f"{n} {tuple(f.shape)}" for n, f in features_by_name.items())
            raise ValueError(f"features must have shape (samples, width) with a common width, not {shapes}")
        if len(features) < 2:
            raise ValueError(f"{name} has {len(features)} sample(s), but at least 2 are needed")
    if losses.shape != (len(source_validation),):
        raise ValueError(
            f"losses has shape {tuple(losses.shape)} for {len(source_validation)} validation samples"
        )
    for name, values in {**features_by_name, "losses": losses}.items():
        if not bool(values.isfinite().all()):
            raise ValueError(f"{name} contains non-finite values; the training diverged")
