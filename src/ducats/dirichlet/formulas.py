"""Uncertainties and losses of a Dirichlet model, as in the paper.

The network's output is ``z = log alpha``, the log-parameters of a Dirichlet distribution over the class
probabilities rho. Each function works per position, ``(N, C, ...) -> (N, ...)``, for images and for pixels;
the caller reduces. Half precision is computed in float32, float64 stays float64. There are no epsilons, and
no finite input gives NaN. Notation: alpha_0 is the sum of alpha, p = alpha / alpha_0 is the expected
probability, psi is the digamma function.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ducats.dirichlet import kernels

# Whether to compile formulas into a few kernels each; set it only if `can_compile` is true. This saves about
# a hundred launches per chunk of a map and takes a few seconds at first use. Results differ by rounding.
COMPILE_FORMULAS = False
_CPU_CHUNK_ELEMENTS = 2**17  # elements per pass: a dozen temporaries then fit into a core's cache


class Uncertainties(NamedTuple):
    """Data and distribution uncertainty; their sum is the entropy of the expected probabilities."""

    data: Tensor  # (N, ...)
    distribution: Tensor  # (N, ...)


def expected_probability(z: Tensor) -> Tensor:
    """Compute the expected class probabilities ``p_c = alpha_c / alpha_0``, ``(N, C, ...)``.

    >>> expected_probability(torch.tensor([[2.0, 0.0, -1.0]]))
    tensor([[0.8438, 0.1142, 0.0420]])
    """
    return _full_precision(z).softmax(1)


def entropy(z: Tensor) -> Tensor:
    """Compute the entropy of the expectation, ``H[p] = -sum_c p_c ln p_c``: the sum of both uncertainties.

    Accurate even if one class m dominates, where ``p_m`` rounds to 1 and ``ln p_m`` to 0.

    >>> entropy(torch.tensor([[2.0, 0.0, -1.0]]))
    tensor([0.5243])
    """
    return _per_position(kernels.entropy_kernel, z)[0]


def uncertainties(z: Tensor) -> Uncertainties:
    """Compute data and distribution uncertainty in one pass.

    >>> both = uncertainties(torch.tensor([[2.0, 0.0, -1.0]]))
    >>> both.data, both.distribution
    (tensor([0.4382]), tensor([0.0861]))
    """
    return Uncertainties(*_per_position(kernels.uncertainties_kernel, z))


def data_uncertainty(z: Tensor) -> Tensor:
    """Compute the expected entropy ``U_data = sum_c p_c [psi(alpha_0 + 1) - psi(alpha_c + 1)]``.

    High for samples between classes. Tends to 0 without evidence for any class, and to the entropy with much
    evidence.

    >>> data_uncertainty(torch.tensor([[0.0, 0.0, 0.0]]))
    tensor([0.8333])
    """
    return uncertainties(z).data


def distribution_uncertainty(z: Tensor) -> Tensor:
    """Compute the mutual information ``U_dis = I[y, rho] = H[p] - U_data``, which is high without evidence.

    It is not computed as the difference (see `ducats.dirichlet.kernels`), so the relative error is about 1e-6
    in float32 for any evidence. From z = 87 on it underflows in float32; rank by
    `log_distribution_uncertainty`.

    >>> distribution_uncertainty(torch.tensor([[0.0, 0.0], [20.0, 20.0]]))
    tensor([1.9315e-01, 5.1529e-10])
    """
    return uncertainties(z).distribution


def log_distribution_uncertainty(z: Tensor) -> Tensor:
    """Compute ``ln U_dis``, which can rank positions whose `distribution_uncertainty` underflows.

    The value is -inf and the gradient 0 for a single class, or if the largest logit exceeds the others by
    more than about 100.

    >>> log_distribution_uncertainty(torch.tensor([[200.0, 200.0], [201.0, 200.0]]))
    tensor([-201.3863, -202.0064])
    """
    return _per_position(kernels.log_distribution_uncertainty_kernel, z)[0]


def negative_log_likelihood(z: Tensor, label: Tensor) -> Tensor:
    """Compute the negative log marginal likelihood ``ln alpha_0 - ln alpha_y``.

    Args:
        label: class indices, ``(N, ...)``; the loss is 0 where the label is negative.

    >>> negative_log_likelihood(torch.tensor([[2.0, 0.0, -1.0]] * 3), torch.tensor([0, 1, -1]))
    tensor([0.1698, 2.1698, 0.0000])
    """
    ignored = -100
    return F.cross_entropy(
        _full_precision(z), label.masked_fill(label < 0, ignored), reduction="none", ignore_index=ignored
    )


def kl_to_uniform(z: Tensor) -> Tensor:
    """Compute ``KL[Dir(alpha) || Dir(1)]``; 0 only where all z are 0.

    It increases on both sides of z = 0, like 1/alpha on the negative side. Below z = -88 it is inf in
    float32.

    >>> kl_to_uniform(torch.tensor([[2.0, 0.0, -1.0], [-2.0, -2.0, -2.0]]))
    tensor([3.1501, 7.8858])
    """
    return _per_position(kernels.kl_to_uniform_kernel, z)[0]


def misleading_evidence(z: Tensor, label: Tensor) -> Tensor:
    """Compute ``KL[Dir(alpha~) || Dir(1)]``, where alpha~ is alpha with alpha_y = 1 for the true class y.

    Setting alpha_y = 1 removes the evidence for the true class. The paper's L_kl divides the result by C.

    Args:
        label: class indices, ``(N, ...)``; the loss is 0 where the label is negative.

    >>> misleading_evidence(torch.tensor([[2.0, 0.0, -1.0]] * 3), torch.tensor([0, 1, -1]))
    tensor([0.8005, 3.1501, 0.0000])
    """
    true = torch.zeros_like(z, dtype=torch.bool).scatter_(1, label.clamp(min=0).unsqueeze(1), True)
    return kl_to_uniform(z.masked_fill(true, 0.0)).masked_fill(label < 0, 0.0)


def _identity(logits: Tensor) -> Tensor:
    return logits


def merge_components(z: Tensor, groups: Sequence[int]) -> Tensor:
    """Return log alpha of merged classes: ``(N, C, ...) -> (N, max(groups) + 1, ...)``.

    The alphas of a group are added. This is exact: if components of a Dirichlet distribution are merged, the
    result has a Dirichlet distribution.

    Args:
        z: log alpha.
        groups: index of the group that each class belongs to.

    >>> merge_components(torch.tensor([[1.0, 2.0, 4.0]]).log(), (0, 1, 0)).exp()
    tensor([[5., 2.]])
    """
    members = [[c for c, group in enumerate(groups) if group == n] for n in range(max(groups) + 1)]
    return torch.cat([z[:, classes].logsumexp(1, keepdim=True) for classes in members], 1)


def _clamp_both_sides(logits: Tensor) -> Tensor:
    return logits.clamp(-10.0, 10.0)


def _clamp_above(logits: Tensor) -> Tensor:
    return logits.clamp(max=10.0)


def _softplus(logits: Tensor) -> Tensor:
    # torch's softplus is the identity above its threshold; at the default of 20 the error shows in float64
    return F.softplus(_full_precision(logits), threshold=40.0)


def _log_softplus_plus_one(logits: Tensor) -> Tensor:
    return _softplus(logits).log1p()


# Functions from a network's logits to z = log alpha.
EVIDENCE_FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "exp": _identity,  # alpha = exp(logit): DUC
        "exp_clamped": _clamp_both_sides,  # the same, clamped to [exp(-10), exp(10)]: EUQ
        "exp_at_most_10": _clamp_above,  # alpha = exp(logit) <= exp(10): DUC for segmentation
        "exp_plus_one": _softplus,  # alpha = exp(logit) + 1
        "softplus_plus_one": _log_softplus_plus_one,  # alpha = ln(1 + exp(logit)) + 1
    }
)


def can_compile(device: torch.device) -> bool:
    """Whether formulas can be compiled for a device; see ``COMPILE_FORMULAS``."""
    return device.type == "cuda" and find_spec("triton") is not None


@contextmanager
def compile_formulas(enabled: bool = True) -> Iterator[None]:
    """Compile formulas inside the block; worthwhile for many positions of few shapes, as in segmentation."""
    global COMPILE_FORMULAS
    previous, COMPILE_FORMULAS = COMPILE_FORMULAS, enabled
    try:
        yield
    finally:
        COMPILE_FORMULAS = previous


def _full_precision(z: Tensor) -> Tensor:
    return z if z.dtype == torch.float64 else z.float()


def _per_position(formula: Callable[[Tensor, bool], kernels.KernelResult], z: Tensor) -> tuple[Tensor, ...]:
    """Apply a formula on rows ``(R, C)`` to ``(N, C, ...)``; each value becomes ``(N, ...)``."""
    z = _full_precision(z if torch.is_grad_enabled() else z.detach()).movedim(1, -1)
    results: tuple[Tensor, ...] = _FormulaFunction.apply(z.reshape(-1, z.shape[-1]), formula)
    return tuple(r.reshape(z.shape[:-1]) for r in results)


class _FormulaFunction(torch.autograd.Function):
    """Formula with an explicit gradient, computed together with the value because they share work."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, formula: Callable[[Tensor, bool], kernels.KernelResult]
    ) -> tuple[Tensor, ...]:
        needs_grad = ctx.needs_input_grad[0]
        if COMPILE_FORMULAS:
            formula = _compile_cached(formula)
        chunk_rows = (
            max(1, _CPU_CHUNK_ELEMENTS // rows.shape[1]) if rows.device.type == "cpu" else max(1, len(rows))
        )
        # Detached: torch.compile warns about the gradient of the tensor that a chunk is a view of.
        results = [formula(chunk, needs_grad) for chunk in rows.detach().split(chunk_rows)]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*_concat_chunks(result.gradients for result in results))
        return _concat_chunks(result.values for result in results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, None]:
        terms = [
            gradient * g for gradient, g in zip(ctx.saved_tensors, upstream, strict=True) if g is not None
        ]
        return (sum(terms[1:], terms[0]) if terms else None), None


@lru_cache
def _compile_cached(
    formula: Callable[[Tensor, bool], kernels.KernelResult],
) -> Callable[[Tensor, bool], kernels.KernelResult]:
    compiled_formula: Callable[[Tensor, bool], kernels.KernelResult] = torch.compile(formula)
    return compiled_formula


def _concat_chunks(chunks: Iterable[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    columns = list(zip(*chunks, strict=True))
    return tuple(torch.cat(c) if len(c) > 1 else c[0] for c in columns)
