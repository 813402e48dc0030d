"""Criteria against their definitions, on rows and on maps."""

import math

import pytest
import torch

from ducats import dirichlet
from ducats.acquisition.criteria import CRITERIA, compute_columns, get_criterion
from ducats.utils.errors import UserError

NAMES = [*(n for n, c in CRITERIA.items() if not c.per_pixel), "published_u_dis@1e-07"]


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_maps_agree(name: str) -> None:
    maps = torch.randn(2, 5, 3, 4, generator=torch.Generator().manual_seed(0)) * 3
    rows = maps.permute(0, 2, 3, 1).reshape(-1, 5)
    found = get_criterion(name).fn(maps)
    assert found.shape == (2, 3, 4)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.flatten(), compute_columns(rows, None, (name,))[name])


def test_values_by_hand() -> None:
    z = torch.tensor([[60.0, 30.0, 10.0], [1.0, 1.0, 1.0]]).log()
    found = compute_columns(z, None, ("entropy", "margin", "confidence", "u_dis", "u_data"))
    assert found["margin"].tolist() == pytest.approx([0.3, 0.0], abs=1e-6)
    assert found["confidence"].tolist() == pytest.approx([0.6, 1 / 3])
    assert found["entropy"][1].item() == pytest.approx(math.log(3))
    assert found["u_data"][1].item() == pytest.approx(1 / 2 + 1 / 3)  # psi(4) - psi(2)
    assert found["u_dis"][1].item() == pytest.approx(math.log(math.log(3) - 5 / 6), rel=1e-5)


def test_published_u_dis() -> None:
    z = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).double()
    alpha = z.exp()
    total = alpha.sum(1, keepdim=True)
    p = alpha / total
    expected = (p * (torch.digamma(alpha + 1) - torch.digamma(total + 1))).sum(1) - (
        p * (p + 1e-3).log()
    ).sum(1)
    torch.testing.assert_close(get_criterion("published_u_dis@1e-3").fn(z), expected)
    torch.testing.assert_close(
        get_criterion("published_u_dis@0").fn(z), dirichlet.distribution_uncertainty(z), atol=1e-9, rtol=1e-6
    )


def test_only_needed_columns_are_computed() -> None:
    z, features = torch.zeros(2, 3), torch.ones(2, 4)
    assert compute_columns(z, features, ()) == {}
    assert list(compute_columns(z, features, ("features", "margin", "z"))) == ["features", "margin", "z"]


UNKNOWN = "unknown column .*: z, features, domain, .*entropy, .*impurity@NUMBER"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *(
            (name, UNKNOWN)
            for name in ("entrpy", "impurity@", "impurity@wide", "published_u_dis", "u_dis@3", "")
        ),
        ("impurity", "defined for pixels only"),
        ("impurity@32", "defined for pixels only"),
        ("features", "model does not return them"),
    ],
)
def test_invalid_columns(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compute_columns(torch.zeros(1, 2), None, (name,))


def test_energies_by_hand() -> None:
    z = torch.tensor([[0.0, 0.0, 0.0], [3.0, 1.0, -2.0], [800.0, 799.5, 0.0]], dtype=torch.float64)
    found = compute_columns(z, None, ("free_energy", "energy_gap"))
    assert found["energy_gap"].tolist() == [0.0, -2.0, -0.5]
    by_sum = [-math.log(3), -math.log(math.exp(3) + math.exp(1) + math.exp(-2))]
    assert found["free_energy"].tolist() == pytest.approx([*by_sum, -800 - math.log1p(math.exp(-0.5))])


def test_variances_match_the_dirichlet_distribution() -> None:
    z = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).double() * 3
    found = compute_columns(z, None, ("epistemic_variance", "aleatoric_variance"))
    dirichlet_ = torch.distributions.Dirichlet(z.exp())
    p = dirichlet_.mean
    torch.testing.assert_close(found["epistemic_variance"], dirichlet_.variance.mean(1))
    # Law of total variance: both parts add up.
    both = found["epistemic_variance"] + found["aleatoric_variance"]
    torch.testing.assert_close(both, (p * (1 - p)).mean(1))
    z = torch.tensor([[300.0, 300.0], [-300.0, -300.0]])
    found = compute_columns(z, None, ("epistemic_variance", "aleatoric_variance"))
    assert found["epistemic_variance"].tolist() == [0.0, 0.25]
    assert found["aleatoric_variance"].tolist() == [0.25, 0.0]


@pytest.mark.parametrize("name", ["domain", "critic", "committee"])
def test_probe_columns_are_passed_through_or_required(name: str) -> None:
    column = torch.arange(6.0).view(2, 3)
    assert compute_columns(torch.zeros(2, 2), None, (name,), {name: column})[name] is column
    with pytest.raises(UserError, match="no probe provides it"):
        compute_columns(torch.zeros(2, 2), None, (name,))
