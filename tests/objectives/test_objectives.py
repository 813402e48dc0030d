import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence

from ducats.models.output import Output
from ducats.objectives import Batch, LabelledImages, ObjectiveFn, duc, softmax

CLASSES = 4


class Recorder:
    """A "model" that returns the images as logits and records the order of forward passes."""

    def __init__(self) -> None:
        self.batch_sizes: list[int] = []

    def __call__(self, images: Tensor) -> Output:
        self.batch_sizes.append(len(images))
        return Output(images, None)


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    z = [torch.randn(n, CLASSES, generator=generator, dtype=torch.float64) for n in (6, 5, 7)]
    return Batch(
        LabelledImages(z[0], torch.tensor([0, 1, 2, 3, 0, 1])),
        LabelledImages(z[1], torch.tensor([3, 2, 1, 0, 0])),
        z[2],
    )


def slow_kl(z: Tensor, label: Tensor) -> Tensor:
    alpha = z.exp().clone()
    alpha[torch.arange(len(z)), label] = 1.0
    return kl_divergence(Dirichlet(alpha), Dirichlet(torch.ones_like(alpha)))


def slow_uncertainties(z: Tensor) -> tuple[Tensor, Tensor]:
    alpha = z.exp()
    total = alpha.sum(1, keepdim=True)
    p = alpha / total
    data = (p * (torch.digamma(total + 1) - torch.digamma(alpha + 1))).sum(1)
    return -(p * p.log()).sum(1) - data, data


def test_duc_is_the_papers_sum(batch: Batch) -> None:
    losses = duc(Recorder(), batch, beta=0.7, lambda_=0.3)
    assert batch.labelled is not None
    assert batch.unlabelled is not None
    u_dis, u_data = slow_uncertainties(batch.unlabelled)
    expected = {"unlabelled/u_dis": 0.7 * u_dis.mean(), "unlabelled/u_data": 0.3 * u_data.mean()}
    for name, known in (("source", batch.source), ("labelled", batch.labelled)):
        expected[f"{name}/nll"] = F.cross_entropy(known.images, known.labels)
        expected[f"{name}/kl"] = slow_kl(known.images, known.labels).mean() / CLASSES
    assert losses.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(losses[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("params", "gone"),
    [
        ({"beta": 0.0}, {"unlabelled/u_dis"}),
        ({"lambda_": 0.0}, {"unlabelled/u_data"}),
        ({"beta": 0.0, "lambda_": 0.0}, {"unlabelled/u_dis", "unlabelled/u_data"}),
        ({"kl": 0.0}, {"source/kl", "labelled/kl"}),
        ({"nll": 0.0}, {"source/nll", "labelled/nll"}),
        ({"source": 0.0}, {"source/nll", "source/kl"}),
        ({"target": 0.0}, {"labelled/nll", "labelled/kl"}),
    ],
)
def test_each_term_can_be_disabled(batch: Batch, params: dict[str, float], gone: set[str]) -> None:
    whole = duc(Recorder(), batch)
    part = duc(Recorder(), batch, **params)  # type: ignore[arg-type]
    assert part.keys() == whole.keys() - gone
    for name, value in part.items():
        torch.testing.assert_close(value, whole[name])


def test_streams_are_forwarded_separately_and_only_if_needed(batch: Batch) -> None:
    model = Recorder()
    duc(model, batch)
    assert model.batch_sizes == [6, 7, 5]  # source, unlabelled, labelled: the published order
    model = Recorder()
    duc(model, batch, beta=0.0, lambda_=0.0)
    assert model.batch_sizes == [6, 5]
    model = Recorder()
    softmax(model, batch)
    assert model.batch_sizes == [6, 5]


def test_before_the_first_round_and_after_the_last(batch: Batch) -> None:
    assert duc(Recorder(), Batch(batch.source, None, batch.unlabelled)).keys() == {
        *("source/nll", "source/kl"),
        *("unlabelled/u_dis", "unlabelled/u_data"),
    }
    assert "unlabelled/u_dis" not in duc(Recorder(), Batch(batch.source, batch.labelled, None))


@pytest.mark.parametrize("objective", [duc, softmax])
def test_negative_labels_are_ignored(objective: ObjectiveFn, batch: Batch) -> None:
    half = LabelledImages(batch.source.images, batch.source.labels.clone())
    half.labels[3:] = -2
    cut = LabelledImages(batch.source.images[:3], batch.source.labels[:3])
    one, two = objective(Recorder(), Batch(half, None, None)), objective(Recorder(), Batch(cut, None, None))
    for term in one:
        torch.testing.assert_close(one[term], two[term])


def test_pixels_and_samples_give_the_same_losses(batch: Batch) -> None:
    def as_map(x: Tensor) -> Tensor:  # (6, C) -> (1, C, 2, 3)
        return x.T.reshape(1, CLASSES, 2, 3)

    maps = Batch(
        LabelledImages(as_map(batch.source.images), batch.source.labels.reshape(1, 2, 3)), None, None
    )
    rows = duc(Recorder(), Batch(batch.source, None, None))
    for name, value in duc(Recorder(), maps).items():
        torch.testing.assert_close(value, rows[name])


def test_softmax_is_cross_entropy(batch: Batch) -> None:
    losses = softmax(Recorder(), batch, source=0.5)
    expected = 0.5 * F.cross_entropy(batch.source.images, batch.source.labels)
    torch.testing.assert_close(losses["source/nll"], expected)
    assert losses.keys() == {"source/nll", "labelled/nll"}
