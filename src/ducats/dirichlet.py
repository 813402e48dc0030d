"""What a Dirichlet model knows, and what it should be told: the paper's uncertainties and losses.

A network's output is read as ``z = log alpha``, the log-parameters of a Dirichlet distribution over the
class probabilities rho. Each function works per position, ``(N, C, ...) -> (N, ...)``: the same for images
and for pixels, reduced by the caller. Half precision is computed in float32, float64 stays. There are no
epsilons, and no finite input gives NaN. Names: alpha_0 is the sum of alpha, p = alpha / alpha_0 the expected
probability, psi the digamma function.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ducats import _special

# Compile formulas into a few kernels each, where `can_fuse` says that it can be done: some hundred launches
# less per piece of a map, for some seconds at the first use. Results differ by rounding.
FUSED = False
_CACHED = 2**17  # elements per pass: the dozen temporaries of one pass then stay in a core's cache


class Uncertainties(NamedTuple):
    """The two origins of uncertainty; their sum is the entropy of the expectation."""

    data: Tensor  # (N, ...)
    distribution: Tensor  # (N, ...)


def expected_probability(z: Tensor) -> Tensor:
    """Expectation of the class probabilities, ``p_c = alpha_c / alpha_0``: ``(N, C, ...)``.

    >>> expected_probability(torch.tensor([[2.0, 0.0, -1.0]]))
    tensor([[0.8438, 0.1142, 0.0420]])
    """
    return _full_precision(z).softmax(1)


def entropy(z: Tensor) -> Tensor:
    """Entropy of the expectation, ``H[p] = -sum_c p_c ln p_c``: both uncertainties together.

    Exact also for a dominating class m, where ``p_m`` rounds to 1 and ``ln p_m`` to 0.

    >>> entropy(torch.tensor([[2.0, 0.0, -1.0]]))
    tensor([0.5243])
    """
    return _per_position(_special.entropy, z)[0]


def uncertainties(z: Tensor) -> Uncertainties:
    """Data and distribution uncertainty in one pass.

    >>> both = uncertainties(torch.tensor([[2.0, 0.0, -1.0]]))
    >>> both.data, both.distribution
    (tensor([0.4382]), tensor([0.0861]))
    """
    return Uncertainties(*_per_position(_special.uncertainties, z))


def data_uncertainty(z: Tensor) -> Tensor:
    """Expected entropy ``U_data = sum_c p_c [psi(alpha_0 + 1) - psi(alpha_c + 1)]``: what classes share.

    It tends to 0 when there is no evidence for any class, and to the entropy when there is much.

    >>> data_uncertainty(torch.tensor([[0.0, 0.0, 0.0]]))
    tensor([0.8333])
    """
    return uncertainties(z).data


def distribution_uncertainty(z: Tensor) -> Tensor:
    """Mutual information ``U_dis = I[y, rho] = H[p] - U_data``: what lack of evidence leaves open.

    Relative error about 1e-6 in float32 for any evidence: it is not computed as the difference, see
    `ducats._special`. From z = 87 on it is too small for float32: rank by `log_distribution_uncertainty`.

    >>> distribution_uncertainty(torch.tensor([[0.0, 0.0], [20.0, 20.0]]))
    tensor([1.9315e-01, 5.1529e-10])
    """
    return uncertainties(z).distribution


def log_distribution_uncertainty(z: Tensor) -> Tensor:
    """``ln U_dis``: ranks also those positions whose `distribution_uncertainty` underflows.

    It is -inf, and its gradient 0, for a single class or when the largest logit leads by more than about 100.

    >>> log_distribution_uncertainty(torch.tensor([[200.0, 200.0], [201.0, 200.0]]))
    tensor([-201.3863, -202.0064])
    """
    return _per_position(_special.log_distribution_uncertainty, z)[0]


def negative_log_likelihood(z: Tensor, label: Tensor) -> Tensor:
    """Negative log of the marginal likelihood, ``ln alpha_0 - ln alpha_y``; 0 where the label is negative.

    Args:
        z: log alpha, ``(N, C, ...)``.
        label: class indices, ``(N, ...)``; a negative one does not count.

    >>> negative_log_likelihood(torch.tensor([[2.0, 0.0, -1.0]] * 3), torch.tensor([0, 1, -1]))
    tensor([0.1698, 2.1698, 0.0000])
    """
    ignored = -100
    return F.cross_entropy(
        _full_precision(z), label.masked_fill(label < 0, ignored), reduction="none", ignore_index=ignored
    )


def kl_to_uniform(z: Tensor) -> Tensor:
    """``KL[Dir(alpha) || Dir(1)]``: how far all evidence is from none; 0 only where all z are 0.

    It rises on both sides of z = 0, on the negative side like 1/alpha: below z = -88 it is inf in float32.

    >>> kl_to_uniform(torch.tensor([[2.0, 0.0, -1.0], [-2.0, -2.0, -2.0]]))
    tensor([3.1501, 7.8858])
    """
    return _per_position(_special.kl_to_uniform, z)[0]


def misleading_evidence(z: Tensor, label: Tensor) -> Tensor:
    """``KL[Dir(alpha~) || Dir(1)]``, alpha~ being alpha with the true class's evidence removed (alpha_y = 1).

    The paper's L_kl divides it by C. It is 0 where the label is negative.

    Args:
        z: log alpha, ``(N, C, ...)``.
        label: class indices, ``(N, ...)``; a negative one does not count.

    >>> misleading_evidence(torch.tensor([[2.0, 0.0, -1.0]] * 3), torch.tensor([0, 1, -1]))
    tensor([0.8005, 3.1501, 0.0000])
    """
    true = torch.zeros_like(z, dtype=torch.bool).scatter_(1, label.clamp(min=0).unsqueeze(1), True)
    return kl_to_uniform(z.masked_fill(true, 0.0)).masked_fill(label < 0, 0.0)


def _identity(logits: Tensor) -> Tensor:
    return logits


def _clamped(logits: Tensor) -> Tensor:
    return logits.clamp(-10.0, 10.0)


def _at_most_10(logits: Tensor) -> Tensor:
    return logits.clamp(max=10.0)


def _softplus(logits: Tensor) -> Tensor:
    # torch's softplus is the identity beyond its threshold; at 20, the default, float64 still sees the error
    return F.softplus(_full_precision(logits), threshold=40.0)


def _log_softplus_plus_one(logits: Tensor) -> Tensor:
    return _softplus(logits).log1p()


# How a network's logits become z = log alpha.
EVIDENCE: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "exp": _identity,  # alpha = exp(logit): DUC
        "exp_clamped": _clamped,  # the same between exp(-10) and exp(10): EUQ
        "exp_at_most_10": _at_most_10,  # alpha = exp(logit) <= exp(10): DUC on pixels
        "exp_plus_one": _softplus,  # alpha = exp(logit) + 1
        "softplus_plus_one": _log_softplus_plus_one,  # alpha = ln(1 + exp(logit)) + 1
    }
)


def can_fuse(device: torch.device) -> bool:
    """Whether formulas can be compiled for a device: see ``FUSED``."""
    return device.type == "cuda" and find_spec("triton") is not None


@contextmanager
def compiled(on: bool = True) -> Iterator[None]:
    """Compile formulas inside the block: for many positions of few shapes, as in a training on pixels."""
    global FUSED
    before, FUSED = FUSED, on
    try:
        yield
    finally:
        FUSED = before


def _full_precision(z: Tensor) -> Tensor:
    return z if z.dtype == torch.float64 else z.float()


def _per_position(formula: Callable[[Tensor, bool], _special.Values], z: Tensor) -> tuple[Tensor, ...]:
    """Apply a formula on rows ``(R, C)`` to ``(N, C, ...)``; each of its values becomes ``(N, ...)``."""
    z = _full_precision(z if torch.is_grad_enabled() else z.detach()).movedim(1, -1)
    results: tuple[Tensor, ...] = _Formula.apply(z.reshape(-1, z.shape[-1]), formula)
    return tuple(r.reshape(z.shape[:-1]) for r in results)


class _Formula(torch.autograd.Function):
    """A formula that knows its gradient: computed along with the value, where they share their work."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, formula: Callable[[Tensor, bool], _special.Values]
    ) -> tuple[Tensor, ...]:
        slopes = ctx.needs_input_grad[0]
        if FUSED:
            formula = _compiled(formula)
        size = max(1, _CACHED // rows.shape[1]) if rows.device.type == "cpu" else max(1, len(rows))
        parts = [formula(part, slopes) for part in rows.split(size)]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*_joined(part.slopes for part in parts))
        return _joined(part.values for part in parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, None]:
        terms = [slope * g for slope, g in zip(ctx.saved_tensors, upstream, strict=True) if g is not None]
        return (sum(terms[1:], terms[0]) if terms else None), None


@lru_cache
def _compiled(
    formula: Callable[[Tensor, bool], _special.Values],
) -> Callable[[Tensor, bool], _special.Values]:
    compiled: Callable[[Tensor, bool], _special.Values] = torch.compile(formula)
    return compiled


def _joined(parts: Iterable[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    columns = list(zip(*parts, strict=True))
    return tuple(torch.cat(c) if len(c) > 1 else c[0] for c in columns)
