"""On small pools made by hand, each query picks what its method says."""

import math

import pytest
import torch
from torch import Tensor

from ducats.queries import QUERIES
from ducats.rows import Rows, Slate


def ask(name: str, z: Tensor, budget: int, features: Tensor | None = None, **knobs: object) -> list[int]:
    where = torch.arange(len(z))
    columns = {"z": z} | ({} if features is None else {"features": features})
    rows = Rows(where, torch.zeros_like(where), columns)
    slate = Slate(rows, rows[where[:0]], budget, torch.Generator().manual_seed(0))
    picks: list[int] = QUERIES[name].query(slate, **knobs).tolist()
    return picks


def log_alpha(*alphas: list[float]) -> Tensor:
    return torch.tensor(alphas, dtype=torch.float64).log()


def test_scores_of_probabilities_by_hand() -> None:
    z = log_alpha([60, 30, 10], [50, 49, 1], [34, 33, 33], [98, 1, 1])
    assert ask("margin", z, 2) == [
        1,
        2,
    ]  # gaps 0.30, 0.01, 0.01 (0.34 - 0.33), 0.97: tie to the lower address
    assert ask("least_confident", z, 2) == [2, 1]
    assert ask("entropy", z, 2) == [2, 0]  # H = 0.898, 0.741, 1.0986, 0.112


def test_the_two_uncertainties_part_little_evidence_from_conflict() -> None:
    nothing, conflict, sure = [0.1, 0.1, 0.1], [50.0, 50.0, 50.0], [200.0, 0.5, 0.5]
    z = log_alpha(sure, nothing, conflict)
    assert ask("u_dis", z, 1) == [1]
    assert ask("u_data", z, 1) == [2]
    # The total is the same for both: entropy cannot tell them apart.
    assert sorted(ask("entropy", z, 2)) == [1, 2]


def test_duc_takes_the_ambiguous_among_the_foreign() -> None:
    z = log_alpha(
        [90.0, 90.0],  # ambiguous, but well known: out in the first round
        [0.2, 0.02],  # foreign
        [0.6, 0.5],  # foreign and the more ambiguous of the foreign
        [0.3, 0.05],  # foreign
        [80.0, 1.0],  # neither
    )
    assert ask("duc", z, 1, kappa=3) == [2]
    assert ask("duc", z, 1, kappa=1) == ask("u_dis", z, 1)
    assert ask("duc", z, 1, kappa=5) == ask("u_data", z, 1) == [0]
    assert ask("duc", z, 1, kappa=5, order="data_dis") == ask("u_dis", z, 1)
    assert ask("duc", z, 1, kappa=1, order="data_dis") == [0]


def test_duc_passes_kappa_times_budget_rounded_up() -> None:
    z = log_alpha(*[[0.01 * (i + 1)] * 2 for i in range(10)])  # U_dis falls with i, U_data rises
    assert ask("duc", z, 2, kappa=2.4) == [4, 3]  # ceil(4.8) = 5 pass


def test_spread_asks_one_of_each_group() -> None:
    # Three groups of uncertain samples and a crowd of certain ones far away.
    centres = torch.tensor([[0.0, 10.0], [10.0, 0.0], [-10.0, 0.0], [0.0, -30.0]])
    group = torch.arange(40) % 4
    jitter = torch.randn(40, 2, generator=torch.Generator().manual_seed(1)) * 0.1
    features = centres[group] + jitter
    z = torch.where(group[:, None] == 3, torch.tensor([9.0, 0.0, 0.0]), torch.tensor([0.1, 0.05, 0.0]))
    picks = ask("spread", z, 3, features, kappa=10)
    assert sorted(int(group[p]) for p in picks) == [0, 1, 2]
    for pick in picks:  # the one nearest to its group's centre (all weights are equal)
        members = features[group == group[pick]]
        nearest = (members - members.mean(0)).norm(dim=1).min()
        assert math.isclose(float((features[pick] - members.mean(0)).norm()), float(nearest), rel_tol=1e-5)


def test_spread_leans_to_the_more_uncertain() -> None:
    # One cluster, one pick: the weighted mean lies at the uncertain end.
    features = torch.arange(10.0)[:, None]
    z = torch.zeros(10, 2)
    z[:, 0] = torch.linspace(6, 0, 10)
    assert ask("spread", z, 1, features, kappa=10)[0] >= 7


def test_spread_of_identical_images_still_spends_the_budget() -> None:
    picks = ask("spread", torch.zeros(12, 3), 4, torch.ones(12, 2))
    assert len(set(picks)) == 4


def test_the_published_first_round_is_a_share_of_the_whole_pool() -> None:
    # Ten candidates and no labelled rows: kappa 2 of a 20 % share are four, whatever the budget.
    z = torch.tensor([[4.0 - n / 2, 4.0 - n / 2 - (n % 3)] for n in range(10)])
    assert ask("duc", z, 1, kappa=2, share=0.2) == ask("duc", z, 1, kappa=4)
    assert ask("duc", z, 2, kappa=2, share=0.2) == ask("duc", z, 2, kappa=2)
    assert ask("duc", z, 3, kappa=1, share=0.1) == ask("duc", z, 3, kappa=1)  # never fewer than the budget


def test_published_arithmetic_agrees_until_it_drowns() -> None:
    z = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    assert ask("duc", z, 20, kappa=3, epsilon=1e-7) == ask("duc", z, 20, kappa=3)
    sure = z + torch.tensor(20.0)  # so much evidence that U_dis is below float32's grain
    assert ask("duc", sure, 20, kappa=3, epsilon=1e-7) != ask("duc", sure, 20, kappa=3)


@pytest.mark.parametrize("name", ["duc", "spread"])
def test_kappa_below_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="kappa must be at least 1"):
        ask(name, torch.zeros(5, 2), 1, torch.zeros(5, 2), kappa=0.5)
