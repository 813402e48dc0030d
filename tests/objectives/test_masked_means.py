"""Chunked means against the formula on the whole map."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ducats import dirichlet
from ducats.data.domain import UNLABELLED, VOID
from ducats.models.output import Output
from ducats.objectives import is_labelled, masked_means, reduction

CLASSES, SIZE = 5, (13, 22)
COARSE = (3, 4)
Formula = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
MaskFn = Callable[[Tensor], Tensor]
bounded = dirichlet.EVIDENCE_FUNCTIONS["exp_at_most_10"]


def fit(z: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    kl = dirichlet.misleading_evidence(z, labels) / z.shape[1]
    return dirichlet.negative_log_likelihood(z, labels), kl


def uncertainty_terms(z: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    found = dirichlet.uncertainties(z)
    return found.distribution, found.data


def unlabelled(labels: Tensor) -> Tensor:
    return labels == UNLABELLED


both_formulas = pytest.mark.parametrize(
    ("formula", "mask_fn"), [(fit, is_labelled), (uncertainty_terms, unlabelled)]
)


def coarse() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return 5 * torch.randn(3, CLASSES, *COARSE, generator=generator)  # some above 10


def maps(kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, CLASSES, (3, *SIZE), generator=generator).to(torch.int8)
    if kind == "mixed":
        random = torch.rand(labels.shape, generator=generator)
        labels[random < 0.6] = UNLABELLED
        labels[random > 0.9] = VOID
    elif kind != "labelled":
        labels[:] = {"unlabelled": UNLABELLED, "void": VOID}[kind]
    return labels


def reference_means(z: Tensor, formula: Formula, labels: Tensor, counted: Tensor) -> tuple[Tensor, ...]:
    """Mean of the formula on the whole map over the counted positions."""
    dense = bounded(F.interpolate(z, SIZE, mode="bilinear", align_corners=True))
    rows, row_labels = dense.permute(0, 2, 3, 1)[counted], labels.long()[counted]
    values = formula(rows, row_labels)
    return tuple(v.mean() if len(v) else dense.sum() * 0 for v in values)


@pytest.mark.parametrize("chunk_elements", [1, 200, 700, 3000, 10**6])  # one row, some, an image, two, all
@pytest.mark.parametrize("kind", ["mixed", "labelled", "unlabelled", "void"])
@both_formulas
@pytest.mark.parametrize("indexed", [True, False])  # a CPU indexes positions, a GPU multiplies by zero
def test_chunks_give_value_and_gradient_of_the_whole_map(
    chunk_elements: int,
    kind: str,
    formula: Formula,
    mask_fn: MaskFn,
    indexed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reduction, "CPU_CHUNK_ELEMENTS", chunk_elements)
    monkeypatch.setattr(reduction, "INDEXING_DEVICES", ("cpu",) if indexed else ())
    z, labels = coarse().requires_grad_(), maps(kind)
    found = masked_means(Output(z, None, SIZE, bounded), formula, labels, mask_fn)
    expected = reference_means(z, formula, labels, mask_fn(labels))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-12)
    for value, other in zip(found, expected, strict=True):
        gradient, reference = (torch.autograd.grad(v, z, retain_graph=True)[0] for v in (value, other))
        assert (gradient - reference).norm() <= 2e-5 * reference.norm()


@pytest.mark.parametrize(
    ("formula", "mask_fn", "evidence"),
    [
        (uncertainty_terms, unlabelled, "exp"),
        *((fit, is_labelled, name) for name in dirichlet.EVIDENCE_FUNCTIONS),
    ],
)
def test_gradients_match_finite_differences(
    formula: Formula, mask_fn: MaskFn, evidence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reduction, "CPU_CHUNK_ELEMENTS", 60)
    z = torch.randn(1, CLASSES, 2, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    labels = maps("mixed")[:1, :5, :6]

    def weighted_sum(leaf: Tensor) -> Tensor:
        output = Output(leaf, None, (5, 6), dirichlet.EVIDENCE_FUNCTIONS[evidence])
        first, second = masked_means(output, formula, labels, mask_fn)
        return 2 * first + 0.5 * second

    assert torch.autograd.gradcheck(weighted_sum, (z.requires_grad_(),))


@both_formulas
def test_half_precision_logits_under_autocast(formula: Formula, mask_fn: MaskFn) -> None:
    z, labels = coarse(), maps("mixed")
    half, full = z.bfloat16().requires_grad_(), z.bfloat16().float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = masked_means(Output(half, None, SIZE, bounded), formula, labels, mask_fn)
    expected = reference_means(full, formula, labels, mask_fn(labels))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)  # float32
    (gradient,), (reference,) = (
        torch.autograd.grad(values[0] + values[1], leaf) for values, leaf in ((found, half), (expected, full))
    )
    assert gradient.dtype == torch.bfloat16
    assert (gradient.float() - reference).norm() < 3e-3 * reference.norm()  # a bfloat16 has eight bits


def test_without_a_gradient_none_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    z, labels = coarse().requires_grad_(), maps("mixed")
    output = Output(z, None, SIZE, bounded)
    with_gradient = masked_means(output, fit, labels, is_labelled)
    monkeypatch.setattr(torch.autograd, "grad", None)  # not to be called
    with torch.no_grad():
        without = masked_means(output, fit, labels, is_labelled)
    assert not without[0].requires_grad
    torch.testing.assert_close(with_gradient, without, rtol=0, atol=0)
    with pytest.raises(TypeError):
        masked_means(output, fit, labels, is_labelled)


def test_maps_of_another_size_raise() -> None:
    output = Output(coarse(), None, SIZE, bounded)
    with pytest.raises(ValueError, match=r"\(3, 13, 21\)"):
        masked_means(output, fit, maps("mixed")[..., :-1], is_labelled)
