"""Label propagation, against dense linear algebra."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_network import (
    LABELLED,
    SOURCE,
    UNLABELLED_IMAGES,
    TinyNetwork,
    auxiliary_context,
    image_batch,
    losses_of,
)
from torch import Tensor

from ducats.acquisition.queries import distances
from ducats.data.domain import UNLABELLED, VOID
from ducats.models.output import Output
from ducats.objectives import OBJECTIVES, Batch, RefreshContext, label_propagation
from ducats.objectives.label_propagation import LabelPropagation, neighbour_graph, propagate_labels
from ducats.utils.errors import UserError


def reference_graph(features: Tensor, neighbours: int) -> np.ndarray:
    """The graph by explicit loops over images."""
    x = features.double().numpy()
    n = len(x)
    weights = np.zeros((n, n))
    for i in range(n):
        cosines = {}
        for j in range(n):
            norms = np.linalg.norm(x[i]) * np.linalg.norm(x[j])
            cosines[j] = x[i] @ x[j] / norms if norms else 0.0
        del cosines[i]
        for j in sorted(cosines, key=cosines.__getitem__, reverse=True)[:neighbours]:
            weight = max(cosines[j], 0.0) ** 3
            weights[i, j] = weights[j, i] = max(weight, weights[i, j])
    degree = weights.sum(1)
    for i in range(n):
        for j in range(n):
            weights[i, j] = weights[i, j] / np.sqrt(degree[i] * degree[j]) if weights[i, j] else 0.0
    return weights


def reference_scores(graph: np.ndarray, p: Tensor, known: Tensor, alpha: float, prior: float) -> np.ndarray:
    y = prior * p.double().numpy()
    for i, label in enumerate(known.tolist()):
        if label != UNLABELLED:
            y[i] = np.zeros(p.shape[1])
        if label >= 0:
            y[i, label] = 1
    solution: np.ndarray = np.linalg.solve(np.eye(len(y)) - alpha * graph, (1 - alpha) * y)
    return solution


def random_pool(n: int, width: int = 5, classes: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Features, probabilities and labels, of which some are acquired and some are void."""
    generator = torch.Generator().manual_seed(n)
    features = torch.randn(n, width, generator=generator)
    p = torch.randn(n, classes, generator=generator).softmax(1)
    known = torch.randint(0, classes, (n,), generator=generator)
    known[torch.rand(n, generator=generator) < 0.7] = UNLABELLED
    known[::11] = VOID
    return features, p, known


@pytest.mark.parametrize(
    ("n", "neighbours", "alpha", "prior"),
    [
        (60, 3, 0.9, 0.2),
        (60, 10, 0.5, 0.0),
        (40, 5, 0.99, 1.0),
        (6, 10, 0.9, 0.2),
        (2, 1, 0.9, 0.2),
        (1, 10, 0.9, 0.2),
    ],
)
def test_scores_are_those_of_dense_linear_algebra(
    n: int, neighbours: int, alpha: float, prior: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, p, known = random_pool(n)
    graph = reference_graph(features, neighbours)
    np.testing.assert_allclose(neighbour_graph(features, neighbours).toarray(), graph, atol=1e-6)
    expected = reference_scores(graph, p, known, alpha, prior)
    for chunk_size in (None, 7):
        if chunk_size:
            monkeypatch.setattr(distances, "SIMILARITIES_PER_CHUNK", chunk_size)
            monkeypatch.setattr(distances, "COLUMNS_PER_CHUNK", chunk_size)
            monkeypatch.setattr(label_propagation, "CLASSES_PER_CHUNK", 3)
        found = propagate_labels(features, p, known, neighbours=neighbours, alpha=alpha, prior=prior)
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found.numpy(), expected, atol=3e-6)


def test_duplicates_zeros_and_isolated_images() -> None:
    """Zero features and features opposite to all others have no edges; duplicates share their labels."""
    features = torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 0.0], [-1.0, -0.1]])
    p = torch.tensor([[0.4, 0.6]] * 4 + [[0.4, 0.6], [0.9, 0.1]])
    known = torch.tensor([0, *[UNLABELLED] * 5])
    graph = neighbour_graph(features, 3).toarray()
    np.testing.assert_allclose(graph, reference_graph(features, 3), atol=1e-6)
    np.testing.assert_allclose(graph[:4, :4], (1 - np.eye(4)) / 3, atol=1e-6)
    assert not graph[4:].any()
    scores = propagate_labels(features, p, known, neighbours=3, alpha=0.9, prior=0.2)
    assert scores.argmax(1).tolist() == [0, 0, 0, 0, 1, 0]
    torch.testing.assert_close(scores[4:], 0.1 * 0.2 * p[4:])


# ---- pseudo-labels of a pool


class FixedPool:
    """A pool with given features and logits, which is read in batches out of order."""

    pool_labels: Tensor | None

    def __init__(self, features: Tensor, z: Tensor, pool_labels: Tensor) -> None:
        self.features, self.z, self.pool_labels = features, z, pool_labels

    def pool(self) -> Iterator[tuple[Tensor, Output]]:
        for index in torch.arange(len(self.z)).flip(0).split(7):
            yield index, Output(self.z[index], self.features[index])


def clusters(sizes: tuple[int, ...], *known: tuple[int, int]) -> FixedPool:
    """Images in clusters, all predicted as class 0 with low certainty, and some labels by image."""
    generator = torch.Generator().manual_seed(0)
    cluster = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    features = F.one_hot(cluster, len(sizes)) + 0.1 * torch.randn(
        len(cluster), len(sizes), generator=generator
    )
    labels = torch.full((len(cluster),), UNLABELLED)
    for image, label in known:
        labels[image] = label
    return FixedPool(features, torch.tensor([0.1, 0.0, 0.0]).repeat(len(cluster), 1), labels)


def propagation(pool: FixedPool, name: str = "duc", **params: Any) -> LabelPropagation:
    build = OBJECTIVES[name].bind({"propagation_rate": 0.1, **params}).auxiliary
    assert build is not None
    module = build(auxiliary_context(TinyNetwork(), pool=len(pool.z)))
    assert isinstance(module, LabelPropagation)
    return module


def refresh(module: LabelPropagation, pool: FixedPool, rounds_done: int) -> Tensor:
    module.refresh(RefreshContext(rounds_done + 1, 9, 0, rounds_done, rounds_done), pool)
    labels = module.pseudo_labels()
    assert labels is not None
    return labels


@pytest.mark.parametrize("name", ["duc", "euq", "softmax"])
def test_clusters_take_the_labels_acquired_in_them(name: str) -> None:
    pool = clusters((20, 20, 10), (3, 1), (25, 2), (45, 0))
    module = propagation(pool, name, propagation_max=1.0)
    labels = refresh(module, pool, 10)
    expected = torch.tensor([1] * 20 + [2] * 20 + [0] * 10)
    expected[[3, 25, 45]] = UNLABELLED  # acquired
    assert torch.equal(labels, expected)
    assert torch.equal(module.state_dict()["labels"], expected)


def test_number_and_balance_of_pseudo_labels() -> None:
    pool = clusters((20, 20, 10), (3, 1), (25, 2), (45, 0))
    module = propagation(pool, propagation_rate=0.1, propagation_max=0.26)
    for rounds_done, expected in ((1, [1, 2, 2]), (2, [3, 3, 4]), (3, [4, 4, 5]), (4, [4, 4, 5])):
        labels = refresh(module, pool, rounds_done)
        counts = torch.bincount(labels[labels >= 0], minlength=3).tolist()
        assert sorted(counts) == expected
    # A refresh replaces all pseudo-labels.
    assert int((refresh(module, pool, 1) >= 0).sum()) == 5


def test_images_without_a_class_neither_get_nor_give_labels() -> None:
    pool = clusters((20, 20, 10), (3, 1), (25, VOID), *((image, VOID) for image in range(40, 50)))
    # Void images would spread class 2 if their predictions counted.
    pool.z[pool.pool_labels == VOID] = torch.tensor([0.0, 0.0, 9.0])
    labels = refresh(propagation(pool, propagation_max=1.0), pool, 10)
    assert (labels[pool.pool_labels != UNLABELLED] == UNLABELLED).all()
    assert set(labels[:20].tolist()) == {1, UNLABELLED}
    assert set(labels[20:].tolist()) == {0, UNLABELLED}


def test_without_a_prior_only_connected_images_get_labels() -> None:
    pool = clusters((20, 20, 10), (3, 1))
    pool.features[pool.features < 0.5] = 0.0  # no edges between clusters
    labels = refresh(propagation(pool, propagation_max=1.0, propagation_prior=0.0), pool, 10)
    assert (labels >= 0).nonzero().squeeze(1).tolist() == [image for image in range(20) if image != 3]


def test_when_pseudo_labels_are_refreshed() -> None:
    module = propagation(clusters((3, 3)))
    # Rounds after epochs 2, 4 and 6 of 8.
    due = []
    for epoch in range(9):
        next_round = epoch // 2 if epoch in (2, 4, 6) else 0
        done = sum(after < epoch for after in (2, 4, 6))
        due.append(module.is_due(RefreshContext(epoch, 8, next_round, 3, done)))
    assert [epoch for epoch, is_due in enumerate(due) if is_due] == [4, 6, 7, 8]


def test_nothing_without_labels() -> None:
    """Rounds may end without a label, if no class applies to any image."""
    pool = clusters((20, 20, 10), (3, VOID))
    assert (refresh(propagation(pool), pool, 1) == UNLABELLED).all()
    off = propagation(pool, propagation_rate=0.0)
    assert off.pseudo_labels() is None
    assert not off.state_dict()
    assert not off.is_due(RefreshContext(8, 9, 0, 3, 3))


def test_it_needs_features() -> None:
    context = auxiliary_context(TinyNetwork())._replace(n_features=0)
    with pytest.raises(UserError, match="label propagation needs features"):
        LabelPropagation(context, propagation_rate=0.1)
    LabelPropagation(context)


def test_parameters_are_declared_once() -> None:
    names = ["rate", "neighbours", "alpha", "prior", "max"]
    for name in ("duc", "euq", "softmax"):
        parameters = OBJECTIVES[name].signature.parameters
        assert [p.removeprefix("propagation_") for p in parameters if p.startswith("propagation_")] == names
    assert {"uncertainty", "certainty_rate", "max_fraction"} <= OBJECTIVES["euq"].signature.parameters.keys()
    assert "certainty_rate" not in OBJECTIVES["duc"].signature.parameters


def test_softmax_learns_pseudo_labels() -> None:
    model = TinyNetwork()
    losses = losses_of("softmax", model, Batch(SOURCE, None, UNLABELLED_IMAGES, pseudo_labelled=LABELLED))
    expected = losses_of("softmax", model, image_batch())
    torch.testing.assert_close(losses["pseudo_labelled/nll"], expected["labelled/nll"])
    assert losses.keys() == {"source/nll", "pseudo_labelled/nll"}


def test_a_long_wait_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "SIMILARITIES_PER_CHUNK", 60)
    neighbour_graph(random_pool(60)[0], 3)  # without a warning
    monkeypatch.setattr(label_propagation, "ESTIMATE_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(label_propagation, "LONG_WAIT_SECONDS", 0.0)
    with pytest.warns(UserWarning, match=r"60 images .* minutes") as warned:
        neighbour_graph(random_pool(60)[0], 3)
    assert len(warned) == 1
