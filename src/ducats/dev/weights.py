"""Importance weights of source samples: density ratios estimated by a domain classifier."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ducats.randomness import fork

DECAYS = tuple(10 ** (-exponent / 2) for exponent in range(2, 11))  # 1e-1 ... 1e-5, half a decade apart
HELD_OUT = 0.2  # fraction of the classifier's samples
BATCH, RATE, EPOCHS, PATIENCE = 128, 1e-3, 100, 5
MOST = 2000  # training samples per domain
LARGEST = 50.0  # bound on the logarithm of a weight, which prevents overflow


@dataclass(frozen=True)
class Weights:
    """Importance weights of source samples, and the quality of the domain classifier."""

    values: Tensor  # (V,) float64: target density over source density
    accuracy: float  # of the domain classifier on its held-out samples
    decay: float  # best weight decay


def domain_weights(
    source_train: Tensor,
    source_validation: Tensor,
    target: Tensor,
    *,
    seed: int,
    most: int = MOST,
    device: torch.device | str = "cpu",
) -> Weights:
    """Estimate the density ratio of target to source features at the validation samples.

    The domain classifier has two hidden layers as wide as the features. One classifier per weight decay is
    trained, all in parallel, with early stopping on the cross-entropy of the held-out fifth. The one with the
    best held-out accuracy gives ``w = _P(target) / _P(source) * N_source / N_target``.

    Args:
        source_train: features ``(_S, D)``.
        source_validation: features ``(V, D)``.
        target: features ``(_T, D)``.
        seed: seed of the initial weights, the split and the batches.
        most: maximum number of training samples per domain.
    """
    luck = fork(seed, "dev")
    source, foreign = (_some(features, most, luck) for features in (source_train, target))
    cuts = [max(1, round(HELD_OUT * len(features))) for features in (source, foreign)]
    held, kept = (
        (torch.cat([source[side[0]], foreign[side[1]]]), _is_target(source[side[0]], foreign[side[1]]))
        for side in ([slice(cut) for cut in cuts], [slice(cut, None) for cut in cuts])
    )
    # Standardise the features: this does not change the density ratio, but helps training.
    mean, scale = kept[0].mean(0), kept[0].std(0)
    scale[scale < 1e-6] = 1.0  # do not amplify a feature that is almost constant
    train, test = (((x - mean) / scale).to(device) for x in (kept[0], held[0]))
    parameters, accuracy, best = _fit(train, kept[1].to(device), test, held[1].to(device), luck)
    with torch.no_grad():
        asked = ((source_validation.float().cpu() - mean) / scale).to(device)
        log_odds = _logits(asked, parameters)[best].double().cpu()
    ratio = (len(source) - cuts[0]) / (len(foreign) - cuts[1])
    return Weights(log_odds.clamp(-LARGEST, LARGEST).exp() * ratio, accuracy, DECAYS[best])


def _some(features: Tensor, most: int, luck: torch.Generator) -> Tensor:
    """Return at most ``most`` rows, in random order."""
    return features.float().cpu()[torch.randperm(len(features), generator=luck)[:most]]


def _is_target(source: Tensor, target: Tensor) -> Tensor:
    return torch.cat([torch.zeros(len(source)), torch.ones(len(target))])


def _fit(
    features: Tensor, is_target: Tensor, held_features: Tensor, held: Tensor, luck: torch.Generator
) -> tuple[list[Tensor], float, int]:
    """Train one classifier per weight decay; return the parameters, the best accuracy and its index."""
    decays = torch.tensor(DECAYS, device=features.device)
    parameters = _first(features.shape[1], len(decays), luck, features.device)
    optimiser = torch.optim.Adam(parameters, lr=RATE)
    kept = [p.detach().clone() for p in parameters]
    lowest, at, epoch = torch.full_like(decays, math.inf), torch.zeros(len(decays)), 0
    while epoch < EPOCHS and epoch - int(at.max()) <= PATIENCE:
        epoch += 1
        for batch in torch.randperm(len(features), generator=luck).split(BATCH):
            loss = _cross_entropy(_logits(features[batch], parameters), is_target[batch]).sum()
            shrink = sum(((p**2).flatten(1).sum(1) * decays).sum() for p in parameters) / 2
            optimiser.zero_grad()
            (loss + shrink).backward()
            optimiser.step()
        with torch.no_grad():
            now = _cross_entropy(_logits(held_features, parameters), held)
            better = now < lowest
            lowest = torch.where(better, now, lowest)
            at[better.cpu()] = epoch
            for old, new in zip(kept, parameters, strict=True):
                old[better] = new[better]
    with torch.no_grad():
        accuracy = ((_logits(held_features, kept) > 0) == held.bool()).double().mean(1)
    winners = (accuracy == accuracy.max()).nonzero().squeeze(1)
    best = int(winners[lowest[winners].argmin()])
    return kept, float(accuracy[best]), best


def _first(width: int, copies: int, luck: torch.Generator, device: torch.device) -> list[Tensor]:
    """Initialise weights and biases of two hidden layers and one output, identical for all copies."""
    made = []
    for out in (width, width, 1):
        bound = 1 / math.sqrt(width)
        for shape in ((width, out), (1, out)):
            one = (2 * torch.rand(*shape, generator=luck) - 1) * bound
            made.append(one.expand(copies, *shape).clone().to(device).requires_grad_())
    return made


def _logits(features: Tensor, parameters: list[Tensor]) -> Tensor:
    """Compute the log odds of the target, ``(N, D) -> (copies, N)``."""
    first, a, second, b, last, c = parameters
    hidden = torch.relu(features @ first + a)
    hidden = torch.relu(hidden @ second + b)
    return (hidden @ last + c).squeeze(2)


def _cross_entropy(logits: Tensor, is_target: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(logits, is_target.expand_as(logits), reduction="none").mean(1)
