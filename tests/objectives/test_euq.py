"""Objective of EUQ: variances on the unlabelled target, and certainty sampling."""

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from tiny_network import (
    CLASSES,
    LABELLED,
    SOURCE,
    UNLABELLED_IMAGES,
    TinyNetwork,
    auxiliary_context,
    image_batch,
    losses_of,
)
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence

from ducats.acquisition.criteria import CRITERIA
from ducats.data.domain import UNLABELLED, VOID, Labels
from ducats.models.output import Output
from ducats.objectives import OBJECTIVES, Batch, LabelledImages, RefreshContext, duc
from ducats.objectives.certainty_sampling import CertaintySampling, most_certain_per_class


def kl(z: Tensor, label: Tensor) -> Tensor:
    alpha = z.exp().scatter(1, label[:, None], 1.0)
    return kl_divergence(Dirichlet(alpha), Dirichlet(torch.ones_like(alpha))).mean() / CLASSES


def test_losses_by_hand() -> None:
    model, pseudo_labelled = TinyNetwork(), LabelledImages(LABELLED.images + 1, LABELLED.labels)
    expected: dict[str, Tensor] = {}
    streams = {"source": SOURCE, "labelled": LABELLED, "pseudo_labelled": pseudo_labelled}
    for name, (images, labels) in streams.items():
        z, label = model(images).z[labels >= 0], labels[labels >= 0]
        expected |= {f"{name}/nll": F.cross_entropy(z, label), f"{name}/kl": kl(z, label)}
    model_dirichlet = Dirichlet(model(UNLABELLED_IMAGES).z.exp())
    p, epistemic = model_dirichlet.mean, model_dirichlet.variance.sum(1)
    aleatoric = (p * (1 - p)).sum(1) - epistemic
    expected |= {"unlabelled/eu": 50 * epistemic.mean(), "unlabelled/au": 0.05 * aleatoric.mean()}
    batch = replace(image_batch(), pseudo_labelled=pseudo_labelled)
    torch.testing.assert_close(losses_of("euq", model, batch), expected)


def test_with_entropy_it_is_duc() -> None:
    model, batch = TinyNetwork(), image_batch()
    euq_losses = losses_of("euq", model, batch, uncertainty="entropy")
    torch.testing.assert_close(euq_losses, duc(model, batch, beta=1.0, lambda_=0.05))


def test_duc_learns_from_pseudo_labels() -> None:
    model, labelled = TinyNetwork(), duc(TinyNetwork(), image_batch())
    losses = duc(model, Batch(SOURCE, None, UNLABELLED_IMAGES, pseudo_labelled=LABELLED))
    for term in ("nll", "kl"):
        torch.testing.assert_close(losses[f"pseudo_labelled/{term}"], labelled[f"labelled/{term}"])


# ---- certainty sampling


def reference_passes(uncertainty: list[float], predicted: list[int], count: int) -> list[int]:
    """The published loop: passes by rising uncertainty, each class at most once per pass."""
    left, taken = sorted(range(len(uncertainty)), key=lambda i: (uncertainty[i], i)), list[int]()
    while left and len(taken) < count:
        classes_in_pass = set[int]()
        for i in list(left):
            if predicted[i] not in classes_in_pass and len(taken) < count:
                classes_in_pass.add(predicted[i])
                taken.append(i)
                left.remove(i)
    return taken


def test_passes_take_each_class_once() -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (0, 1, 7, 40):
        uncertainty = torch.randint(0, 6, (size,), generator=generator).float()  # with ties
        predicted = torch.randint(0, 4, (size,), generator=generator) * 3  # some classes are never predicted
        for count in (0, 1, 5, size, size + 3):
            found = most_certain_per_class(uncertainty, predicted, count).tolist()
            assert found == reference_passes(uncertainty.tolist(), predicted.tolist(), count)


class FixedPool:
    """A pool with given evidence for one class per image, in order of certainty."""

    source_labels: Labels = torch.zeros(0)
    pool_labels: Tensor | None

    def __init__(self, predicted: list[int], pool_labels: Tensor) -> None:
        self.z, self.pool_labels = torch.zeros(len(predicted), CLASSES), pool_labels
        self.z[torch.arange(len(predicted)), predicted] = torch.linspace(9.0, 1.0, len(predicted))

    def pool(self) -> Iterator[tuple[Tensor, Output]]:
        for index in torch.arange(len(self.z)).split(4):
            yield index, Output(self.z[index], None)

    def source(self) -> Iterator[tuple[Tensor, Output]]:
        raise AssertionError("certainty sampling must only read the pool")


def certainty_sampling(pool: int, **params: object) -> CertaintySampling:
    """The auxiliary module of EUQ with these parameters."""
    build = OBJECTIVES["euq"].bind(params).auxiliary
    assert build is not None
    module = build(auxiliary_context(TinyNetwork(), pool=pool))
    assert isinstance(module, CertaintySampling)
    return module


def refresh_before(sampling: CertaintySampling, next_round: int, pool: FixedPool) -> list[int]:
    """Pseudo-labels after a refresh before a round."""
    sampling.refresh(RefreshContext(next_round, 9, next_round, 5, next_round - 1), pool)
    labels = sampling.pseudo_labels()
    assert labels is not None
    return labels.tolist()


def test_certain_images_get_labels_before_each_round() -> None:
    pool_labels = torch.tensor([0, VOID, *[UNLABELLED] * 8])
    pool = FixedPool([0, 0, 0, 1, 1, 2, 2, 0, 1, 2], pool_labels)
    sampling = certainty_sampling(10, certainty_rate=0.1, max_fraction=0.6)
    assert not sampling.is_due(RefreshContext(3, 9, next_round=0, rounds=5, rounds_done=1))
    assert sampling.is_due(RefreshContext(3, 9, next_round=1, rounds=5, rounds_done=0))
    assert refresh_before(sampling, 1, pool) == [-1, -1, 0, -1, -1, -1, -1, -1, -1, -1]
    assert refresh_before(sampling, 2, pool) == [-1, -1, 0, 1, -1, 2, -1, -1, -1, -1]
    # Three more: the next of each class. Then the maximum of 60 % is reached.
    assert refresh_before(sampling, 3, pool) == [-1, -1, 0, 1, 1, 2, 2, 0, -1, -1]
    assert refresh_before(sampling, 4, pool) == [-1, -1, 0, 1, 1, 2, 2, 0, -1, -1]
    assert torch.equal(sampling.state_dict()["labels"], sampling.labels)


def test_an_exhausted_pool() -> None:
    sampling = certainty_sampling(3, certainty_rate=1.0, max_fraction=1.0)
    pool = FixedPool([0, 1, 1], torch.tensor([UNLABELLED, UNLABELLED, 2]))
    for next_round in (1, 2):
        assert refresh_before(sampling, next_round, pool) == [0, 1, UNLABELLED]


def test_seven_per_cent_of_a_hundred_are_seven() -> None:
    sampling = certainty_sampling(100, certainty_rate=0.07)
    pool = FixedPool([n % 3 for n in range(100)], torch.full((100,), UNLABELLED))
    assert sum(label >= 0 for label in refresh_before(sampling, 1, pool)) == 7


def test_a_rate_of_zero_has_no_state_and_no_effect() -> None:
    sampling = certainty_sampling(6, certainty_rate=0.0)
    assert not sampling.state_dict()
    assert sampling.pseudo_labels() is None
    assert not sampling.is_due(RefreshContext(1, 9, 1, 5, 0))


def test_params_reach_the_auxiliary_module() -> None:
    by_entropy = certainty_sampling(6, uncertainty="entropy", certainty_rate=0.2)
    assert by_entropy.rate == 0.2
    assert by_entropy.uncertainty_fn is CRITERIA["u_dis"].fn
    assert certainty_sampling(6).uncertainty_fn is CRITERIA["epistemic_variance"].fn
