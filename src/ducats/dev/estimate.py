"""Deep embedded validation (You et al., ICML 2019): a model's risk on the target, from labels of the source.

Held-out source losses are weighted by how much more often the target has such features than the source has.
The weights' mean is known to be 1; what it strays from that corrects the estimate (a control variate).
"""

import math
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor

from ducats.dev.weights import MOST, domain_weights

Normalise = Literal["none", "max", "standardize"]
NORMALISE: tuple[Normalise, ...] = ("none", "max", "standardize")

ALIKE = 1e-3  # a relative deviation of weights up to this is none
DEGENERATE = 0.05  # an effective share of samples below this says that few of them decide


@dataclass(frozen=True)
class Control:
    """A weighted mean of losses, before and after its correction."""

    risk: float  # mean(w l) + eta mean(w) - eta
    plain: float  # mean(w l)
    eta: float  # -Cov(w l, w) / Var(w); 0 where all weights are alike
    deviation: float  # standard error of the risk, the weights taken for true


@dataclass(frozen=True)
class Dev:
    """The estimate, and what it rests on."""

    risk: float  # lower is better
    plain: float  # without the control variate
    source: float  # the plain mean of the losses
    eta: float
    deviation: float  # standard error of the risk, the weights taken for true
    weight_mean: float  # of the weights before normalising; near 1 if they are right
    weight_max: float
    effective: float  # effective sample size, as a share of the samples
    domain_accuracy: float  # near 0.5: domains look alike; near 1: no source sample stands for the target
    decay: float

    @property
    def degenerate(self) -> bool:
        """Whether a handful of samples decides, so that the risk says little."""
        return self.effective < DEGENERATE

    def numbers(self) -> dict[str, float]:
        """Every part by name."""
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
        source_train: features ``(S, D)`` of source samples that the model was trained on.
        source_validation: features ``(V, D)`` of source samples that it was not trained on.
        target: features ``(T, D)`` of target samples, without labels.
        losses: ``(V,)``, of the validation samples.
        seed: of the domain classifier.
        normalise: ``max`` divides the weights by the largest; ``standardize`` gives them mean 1 and deviation
            1; the formula stays. Either bounds what few samples can do, and neither is an unbiased estimate.
        most: samples of each domain that the domain classifier learns from, drawn by the seed.
        device: where it learns.
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
    """Weigh losses, and correct their mean by what the weights' mean strays from 1.

    >>> control(torch.ones(4), torch.tensor([0.0, 1.0, 1.0, 1.0])).risk
    0.75
    """
    weights, losses = weights.double(), losses.double()
    weighted = weights * losses
    plain, eta = float(weighted.mean()), 0.0
    around = weights - weights.mean()
    variance = float((around**2).sum()) / (len(weights) - 1)
    # Of weights that are nearly alike, the mean strays for other reasons than chance: eta would blow that up.
    if math.sqrt(variance) > ALIKE * float(weights.abs().mean()):
        eta = -float((around * (weighted - plain)).sum()) / (len(weights) - 1) / variance
    risk = plain + eta * float(weights.mean()) - eta
    spread = float((weighted + eta * weights).std())
    return Control(risk, plain, eta, spread / math.sqrt(len(weights)))


def normalised(weights: Tensor, how: Normalise) -> Tensor:
    """Weights on another scale, so that a few large ones cannot drown the rest."""
    if how not in NORMALISE:
        raise ValueError(f"normalise is one of {', '.join(NORMALISE)}, not {how!r}")
    if how == "max":
        return weights / weights.max()
    if how == "standardize":
        deviation = weights.std()
        return torch.ones_like(weights) if deviation == 0 else 1 + (weights - weights.mean()) / deviation
    return weights


def effective_share(weights: Tensor) -> float:
    """How many equal weights would be worth as much, over how many there are: ``(sum w)^2 / (n sum w^2)``.

    >>> effective_share(torch.tensor([1.0, 1.0, 0.0, 0.0]))
    0.5
    """
    scaled = weights.double() / weights.max()  # the squares of large weights overflow
    return float(scaled.sum() ** 2 / (scaled**2).sum() / len(scaled))


def _check(source_train: Tensor, source_validation: Tensor, target: Tensor, losses: Tensor) -> None:
    named = {"source_train": source_train, "source_validation": source_validation, "target": target}
    for name, features in named.items():
        if features.ndim != 2 or features.shape[1] != target.shape[-1]:
            shapes = ", ".join(f"{n} {tuple(f.shape)}" for n, f in named.items())
            raise ValueError(f"features must be (samples, width), one width for all, not {shapes}")
        if len(features) < 2:
            raise ValueError(f"{name} has {len(features)} sample(s): at least 2 are needed")
    if losses.shape != (len(source_validation),):
        raise ValueError(f"{tuple(losses.shape)} losses for {len(source_validation)} validation samples")
    for name, values in {**named, "losses": losses}.items():
        if not bool(values.isfinite().all()):
            raise ValueError(f"{name} has values that are not finite: the training diverged")
