"""Entropies and divergences of Dirichlet rows without cancellation, on z = log alpha ``(R, C)``.

The usual formulas subtract nearly equal numbers: in float32 the distribution uncertainty is noise from
alpha_0 = 1e6 on, or when one class dominates. The forms below avoid this loss of precision. Autograd would
cancel in the same way, so each function also returns an explicit gradient. For x >= 0 let

    k(x) = psi(1+x) - ln x      decreases from +inf to 0, 1/(2x) for large x
    h(x) = x k(x)               increases from 0 to 1/2
    q(x) = psi(1+x) + gamma     increases from 0, zeta(2) x for small x
    b(x) = x psi'(1+x)          increases from 0 to 1;  x h'(x) = h(x) - x [1 - b(x)]

All follow from recurrence and the asymptotic series, with an integer w and c_k = B_2k/2k:

    psi(1+x) = ln(x+w) - s(x),  s(x) = sum_{j<w} 1/(x+j) + 1/(2(x+w)) + sum_k c_k/(x+w)^2k

Then k(x) = log1p(w/x) - s(x) holds for small and large x, without a branch. A difference between x and x + d
has d as an explicit factor, because 1/(x+j) - 1/(x+d+j) = d/((x+j)(x+d+j)).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)  # B_2k / 2k
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class _SeriesConstants(NamedTuple):
    """Constants that keep the truncation error below the rounding error of one dtype."""

    shift: int  # w
    series: tuple[float, ...]  # c_k
    derivative: tuple[float, ...]  # 2k c_k: the derivative of the series
    difference_from_zero: tuple[float, ...]  # divided difference with x = 0, in powers of 1/(x+w)^2
    binet: tuple[float, ...]  # c_k / (2k-1): the series of ln Gamma
    min_z: float  # below this z, w exp(-z) overflows and alpha becomes subnormal
    max_z: float  # above this z, h(alpha) is 1/2 to the last bit


def _make_constants(shift: int, terms: int, min_z: float, max_z: float) -> _SeriesConstants:
    series = _SERIES[:terms]
    derivative = tuple(2 * k * c for k, c in enumerate(series, 1))
    difference_from_zero = tuple(
        sum(c * float(shift) ** (-2 * k) for k, c in enumerate(series[i:])) for i in range(terms)
    )
    binet = tuple(c / (2 * k - 1) for k, c in enumerate(series, 1))
    return _SeriesConstants(shift, series, derivative, difference_from_zero, binet, min_z, max_z)


_CONSTANTS = {
    torch.float32: _make_constants(4, 4, -87.0, 20.0),
    torch.float64: _make_constants(9, 7, -706.0, 40.0),
}


class KernelResult(NamedTuple):
    """Results per row, ``(R, 1)`` each, and, if requested, the gradient of each, ``(R, C)``."""

    values: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]


class _RelativeRows(NamedTuple):
    """Rows relative to their largest class m, which ``others``, ``gap`` and ``ratio`` leave out."""

    top_z: Tensor  # z_m (R, 1)
    top_class: Tensor  # m (R, 1)
    others: Tensor  # z (R, C), with -inf in column m
    gap: Tensor  # z_c - z_m (R, C); finite, so its product with a ratio of 0 is 0
    ratio: Tensor  # alpha_c / alpha_m (R, C), 0 in column m
    rho: Tensor  # the sum of ratio (R, 1)
    total: Tensor  # 1 + rho = alpha_0 / alpha_m (R, 1)
    log_total: Tensor  # ln alpha_0 - z_m (R, 1)


def _relative_to_top(z: Tensor) -> _RelativeRows:
    top, index = z.max(1, keepdim=True)
    others = z.clone().scatter_(1, index, -math.inf)  # scatter would not preserve the memory layout
    gap = others - top
    # A gap of 40 is rounded by up to 2e-6 in float32, which becomes the relative error of its exponential.
    # The rounding error of a difference is itself a float (Knuth). It is NaN only where the ratio is 0.
    subtracted = gap - others
    error = (others - (gap - subtracted)).sub_(top + subtracted).nan_to_num_(0.0)
    ratio = gap.exp()
    ratio.addcmul_(ratio, error)
    rho = ratio.sum(1, keepdim=True)
    return _RelativeRows(top, index, others, gap.clamp_(min=-1e4), ratio, rho, 1 + rho, rho.log1p())


def _append_column(columns: Tensor, column: Tensor) -> Tensor:
    """Append ``(R, 1)`` to ``(R, C)`` and keep its memory layout: maps are stored class by class."""
    if columns.stride(0) == 1:
        return torch.cat([columns.T, column.T]).T
    return torch.cat([columns, column], 1)


def _polynomial(coefficients: tuple[float, ...], u: Tensor) -> Tensor:
    """``c_1 u + c_2 u^2 + ...``."""
    value = u * coefficients[-1]
    for c in reversed(coefficients[:-1]):
        value.add_(c).mul_(u)
    return value


def _divided_difference(coefficients: tuple[float, ...], u: Tensor, v: Tensor) -> Tensor:
    """``(P(u) - P(v)) / (u - v)`` for the polynomial P above, by Horner's rule without division."""
    value = difference = torch.full_like(u, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = value * u + c
        difference = difference * v + value
    return difference


class _DigammaTerms(NamedTuple):
    """Terms of ``psi(1+x)``."""

    reciprocals: list[Tensor]  # 1/(x+j) for j = 1..w
    last: Tensor  # 1/(x+w)
    square: Tensor  # 1/(x+w)^2
    s: Tensor  # ln(x+w) - psi(1+x)


def _digamma_terms(x: Tensor, constants: _SeriesConstants) -> _DigammaTerms:
    reciprocals = [(x + j).reciprocal_() for j in range(1, constants.shift + 1)]
    last = reciprocals[-1]
    square = last * last
    s = _polynomial(constants.series, square).add_(last, alpha=0.5)
    for r in reciprocals[:-1]:
        s.add_(r)
    return _DigammaTerms(reciprocals, last, square, s)


def _sigma(terms: _DigammaTerms, constants: _SeriesConstants) -> Tensor:
    """``-s'(x)``; then ``psi'(1+x) = 1/(x+w) + sigma(x)`` and ``1 - b(x) = w/(x+w) - x sigma(x)``."""
    sigma = _polynomial(constants.derivative, terms.square).mul_(terms.last).add_(terms.square, alpha=0.5)
    for r in terms.reciprocals[:-1]:
        sigma.addcmul_(r, r)
    return sigma


def _q(x: Tensor, terms: _DigammaTerms, constants: _SeriesConstants) -> Tensor:
    """``psi(1+x) + gamma = log1p(x/w) + s(0) - s(x)``, with x factored out of the difference."""
    w = constants.shift
    mean = _polynomial(constants.difference_from_zero[1:], terms.square).add_(
        constants.difference_from_zero[0]
    )
    mean.mul_(terms.last + 1 / w).add_(0.5).mul_(terms.last / w)
    for j, r in enumerate(terms.reciprocals[:-1], 1):
        mean.add_(r, alpha=1 / j)
    return mean.mul_(x).add_((x / w).log1p_())


class _Differences(NamedTuple):
    """Differences between alpha_m and alpha_0, ``(R, 1)``; positive, and accurate for close values."""

    k: Tensor  # k(alpha_m) - k(alpha_0)
    q: Tensor  # q(alpha_0) - q(alpha_m)
    b: Tensor | None  # b(alpha_0) - b(alpha_m), if gradients are requested


def _differences(
    x: Tensor, rho: Tensor, total_terms: _DigammaTerms, constants: _SeriesConstants, needs_grad: bool
) -> _Differences:
    """Compute differences of alpha_0, whose terms are given, and ``x = alpha_m = alpha_0 / (1 + rho)``."""
    w, d = constants.shift, x * rho
    at_x = (x + torch.arange(1, w + 1, dtype=x.dtype, device=x.device)).reciprocal_()  # (R, w)
    at_y = torch.cat(total_terms.reciprocals, 1)
    products, sums = at_x * at_y, at_x + at_y
    last, product, total = at_x[:, -1:], products[:, -1:], sums[:, -1:]
    square = last * last
    mean = products[:, :-1].sum(1, keepdim=True)
    mean += product * (0.5 + total * _divided_difference(constants.series, square, total_terms.square))
    # ln(alpha_0/alpha_m) - ln((alpha_0+w)/(alpha_m+w)) as one log1p: both are nearly equal for large x.
    k = (w * rho * total_terms.last).log1p_() - d * mean
    q = (d * last).log1p_() + d * mean
    if not needs_grad:
        return _Differences(k, q, None)
    derivative_difference = _divided_difference(constants.derivative, square, total_terms.square)
    second_order = (products * sums)[:, :-1].sum(1, keepdim=True)
    second_order += product * (
        0.5 * total
        + _polynomial(constants.derivative, square)
        + total_terms.last * total * derivative_difference
    )
    return _Differences(k, q, d * (w * product + _sigma(total_terms, constants) - x * second_order))


def _last_column(terms: _DigammaTerms) -> _DigammaTerms:
    return _DigammaTerms(
        [r[:, -1:] for r in terms.reciprocals], terms.last[:, -1:], terms.square[:, -1:], terms.s[:, -1:]
    )


def entropy_kernel(z: Tensor, needs_grad: bool) -> KernelResult:
    """Compute the entropy of the expectation, ``sum_{c != m} p_c ln(1/p_c) + p_m log1p(rho)``."""
    rows = _relative_to_top(z)
    value, gradient = _entropy(rows, needs_grad)
    return KernelResult((value,), (gradient,) if gradient is not None else ())


def _entropy(rows: _RelativeRows, needs_grad: bool) -> tuple[Tensor, Tensor | None]:
    value = (rows.ratio * (rows.log_total - rows.gap)).sum(1, keepdim=True).add_(rows.log_total)
    value /= rows.total
    if not needs_grad:
        return value, None
    # dH/dz_j = p_j {ln(1/p_j) - H} = p_j {sum_c p_c z_c - z_j}; only the latter is accurate for similar z
    mean = (rows.ratio * rows.gap).sum(1, keepdim=True).div_(rows.total)
    gradient = (mean - rows.gap).mul_(rows.ratio).scatter_(1, rows.top_class, mean)
    return value, gradient.div_(rows.total)


class _EntropySplit(NamedTuple):
    """Entropy split into U_data and U_dis = scaled * scale. U_dis may underflow, its logarithm does not."""

    rows: _RelativeRows
    is_below_1: Tensor  # (R, 1) alpha_0 < 1
    data: Tensor  # (R, 1) U_data
    scaled: Tensor  # (R, 1)
    scale: Tensor  # (R, 1) 1 where alpha_0 < 1, else 1 / alpha_0
    data_gradient: Tensor | None  # (R, C)
    scaled_gradient: Tensor | None  # (R, C)


def _split_entropy(z: Tensor, needs_grad: bool) -> _EntropySplit:
    """Compute one part as a sum of positive terms, and the other as the entropy minus that part.

    alpha_0 U_dis = sum_c h(alpha_c) - h(alpha_0)
                  = sum_{c != m} [h(alpha_c) - p_c h(alpha_0)] + alpha_m [k(alpha_m) - k(alpha_0)]
    U_data = sum_{c != m} p_c [q(alpha_0) - q(alpha_c)] + p_m [q(alpha_0) - q(alpha_m)]

    Both forms are accurate around alpha_0 = 1. With less evidence, U_data is small and ln(1/alpha) dominates
    k and h. With more evidence, U_dis is small and ln alpha dominates q.
    """
    constants = _CONSTANTS[z.dtype]
    rows = _relative_to_top(z)
    x_top = rows.top_z.clamp(max=constants.max_z).exp_()
    x, inverse = _alphas(rows, x_top * rows.total, constants)
    terms = _digamma_terms(x, constants)
    h = (inverse * constants.shift).log1p_().sub_(terms.s).mul_(x)
    q = _q(x, terms, constants)
    differences = _differences(x_top, rows.rho, _last_column(terms), constants, needs_grad)

    entropy, entropy_gradient = _entropy(rows, needs_grad)
    data = rows.rho * q[:, -1:] - (rows.ratio * q[:, :-1]).sum(1, keepdim=True) + differences.q
    data /= rows.total
    scaled = h[:, :-1].sum(1, keepdim=True) - rows.rho / rows.total * h[:, -1:] + x_top * differences.k
    log_alpha_0 = rows.top_z + rows.log_total
    is_below_1, is_small = log_alpha_0 < 0, log_alpha_0 < 1.5
    scaled = torch.where(is_below_1, entropy - data, scaled).clamp_(min=0)
    scale = torch.where(is_below_1, 1.0, rows.top_z.clamp(min=constants.min_z).neg_().exp_() / rows.total)
    data = torch.where(is_small, data, entropy - scaled * scale).clamp_(min=0)
    if entropy_gradient is None or differences.b is None:
        return _EntropySplit(rows, is_below_1, data, scaled, scale, None, None)
    sigma = _sigma(terms, constants)
    qb = q.add_((terms.last + sigma).mul_(x))
    eta = h.sub_((constants.shift * terms.last).sub_(sigma.mul_(x)).mul_(x))
    data_gradient = _data_gradient(rows, qb, differences.q + differences.b, data)
    scaled_gradient = _scaled_gradient(rows, eta, x_top * (differences.k - differences.b), scaled)
    scaled_gradient = torch.where(is_below_1, entropy_gradient - data_gradient, scaled_gradient)
    data_gradient = torch.where(is_small, data_gradient, entropy_gradient - scaled_gradient * scale)
    return _EntropySplit(rows, is_below_1, data, scaled, scale, data_gradient, scaled_gradient)


def _alphas(rows: _RelativeRows, alpha_0: Tensor, constants: _SeriesConstants) -> tuple[Tensor, Tensor]:
    """Return alpha of the other classes with alpha_0 appended, and their inverses: ``(R, C + 1)`` each.

    Alpha is capped at ``exp(max_z)``. Above it, h does not depend on alpha and q is not used.
    """
    x = rows.others.clamp(max=constants.max_z).exp_()
    inverse = rows.others.clamp(constants.min_z, constants.max_z).neg_().exp_()
    inverse_0 = rows.top_z.clamp(constants.min_z, constants.max_z).neg_().exp_().div_(rows.total)
    return _append_column(x, alpha_0), _append_column(inverse, inverse_0)


def _data_gradient(rows: _RelativeRows, qb: Tensor, qb_step: Tensor, data: Tensor) -> Tensor:
    """``dU_data/dz_j = p_j {(q+b)(alpha_0) - (q+b)(alpha_j) - U_data}``."""
    gradient = (qb[:, -1:] - data - qb[:, :-1]).mul_(rows.ratio)
    return gradient.scatter_(1, rows.top_class, qb_step - data).div_(rows.total)


def _scaled_gradient(rows: _RelativeRows, eta: Tensor, eta_step: Tensor, scaled: Tensor) -> Tensor:
    """``alpha_0 dU_dis/dz_j = eta(alpha_j) - p_j [eta(alpha_0) + alpha_0 U_dis]`` with eta(x) = x h'(x)."""
    gradient = torch.addcmul(eta[:, :-1], rows.ratio, (eta[:, -1:] + scaled) / rows.total, value=-1)
    return gradient.scatter_(1, rows.top_class, eta_step - scaled / rows.total)


def uncertainties_kernel(z: Tensor, needs_grad: bool) -> KernelResult:
    """Compute U_data and U_dis."""
    split = _split_entropy(z, needs_grad)
    values = (split.data, split.scaled * split.scale)
    if split.data_gradient is None or split.scaled_gradient is None:
        return KernelResult(values, ())
    return KernelResult(values, (split.data_gradient, split.scaled_gradient * split.scale))


def log_distribution_uncertainty_kernel(z: Tensor, needs_grad: bool) -> KernelResult:
    """Compute ``ln U_dis``; -inf with zero gradient where even alpha_0 U_dis underflows."""
    split = _split_entropy(z, needs_grad)
    log_total = torch.where(split.is_below_1, 0.0, split.rows.log_total)
    value = split.scaled.log() - log_total - torch.where(split.is_below_1, 0.0, split.rows.top_z)
    if split.scaled_gradient is None:
        return KernelResult((value,), ())
    return KernelResult((value,), (torch.where(split.scaled > 0, split.scaled_gradient / split.scaled, 0.0),))


def kl_to_uniform_kernel(z: Tensor, needs_grad: bool) -> KernelResult:
    """Compute ``KL(Dir(alpha) || Dir(1))``.

    The terms of order alpha, C ln alpha and C ln C cancel and are left out. With Stirling's
    ln Gamma(1+x) = (x + 1/2) ln x - x + ln(2 pi)/2 + mu(x), E(x) = ln(2 pi)/2 + mu(x) - h(x) and
    M = ln(alpha_0 / C),

        KL = sum_c {(M - z_c)/2 + (1 - p_c)/alpha_c - E(alpha_c) - k(alpha_c)}
             + (C - 1)/2 M + E(alpha_0) + C k(alpha_0) + {(C - 1/2) ln C - C + 1 - ln Gamma(C)}
    """
    constants, classes = _CONSTANTS[z.dtype], z.shape[1]
    rows = _relative_to_top(z)
    logs = _append_column(z, rows.top_z + rows.log_total)
    x = logs.clamp(max=constants.max_z).exp_()
    inverse = logs.clamp(constants.min_z, constants.max_z).neg_().exp_()
    terms = _digamma_terms(x, constants)
    k = (inverse * constants.shift).log1p_().sub_(terms.s)
    e = _binet(x, logs, inverse, constants).sub_(x * k).add_(_HALF_LOG_TAU)
    p = rows.ratio.clone().scatter_(1, rows.top_class, 1.0).div_(rows.total)
    others = (1 - p).scatter_(1, rows.top_class, rows.rho / rows.total)
    # NaN comes from 0 times an overflow at the largest class; the other inverses then overflow too.
    inverses = z.neg().exp_().mul_(others).nan_to_num_(nan=0.0, posinf=math.inf)
    log_mean = rows.top_z + (rows.total / classes).log_()
    value = (log_mean - z).mul_(0.5).add_(inverses).sub_(e[:, :-1]).sub_(k[:, :-1]).sum(1, keepdim=True)
    value += (classes - 1) / 2 * log_mean.clamp(min=constants.min_z) + e[:, -1:] + classes * k[:, -1:]
    value += (classes - 0.5) * math.log(classes) - classes + 1 - math.lgamma(classes)
    if not needs_grad:
        return KernelResult((value,), ())
    beta = (constants.shift * terms.last).sub_(_sigma(terms, constants).mul_(x))  # 1 - b
    # dKL/dz_j = (1-alpha_j) beta(alpha_j) - 1/alpha_j + p_j {(alpha_0-C) beta(alpha_0) + C-1 + C/alpha_0}
    row = (x[:, -1:] - classes) * beta[:, -1:] + (classes - 1)
    gradient = (1 - x[:, :-1]).mul_(beta[:, :-1]).addcmul_(p, row)
    return KernelResult((value,), (gradient.sub_(inverse[:, :-1] * (1 - classes * p * p)),))


def _binet(x: Tensor, logs: Tensor, inverse: Tensor, constants: _SeriesConstants) -> Tensor:
    """Compute ``mu(x)`` by its series where that converges, else by definition; both are always finite."""
    knee = float(constants.shift)
    low, log_low = x.clamp(max=knee), logs.clamp(constants.min_z, math.log(knee))
    exact = torch.lgamma(1 + low).sub_((low + 0.5).mul_(log_low)).add_(low).sub_(_HALF_LOG_TAU)
    t = inverse.clamp(max=1 / knee)
    series = _polynomial(constants.binet, t * t).div_(t)
    return torch.where(x < knee, exact, series)
