"""Importance weights of source samples: density ratios estimated by a domain classifier."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ducats.utils.randomness import make_generator

WEIGHT_DECAYS = tuple(10 ** (-exponent / 2) for exponent in range(2, 11))  # 1e-1 to 1e-5
HELD_OUT_FRACTION = 0.2  # fraction of the classifier's samples
_BATCH_SIZE, _LEARNING_RATE, _MAX_EPOCHS, _PATIENCE_EPOCHS = 128, 1e-3, 100, 5
MAX_SAMPLES_PER_DOMAIN = 2000  # training samples per domain
MAX_LOG_WEIGHT = 50.0  # bound on the logarithm of a weight, which prevents overflow


@dataclass(frozen=True)
class DomainWeights:
    """Importance weights of source samples, and the quality of the domain classifier."""

    values: Tensor  # (V,) float64: target density over source density
    domain_accuracy: float  # of the domain classifier on its held-out samples
    weight_decay: float  # best weight decay


def domain_weights(
    source_train: Tensor,
    source_validation: Tensor,
    target: Tensor,
    *,
    seed: int,
    max_samples: int = MAX_SAMPLES_PER_DOMAIN,
    device: torch.device | str = "cpu",
) -> DomainWeights:
    """Estimate the density ratio of target to source features at the validation samples.

    The domain classifier has two hidden layers as wide as the features. One classifier per weight decay is
    trained, all in parallel, with early stopping on the cross-entropy of the held-out fifth. The one with the
    best held-out accuracy gives ``w = P(target) / P(source) * N_source / N_target``.

    Features are ``(N, D)``. ``seed`` is that of the initial weights, the split and the batches.
    """
    generator = make_generator(seed, "dev")
    source_samples, target_samples = (
        _random_subset(features, max_samples, generator) for features in (source_train, target)
    )
    n_source, n_target = (
        max(1, round(HELD_OUT_FRACTION * len(features))) for features in (source_samples, target_samples)
    )
    held_out = _join_domains(source_samples[:n_source], target_samples[:n_target])
    training = _join_domains(source_samples[n_source:], target_samples[n_target:])
    # Standardise the features: this does not change the density ratio, but helps training.
    mean, scale = training[0].mean(0), training[0].std(0)
    scale[scale < 1e-6] = 1.0  # do not amplify a feature that is almost constant
    train, test = (((x - mean) / scale).to(device) for x in (training[0], held_out[0]))
    parameters, accuracy, best = _train_classifiers(
        train, training[1].to(device), test, held_out[1].to(device), generator
    )
    with torch.no_grad():
        validation = ((source_validation.float().cpu() - mean) / scale).to(device)
        log_odds = _logits(validation, parameters)[best].double().cpu()
    ratio = (len(source_samples) - n_source) / (len(target_samples) - n_target)
    return DomainWeights(
        log_odds.clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT).exp() * ratio, accuracy, WEIGHT_DECAYS[best]
    )


def _random_subset(features: Tensor, max_samples: int, generator: torch.Generator) -> Tensor:
    """Return at most ``max_samples`` rows, in random order."""
    return features.float().cpu()[torch.randperm(len(features), generator=generator)[:max_samples]]


def _join_domains(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features of both domains, and whether each is of the target: 0 or 1."""
    return torch.cat([source, target]), torch.cat([torch.zeros(len(source)), torch.ones(len(target))])


def _train_classifiers(
    features: Tensor,
    is_target: Tensor,
    held_out_features: Tensor,
    held_out_is_target: Tensor,
    generator: torch.Generator,
) -> tuple[list[Tensor], float, int]:
    """Train one classifier per weight decay; return the parameters, the best accuracy and its index."""
    decays = torch.tensor(WEIGHT_DECAYS, device=features.device)
    parameters = _initial_parameters(features.shape[1], len(decays), generator, features.device)
    optimiser = torch.optim.Adam(parameters, lr=_LEARNING_RATE)
    best_parameters = [p.detach().clone() for p in parameters]
    lowest_loss, best_epoch, epoch = torch.full_like(decays, math.inf), torch.zeros(len(decays)), 0
    while epoch < _MAX_EPOCHS and epoch - int(best_epoch.max()) <= _PATIENCE_EPOCHS:
        epoch += 1
        for batch in torch.randperm(len(features), generator=generator).split(_BATCH_SIZE):
            loss = _cross_entropy(_logits(features[batch], parameters), is_target[batch]).sum()
            penalty = sum(((p**2).flatten(1).sum(1) * decays).sum() for p in parameters) / 2
            optimiser.zero_grad()
            (loss + penalty).backward()
            optimiser.step()
        with torch.no_grad():
            current_loss = _cross_entropy(_logits(held_out_features, parameters), held_out_is_target)
            better = current_loss < lowest_loss
            lowest_loss = torch.where(better, current_loss, lowest_loss)
            best_epoch[better.cpu()] = epoch
            for old, new in zip(best_parameters, parameters, strict=True):
                old[better] = new[better]
    with torch.no_grad():
        accuracy = (
            ((_logits(held_out_features, best_parameters) > 0) == held_out_is_target.bool()).double().mean(1)
        )
    winners = (accuracy == accuracy.max()).nonzero().squeeze(1)
    best = int(winners[lowest_loss[winners].argmin()])
    return best_parameters, float(accuracy[best]), best


def _initial_parameters(
    width: int, copies: int, generator: torch.Generator, device: torch.device
) -> list[Tensor]:
    """Initialise weights and biases of two hidden layers and one output, identical for all copies."""
    parameters = []
    for out in (width, width, 1):
        bound = 1 / math.sqrt(width)
        for shape in ((width, out), (1, out)):
            initial = (2 * torch.rand(*shape, generator=generator) - 1) * bound
            parameters.append(initial.expand(copies, *shape).clone().to(device).requires_grad_())
    return parameters


def _logits(features: Tensor, parameters: list[Tensor]) -> Tensor:
    """Compute the log odds of the target, ``(N, D) -> (copies, N)``."""
    first, a, second, b, last, c = parameters
    hidden = torch.relu(features @ first + a)
    hidden = torch.relu(hidden @ second + b)
    return (hidden @ last + c).squeeze(2)


def _cross_entropy(logits: Tensor, is_target: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(logits, is_target.expand_as(logits), reduction="none").mean(1)
