"""Parameters of `spread`, on hand-made pools."""

import pytest
import torch
from query_pools import image_table, make_context
from torch import Tensor

from ducats.acquisition.queries import QUERIES, compute_columns
from ducats.utils.errors import UserError


def select(
    z: Tensor, features: Tensor, budget: int, labelled: tuple[int, ...] = (), **params: object
) -> list[int]:
    spec = QUERIES["spread"].bind(params)
    samples = image_table(len(z), {**compute_columns(z, features, spec.needs)})
    candidates = torch.tensor([i for i in range(len(z)) if i not in labelled])
    context = make_context(
        samples[candidates], budget, labelled=samples[torch.tensor(labelled, dtype=torch.long)]
    )
    return sorted(candidates[spec.fn(context)].tolist())


def test_candidates_by_uncertainty() -> None:
    # The first two lack evidence, the last two have conflicting evidence. Their entropies are nearly equal.
    z = torch.tensor([[0.1, 0.1], [0.1, 0.12], [50.0, 50.0], [50.0, 49.0]]).log()
    features = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    assert select(z, features, 2, kappa=1, candidates_by="u_dis") == [0, 1]
    assert select(z, features, 2, kappa=1, candidates_by="u_data") == [2, 3]
    assert select(z, features, 2, kappa=1, candidates_by="margin") == [0, 2]


def test_weights_move_the_centre() -> None:
    z = torch.tensor([[5.0, 5.0], [90.0, 1.0], [90.0, 1.0]]).log()
    features = torch.tensor([[0.0], [4.0], [5.0]])
    assert select(z, features, 1, kappa=3) == [0]  # certain samples hardly count
    assert select(z, features, 1, kappa=3, weights_by="uniform") == [1]  # the mean is 3


def test_one_per_group_nearest_to_its_centre() -> None:
    # Three groups of uncertain samples and a distant group of certain ones.
    centres = torch.tensor([[0.0, 10.0], [10.0, 0.0], [-10.0, 0.0], [0.0, -30.0]])
    group = torch.arange(40) % 4
    features = centres[group] + torch.randn(40, 2, generator=torch.Generator().manual_seed(1)) * 0.1
    z = torch.where(group[:, None] == 3, torch.tensor([9.0, 0.0, 0.0]), torch.tensor([0.1, 0.05, 0.0]))
    picks = select(z, features, 3, kappa=10)
    assert sorted(int(group[p]) for p in picks) == [0, 1, 2]
    for pick in picks:  # all weights are equal
        members = features[group == group[pick]]
        distance = (members - members.mean(0)).norm(dim=1)
        assert torch.equal(members[distance.argmin()], features[pick])


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
    assert select(z, features, 3, dedup_cosine=0.99) != [0, 1, 2]
    assert 1 not in select(z, features, 3, labelled=(0,), dedup_cosine=0.99)
    # If too few are left, near-duplicates fill up the budget.
    assert len(select(z[:3], features[:3], 2, dedup_cosine=0.99)) == 2


def test_weights_by_distance_to_labelled_samples() -> None:
    z = torch.zeros(4, 2)
    features = torch.tensor([[0.0], [0.1], [3.0], [9.0]])
    assert select(z, features, 1, labelled=(0,), kappa=3) == [2]
    assert select(z, features, 1, labelled=(0,), kappa=3, distance_weighted=True) == [3]


def test_too_large_gradients_raise() -> None:
    with pytest.raises(UserError, match=r"2\.4 GB of gradients.*query\.params\.space=features"):
        select(torch.zeros(100, 2**14), torch.ones(100, 200), 10, space="gradients")
