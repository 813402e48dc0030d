"""Dirichlet uncertainties and losses on z = log alpha, per position: ``(N, C, ...) -> (N, ...)``."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Uncertainties(NamedTuple):
    """The two parts of the entropy of the expected probability."""

    data: Tensor  # (N, ...)
    distribution: Tensor  # (N, ...)


def _full(z: Tensor) -> Tensor:
    return z if z.dtype == torch.float64 else z.float()


def expected_probability(z: Tensor) -> Tensor:
    """Expected class probabilities."""
    return _full(z).softmax(1)


def entropy(z: Tensor) -> Tensor:
    """Entropy of the expected probabilities."""
    log_p = _full(z).log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


def _h(z: Tensor) -> Tensor:
    low = z.clamp(max=math.log(4))
    x = low.exp()
    t = (-z.clamp(min=math.log(4))).exp()
    u = t * t
    series = 0.5 - t * (1 / 12 - u * (1 / 120 - u * (1 / 252 - u * (1 / 240 - u * (1 / 132 - u * 691 / 32760)))))
    return torch.where(z > math.log(4), series, x * (torch.digamma(1 + x) - low))


def log_distribution_uncertainty(z: Tensor) -> Tensor:
    """Log of the distribution uncertainty, for ranking."""
    z = _full(z)
    lse = z.logsumexp(1)
    return (_h(z).sum(1) - _h(lse)).clamp(min=0).log() - lse


def distribution_uncertainty(z: Tensor) -> Tensor:
    """Mutual information of label and distribution."""
    return uncertainties(z).distribution


def data_uncertainty(z: Tensor) -> Tensor:
    """Expected entropy."""
    return uncertainties(z).data


def uncertainties(z: Tensor) -> Uncertainties:
    """Both uncertainties, sharing their work."""
    z = _full(z)
    lse = z.logsumexp(1)
    distribution = (_h(z).sum(1) - _h(lse)).clamp(min=0) * (-lse).exp()
    return Uncertainties((entropy(z) - distribution).clamp(min=0), distribution)


def negative_log_likelihood(z: Tensor, label: Tensor) -> Tensor:
    """``log alpha_0 - log alpha_y``; 0 where the label is negative."""
    known = label >= 0
    loss = F.cross_entropy(_full(z), label.clamp(min=0), reduction="none")
    return torch.where(known, loss, 0.0)


def kl_to_uniform(z: Tensor) -> Tensor:
    """``KL(Dir(alpha) || Dir(1))``."""
    alpha = _full(z).exp()
    total = alpha.sum(1, keepdim=True)
    return (
        total.squeeze(1).lgamma()
        - math.lgamma(z.shape[1])
        - alpha.lgamma().sum(1)
        + ((alpha - 1) * (alpha.digamma() - total.digamma())).sum(1)
    )


def misleading_evidence(z: Tensor, label: Tensor) -> Tensor:
    """KL to uniform once the true class's evidence is removed; 0 where the label is negative."""
    known = label >= 0
    true = F.one_hot(label.clamp(min=0), z.shape[1]).movedim(-1, 1).bool()
    return torch.where(known, kl_to_uniform(_full(z).masked_fill(true, 0.0)), 0.0)


def _softplus(x: Tensor) -> Tensor:
    return F.softplus(x)


EVIDENCE: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "exp": lambda x: x,
        "exp_clamped": lambda x: x.clamp(-10.0, 10.0),
        "exp_plus_one": F.softplus,
        "softplus_plus_one": lambda x: F.softplus(x).log1p(),
    }
)
