"""Parameters of `spread`, on hand-made pools."""

import pytest
import torch
from torch import Tensor

from ducats.queries import QUERIES, compute_columns
from ducats.queries.spread import spread, spread_needs
from ducats.samples import QueryContext, SampleTable


def select(
    z: Tensor, features: Tensor, budget: int, labelled: tuple[int, ...] = (), **params: object
) -> list[int]:
    strategy, where = QUERIES["spread"].bind(params), torch.arange(len(z))
    rows = SampleTable(where, torch.zeros_like(where), compute_columns(z, features, strategy.needs))
    known = torch.tensor(labelled, dtype=torch.long)
    free = torch.tensor([i for i in where.tolist() if i not in labelled])
    slate = QueryContext(rows[free], rows[known], budget, torch.Generator().manual_seed(0))
    return sorted(free[strategy.fn(slate)].tolist())


def test_candidates_by_uncertainty() -> None:
    # The first two lack evidence, the last two have conflicting evidence. Their entropies are nearly equal.
    z = torch.tensor([[0.1, 0.1], [0.1, 0.12], [50.0, 50.0], [50.0, 49.0]]).log()
    features = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    assert select(z, features, 2, kappa=1, candidates="u_dis") == [0, 1]
    assert select(z, features, 2, kappa=1, candidates="u_data") == [2, 3]
    assert select(z, features, 2, kappa=1, candidates="margin") == [0, 2]


def test_weights_move_the_centre() -> None:
    z = torch.tensor([[5.0, 5.0], [90.0, 1.0], [90.0, 1.0]]).log()
    features = torch.tensor([[0.0], [4.0], [5.0]])
    assert select(z, features, 1, kappa=3) == [0]  # certain samples hardly count
    assert select(z, features, 1, kappa=3, weights="uniform") == [1]  # the mean is 3


def test_directions_ignore_norms() -> None:
    z = torch.zeros(4, 2)
    features = torch.tensor([[1.0, 0.0], [100.0, 1.0], [0.0, 1.0], [1.0, 100.0]])
    directions = select(z, features, 2, space="normalised_features")
    assert len({i // 2 for i in directions}) == 2
    lengths = torch.tensor([[1.0, 0.0], [1.0, 0.1], [100.0, 0.0], [100.0, 9.0]])
    assert len({i // 2 for i in select(z, lengths, 2)}) == 2
    assert len({i // 2 for i in select(z, lengths[[0, 2, 1, 3]], 2, space="normalised_features")}) == 2


def test_gradients_separate_equal_features() -> None:
    # Nearly equal features; two predict the first class, two the second.
    z = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    features = torch.ones(4, 3) + torch.arange(4)[:, None] * 1e-3 * torch.tensor([1.0, -1.0, 0.0])
    assert len({i // 2 for i in select(z, features, 2, space="gradients")}) == 2


def test_near_duplicates_count_once_and_not_if_labelled() -> None:
    z = torch.tensor([[0.0, 0.0]] * 3 + [[0.2, 0.0]] * 3)
    features = torch.tensor([[1.0, 0.0], [1.0, 0.001], [1.0, 0.002], [0.0, 1.0], [1.0, 1.0], [0.3, 1.0]])
    assert select(z, features, 3, twins=0.99) != [0, 1, 2]
    assert 1 not in select(z, features, 3, labelled=(0,), twins=0.99)
    # If too few are left, near-duplicates fill up the budget.
    assert len(select(z[:3], features[:3], 2, twins=0.99)) == 2


def test_weights_by_distance_to_labelled_samples() -> None:
    z = torch.zeros(4, 2)
    features = torch.tensor([[0.0], [0.1], [3.0], [9.0]])
    near = select(z, features, 1, labelled=(0,), kappa=3)
    far = select(z, features, 1, labelled=(0,), kappa=3, away=True)
    assert near == [2]
    assert far == [3]


def test_needs_depend_on_params() -> None:
    assert spread_needs({}) == ("entropy", "features")
    assert spread_needs({"candidates": "u_dis", "weights": "uniform"}) == ("u_dis", "features")
    assert spread_needs({"space": "gradients"}) == ("entropy", "features", "z")


@pytest.mark.parametrize(
    "params", [{"kappa": 0.5}, {"twins": 0.0}, {"space": "here"}, {"weights": "heavy"}, {"candidates": "all"}]
)
def test_invalid_params_raise(params: dict[str, object]) -> None:
    rows = SampleTable(torch.arange(3), torch.zeros(3, dtype=torch.long), {})
    with pytest.raises(ValueError, match=next(iter(params))):
        spread(QueryContext(rows, rows, 1, torch.Generator()), **params)  # type: ignore[arg-type]
