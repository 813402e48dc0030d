"""Digamma sums and differences without cancellation, on rows of log alpha ``(R, C)``.

Everything here is evaluated without autograd, and every derivative is written out: the gradient of a
difference of nearly equal numbers needs the same care as the difference. Notation, for x >= 0:

    k(x) = psi(1+x) - ln x      from +inf down to 0, 1/(2x) for large x
    h(x) = x k(x)               from 0 up to 1/2
    q(x) = psi(1+x) + gamma     from 0 up, zeta(2) x for small x
    b(x) = x psi'(1+x)          from 0 up to 1;  h'(x) = k(x) - 1 + b(x)

One identity gives them all, with w a whole number and c_k = B_2k/2k (recurrence, then asymptotic series):

    psi(1+x) = ln(x+w) - s(x),  s(x) = sum_{j<w} 1/(x+j) + 1/(2(x+w)) + sum_k c_k/(x+w)^2k

because then k(x) = log1p(w/x) - s(x) holds for small and large x alike, without a branch, and any
difference between x and y = x + d has d as an explicit factor: 1/(x+j) - 1/(y+j) = d/((x+j)(y+j)).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)  # B_2k / 2k


class _Scheme(NamedTuple):
    """Constants that make the truncation error smaller than the rounding error of one dtype."""

    shift: int  # w
    series: tuple[float, ...]  # c_k
    slope: tuple[float, ...]  # 2k c_k, for the derivative
    origin: tuple[float, ...]  # coefficients, in 1/(x+w)^2, of the series' divided difference with x = 0
    floor: float  # below, w exp(-z) would overflow; alpha has left the normal numbers by then
    ceiling: float  # above, h = 1/2 to the last bit


def _scheme(shift: int, terms: int, floor: float, ceiling: float) -> _Scheme:
    series = _SERIES[:terms]
    slope = tuple(2 * k * c for k, c in enumerate(series, 1))
    origin = tuple(
        sum(series[k] * shift ** (-2.0 * (k - i)) for k in range(i, terms)) for i in range(terms)
    )
    return _Scheme(shift, series, slope, origin, floor, ceiling)


_SCHEMES = {torch.float32: _scheme(4, 4, -87.0, 20.0), torch.float64: _scheme(9, 7, -706.0, 40.0)}


def _polynomial(coefficients: tuple[float, ...], u: Tensor) -> Tensor:
    """``coefficients[0] u + coefficients[1] u^2 + ...``."""
    value = u * coefficients[-1]
    for c in reversed(coefficients[:-1]):
        value.add_(c).mul_(u)
    return value


def _divided_difference(coefficients: tuple[float, ...], u: Tensor, v: Tensor) -> Tensor:
    """``(P(u) - P(v)) / (u - v)`` for the polynomial above, without the division: Horner's rule, twice."""
    value = torch.full_like(u, coefficients[-1])
    difference = value
    for c in reversed(coefficients[:-1]):
        value = value * u + c
        difference = difference * v + value
    return difference


class Dominated(NamedTuple):
    """Rows seen from their largest class m, whose own column counts as absent from ``gap`` and ``ratio``."""

    top: Tensor  # z_m (R, 1)
    index: Tensor  # m (R, 1)
    others: Tensor  # z, and -inf in column m
    gap: Tensor  # z_c - z_m (R, C), never -inf so that 0 times it is 0
    ratio: Tensor  # alpha_c / alpha_m (R, C), 0 in column m
    rho: Tensor  # sum of ratio (R, 1): alpha_0 = alpha_m (1 + rho)
    log1p_rho: Tensor  # ln alpha_0 = z_m + log1p(rho)


def dominate(z: Tensor) -> Dominated:
    """Take the largest class out of each row; what is left is small when one class dominates."""
    top, index = z.max(1, keepdim=True)
    others = z.scatter(1, index, -math.inf)
    gap = others - top
    # The rounding error of a gap of 40 is 2e-6 in float32, and the exponential makes it relative. The
    # subtraction's exact error (Knuth) puts it right; it is NaN only where the ratio is 0.
    shadow = gap - others
    error = (others - (gap - shadow)).sub_(top + shadow).nan_to_num_(0.0)
    ratio = gap.exp()
    ratio.addcmul_(ratio, error)
    rho = ratio.sum(1, keepdim=True)
    return Dominated(top, index, others, gap.clamp_(min=-1e4), ratio, rho, rho.log1p())


class _Columns(NamedTuple):
    """h and q of every other class's alpha, and in the last column of alpha_0: ``(R, C + 1)``."""

    h: Tensor
    q: Tensor
    eta: Tensor  # x h'(x), only if slopes were asked for
    b: Tensor  # only if slopes were asked for
    reciprocals: list[Tensor]  # 1/(x+j), j = 1..w


def _columns(x: Tensor, inverse: Tensor, scheme: _Scheme, slopes: bool) -> _Columns:
    """The functions of the module's head at ``x``; ``inverse`` is 1/x, capped where it would overflow."""
    w = scheme.shift
    reciprocals = [(x + j).reciprocal_() for j in range(1, w + 1)]
    last = reciprocals[-1]
    square = last * last
    s = _polynomial(scheme.series, square).add_(last, alpha=0.5)
    q = _polynomial(scheme.origin[1:], square).add_(scheme.origin[0])
    q.mul_(last + 1 / w).add_(0.5).mul_(last / w)
    for j, r in enumerate(reciprocals[:-1], 1):
        s.add_(r)
        q.add_(r, alpha=1 / j)
    h = (inverse * w).log1p_().sub_(s).mul_(x)
    q.mul_(x).add_((x / w).log1p_())
    if not slopes:
        return _Columns(h, q, h, q, reciprocals)
    sigma = _sigma(reciprocals, square, scheme)
    b = (last + sigma).mul_(x)
    eta = h - (w * last - x * sigma).mul_(x)  # w/(x+w) - x sigma = 1 - b, which would cancel
    return _Columns(h, q, eta, b, reciprocals)


def _sigma(reciprocals: list[Tensor], square: Tensor, scheme: _Scheme) -> Tensor:
    """``-s'(x)``, so that ``psi'(1+x) = 1/(x+w) + sigma(x)``."""
    sigma = _polynomial(scheme.slope, square).mul_(reciprocals[-1]).add_(square, alpha=0.5)
    for r in reciprocals[:-1]:
        sigma.addcmul_(r, r)
    return sigma


class _Step(NamedTuple):
    """Differences between alpha_0 and alpha_m, exact however close the two are: ``(R, 1)``."""

    k: Tensor  # k(alpha_m) - k(alpha_0) >= 0
    q: Tensor  # q(alpha_0) - q(alpha_m) >= 0
    b: Tensor  # b(alpha_0) - b(alpha_m) >= 0, only if slopes were asked for


def _step(x: Tensor, rho: Tensor, y_reciprocals: list[Tensor], scheme: _Scheme, slopes: bool) -> _Step:
    w, d = scheme.shift, x * rho
    at_x = (x + torch.arange(1, w + 1, dtype=x.dtype, device=x.device)).reciprocal_()  # (R, w)
    at_y = torch.cat(y_reciprocals, 1)
    products = at_x * at_y
    sums = at_x + at_y
    x_last, y_last, product, total = (v[:, -1:] for v in (at_x, at_y, products, sums))
    u, v = x_last * x_last, y_last * y_last
    mean = products[:, :-1].sum(1, keepdim=True)
    mean += product * (0.5 + total * _divided_difference(scheme.series, u, v))
    # ln y/x and ln (y+w)/(x+w) are nearly equal for large x: their difference is one log1p as well.
    k = (w * rho * y_last).log1p_() - d * mean
    q = (d * x_last).log1p_() + d * mean
    if not slopes:
        return _Step(k, q, q)
    sigma = _sigma(y_reciprocals, v, scheme)
    bend = (products * sums)[:, :-1].sum(1, keepdim=True) + product * total * 0.5
    slope = _divided_difference(scheme.slope, u, v)
    bend += product * (_polynomial(scheme.slope, u) + y_last * total * slope)
    return _Step(k, q, d * (w * product + sigma - x * bend))


class Slopes(NamedTuple):
    """Gradients with respect to z, before the row's own factor: see `split_entropy`."""

    direct: Tensor  # (R, C), of U_data where ``tiny``, else alpha_0 times that of U_dis
    entropy: Tensor  # (R, C), of the entropy
    tiny: Tensor  # (R, 1) alpha_0 < 1
    scale: Tensor  # (R, 1) U_dis = scale scaled; scale is 1 where ``tiny``, else 1 / alpha_0
    scaled: Tensor  # (R, 1)


class Split(NamedTuple):
    """The entropy of each row and its two parts: ``(R, 1)``."""

    data: Tensor
    distribution: Tensor
    log_distribution: Tensor  # U_dis may be too small for a float; its logarithm is not
    slopes: Slopes | None


def split_entropy(z: Tensor, slopes: bool) -> Split:
    """Split the entropy of the expectation into data and distribution uncertainty, each exact to rounding.

    Of the two parts one is computed, such that all its terms are positive, and the other is the rest:

        alpha_0 >= 1:  alpha_0 U_dis = sum_c h(alpha_c) - h(alpha_0)
                                     = sum_{c != m} [h(alpha_c) - p_c h(alpha_0)]
                                       + alpha_m [k(alpha_m) - k(alpha_0)]
        alpha_0 < 1:   U_data = sum_{c != m} p_c [q(alpha_0) - q(alpha_c)] + p_m [q(alpha_0) - q(alpha_m)]
    """
    scheme = _SCHEMES[z.dtype]
    rows = dominate(z)
    top, rho, log1p_rho = rows.top, rows.rho, rows.log1p_rho
    whole = 1 + rho
    x_top = top.clamp(max=scheme.ceiling).exp_()
    at = _columns(*_alphas(rows, x_top * whole, scheme), scheme, slopes)
    step = _step(x_top, rho, [r[:, -1:] for r in at.reciprocals], scheme, slopes)

    entropy = ((rows.ratio * (log1p_rho - rows.gap)).sum(1, keepdim=True) + log1p_rho) / whole
    data = (rho * at.q[:, -1:] - (rows.ratio * at.q[:, :-1]).sum(1, keepdim=True) + step.q) / whole
    scaled = at.h[:, :-1].sum(1, keepdim=True) - rho / whole * at.h[:, -1:] + x_top * step.k
    tiny = top + log1p_rho < 0
    scaled = torch.where(tiny, entropy - data, scaled).clamp_(min=0)
    scale = torch.where(tiny, 1.0, top.clamp(min=scheme.floor).neg_().exp_() / whole)
    distribution = scaled * scale
    data = torch.where(tiny, data, entropy - distribution).clamp_(min=0)
    log_distribution = scaled.log() - torch.where(tiny, 0.0, log1p_rho) - torch.where(tiny, 0.0, top)
    if not slopes:
        return Split(data, distribution, log_distribution, None)
    direct = _direct_slope(rows, at, step, x_top, torch.where(tiny, data, scaled), tiny)
    spread = (log1p_rho - entropy - rows.gap).mul_(rows.ratio)
    spread = spread.scatter_(1, rows.index, log1p_rho - entropy).div_(whole)
    return Split(data, distribution, log_distribution, Slopes(direct, spread, tiny, scale, scaled))


def _alphas(rows: Dominated, alpha_0: Tensor, scheme: _Scheme) -> tuple[Tensor, Tensor]:
    """Alpha of the other classes and alpha_0, and their inverses: ``(R, C + 1)`` each.

    Above the ceiling alpha is capped: there h does not depend on it, and q is not used.
    """
    x = rows.others.clamp(max=scheme.ceiling).exp_()
    inverse = rows.others.clamp(scheme.floor, scheme.ceiling).neg_().exp_()
    inverse_0 = rows.top.clamp(scheme.floor, scheme.ceiling).neg_().exp_().div_(1 + rows.rho)
    return torch.cat([x, alpha_0], 1), torch.cat([inverse, inverse_0], 1)


def _direct_slope(
    rows: Dominated, at: _Columns, step: _Step, x_top: Tensor, value: Tensor, tiny: Tensor
) -> Tensor:
    """Gradient of the part that `split_entropy` computes directly, whose value is ``value``.

    d U_data / d z_j = p_j {q(alpha_0) - q(alpha_j) + b(alpha_0) - b(alpha_j) - U_data}
    alpha_0 d U_dis / d z_j = alpha_j {h'(alpha_j) - h'(alpha_0)} - p_j alpha_0 U_dis
    """
    whole = 1 + rows.rho
    p = rows.ratio / whole
    both = at.q + at.b
    data = p * (both[:, -1:] - both[:, :-1] - value)
    scaled = torch.addcmul(at.eta[:, :-1], p, at.eta[:, -1:] + value, value=-1)
    data_top = (step.q + step.b - value) / whole
    scaled_top = x_top * (step.k - step.b) - value / whole
    return torch.where(tiny, data, scaled).scatter_(1, rows.index, torch.where(tiny, data_top, scaled_top))
