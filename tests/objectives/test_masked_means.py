"""Chunked means against the formula on the whole map, and image means against plain arithmetic."""

import importlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ducats import dirichlet
from ducats.data.domain import UNLABELLED, VOID
from ducats.models.output import Output
from ducats.objectives import Batch, LabelledImages, duc, is_labelled, masked_means, softmax

module = importlib.import_module("ducats.objectives.reduction")

CLASSES, SIZE = 5, (13, 22)
COARSE = (3, 4)
bounded = dirichlet.EVIDENCE_FUNCTIONS["exp_at_most_10"]


def fit(z: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    kl = dirichlet.misleading_evidence(z, labels) / z.shape[1]
    return dirichlet.negative_log_likelihood(z, labels), kl


def uncertainty_terms(z: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    found = dirichlet.uncertainties(z)
    return found.distribution, found.data


def unlabelled(labels: Tensor) -> Tensor:
    return labels == UNLABELLED


def coarse(seed: int = 0, images: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 5 * torch.randn(images, CLASSES, *COARSE, generator=generator)  # some above 10


def maps(kind: str, images: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, CLASSES, (images, *SIZE), generator=generator).to(torch.int8)
    if kind == "mixed":
        random = torch.rand(labels.shape, generator=generator)
        labels[random < 0.6] = UNLABELLED
        labels[random > 0.9] = VOID
    elif kind != "labelled":
        labels[:] = {"unlabelled": UNLABELLED, "void": VOID}[kind]
    return labels


def reference_means(
    z: Tensor,
    formula: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
    labels: Tensor,
    counted: Tensor,
    evidence: Callable[[Tensor], Tensor] = bounded,
) -> tuple[Tensor, ...]:
    """Mean of the formula on the whole map over the counted positions."""
    dense = evidence(F.interpolate(z, SIZE, mode="bilinear", align_corners=True))
    rows, row_labels = dense.permute(0, 2, 3, 1)[counted], labels.long()[counted]
    values = formula(rows, row_labels)
    return tuple(v.mean() if len(v) else dense.sum() * 0 for v in values)


@pytest.mark.parametrize("chunk_elements", [1, 200, 700, 3000, 10**6])  # one row, some, an image, two, all
@pytest.mark.parametrize("kind", ["mixed", "labelled", "unlabelled", "void"])
@pytest.mark.parametrize(("formula", "mask_fn"), [(fit, is_labelled), (uncertainty_terms, unlabelled)])
@pytest.mark.parametrize("indexed", [True, False])  # a CPU indexes positions, a GPU multiplies by zero
def test_chunks_give_value_and_gradient_of_the_whole_map(
    chunk_elements: int,
    kind: str,
    formula: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
    mask_fn: Callable[[Tensor], Tensor],
    indexed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CPU_CHUNK_ELEMENTS", chunk_elements)
    monkeypatch.setattr(module, "INDEXING_DEVICES", ("cpu",) if indexed else ())
    z, labels = coarse(), maps(kind)
    chunked, reference = z.clone().requires_grad_(), z.clone().requires_grad_()
    found = masked_means(Output(chunked, None, SIZE, bounded), formula, labels, mask_fn)
    expected = reference_means(reference, formula, labels, mask_fn(labels))
    for number, weight in enumerate((1.0, 0.3)):
        torch.testing.assert_close(found[number], expected[number], rtol=1e-5, atol=1e-12)
        (weight * found[number]).backward(retain_graph=True)
        (weight * expected[number]).backward(retain_graph=True)
    assert chunked.grad is not None
    assert reference.grad is not None
    assert (chunked.grad - reference.grad).norm() <= 1e-5 * reference.grad.norm()
    if kind == "void":
        assert [v.item() for v in found] == [0.0, 0.0]


@pytest.mark.parametrize(("formula", "mask_fn"), [(fit, is_labelled), (uncertainty_terms, unlabelled)])
@pytest.mark.parametrize("evidence", dirichlet.EVIDENCE_FUNCTIONS)
def test_gradients_match_finite_differences(
    formula: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
    mask_fn: Callable[[Tensor], Tensor],
    evidence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CPU_CHUNK_ELEMENTS", 300)
    z = torch.randn(1, CLASSES, 2, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    labels = maps("mixed", images=1)

    def weighted_sum(leaf: Tensor) -> Tensor:
        output = Output(leaf, None, SIZE, dirichlet.EVIDENCE_FUNCTIONS[evidence])
        first, second = masked_means(output, formula, labels, mask_fn)
        return 2 * first + 0.5 * second

    assert torch.autograd.gradcheck(weighted_sum, (z.requires_grad_(),))


def test_one_value_alone_has_a_gradient() -> None:
    z, labels = coarse().requires_grad_(), maps("mixed")
    _, kl = masked_means(Output(z, None, SIZE, bounded), fit, labels, is_labelled)
    (gradient,) = torch.autograd.grad(kl, z)
    (expected,) = torch.autograd.grad(reference_means(z, fit, labels, is_labelled(labels))[1], z)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("formula", "mask_fn"), [(fit, is_labelled), (uncertainty_terms, unlabelled)])
def test_half_precision_logits_under_autocast(
    formula: Callable[[Tensor, Tensor], tuple[Tensor, ...]], mask_fn: Callable[[Tensor], Tensor]
) -> None:
    z, labels = coarse(), maps("mixed")
    half, full = z.bfloat16().requires_grad_(), z.bfloat16().float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = masked_means(Output(half, None, SIZE, bounded), formula, labels, mask_fn)
    expected = reference_means(full, formula, labels, mask_fn(labels))
    for actual, other in zip(found, expected, strict=True):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, other, rtol=1e-5, atol=0)
    sum(found[1:], found[0]).backward()
    sum(expected[1:], expected[0]).backward()
    assert half.grad is not None
    assert full.grad is not None
    assert half.grad.dtype == torch.bfloat16
    assert (half.grad.float() - full.grad).norm() < 3e-3 * full.grad.norm()  # a bfloat16 has eight bits


def test_without_a_gradient_none_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    z, labels = coarse().requires_grad_(), maps("mixed")
    output = Output(z, None, SIZE, bounded)
    with_gradient = masked_means(output, fit, labels, is_labelled)
    monkeypatch.setattr(torch.autograd, "grad", None)  # not to be called
    with torch.no_grad():
        without = masked_means(output, fit, labels, is_labelled)
    assert not without[0].requires_grad
    for actual, other in zip(with_gradient, without, strict=True):
        assert actual.item() == other.item()
    with pytest.raises(TypeError):
        masked_means(output, fit, labels, is_labelled)


def test_maps_of_another_size_raise() -> None:
    output = Output(coarse(), None, SIZE, bounded)
    with pytest.raises(ValueError, match=r"\(3, 13, 21\)"):
        masked_means(output, fit, maps("mixed")[..., :-1], is_labelled)


# Objectives on maps ---------------------------------------------------------------------------------------


class Recorder:
    """A "model" that returns the images as logits and records how many were forwarded."""

    def __init__(self) -> None:
        self.batch_sizes: list[int] = []

    def __call__(self, images: Tensor) -> Output:
        self.batch_sizes.append(len(images))
        return Output(images, None, SIZE, bounded)


def pixels(kind: str = "mixed") -> Batch:
    return Batch(
        LabelledImages(coarse(1), maps("labelled")), None, None, LabelledImages(coarse(2, 2), maps(kind, 2))
    )


@pytest.mark.parametrize("kind", ["mixed", "labelled", "unlabelled", "void"])
@pytest.mark.parametrize("void", ["ignored", "unlabelled"])
def test_duc_on_pixels_is_the_papers_sum(kind: str, void: str) -> None:
    batch, model = pixels(kind), Recorder()
    losses = duc(model, batch, beta=0.7, lambda_=0.3, kl=0.5, void=void)  # type: ignore[arg-type]
    assert model.batch_sizes == [3, 2]  # each image once
    assert batch.target is not None
    z, labels = batch.target
    unknown = labels == UNLABELLED if void == "ignored" else labels < 0
    expected: dict[str, Tensor] = {}
    for stream, part in (("source", batch.source), ("labelled", batch.target)):
        nll, kl = reference_means(part.images, fit, part.labels, part.labels >= 0)
        expected |= {f"{stream}/nll": nll, f"{stream}/kl": 0.5 * kl}
    u_dis, u_data = reference_means(z, uncertainty_terms, labels, unknown)
    expected |= {"unlabelled/u_dis": 0.7 * u_dis, "unlabelled/u_data": 0.3 * u_data}
    assert losses.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(losses[name], value, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(
    ("params", "gone", "batch_sizes"),
    [
        ({"beta": 0.0}, {"unlabelled/u_dis"}, [3, 2]),
        ({"beta": 0.0, "lambda_": 0.0}, {"unlabelled/u_dis", "unlabelled/u_data"}, [3, 2]),
        ({"kl": 0.0}, {"source/kl", "labelled/kl"}, [3, 2]),
        ({"target": 0.0}, {"labelled/nll", "labelled/kl"}, [3, 2]),
        (
            {"target": 0.0, "beta": 0.0, "lambda_": 0.0},
            {"labelled/nll", "labelled/kl", "unlabelled/u_dis", "unlabelled/u_data"},
            [3],
        ),
        ({"source": 0.0}, {"source/nll", "source/kl"}, [2]),
    ],
)
def test_terms_on_pixels_can_be_disabled(
    params: dict[str, float], gone: set[str], batch_sizes: list[int]
) -> None:
    dense, model = duc(Recorder(), pixels()), Recorder()
    part = duc(model, pixels(), **params)  # type: ignore[arg-type]
    assert part.keys() == dense.keys() - gone
    assert model.batch_sizes == batch_sizes
    for name, value in part.items():
        torch.testing.assert_close(value, dense[name])


def test_whole_labelled_images_and_unlabelled_maps() -> None:
    has_target_labels = LabelledImages(coarse(4, 4), maps("labelled", 4))
    rest = pixels("unlabelled").target
    batch = Batch(pixels().source, has_target_labels, None, rest)
    for objective in (duc, softmax):
        model = Recorder()
        losses = objective(model, batch)
        assert sorted(model.batch_sizes) == [2, 3, 4]
        images, labels = has_target_labels
        expected = reference_means(images, fit, labels, labels >= 0)[0]
        torch.testing.assert_close(losses["labelled/nll"], expected, rtol=1e-5, atol=0)


def test_softmax_on_pixels_is_cross_entropy_on_labelled_ones() -> None:
    batch = pixels()
    losses = softmax(Recorder(), batch, target=0.5)
    assert losses.keys() == {"source/nll", "labelled/nll"}
    assert batch.target is not None
    z, labels = batch.target
    dense = F.interpolate(z, SIZE, mode="bilinear", align_corners=True).clamp(max=10)
    expected = F.cross_entropy(dense, labels.long().masked_fill(labels < 0, -100), ignore_index=-100)
    torch.testing.assert_close(losses["labelled/nll"], 0.5 * expected, rtol=1e-5, atol=0)
    with pytest.raises(ValueError, match="ignored"):
        duc(Recorder(), pixels(), void="dropped")  # type: ignore[arg-type]


# Whole images ---------------------------------------------------------------------------------------------


def earlier_mean(values: Tensor, labels: Tensor) -> Tensor:
    has_label = labels >= 0
    return (values * has_label).sum() / has_label.sum().clamp(min=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("none_known", [False, True])
def test_whole_images_are_bitwise_equal_to_plain_arithmetic(dtype: torch.dtype, none_known: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    z = [4 * torch.randn(n, CLASSES, generator=generator, dtype=dtype).requires_grad_() for n in (33, 8, 31)]
    labels = [torch.randint(-2, CLASSES, (n,), generator=generator) for n in (33, 8)]
    if none_known:
        labels[1].fill_(VOID)
    weights = {"nll": 0.9, "kl": 1.1, "beta": 0.7, "lambda_": 0.05, "source": 1.3, "target": 0.6}
    batch = Batch(LabelledImages(z[0], labels[0]), LabelledImages(z[1], labels[1]), z[2])
    found = duc(lambda images: Output(images, None), batch, **weights)  # type: ignore[arg-type]
    uncertain = dirichlet.uncertainties(z[2])
    expected: dict[str, Tensor] = {}
    for stream, weight, part, label in (("source", 1.3, z[0], labels[0]), ("labelled", 0.6, z[1], labels[1])):
        nll = dirichlet.negative_log_likelihood(part, label)
        expected[f"{stream}/nll"] = weight * 0.9 * earlier_mean(nll, label)
        kl = dirichlet.misleading_evidence(part, label) / part.shape[1]
        expected[f"{stream}/kl"] = weight * 1.1 * earlier_mean(kl, label)
    expected["unlabelled/u_dis"] = 0.7 * uncertain.distribution.mean()
    expected["unlabelled/u_data"] = 0.05 * uncertain.data.mean()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].item() == value.item(), name
    chunked = torch.autograd.grad(torch.stack(list(found.values())).sum(), z)
    reference = torch.autograd.grad(torch.stack([expected[name] for name in found]).sum(), z)
    for actual, other in zip(chunked, reference, strict=True):
        assert actual.equal(other)


@pytest.mark.parametrize("has_target_labels", [False, True])
def test_target_is_forwarded_only_if_needed(has_target_labels: bool) -> None:
    """Before the first round there is no cross-entropy, and DUC only has the uncertainties."""
    batch_sizes = []

    def model(images: Tensor) -> Output:
        batch_sizes.append(len(images))
        return Output(images.mean((2, 3), keepdim=True)[:, :2], None, (2, 2))

    maps = torch.tensor([[0, 1], [UNLABELLED, VOID]], dtype=torch.int8)
    source = LabelledImages(torch.rand(3, 3, 2, 2), maps.expand(3, 2, 2))
    target = LabelledImages(torch.rand(4, 3, 2, 2), maps.expand(4, 2, 2))
    batch = Batch(source, None, None, target, has_target_labels=has_target_labels)
    assert set(softmax(model, batch)) == (
        {"source/nll", "labelled/nll"} if has_target_labels else {"source/nll"}
    )
    assert batch_sizes == ([3, 4] if has_target_labels else [3])
    labelled = {"labelled/nll", "labelled/kl"} if has_target_labels else set()
    known = {"source/nll", "source/kl", "unlabelled/u_dis", "unlabelled/u_data"}
    assert set(duc(model, batch)) == known | labelled
    assert set(duc(model, batch, beta=0.0, lambda_=0.0)) == {"source/nll", "source/kl"} | labelled
    assert batch_sizes[-1] == (4 if has_target_labels else 3)
