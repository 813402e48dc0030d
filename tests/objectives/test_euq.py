"""Objective of EUQ: variances on the unlabelled target, and certainty sampling."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from tiny_network import CLASSES, TinyNetwork, auxiliary_context, flatten_maps, image_batch, map_batch
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence

from ducats.data.domain import UNLABELLED, VOID, Labels
from ducats.models.output import Output
from ducats.objectives import (
    OBJECTIVES,
    AuxiliaryModule,
    Batch,
    LabelledImages,
    ObjectiveSpec,
    RefreshContext,
    duc,
)
from ducats.objectives.certainty_sampling import CertaintySampling, most_certain_per_class
from ducats.objectives.euq import certainty_by_epistemic, euq
from ducats.objectives.evidential import certainty_by_u_dis
from ducats.utils.errors import UserError


def certainty_sampling(rate: float = 0.0) -> CertaintySampling:
    return certainty_by_epistemic(auxiliary_context(TinyNetwork()), certainty_rate=rate)


def variances(z: Tensor) -> tuple[Tensor, Tensor]:
    """Epistemic variance summed over the classes, and the rest of p (1 - p)."""
    dirichlet = Dirichlet(z.exp())
    epistemic = dirichlet.variance.sum(1)
    return epistemic, (dirichlet.mean * (1 - dirichlet.mean)).sum(1) - epistemic


def kl(z: Tensor, label: Tensor) -> Tensor:
    alpha = z.exp().clone()
    alpha[torch.arange(len(z)), label] = 1.0
    return kl_divergence(Dirichlet(alpha), Dirichlet(torch.ones_like(alpha))).mean() / CLASSES


def test_losses_by_hand() -> None:
    model, plain = TinyNetwork(), image_batch()
    assert plain.labelled is not None
    assert plain.unlabelled is not None
    pseudo_labelled = LabelledImages(plain.labelled.images + 1, plain.labelled.labels)
    batch = Batch(plain.source, plain.labelled, plain.unlabelled, pseudo_labelled=pseudo_labelled)
    losses = euq(model, batch, certainty_sampling())
    expected: dict[str, Tensor] = {}
    for name, part, count in (
        ("source", plain.source, 5),
        ("labelled", plain.labelled, 4),
        ("pseudo_labelled", pseudo_labelled, 4),
    ):
        z, labels = model(part.images).z[:count], part.labels[:count]
        expected |= {f"{name}/nll": F.cross_entropy(z, labels), f"{name}/kl": kl(z, labels)}
    eu, au = variances(model(plain.unlabelled).z)
    expected |= {"unlabelled/eu": 50 * eu.mean(), "unlabelled/au": 0.05 * au.mean()}
    assert losses.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(losses[name], value)


def test_with_entropy_it_is_duc() -> None:
    model, batch = TinyNetwork(), image_batch()
    euq_losses = euq(model, batch, certainty_sampling(), uncertainty="entropy")
    duc_losses = duc(model, batch, beta=1.0, lambda_=0.05)
    assert euq_losses.keys() == duc_losses.keys()
    for name, value in duc_losses.items():
        torch.testing.assert_close(euq_losses[name], value)
    with pytest.raises(ValueError, match="uncertainty"):
        euq(model, batch, certainty_sampling(), uncertainty="both")  # type: ignore[arg-type]


def test_pixels_count_as_samples() -> None:
    model, batch = TinyNetwork(pixels=True), map_batch()
    losses = euq(model, batch, certainty_by_epistemic(auxiliary_context(model), certainty_rate=0.0), eu=2.0)
    assert batch.target is not None
    eu, _ = variances(flatten_maps(model(batch.target.images).z)[batch.target.labels.flatten() == -1])
    torch.testing.assert_close(losses["unlabelled/eu"], 2 * eu.mean())
    with pytest.raises(UserError, match=r"objective\.params\.certainty_rate=0"):
        certainty_by_epistemic(auxiliary_context(model))
    with pytest.raises(UserError, match=r"objective\.params\.certainty_rate=0"):
        certainty_by_u_dis(auxiliary_context(model), certainty_rate=0.1)


def test_duc_learns_from_pseudo_labels() -> None:
    model, batch = TinyNetwork(), image_batch()
    assert batch.labelled is not None
    losses = duc(model, Batch(batch.source, None, batch.unlabelled, pseudo_labelled=batch.labelled))
    labelled = duc(model, batch)
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
    """A pool with given logits."""

    source_labels: Labels = torch.zeros(0)
    pool_labels: Tensor | None

    def __init__(self, z: Tensor, pool_labels: Tensor) -> None:
        self.z, self.pool_labels = z, pool_labels

    def pool(self) -> Iterator[tuple[Tensor, Output]]:
        for index in torch.arange(len(self.z)).split(4):
            yield index, Output(self.z[index], None)

    def source(self) -> Iterator[tuple[Tensor, Output]]:
        raise AssertionError("certainty sampling must only read the pool")


def logits_with_evidence(*of: tuple[int, float]) -> Tensor:
    """Logits with the given evidence for a class."""
    z = torch.zeros(len(of), CLASSES)
    for row, (label, amount) in enumerate(of):
        z[row, label] = amount
    return z


def test_certain_images_get_labels_before_each_round() -> None:
    # Classes 0 0 0 1 1 2 2 0 1 2, in order of certainty; image 0 is labelled, image 1 is void.
    z = logits_with_evidence(
        *((label, 9.0 - 0.5 * n) for n, label in enumerate([0, 0, 0, 1, 1, 2, 2, 0, 1, 2]))
    )
    pool_labels = torch.full((10,), UNLABELLED)
    pool_labels[0], pool_labels[1] = 0, VOID
    sampling = certainty_by_epistemic(
        auxiliary_context(TinyNetwork(), pool=10), certainty_rate=0.1, max_fraction=0.6
    )
    assert not sampling.is_due(RefreshContext(3, 9, next_round=0, rounds=5))
    assert sampling.is_due(RefreshContext(3, 9, next_round=1, rounds=5))

    def refresh_before(next_round: int) -> list[int]:
        sampling.refresh(RefreshContext(next_round, 9, next_round, 5), FixedPool(z, pool_labels))
        pseudo_labels = sampling.pseudo_labels()
        assert pseudo_labels is not None
        return pseudo_labels.tolist()

    assert refresh_before(1) == [-1, -1, 0, -1, -1, -1, -1, -1, -1, -1]
    assert refresh_before(2) == [-1, -1, 0, 1, -1, 2, -1, -1, -1, -1]
    # Three more: the next of each class. Then the maximum of 60 % is reached.
    assert refresh_before(3) == [-1, -1, 0, 1, 1, 2, 2, 0, -1, -1]
    assert refresh_before(4) == [-1, -1, 0, 1, 1, 2, 2, 0, -1, -1]
    restored = certainty_by_epistemic(
        auxiliary_context(TinyNetwork(), pool=10), certainty_rate=0.1, max_fraction=0.6
    )
    restored.load_state_dict(sampling.state_dict())
    assert torch.equal(restored.labels, sampling.labels)


def test_an_exhausted_pool() -> None:
    sampling = certainty_by_epistemic(
        auxiliary_context(TinyNetwork(), pool=3), certainty_rate=1.0, max_fraction=1.0
    )
    full_pass = FixedPool(
        logits_with_evidence((0, 1.0), (1, 2.0), (1, 3.0)), torch.tensor([UNLABELLED, UNLABELLED, 2])
    )
    for next_round in (1, 2):
        sampling.refresh(RefreshContext(1, 9, next_round, 2), full_pass)
        assert sampling.labels.tolist() == [0, 1, UNLABELLED]


def test_seven_per_cent_of_a_hundred_are_seven() -> None:
    sampling = certainty_by_epistemic(auxiliary_context(TinyNetwork(), pool=100), certainty_rate=0.07)
    z = logits_with_evidence(*((n % 3, 1.0 + n / 100) for n in range(100)))
    full_pass = FixedPool(z, torch.full((100,), UNLABELLED))
    sampling.refresh(RefreshContext(1, 9, 1, 5), full_pass)
    assert int((sampling.labels >= 0).sum()) == 7


def test_a_rate_of_zero_has_no_state_and_no_effect() -> None:
    for sampling in (certainty_sampling(0.0), certainty_by_u_dis(auxiliary_context(TinyNetwork()))):
        assert not sampling.state_dict()
        assert sampling.pseudo_labels() is None
        assert not sampling.is_due(RefreshContext(1, 9, 1, 5))
    with pytest.raises(ValueError, match="rate=-1"):
        certainty_sampling(-1.0)


def test_params_reach_the_auxiliary_module() -> None:
    def build_auxiliary(name: str, **params: object) -> AuxiliaryModule:
        spec = OBJECTIVES[name]
        assert isinstance(spec, ObjectiveSpec)
        bound = spec.bind(params)
        assert bound.auxiliary is not None
        return bound.auxiliary(auxiliary_context(TinyNetwork()))

    euq_losses, duc_losses = (
        build_auxiliary("euq", uncertainty="entropy", certainty_rate=0.2),
        build_auxiliary("duc", certainty_rate=0.3),
    )
    assert isinstance(euq_losses, CertaintySampling)
    assert isinstance(duc_losses, CertaintySampling)
    assert (euq_losses.rate, duc_losses.rate) == (0.2, 0.3)
    assert euq_losses.uncertainty_fn is duc_losses.uncertainty_fn
