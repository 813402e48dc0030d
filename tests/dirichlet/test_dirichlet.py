"""Dirichlet formulas against mpmath, torch.distributions, sampling and finite differences."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, Dirichlet, kl_divergence

from ducats import dirichlet
from ducats.dirichlet import formulas

TINY = torch.finfo(torch.float32).tiny
CLASSES = (2, 10, 65, 345)
SPREAD_MEANS = (-80, -40, -20, -10, -3, 0, 3, 9, 12, 15, 25, 40, 60, 80, 100, 200)
UNARY: tuple[Callable[[Tensor], Tensor], ...] = (
    dirichlet.entropy,
    dirichlet.data_uncertainty,
    dirichlet.distribution_uncertainty,
    dirichlet.log_distribution_uncertainty,
    dirichlet.kl_to_uniform,
)
LOSSES = (dirichlet.negative_log_likelihood, dirichlet.misleading_evidence)


def normal(*shape: int, seed: int = 2, scale: float = 4.0, dtype: torch.dtype = torch.float32) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# Exact arithmetic -----------------------------------------------------------------------------------------


class Exact:
    """The definitions, with enough digits that cancellation does not matter."""

    def __init__(self, row: Tensor) -> None:
        mp.mp.dps = 25 + int(row.abs().max())
        self.z = [mp.mpf(v) for v in row.tolist()]
        self.alpha = [mp.exp(v) for v in self.z]
        self.alpha_0 = mp.fsum(self.alpha)
        self.psi = [mp.digamma(a + 1) for a in self.alpha]
        self.psi_0 = mp.digamma(self.alpha_0 + 1)
        log_alpha_0 = mp.log(self.alpha_0)
        parts = [a * (log_alpha_0 - v) for a, v in zip(self.alpha, self.z, strict=True)]
        self.entropy = mp.fsum(parts) / self.alpha_0
        self.data = self.psi_0 - mp.fdot(self.alpha, self.psi) / self.alpha_0
        self.distribution = self.entropy - self.data

    def kl(self) -> Any:
        psi_0 = self.psi_0 - 1 / self.alpha_0
        return mp.fsum(
            [mp.loggamma(self.alpha_0), -mp.loggamma(len(self.alpha))]
            + [
                (a - 1) * (psi - 1 / a - psi_0) - mp.loggamma(a)
                for a, psi in zip(self.alpha, self.psi, strict=True)
            ]
        )

    def gradients(self) -> tuple[list[Any], list[Any]]:
        """Gradients of U_data and U_dis, the latter as the gradient of the entropy minus the former."""
        b_0 = self.alpha_0 * mp.psi(1, self.alpha_0 + 1)
        data_gradients, distribution_gradients = [], []
        for a, v, psi in zip(self.alpha, self.z, self.psi, strict=True):
            p = a / self.alpha_0
            gradient = p * (self.psi_0 - psi + b_0 - a * mp.psi(1, a + 1) - self.data)
            data_gradients.append(gradient)
            distribution_gradients.append(p * (mp.log(self.alpha_0) - v - self.entropy) - gradient)
        return data_gradients, distribution_gradients


def relative(found: Tensor, exact: Any) -> float:
    return float(abs(mp.mpf(found.item()) - exact) / abs(exact))


def spread(classes: int, mean: float) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * classes + int(mean))
    return mean + 2 * torch.randn(1 if classes > 10 else 3, classes, generator=generator)


def peaked(classes: int, mean: float, gap: float) -> Tensor:
    z = mean + (spread(classes, 0) / 2)[:1]
    z[:, classes // 2] = z.amax(1) + gap
    return z


def families(classes: int) -> Iterator[Tensor]:
    """Yield test logits, one row ``(1, C)`` at a time; few with many classes, which are slow."""
    many = classes > 10
    for mean in SPREAD_MEANS[1::3] if many else SPREAD_MEANS:
        yield from spread(classes, mean).split(1)
    for mean in (-20, 1, 20, 60):  # almost equal: the entropy's gradient nearly vanishes
        yield mean + spread(classes, 0)[:1] / 1024
    for mean in (-20, 0, 20) if many else (-20, -10, -2, 0, 2, 10, 20):
        for gap in (5, 40) if many else (5, 10, 20, 30, 40):
            yield peaked(classes, mean, gap)


@pytest.mark.parametrize("classes", CLASSES)
def test_values_and_gradients_match_exact_arithmetic(classes: int) -> None:
    for z in families(classes):
        exact = Exact(z[0])
        found = dirichlet.uncertainties(z)
        logarithm = dirichlet.log_distribution_uncertainty(z)
        assert logarithm.dtype == torch.float32
        for value, uncertainty in ((exact.distribution, found.distribution), (exact.data, found.data)):
            assert value <= TINY or relative(uncertainty, value) < 1.5e-6, z
        assert relative(dirichlet.entropy(z), exact.entropy) < 5e-7, z
        log_distribution = mp.log(exact.distribution)
        assert abs(logarithm.item() - log_distribution) < (4e-6 if z.abs().max() < 95 else 1e-5), z
        found = dirichlet.uncertainties(z.double())
        assert relative(found.distribution, exact.distribution) < 2e-14, z
        assert relative(found.data, exact.data) < 1e-14, z
        assert relative(dirichlet.log_distribution_uncertainty(z.double()), log_distribution) < 2e-15
        kl = exact.kl()
        size = max(kl, 1)  # near z = 0 the divergence vanishes, but its terms do not
        if kl < torch.finfo(torch.float32).max:
            assert abs(dirichlet.kl_to_uniform(z).item() - kl) < 1e-6 * size, z
        else:
            assert dirichlet.kl_to_uniform(z).item() == math.inf
        assert abs(dirichlet.kl_to_uniform(z.double()).item() - kl) < 5e-15 * size, z
        if classes < 100 and -25 < z.median() < 85:
            check_gradients(z, exact)


def gradient_of(values: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(values.sum(), leaf)[0]


def check_gradients(z: Tensor, exact: Exact) -> None:
    for part, gradient in enumerate(exact.gradients()):
        for dtype, bound in ((torch.float32, 2.5e-6), (torch.float64, 2e-14)):
            leaf = z.to(dtype, copy=True).requires_grad_()
            found = gradient_of(dirichlet.uncertainties(leaf)[part], leaf)
            errors = [mp.mpf(g) - s for g, s in zip(found[0].tolist(), gradient, strict=True)]
            assert mp.norm(errors) < bound * mp.norm(gradient) + 1e-43, (part, dtype, z)


# Other references -----------------------------------------------------------------------------------------


def test_agrees_with_torch_distributions() -> None:
    z, label = normal(50, 7, scale=2.0, dtype=torch.float64), torch.arange(50) % 7
    model = Dirichlet(z.exp())
    without_label = Dirichlet(z.exp().scatter(1, label[:, None], 1.0))
    found = (
        dirichlet.expected_probability(z),
        dirichlet.negative_log_likelihood(z, label),
        dirichlet.misleading_evidence(z, label),
    )
    expected = (
        model.mean,
        -Categorical(model.mean).log_prob(label),
        kl_divergence(without_label, Dirichlet(torch.ones_like(z))),
    )
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)


def test_agrees_with_sampling() -> None:
    """U_data is the mean entropy of sampled class probabilities, to four standard errors."""
    z = torch.tensor(
        [[2.0, 0.0, -1.0], [0.5, 0.5, 0.5], [3.0, 3.0, 1.0], [-1.0, -2.0, 0.0]], dtype=torch.float64
    )
    draws = 40_000
    with torch.random.fork_rng():
        torch.manual_seed(1)
        entropies = Categorical(Dirichlet(z.exp()).sample((draws,))).entropy()
    error = entropies.std(0) / math.sqrt(draws)
    assert (entropies.mean(0) - dirichlet.data_uncertainty(z)).abs().le(4 * error).all()


# Gradients ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("formula", UNARY)
@pytest.mark.parametrize("mean", [-12.0, -0.5, 1.0, 12.0])
def test_gradients_match_finite_differences(formula: Callable[[Tensor], Tensor], mean: float) -> None:
    z = mean + normal(3, 4, 2, scale=1.0, dtype=torch.float64)
    z[2, 1] += 9.0
    # KL grows like 1/alpha and U_dis decreases like 1/alpha_0, so scale by the values
    size = formula(z).abs().max().item()
    assert torch.autograd.gradcheck(lambda v: formula(v) / size, (z.requires_grad_(),), atol=1e-7, rtol=1e-5)


def test_loss_gradients_match_finite_differences() -> None:
    z = normal(4, 5, scale=1.0, dtype=torch.float64).requires_grad_()
    label = torch.tensor([0, 4, -1, 2])
    for loss in LOSSES:
        assert torch.autograd.gradcheck(lambda v, f=loss: f(v, label), (z,))
    assert torch.autograd.gradcheck(dirichlet.expected_probability, (z,))
    # Evidence for the true class is not penalised.
    assert gradient_of(dirichlet.misleading_evidence(z, label), z)[1, 4] == 0


# Any finite input -----------------------------------------------------------------------------------------

_MAGNITUDES = (1e-30, 1e-3, 1.0, 30.0, 90.0, 110.0, 1e3, 1e8, 1e30, 3e38)
_LOGIT = st.one_of(
    st.sampled_from([sign * m for m in _MAGNITUDES for sign in (-1, 1)] + [0.0]),
    st.floats(-120, 120, width=32, allow_subnormal=False),
    st.floats(-3e38, 3e38, allow_subnormal=False),
)


_LOGITS = st.integers(1, 12).flatmap(
    lambda classes: st.lists(st.lists(_LOGIT, min_size=classes, max_size=classes), min_size=1, max_size=8)
)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(_LOGITS)
def test_finite_logits_never_give_nan(logits: list[list[float]]) -> None:
    z = torch.tensor(logits)
    found = dirichlet.uncertainties(z)
    for value in (found.data, found.distribution, dirichlet.entropy(z)):
        assert value.isfinite().all()
        assert value.ge(0).all()
    assert dirichlet.log_distribution_uncertainty(z).le(math.log(12)).all()  # false for NaN
    assert dirichlet.kl_to_uniform(z).ge(-1e-4).all()
    label = torch.zeros(len(z), dtype=torch.long)
    assert dirichlet.misleading_evidence(z, label).ge(-1e-4).all()
    assert dirichlet.negative_log_likelihood(z, label).ge(0).all()
    for formula in UNARY:
        leaf = z.clone().requires_grad_()
        assert gradient_of(formula(leaf), leaf).isfinite().all(), formula
    for evidence in dirichlet.EVIDENCE_FUNCTIONS.values():
        assert evidence(z).isfinite().all()


def test_a_single_class_has_no_uncertainty() -> None:
    z = torch.tensor([[-3e38], [-90.0], [0.0], [5.0], [3e38]])
    assert dirichlet.distribution_uncertainty(z).tolist() == [0.0] * 5
    assert dirichlet.data_uncertainty(z).tolist() == [0.0] * 5
    assert dirichlet.log_distribution_uncertainty(z).tolist() == [-math.inf] * 5
    assert dirichlet.kl_to_uniform(z).abs().max() < 1e-6


def test_negative_labels_are_ignored_and_labels_beyond_the_classes_are_errors() -> None:
    z = torch.tensor([[-200.0, 0.0], [3e38, -3e38], [1.0, 0.0]]).requires_grad_()
    for loss in LOSSES:
        value = loss(z, torch.tensor([-1, -2, -100]))
        assert value.tolist() == [0.0] * 3
        assert gradient_of(value, z).eq(0).all()
        with pytest.raises((IndexError, RuntimeError)):
            loss(z, torch.tensor([0, 1, 2]))


def test_logarithm_ranks_values_that_underflow() -> None:
    z = torch.tensor([[150.0, 150.0], [151.0, 150.0], [100.0, 150.0], [150.0, 120.0]])
    assert dirichlet.distribution_uncertainty(z).eq(0).all()
    exact = [float(mp.log(Exact(row).distribution)) for row in z]
    assert dirichlet.log_distribution_uncertainty(z).tolist() == pytest.approx(exact, abs=1e-5)


# Shapes, types, evidence ----------------------------------------------------------------------------------


def test_maps_and_rows_agree() -> None:
    z, label = normal(2, 5, 3, 4), torch.randint(-1, 5, (2, 3, 4), generator=torch.Generator().manual_seed(2))
    rows = z.permute(0, 2, 3, 1).reshape(-1, 5)
    for formula in UNARY:
        torch.testing.assert_close(formula(z), formula(rows).view(2, 3, 4), rtol=0, atol=0)
        assert formula(z[:0]).shape == (0, 3, 4)
    for loss in LOSSES:
        expected = loss(rows, label.flatten()).view(2, 3, 4)
        torch.testing.assert_close(loss(z, label), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("formula", UNARY)
@pytest.mark.parametrize("positions", [1, 2, 300])
def test_memory_layout_does_not_matter(formula: Callable[[Tensor], Tensor], positions: int) -> None:
    z = normal(5, positions)  # as in a map
    strided, contiguous = z.T.requires_grad_(), z.T.contiguous().requires_grad_()
    found, expected = formula(strided), formula(contiguous)
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(
        gradient_of(found, strided), gradient_of(expected, contiguous), rtol=1e-5, atol=1e-6
    )


def test_compiled_formulas_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    # Traced as for a GPU, without graph breaks; the eager backend needs no compiler.
    compiled = partial(torch.compile, fullgraph=True, backend="eager")
    z = normal(1, 5, 40).requires_grad_()
    plain = [formula(z) for formula in UNARY]
    gradients = [gradient_of(values, z) for values in plain]
    with monkeypatch.context() as patch, dirichlet.compile_formulas():
        patch.setattr(torch, "compile", compiled)
        formulas._compile_cached.cache_clear()
        for formula, expected, gradient in zip(UNARY, plain, gradients, strict=True):
            found = formula(z)
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(gradient_of(found, z), gradient, rtol=1e-5, atol=1e-6)
        assert formulas._compile_cached.cache_info().currsize == 4  # both uncertainties share one formula
    formulas._compile_cached.cache_clear()
    assert not formulas.COMPILE_FORMULAS
    assert not dirichlet.can_compile(torch.device("cpu"))


def test_chunked_computation_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    z = normal(23, 5, scale=1.0).requires_grad_()

    def values_and_gradient() -> tuple[Tensor, Tensor, Tensor]:
        data, distribution = dirichlet.uncertainties(z)
        return data, distribution, gradient_of(data + 2 * distribution, z)

    full = values_and_gradient()
    monkeypatch.setattr(formulas, "_CPU_CHUNK_ELEMENTS", 20)
    torch.testing.assert_close(values_and_gradient(), full, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    z = normal(6, 5).to(dtype)
    label = torch.tensor([0, 1, 2, 3, 4, -1])
    formulas: list[Callable[[Tensor], Tensor]] = [
        *UNARY,
        dirichlet.expected_probability,
        *(partial(loss, label=label) for loss in LOSSES),
    ]
    for formula in formulas:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = formula(z)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, formula(z.float()), rtol=0, atol=0)
    assert dirichlet.entropy(z.double()).dtype == torch.float64


def test_evidence_is_the_logarithm_of_alpha() -> None:
    values = [-200.0, -30.0, -3.0, 0.0, 0.5, 19.0, 25.0, 38.0]
    logits = torch.tensor(values, dtype=torch.float64)
    alphas: dict[str, Callable[[Any], Any]] = {
        "exp": mp.exp,
        "exp_clamped": lambda x: mp.exp(min(max(x, -10), 10)),
        "exp_at_most_10": lambda x: mp.exp(min(x, 10)),
        "exp_plus_one": lambda x: mp.exp(x) + 1,
        "softplus_plus_one": lambda x: mp.log(mp.exp(x) + 1) + 1,
    }
    assert dict(dirichlet.EVIDENCE_FUNCTIONS).keys() == alphas.keys()
    mp.mp.dps = 110
    for name, alpha in alphas.items():
        exact = torch.tensor([float(mp.log(alpha(mp.mpf(v)))) for v in values], dtype=torch.float64)
        torch.testing.assert_close(dirichlet.EVIDENCE_FUNCTIONS[name](logits), exact, rtol=1e-14, atol=0)
        torch.testing.assert_close(
            dirichlet.EVIDENCE_FUNCTIONS[name](logits.float()), exact.float(), rtol=1e-6, atol=0
        )


def test_merged_components_have_the_distribution_of_their_sum() -> None:
    alpha, groups = torch.tensor([[0.4, 2.0, 3.5, 1.1]], dtype=torch.float64), (0, 1, 0, 2)
    merged = dirichlet.merge_components(alpha.log(), groups).exp()
    samples = torch.from_numpy(np.random.default_rng(0).dirichlet(alpha[0].numpy(), 200_000))
    sums = torch.stack([samples[:, [0, 2]].sum(1), samples[:, 1], samples[:, 3]], 1)
    total = merged.sum()
    mean = merged[0] / total
    torch.testing.assert_close(sums.mean(0), mean, atol=3e-3, rtol=0)
    torch.testing.assert_close(sums.var(0), mean * (1 - mean) / (total + 1), atol=1e-3, rtol=0)
    maps = alpha.log()[..., None, None].expand(1, 4, 2, 3)
    torch.testing.assert_close(dirichlet.merge_components(maps, groups)[..., 1, 2].exp(), merged)
