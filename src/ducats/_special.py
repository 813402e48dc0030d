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


class _Scheme(NamedTuple):
    """Constants that keep the truncation error below the rounding error of one dtype."""

    shift: int  # w
    series: tuple[float, ...]  # c_k
    slope: tuple[float, ...]  # 2k c_k: the derivative of the series
    origin: tuple[float, ...]  # divided difference of the series with x = 0, in powers of 1/(x+w)^2
    binet: tuple[float, ...]  # c_k / (2k-1): the series of ln Gamma
    floor: float  # below this z, w exp(-z) overflows and alpha becomes subnormal
    ceiling: float  # above this z, h(alpha) is 1/2 to the last bit


def _scheme(shift: int, terms: int, floor: float, ceiling: float) -> _Scheme:
    series = _SERIES[:terms]
    slope = tuple(2 * k * c for k, c in enumerate(series, 1))
    origin = tuple(sum(c * float(shift) ** (-2 * k) for k, c in enumerate(series[i:])) for i in range(terms))
    binet = tuple(c / (2 * k - 1) for k, c in enumerate(series, 1))
    return _Scheme(shift, series, slope, origin, binet, floor, ceiling)


_SCHEMES = {torch.float32: _scheme(4, 4, -87.0, 20.0), torch.float64: _scheme(9, 7, -706.0, 40.0)}


class Values(NamedTuple):
    """Results per row, ``(R, 1)`` each, and, if requested, the gradient of each, ``(R, C)``."""

    values: tuple[Tensor, ...]
    slopes: tuple[Tensor, ...]


class _Rows(NamedTuple):
    """Rows relative to their largest class m, which ``others``, ``gap`` and ``ratio`` leave out."""

    top: Tensor  # z_m (R, 1)
    winner: Tensor  # m (R, 1)
    others: Tensor  # z (R, C), with -inf in column m
    gap: Tensor  # z_c - z_m (R, C); finite, so its product with a ratio of 0 is 0
    ratio: Tensor  # alpha_c / alpha_m (R, C), 0 in column m
    rho: Tensor  # the sum of ratio (R, 1)
    whole: Tensor  # 1 + rho = alpha_0 / alpha_m (R, 1)
    log_whole: Tensor  # ln alpha_0 - z_m (R, 1)


def _dominated(z: Tensor) -> _Rows:
    top, index = z.max(1, keepdim=True)
    others = z.clone().scatter_(1, index, -math.inf)  # scatter would not preserve the memory layout
    gap = others - top
    # A gap of 40 is rounded by up to 2e-6 in float32, which becomes the relative error of its exponential.
    # The rounding error of a difference is itself a float (Knuth). It is NaN only where the ratio is 0.
    shadow = gap - others
    error = (others - (gap - shadow)).sub_(top + shadow).nan_to_num_(0.0)
    ratio = gap.exp()
    ratio.addcmul_(ratio, error)
    rho = ratio.sum(1, keepdim=True)
    return _Rows(top, index, others, gap.clamp_(min=-1e4), ratio, rho, 1 + rho, rho.log1p())


def _beside(columns: Tensor, last: Tensor) -> Tensor:
    """Append ``(R, 1)`` to ``(R, C)`` and keep its memory layout: maps are stored class by class."""
    if columns.stride(0) == 1:
        return torch.cat([columns.T, last.T]).T
    return torch.cat([columns, last], 1)


def _polynomial(coefficients: tuple[float, ...], u: Tensor) -> Tensor:
    """``c_1 u + c_2 u^2 + ...``."""
    value = u * coefficients[-1]
    for c in reversed(coefficients[:-1]):
        value.add_(c).mul_(u)
    return value


def _divided_difference(coefficients: tuple[float, ...], u: Tensor, v: Tensor) -> Tensor:
    """``(_P(u) - _P(v)) / (u - v)`` for the polynomial P above, by Horner's rule without division."""
    value = difference = torch.full_like(u, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = value * u + c
        difference = difference * v + value
    return difference


class _Shifted(NamedTuple):
    """Terms of ``psi(1+x)``."""

    reciprocals: list[Tensor]  # 1/(x+j) for j = 1..w
    last: Tensor  # 1/(x+w)
    square: Tensor  # 1/(x+w)^2
    s: Tensor  # ln(x+w) - psi(1+x)


def _shifted(x: Tensor, scheme: _Scheme) -> _Shifted:
    reciprocals = [(x + j).reciprocal_() for j in range(1, scheme.shift + 1)]
    last = reciprocals[-1]
    square = last * last
    s = _polynomial(scheme.series, square).add_(last, alpha=0.5)
    for r in reciprocals[:-1]:
        s.add_(r)
    return _Shifted(reciprocals, last, square, s)


def _sigma(at: _Shifted, scheme: _Scheme) -> Tensor:
    """``-s'(x)``; then ``psi'(1+x) = 1/(x+w) + sigma(x)`` and ``1 - b(x) = w/(x+w) - x sigma(x)``."""
    sigma = _polynomial(scheme.slope, at.square).mul_(at.last).add_(at.square, alpha=0.5)
    for r in at.reciprocals[:-1]:
        sigma.addcmul_(r, r)
    return sigma


def _q(x: Tensor, at: _Shifted, scheme: _Scheme) -> Tensor:
    """``psi(1+x) + gamma = log1p(x/w) + s(0) - s(x)``, with x factored out of the difference."""
    w = scheme.shift
    mean = _polynomial(scheme.origin[1:], at.square).add_(scheme.origin[0])
    mean.mul_(at.last + 1 / w).add_(0.5).mul_(at.last / w)
    for j, r in enumerate(at.reciprocals[:-1], 1):
        mean.add_(r, alpha=1 / j)
    return mean.mul_(x).add_((x / w).log1p_())


class _Step(NamedTuple):
    """Differences between alpha_m and alpha_0, ``(R, 1)``; positive, and accurate for close values."""

    k: Tensor  # k(alpha_m) - k(alpha_0)
    q: Tensor  # q(alpha_0) - q(alpha_m)
    b: Tensor | None  # b(alpha_0) - b(alpha_m), if gradients are requested


def _step(x: Tensor, rho: Tensor, whole: _Shifted, scheme: _Scheme, slopes: bool) -> _Step:
    """Compute differences between alpha_0, given as ``whole``, and ``x`` = alpha_m = alpha_0 / (1 + rho)."""
    w, d = scheme.shift, x * rho
    at_x = (x + torch.arange(1, w + 1, dtype=x.dtype, device=x.device)).reciprocal_()  # (R, w)
    at_y = torch.cat(whole.reciprocals, 1)
    products, sums = at_x * at_y, at_x + at_y
    last, product, total = at_x[:, -1:], products[:, -1:], sums[:, -1:]
    square = last * last
    mean = products[:, :-1].sum(1, keepdim=True)
    mean += product * (0.5 + total * _divided_difference(scheme.series, square, whole.square))
    # ln(alpha_0/alpha_m) - ln((alpha_0+w)/(alpha_m+w)) as one log1p: both are nearly equal for large x.
    k = (w * rho * whole.last).log1p_() - d * mean
    q = (d * last).log1p_() + d * mean
    if not slopes:
        return _Step(k, q, None)
    slope = _divided_difference(scheme.slope, square, whole.square)
    bend = (products * sums)[:, :-1].sum(1, keepdim=True)
    bend += product * (0.5 * total + _polynomial(scheme.slope, square) + whole.last * total * slope)
    return _Step(k, q, d * (w * product + _sigma(whole, scheme) - x * bend))


def _last_column(at: _Shifted) -> _Shifted:
    return _Shifted([r[:, -1:] for r in at.reciprocals], at.last[:, -1:], at.square[:, -1:], at.s[:, -1:])


def entropy(z: Tensor, slopes: bool) -> Values:
    """Compute the entropy of the expectation, ``sum_{c != m} p_c ln(1/p_c) + p_m log1p(rho)``."""
    rows = _dominated(z)
    value, slope = _entropy(rows, slopes)
    return Values((value,), (slope,) if slope is not None else ())


def _entropy(rows: _Rows, slopes: bool) -> tuple[Tensor, Tensor | None]:
    value = (rows.ratio * (rows.log_whole - rows.gap)).sum(1, keepdim=True).add_(rows.log_whole)
    value /= rows.whole
    if not slopes:
        return value, None
    # dH/dz_j = p_j {ln(1/p_j) - H} = p_j {sum_c p_c z_c - z_j}; only the latter is accurate for similar z
    mean = (rows.ratio * rows.gap).sum(1, keepdim=True).div_(rows.whole)
    slope = (mean - rows.gap).mul_(rows.ratio).scatter_(1, rows.winner, mean)
    return value, slope.div_(rows.whole)


class _Split(NamedTuple):
    """Entropy split into U_data and U_dis = scaled * scale. U_dis may underflow, its logarithm does not."""

    rows: _Rows
    tiny: Tensor  # (R, 1) alpha_0 < 1
    data: Tensor  # (R, 1) U_data
    scaled: Tensor  # (R, 1)
    scale: Tensor  # (R, 1) 1 where tiny, else 1 / alpha_0
    data_slope: Tensor | None  # (R, C)
    scaled_slope: Tensor | None  # (R, C)


def _split(z: Tensor, slopes: bool) -> _Split:
    """Compute one part as a sum of positive terms, and the other as the entropy minus that part.

    alpha_0 U_dis = sum_c h(alpha_c) - h(alpha_0)
                  = sum_{c != m} [h(alpha_c) - p_c h(alpha_0)] + alpha_m [k(alpha_m) - k(alpha_0)]
    U_data = sum_{c != m} p_c [q(alpha_0) - q(alpha_c)] + p_m [q(alpha_0) - q(alpha_m)]

    Both forms are accurate around alpha_0 = 1. With less evidence, U_data is small and ln(1/alpha) dominates
    k and h. With more evidence, U_dis is small and ln alpha dominates q.
    """
    scheme = _SCHEMES[z.dtype]
    rows = _dominated(z)
    x_top = rows.top.clamp(max=scheme.ceiling).exp_()
    x, inverse = _alphas(rows, x_top * rows.whole, scheme)
    at = _shifted(x, scheme)
    h = (inverse * scheme.shift).log1p_().sub_(at.s).mul_(x)
    q = _q(x, at, scheme)
    step = _step(x_top, rows.rho, _last_column(at), scheme, slopes)

    entropy, entropy_slope = _entropy(rows, slopes)
    data = rows.rho * q[:, -1:] - (rows.ratio * q[:, :-1]).sum(1, keepdim=True) + step.q
    data /= rows.whole
    scaled = h[:, :-1].sum(1, keepdim=True) - rows.rho / rows.whole * h[:, -1:] + x_top * step.k
    log_alpha_0 = rows.top + rows.log_whole
    tiny, little = log_alpha_0 < 0, log_alpha_0 < 1.5
    scaled = torch.where(tiny, entropy - data, scaled).clamp_(min=0)
    scale = torch.where(tiny, 1.0, rows.top.clamp(min=scheme.floor).neg_().exp_() / rows.whole)
    data = torch.where(little, data, entropy - scaled * scale).clamp_(min=0)
    if entropy_slope is None or step.b is None:
        return _Split(rows, tiny, data, scaled, scale, None, None)
    sigma = _sigma(at, scheme)
    qb = q.add_((at.last + sigma).mul_(x))
    eta = h.sub_((scheme.shift * at.last).sub_(sigma.mul_(x)).mul_(x))
    data_slope = _data_slope(rows, qb, step.q + step.b, data)
    scaled_slope = _scaled_slope(rows, eta, x_top * (step.k - step.b), scaled)
    scaled_slope = torch.where(tiny, entropy_slope - data_slope, scaled_slope)
    data_slope = torch.where(little, data_slope, entropy_slope - scaled_slope * scale)
    return _Split(rows, tiny, data, scaled, scale, data_slope, scaled_slope)


def _alphas(rows: _Rows, alpha_0: Tensor, scheme: _Scheme) -> tuple[Tensor, Tensor]:
    """Return alpha of the other classes with alpha_0 appended, and their inverses: ``(R, C + 1)`` each.

    Alpha is capped at the ceiling. Above it, h does not depend on alpha and q is not used.
    """
    x = rows.others.clamp(max=scheme.ceiling).exp_()
    inverse = rows.others.clamp(scheme.floor, scheme.ceiling).neg_().exp_()
    inverse_0 = rows.top.clamp(scheme.floor, scheme.ceiling).neg_().exp_().div_(rows.whole)
    return _beside(x, alpha_0), _beside(inverse, inverse_0)


def _data_slope(rows: _Rows, qb: Tensor, qb_step: Tensor, data: Tensor) -> Tensor:
    """``dU_data/dz_j = p_j {(q+b)(alpha_0) - (q+b)(alpha_j) - U_data}``."""
    slope = (qb[:, -1:] - data - qb[:, :-1]).mul_(rows.ratio)
    return slope.scatter_(1, rows.winner, qb_step - data).div_(rows.whole)


def _scaled_slope(rows: _Rows, eta: Tensor, eta_step: Tensor, scaled: Tensor) -> Tensor:
    """``alpha_0 dU_dis/dz_j = eta(alpha_j) - p_j [eta(alpha_0) + alpha_0 U_dis]`` with eta(x) = x h'(x)."""
    slope = torch.addcmul(eta[:, :-1], rows.ratio, (eta[:, -1:] + scaled) / rows.whole, value=-1)
    return slope.scatter_(1, rows.winner, eta_step - scaled / rows.whole)


def uncertainties(z: Tensor, slopes: bool) -> Values:
    """Compute U_data and U_dis."""
    split = _split(z, slopes)
    values = (split.data, split.scaled * split.scale)
    if split.data_slope is None or split.scaled_slope is None:
        return Values(values, ())
    return Values(values, (split.data_slope, split.scaled_slope * split.scale))


def log_distribution_uncertainty(z: Tensor, slopes: bool) -> Values:
    """Compute ``ln U_dis``; -inf with zero gradient where even alpha_0 U_dis underflows."""
    split = _split(z, slopes)
    log_whole = torch.where(split.tiny, 0.0, split.rows.log_whole)
    value = split.scaled.log() - log_whole - torch.where(split.tiny, 0.0, split.rows.top)
    if split.scaled_slope is None:
        return Values((value,), ())
    return Values((value,), (torch.where(split.scaled > 0, split.scaled_slope / split.scaled, 0.0),))


def kl_to_uniform(z: Tensor, slopes: bool) -> Values:
    """Compute ``KL(Dir(alpha) || Dir(1))``.

    The terms of order alpha, C ln alpha and C ln C cancel and are left out. With Stirling's
    ln Gamma(1+x) = (x + 1/2) ln x - x + ln(2 pi)/2 + mu(x), E(x) = ln(2 pi)/2 + mu(x) - h(x) and
    M = ln(alpha_0 / C),

        KL = sum_c {(M - z_c)/2 + (1 - p_c)/alpha_c - E(alpha_c) - k(alpha_c)}
             + (C - 1)/2 M + E(alpha_0) + C k(alpha_0) + {(C - 1/2) ln C - C + 1 - ln Gamma(C)}
    """
    scheme, classes = _SCHEMES[z.dtype], z.shape[1]
    rows = _dominated(z)
    logs = _beside(z, rows.top + rows.log_whole)
    x = logs.clamp(max=scheme.ceiling).exp_()
    inverse = logs.clamp(scheme.floor, scheme.ceiling).neg_().exp_()
    at = _shifted(x, scheme)
    k = (inverse * scheme.shift).log1p_().sub_(at.s)
    e = _binet(x, logs, inverse, scheme).sub_(x * k).add_(_HALF_LOG_TAU)
    p = rows.ratio.clone().scatter_(1, rows.winner, 1.0).div_(rows.whole)
    others = (1 - p).scatter_(1, rows.winner, rows.rho / rows.whole)
    # NaN comes from 0 times an overflow at the largest class; the other inverses then overflow too.
    inverses = z.neg().exp_().mul_(others).nan_to_num_(nan=0.0, posinf=math.inf)
    log_mean = rows.top + (rows.whole / classes).log_()
    value = (log_mean - z).mul_(0.5).add_(inverses).sub_(e[:, :-1]).sub_(k[:, :-1]).sum(1, keepdim=True)
    value += (classes - 1) / 2 * log_mean.clamp(min=scheme.floor) + e[:, -1:] + classes * k[:, -1:]
    value += (classes - 0.5) * math.log(classes) - classes + 1 - math.lgamma(classes)
    if not slopes:
        return Values((value,), ())
    beta = (scheme.shift * at.last).sub_(_sigma(at, scheme).mul_(x))  # 1 - b
    # dKL/dz_j = (1-alpha_j) beta(alpha_j) - 1/alpha_j + p_j {(alpha_0-C) beta(alpha_0) + C-1 + C/alpha_0}
    row = (x[:, -1:] - classes) * beta[:, -1:] + (classes - 1)
    slope = (1 - x[:, :-1]).mul_(beta[:, :-1]).addcmul_(p, row)
    return Values((value,), (slope.sub_(inverse[:, :-1] * (1 - classes * p * p)),))


def _binet(x: Tensor, logs: Tensor, inverse: Tensor, scheme: _Scheme) -> Tensor:
    """Compute ``mu(x)`` by its series where that converges, else by definition; both are always finite."""
    knee = float(scheme.shift)
    low, log_low = x.clamp(max=knee), logs.clamp(scheme.floor, math.log(knee))
    exact = torch.lgamma(1 + low).sub_((low + 0.5).mul_(log_low)).add_(low).sub_(_HALF_LOG_TAU)
    t = inverse.clamp(max=1 / knee)
    series = _polynomial(scheme.binet, t * t).div_(t)
    return torch.where(x < knee, exact, series)
