"""Criteria against their definitions, on rows and on maps."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Dirichlet

from ducats.acquisition.criteria import CRITERIA, PROBE_COLUMNS, compute_columns, get_criterion
from ducats.utils.errors import UserError


def reference_columns(z: Tensor) -> dict[str, Tensor]:
    """All criteria of images, from the Dirichlet distribution with ``alpha = exp z``."""
    alpha, logits = z.exp(), z.sort(1, descending=True).values
    total, model = alpha.sum(1, keepdim=True), Dirichlet(alpha)
    p, entropy = model.mean, Categorical(model.mean).entropy()
    u_data = (p * (torch.digamma(total + 1) - torch.digamma(alpha + 1))).sum(1)
    top, variance = p.sort(1, descending=True).values, model.variance.mean(1)
    return {
        "entropy": entropy,
        "margin": top[:, 0] - top[:, 1],
        "confidence": top[:, 0],
        "u_dis": (entropy - u_data).log(),
        "u_data": u_data,
        "free_energy": -total.squeeze(1).log(),
        "energy_gap": logits[:, 1] - logits[:, 0],
        "epistemic_variance": variance,
        "aleatoric_variance": (p * (1 - p)).mean(1) - variance,  # law of total variance
        "published_u_dis@1e-3": -(p * (p + 1e-3).log()).sum(1) - u_data,
    }


def test_values_of_rows_and_maps() -> None:
    maps = torch.randn(2, 5, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    rows = maps.permute(0, 2, 3, 1).reshape(-1, 5)
    expected = reference_columns(rows)
    assert expected.keys() >= {name for name, criterion in CRITERIA.items() if not criterion.per_pixel}
    torch.testing.assert_close(compute_columns(rows, None, tuple(expected)), expected, rtol=1e-6, atol=1e-9)
    for name, column in expected.items():
        torch.testing.assert_close(get_criterion(name).fn(maps), column.view(2, 3, 4), rtol=1e-6, atol=1e-9)
        assert get_criterion(name).fn(maps.float()).dtype == torch.float32


def test_extreme_logits() -> None:
    found = compute_columns(torch.tensor([[800.0, 799.5, 0.0]]), None, ("free_energy", "energy_gap"))
    assert found["energy_gap"].tolist() == [-0.5]
    assert found["free_energy"].tolist() == pytest.approx([-800 - math.log1p(math.exp(-0.5))])
    z = torch.tensor([[300.0, 300.0], [-300.0, -300.0]])
    found = compute_columns(z, None, ("epistemic_variance", "aleatoric_variance"))
    assert found["epistemic_variance"].tolist() == [0.0, 0.25]
    assert found["aleatoric_variance"].tolist() == [0.25, 0.0]


def test_only_needed_columns_are_computed() -> None:
    z, features = torch.zeros(2, 3), torch.ones(2, 4)
    assert compute_columns(z, features, ()) == {}
    found = compute_columns(z, features, ("features", "margin", "z"))
    assert list(found) == ["features", "margin", "z"]
    assert found["z"] is z
    assert found["features"] is features


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
        ("descriptor", r"task\.unit=image"),
        ("features", "model does not return them"),
        *((name, "no probe provides it") for name in PROBE_COLUMNS),
    ],
)
def test_invalid_columns(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compute_columns(torch.zeros(1, 2), None, (name,))


@pytest.mark.parametrize("name", PROBE_COLUMNS)
def test_probe_columns_are_passed_through(name: str) -> None:
    column = torch.arange(6.0).view(2, 3)
    assert compute_columns(torch.zeros(2, 2), None, (name,), {name: column})[name] is column
