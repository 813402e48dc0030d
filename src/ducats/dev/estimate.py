"""Deep embedded validation (You et al., ICML 2019): a model's target risk, estimated from source labels.

Losses on held-out source samples are weighted by the density ratio of target to source features. The weights
have a known mean of 1, so the deviation from it serves as a control variate.
"""

import math
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor

from ducats.dev.weights import MOST, domain_weights

Normalise = Literal["none", "max", "standardize"]
NORMALISE: tuple[Normalise, ...] = ("none", "max", "standardize")

ALIKE = 1e-3  # weights with a smaller relative deviation count as equal
DEGENERATE = 0.05  # below this effective sample fraction, few samples decide the estimate


@dataclass(frozen=True)
class Control:
    """Weighted mean of losses, with and without the control variate."""

    risk: float  # mean(w l) + eta mean(w) - eta
    plain: float  # mean(w l)
    eta: float  # -Cov(w l, w) / Var(w); 0 if all weights are equal
    deviation: float  # standard error of the risk, with the weights treated as exact


@dataclass(frozen=True)
class Dev:
    """Estimate of the target risk, with diagnostics."""

    risk: float  # lower is better
    plain: float  # without the control variate
    source: float  # unweighted mean of the losses
    eta: float
    deviation: float  # standard error of the risk, with the weights treated as exact
    weight_mean: float  # before normalisation; near 1 if the weights are right
    weight_max: float
    effective: float  # effective sample size, as a fraction of the samples
    domain_accuracy: float  # near 0.5: domains are similar; near 1: no source sample represents the target
    decay: float

    @property
    def degenerate(self) -> bool:
        """Whether a few samples dominate the weights, which makes the risk unreliable."""
        return self.effective < DEGENERATE

    def numbers(self) -> dict[str, float]:
        """Return all fields by name."""
        return asdict(self)


def dev_risk(
    source_train: Tensor,
    source_validation: Tensor,
    target: Tensor,
    losses: Tensor,
    *,
    seed: int,
    normalise: Normalise = "none",
    most: int = MOST,
    device: torch.device | str = "cpu",
) -> Dev:
    """Estimate the mean loss on the target.

    Args:
        source_train: features ``(_S, D)`` of source samples that the model was trained on.
        source_validation: features ``(V, D)`` of held-out source samples.
        target: features ``(_T, D)`` of target samples.
        losses: losses of the validation samples, ``(V,)``.
        seed: seed of the domain classifier.
        normalise: ``max`` divides the weights by the largest; ``standardize`` gives them mean 1 and standard
            deviation 1. Both limit the influence of a few samples, and both make the estimate biased.
        most: maximum number of samples per domain for training the domain classifier, sampled at random.
        device: device of the domain classifier.
    """
    _check(source_train, source_validation, target, losses)
    found = domain_weights(source_train, source_validation, target, seed=seed, most=most, device=device)
    weights, losses = found.values, losses.double().cpu()
    estimate = control(normalised(weights, normalise), losses)
    return Dev(
        risk=estimate.risk,
        plain=estimate.plain,
        source=float(losses.mean()),
        eta=estimate.eta,
        deviation=estimate.deviation,
        weight_mean=float(weights.mean()),
        weight_max=float(weights.max()),
        effective=effective_share(weights),
        domain_accuracy=found.accuracy,
        decay=found.decay,
    )


def control(weights: Tensor, losses: Tensor) -> Control:
    """Compute the weighted mean of losses, with the mean of the weights as control variate.

    >>> control(torch.ones(4), torch.tensor([0.0, 1.0, 1.0, 1.0])).risk
    0.75
    """
    weights, losses = weights.double(), losses.double()
    weighted = weights * losses
    plain, eta = float(weighted.mean()), 0.0
    around = weights - weights.mean()
    variance = float((around**2).sum()) / (len(weights) - 1)
    # If nearly equal weights have a mean other than 1, it is not by chance, and eta would amplify it.
    if math.sqrt(variance) > ALIKE * float(weights.abs().mean()):
        eta = -float((around * (weighted - plain)).sum()) / (len(weights) - 1) / variance
    risk = plain + eta * float(weights.mean()) - eta
    spread = float((weighted + eta * weights).std())
    return Control(risk, plain, eta, spread / math.sqrt(len(weights)))


def normalised(weights: Tensor, how: Normalise) -> Tensor:
    """Normalise weights to limit the influence of a few large ones."""
    if how not in NORMALISE:
        raise ValueError(f"normalise must be one of {', '.join(NORMALISE)}, not {how!r}")
    if how == "max":
        return weights / weights.max()
    if how == "standardize":
        deviation = weights.std()
        return torch.ones_like(weights) if deviation == 0 else 1 + (weights - weights.mean()) / deviation
    return weights


def effective_share(weights: Tensor) -> float:
    """Return the effective sample size as a fraction of the samples: ``(sum w)^2 / (n sum w^2)``.

    >>> effective_share(torch.tensor([1.0, 1.0, 0.0, 0.0]))
    0.5
    """
    scaled = weights.double() / weights.max()  # squares of large weights would overflow
    return float(scaled.sum() ** 2 / (scaled**2).sum() / len(scaled))


def _check(source_train: Tensor, source_validation: Tensor, target: Tensor, losses: Tensor) -> None:
    named = {"source_train": source_train, "source_validation": source_validation, "target": target}
    for name, features in named.items():
        if features.ndim != 2 or features.shape[1] != target.shape[-1]:
            shapes = ", ".join(f"{n} {tuple(f.shape)}" for n, f in named.items())
            raise ValueError(f"features must have shape (samples, width) with a common width, not {shapes}")
        if len(features) < 2:
            raise ValueError(f"{name} has {len(features)} sample(s), but at least 2 are needed")
    if losses.shape != (len(source_validation),):
        raise ValueError(
            f"losses has shape {tuple(losses.shape)} for {len(source_validation)} validation samples"
        )
    for name, values in {**named, "losses": losses}.items():
        if not bool(values.isfinite().all()):
            raise ValueError(f"{name} contains non-finite values; the training diverged")
