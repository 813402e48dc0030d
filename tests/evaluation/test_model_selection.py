"""Deep embedded validation against known densities."""

import math
import statistics

import numpy as np
import pytest
import torch
from torch import Tensor

from ducats.evaluation.model_selection import (
    control_variate_estimate,
    dev_risk,
    domain_weights,
    effective_sample_fraction,
    normalise_weights,
)


def normal_tail(threshold: float) -> float:
    """P(x > threshold) of a standard normal x."""
    return math.erfc(threshold / math.sqrt(2)) / 2


def gaussians(seed: int, *, offset: float, count: int = 600) -> tuple[Tensor, ...]:
    """Source-train, source-validation and target: standard normal, with the target shifted along one axis."""
    generator = torch.Generator().manual_seed(seed)
    source, validation, target = (torch.randn(n, 8, generator=generator) for n in (count, 300, count))
    target[:, 0] += offset
    return source, validation, target


def true_weights(x: Tensor, offset: float) -> Tensor:
    """Density of N(offset, 1) over that of N(0, 1)."""
    return (offset * x - offset**2 / 2).exp()


def test_estimate_is_close_to_the_target_risk() -> None:
    source, validation, target = gaussians(0, offset=1.0)
    found = dev_risk(source, validation, target, (validation[:, 0] > 0.5).double(), seed=0)
    expected = normal_tail(0.5 - 1.0)  # 0.69, and 0.31 on the source
    assert abs(found.source_risk - normal_tail(0.5)) < 0.08
    assert abs(found.risk - expected) < 0.1 < abs(found.source_risk - expected)
    assert abs(found.uncorrected_risk - expected) < abs(found.source_risk - expected)
    assert 0.6 < found.domain_accuracy < 0.78  # the best possible is P(x > -0.5) = 0.69
    assert not found.is_degenerate


def test_weights_are_density_ratios_for_domains_of_different_sizes() -> None:
    source, validation, target = gaussians(3, offset=1.0, count=500)
    expected = true_weights(validation[:, 0], 1.0).double()
    for few in (target, target[:200]):
        found = domain_weights(source, validation, few, seed=0)
        assert float(found.values.mean()) == pytest.approx(float(expected.mean()), abs=0.25)
        assert float(torch.corrcoef(torch.stack([found.values.log(), expected.log()]))[0, 1]) > 0.8


def test_similar_domains_have_weights_near_one() -> None:
    source, validation, target = gaussians(0, offset=0.0)
    losses = (validation[:, 0] > 0.5).double()
    found = dev_risk(source, validation, target, losses, seed=0)
    assert found.weight_mean == pytest.approx(1, abs=0.1)
    assert found.effective_fraction > 0.9
    assert found.risk == pytest.approx(found.source_risk, abs=0.05)
    assert found.domain_accuracy < 0.6


def test_distant_domains_are_degenerate() -> None:
    source, validation, target = gaussians(0, offset=6.0, count=600)
    found = dev_risk(source, validation, target, torch.ones(len(validation)), seed=0)
    assert found.domain_accuracy > 0.97
    assert found.is_degenerate
    assert found.as_dict()["effective_fraction"] < 0.05


def test_control_variate_matches_linear_regression() -> None:
    """The estimate is the value of the least-squares line of w l over w at w = 1."""
    rng = np.random.default_rng(0)
    weights, losses = rng.lognormal(0.2, 0.7, 40), rng.random(40)
    found = control_variate_estimate(torch.from_numpy(weights), torch.from_numpy(losses))
    line = np.polynomial.Polynomial.fit(weights, weights * losses, 1)
    assert found.risk == pytest.approx(float(line(1.0)), rel=1e-9)
    assert found.uncorrected_risk == pytest.approx(statistics.fmean(weights * losses), rel=1e-12)
    eta = -line.convert().coef[1]
    assert found.eta == pytest.approx(float(eta), rel=1e-9)
    deviation = statistics.stdev((weights * losses + eta * weights).tolist())
    assert found.standard_error == pytest.approx(deviation / math.sqrt(40), rel=1e-9)


@pytest.mark.parametrize("level", [1.0, 0.9])
def test_equal_weights_have_no_control_variate(level: float) -> None:
    losses = torch.tensor([0.0, 1.0, 1.0, 0.5])
    for weights in (torch.full((4,), level), level + 1e-6 * torch.tensor([1.0, -1.0, 1.0, 0.0])):
        found = control_variate_estimate(weights, losses)
        assert found.eta == 0
        assert found.risk == found.uncorrected_risk == pytest.approx(level * 0.625, rel=1e-5)


def test_normalising() -> None:
    weights = torch.tensor([1.0, 2.0, 3.0, 10.0], dtype=torch.float64)
    assert normalise_weights(weights, "none") is weights
    assert normalise_weights(weights, "max").tolist() == pytest.approx([0.1, 0.2, 0.3, 1.0])
    standard = normalise_weights(weights, "standardize")
    assert (float(standard.mean()), float(standard.std())) == pytest.approx((1.0, 1.0))
    assert standard.argsort().tolist() == [0, 1, 2, 3]
    assert normalise_weights(torch.full((3,), 2.0), "standardize").tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="must be one of none, max, standardize, not 'sum'"):
        normalise_weights(weights, "sum")  # type: ignore[arg-type]


def test_normalised_weights_are_used_in_the_risk() -> None:
    source, validation, target = gaussians(0, offset=1.0, count=50)
    losses = (validation[:, 0] > 0.5).double()
    values = domain_weights(source, validation, target, seed=0).values
    found = dev_risk(source, validation, target, losses, seed=0, weight_normalisation="standardize")
    expected = ((1 + (values - values.mean()) / values.std()) * losses).mean()  # mean 1, so no correction
    assert found.risk == pytest.approx(float(expected), rel=1e-6)
    assert found.weight_max == pytest.approx(float(values.max()))


def test_effective_fraction_by_hand() -> None:
    assert effective_sample_fraction(torch.tensor([5.0, 5.0])) == pytest.approx(1)
    assert effective_sample_fraction(torch.tensor([3.0, 1.0])) == pytest.approx(16 / 10 / 2)
    huge = torch.tensor([1e200, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert effective_sample_fraction(huge) == pytest.approx(0.25)


def test_same_seed_gives_identical_results_without_global_random_state() -> None:
    source, validation, target = gaussians(0, offset=1.0, count=50)
    losses = validation[:, 0].abs()
    torch.manual_seed(0)
    one = dev_risk(source, validation, target, losses, seed=0)
    random_value = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(1), random_value)
    torch.manual_seed(9)
    assert dev_risk(source, validation, target, losses, seed=0) == one
    assert dev_risk(source, validation, target, losses, seed=1) != one


def test_large_sets_are_subsampled() -> None:
    source, validation, target = gaussians(0, offset=1.0)
    accuracy = domain_weights(source, validation, target, seed=0, max_samples=60).domain_accuracy
    assert round(accuracy * 24, 6) == round(accuracy * 24)  # a fifth of 120 are held out


def test_invalid_inputs_raise() -> None:
    source, validation, target = gaussians(0, offset=0.0, count=20)
    losses = torch.zeros(len(validation))
    for inputs, message in (
        ((source, validation, target[:, :4], losses), r"common width, not .*target \(20, 4\)"),
        ((source[:, 0], validation, target, losses), r"common width, not source_train \(20,\)"),
        ((source, validation, target, losses[:7]), r"shape \(7,\) for 300 validation samples"),
        ((source, validation, target[:1], losses), "target has 1 sample"),
        ((source, validation, target, losses + math.nan), "losses contains non-finite values"),
        ((source, validation / 0, target, losses), "source_validation contains non-finite values"),
    ):
        with pytest.raises(ValueError, match=message):
            dev_risk(*inputs, seed=0)
