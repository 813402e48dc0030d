"""Objective of EUQ: variances on the unlabelled target, and certainty sampling."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from little_net import CLASSES, LittleNet, as_rows, beside, little_batch, little_maps
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence

from ducats.domain import UNLABELLED, VOID, Labels
from ducats.errors import UserError
from ducats.objectives import OBJECTIVES, Batch, Companion, Labelled, Moment, Training, duc
from ducats.objectives.certainty import Certainty, most_certain
from ducats.objectives.euq import euq, sure_of_class
from ducats.objectives.evidential import sure_of_evidence
from ducats.rows import Output


def companion(rate: float = 0.0) -> Certainty:
    return sure_of_class(beside(LittleNet()), rate=rate)


def variances(z: Tensor) -> tuple[Tensor, Tensor]:
    """Epistemic variance summed over the classes, and the rest of p (1 - p)."""
    law = Dirichlet(z.exp())
    epistemic = law.variance.sum(1)
    return epistemic, (law.mean * (1 - law.mean)).sum(1) - epistemic


def kl(z: Tensor, label: Tensor) -> Tensor:
    alpha = z.exp().clone()
    alpha[torch.arange(len(z)), label] = 1.0
    return kl_divergence(Dirichlet(alpha), Dirichlet(torch.ones_like(alpha))).mean() / CLASSES


def test_losses_by_hand() -> None:
    model, plain = LittleNet(), little_batch()
    assert plain.labelled is not None
    assert plain.unlabelled is not None
    certain = Labelled(plain.labelled.images + 1, plain.labelled.labels)
    losses = euq(model, Batch(plain.source, plain.labelled, plain.unlabelled, certain=certain), companion())
    expected: dict[str, Tensor] = {}
    for name, part, count in (
        ("source", plain.source, 5),
        ("labelled", plain.labelled, 4),
        ("certain", certain, 4),
    ):
        z, labels = model(part.images).z[:count], part.labels[:count]
        expected |= {f"{name}/nll": F.cross_entropy(z, labels), f"{name}/kl": kl(z, labels)}
    eu, au = variances(model(plain.unlabelled).z)
    expected |= {"unlabelled/eu": 50 * eu.mean(), "unlabelled/au": 0.05 * au.mean()}
    assert losses.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(losses[name], value)


def test_with_entropy_it_is_duc() -> None:
    model, batch = LittleNet(), little_batch()
    ours = euq(model, batch, companion(), uncertainty="entropy")
    theirs = duc(model, batch, beta=1.0, lambda_=0.05)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value)
    with pytest.raises(ValueError, match="uncertainty"):
        euq(model, batch, companion(), uncertainty="both")  # type: ignore[arg-type]


def test_pixels_count_as_samples() -> None:
    model, batch = LittleNet(pixels=True), little_maps()
    losses = euq(model, batch, sure_of_class(beside(model), rate=0.0), eu=2.0)
    assert batch.target is not None
    eu, _ = variances(as_rows(model(batch.target.images).z)[batch.target.labels.flatten() == -1])
    torch.testing.assert_close(losses["unlabelled/eu"], 2 * eu.mean())
    with pytest.raises(UserError, match=r"objective\.params\.rate=0"):
        sure_of_class(beside(model))
    with pytest.raises(UserError, match=r"objective\.params\.certainty=0"):
        sure_of_evidence(beside(model), certainty=0.1)


def test_duc_learns_from_pseudo_labels() -> None:
    model, batch = LittleNet(), little_batch()
    assert batch.labelled is not None
    losses = duc(model, Batch(batch.source, None, batch.unlabelled, certain=batch.labelled))
    bought = duc(model, batch)
    for term in ("nll", "kl"):
        torch.testing.assert_close(losses[f"certain/{term}"], bought[f"labelled/{term}"])


# ---- certainty sampling


def slow_passes(doubt: list[float], guess: list[int], count: int) -> list[int]:
    """The published loop: passes by rising uncertainty, each class at most once per pass."""
    left, taken = sorted(range(len(doubt)), key=lambda i: (doubt[i], i)), list[int]()
    while left and len(taken) < count:
        seen = set[int]()
        for i in list(left):
            if guess[i] not in seen and len(taken) < count:
                seen.add(guess[i])
                taken.append(i)
                left.remove(i)
    return taken


def test_passes_take_each_class_once() -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (0, 1, 7, 40):
        doubt = torch.randint(0, 6, (size,), generator=generator).float()  # with ties
        guess = torch.randint(0, 4, (size,), generator=generator) * 3  # some classes are never predicted
        for count in (0, 1, 5, size, size + 3):
            found = most_certain(doubt, guess, count).tolist()
            assert found == slow_passes(doubt.tolist(), guess.tolist(), count)


class Shown:
    """A pool with given logits."""

    labels: Labels = torch.zeros(0)
    targets: Tensor | None

    def __init__(self, z: Tensor, targets: Tensor) -> None:
        self.z, self.targets = z, targets

    def pool(self) -> Iterator[tuple[Tensor, Output]]:
        for index in torch.arange(len(self.z)).split(4):
            yield index, Output(self.z[index], None)

    def source(self) -> Iterator[tuple[Tensor, Output]]:
        raise AssertionError("certainty sampling must only read the pool")


def evidence(*of: tuple[int, float]) -> Tensor:
    """Logits with the given evidence for a class."""
    z = torch.zeros(len(of), CLASSES)
    for row, (label, amount) in enumerate(of):
        z[row, label] = amount
    return z


def test_certain_images_get_labels_before_each_round() -> None:
    # Classes 0 0 0 1 1 2 2 0 1 2, in order of certainty; image 0 is labelled, image 1 is void.
    z = evidence(*((label, 9.0 - 0.5 * n) for n, label in enumerate([0, 0, 0, 1, 1, 2, 2, 0, 1, 2])))
    targets = torch.full((10,), UNLABELLED)
    targets[0], targets[1] = 0, VOID
    sampling = sure_of_class(beside(LittleNet(), pool=10), rate=0.1, most=0.6)
    assert not sampling.due(Moment(3, 9, question=0, questions=5))
    assert sampling.due(Moment(3, 9, question=1, questions=5))

    def ask(question: int) -> list[int]:
        sampling.refresh(Moment(question, 9, question, 5), Shown(z, targets))
        own = sampling.own_labels()
        assert own is not None
        return own.tolist()

    assert ask(1) == [-1, -1, 0, -1, -1, -1, -1, -1, -1, -1]
    assert ask(2) == [-1, -1, 0, 1, -1, 2, -1, -1, -1, -1]
    # Three more: the next of each class. Then the maximum of 60 % is reached.
    assert ask(3) == [-1, -1, 0, 1, 1, 2, 2, 0, -1, -1]
    assert ask(4) == [-1, -1, 0, 1, 1, 2, 2, 0, -1, -1]
    again = sure_of_class(beside(LittleNet(), pool=10), rate=0.1, most=0.6)
    again.load_state_dict(sampling.state_dict())
    assert torch.equal(again.own, sampling.own)


def test_an_exhausted_pool() -> None:
    sampling = sure_of_class(beside(LittleNet(), pool=3), rate=1.0, most=1.0)
    look = Shown(evidence((0, 1.0), (1, 2.0), (1, 3.0)), torch.tensor([UNLABELLED, UNLABELLED, 2]))
    for question in (1, 2):
        sampling.refresh(Moment(1, 9, question, 2), look)
        assert sampling.own.tolist() == [0, 1, UNLABELLED]


def test_seven_per_cent_of_a_hundred_are_seven() -> None:
    sampling = sure_of_class(beside(LittleNet(), pool=100), rate=0.07)
    look = Shown(evidence(*((n % 3, 1.0 + n / 100) for n in range(100))), torch.full((100,), UNLABELLED))
    sampling.refresh(Moment(1, 9, 1, 5), look)
    assert int((sampling.own >= 0).sum()) == 7


def test_a_rate_of_zero_has_no_state_and_no_effect() -> None:
    for still in (companion(0.0), sure_of_evidence(beside(LittleNet()))):
        assert not still.state_dict()
        assert still.own_labels() is None
        assert not still.due(Moment(1, 9, 1, 5))
    with pytest.raises(ValueError, match="rate=-1"):
        companion(-1.0)


def test_params_reach_the_auxiliary_module() -> None:
    def made(name: str, **params: object) -> Companion:
        training = OBJECTIVES[name]
        assert isinstance(training, Training)
        bound = training.bound(params)
        assert bound.companion is not None
        return bound.companion(beside(LittleNet()))

    ours, theirs = made("euq", uncertainty="entropy", rate=0.2), made("duc", certainty=0.3)
    assert isinstance(ours, Certainty)
    assert isinstance(theirs, Certainty)
    assert (ours.rate, theirs.rate) == (0.2, 0.3)
    assert ours.doubt is theirs.doubt
