"""Every metric against a slow loop over its definition, and against torchmetrics where possible."""

import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_calibration_error,
    multiclass_confusion_matrix,
    multiclass_jaccard_index,
)

from ducats.evaluation import metrics
from ducats.evaluation.metrics import (
    FINE_BINS,
    Tally,
    accuracy,
    aurc,
    aurc_error_bound,
    class_accuracy,
    class_iou,
    classwise_ece,
    compute_metrics,
    confidence_bin,
    ece,
    mean_class_accuracy,
    mean_iou,
    mean_iou_excluding,
    probability_bin,
    reliability_bins,
    tally_batch,
)


def sample(
    n: int, classes: int, seed: int = 0, scale: float = 3.0, void: float = 0.2
) -> tuple[Tensor, Tensor]:
    """Return float32 log-probabilities (n, classes) and labels that half agree with them; some are void."""
    generator = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(n, classes, generator=generator)
    label = torch.where(
        torch.rand(n, generator=generator) < 0.5,
        z.argmax(1),
        torch.randint(classes, (n,), generator=generator),
    )
    return z.log_softmax(1), torch.where(torch.rand(n, generator=generator) < void, -1, label)


def same(left: Tally, right: Tally, exact: bool = False) -> None:
    theirs = right.tensors()
    for name, mine in left.tensors().items():
        tolerance = 0.0 if exact or not mine.is_floating_point() else 1e-12
        torch.testing.assert_close(mine, theirs[name], rtol=tolerance, atol=tolerance, msg=name)


# Slow references: plain loops over Python numbers.


def slow_bin(p: float, bins: int) -> int:
    return next(b for b in range(bins) if p <= (b + 1) / bins or b == bins - 1)


def slow_ece(confidence: Sequence[float], hit: Sequence[bool], bins: int) -> float:
    error = 0.0
    for b in range(bins):
        inside = [i for i, p in enumerate(confidence) if slow_bin(p, bins) == b]
        if inside:
            share = len(inside) / len(confidence)
            mean_hit = sum(hit[i] for i in inside) / len(inside)
            error += share * abs(mean_hit - sum(confidence[i] for i in inside) / len(inside))
    return error


def slow_aurc(log_confidence: Sequence[float], wrong: Sequence[bool]) -> float:
    """Exact ties share their errors evenly: the expectation over their order."""
    area, rank, errors = 0.0, 0, 0.0
    for value in sorted(set(log_confidence), reverse=True):
        tied = [w for s, w in zip(log_confidence, wrong, strict=True) if s == value]
        for _ in tied:
            rank += 1
            errors += sum(tied) / len(tied)
            area += errors / rank
    return area / rank


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def slow(log_prob: Tensor, label: Tensor) -> dict[str, float]:
    """Compute every metric from rows (N, C) and labels (N,)."""
    pairs = [(r, y) for r, y in zip(log_prob.double().tolist(), label.tolist(), strict=True) if y >= 0]
    rows, labels = [r for r, _ in pairs], [y for _, y in pairs]
    probs = [[math.exp(v) for v in row] for row in rows]
    guess = [row.index(max(row)) for row in rows]
    hit = [g == y for g, y in zip(guess, labels, strict=True)]
    confidence = [max(p) for p in probs]
    recalls = [mean([h for h, y in zip(hit, labels, strict=True) if y == c]) for c in sorted(set(labels))]
    ious = []
    for c in sorted(set(labels) | set(guess)):
        either = [g == y for g, y in zip(guess, labels, strict=True) if c in (g, y)]
        ious.append(mean(either))
    classes = range(log_prob.shape[1])
    return {
        "accuracy": mean(hit),
        "mean_class_accuracy": mean(recalls),
        "mean_iou": mean(ious),
        "ece": slow_ece(confidence, hit, 15),
        "ece_10": slow_ece(confidence, hit, 10),
        "classwise_ece": mean(
            [slow_ece([p[c] for p in probs], [y == c for y in labels], 15) for c in classes]
        ),
        "nll": mean([-row[y] for row, y in zip(rows, labels, strict=True)]),
        "brier": mean(
            [sum((p[c] - (c == y)) ** 2 for c in classes) for p, y in zip(probs, labels, strict=True)]
        ),
        "aurc": slow_aurc([max(row) for row in rows], [not h for h in hit]),
    }


def check_definition(log_prob: Tensor, label: Tensor) -> None:
    tally = tally_batch(log_prob, label)
    expected, found = slow(log_prob, label), compute_metrics(tally)
    assert list(found) == list(expected)
    assert abs(found.pop("aurc") - expected.pop("aurc")) <= aurc_error_bound(tally) + 1e-12
    assert found == pytest.approx(expected, rel=1e-11, abs=1e-12)


@pytest.mark.parametrize(("n", "classes"), [(1, 2), (2, 3), (40, 5), (300, 12), (60, 65)])
@pytest.mark.parametrize("scale", [0.0, 0.5, 8.0])
def test_every_metric_matches_its_definition(n: int, classes: int, scale: float) -> None:
    log_prob, label = sample(n, classes, seed=n, scale=scale)
    label[0] = classes - 1  # at least one counts
    check_definition(log_prob, label)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Draw few distinct logits, so ties, certainty and absent classes are common."""
    classes, n = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    logit = st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 3.0, 40.0])
    z = torch.tensor(
        draw(st.lists(st.lists(logit, min_size=classes, max_size=classes), min_size=n, max_size=n))
    )
    z[:, 0] = z[:, 0].clamp_min(-1.0)  # a row of only -inf is not a distribution
    label = torch.tensor(draw(st.lists(st.integers(-2, classes - 1), min_size=n, max_size=n)))
    label[draw(st.integers(0, n - 1))] = draw(st.integers(0, classes - 1))
    # float32, so no probability is within rounding of a bin edge, where two exp may disagree.
    return z.double().log_softmax(1).float(), label


@settings(derandomize=True, deadline=None, max_examples=80)
@given(batches())
def test_ties_certainty_and_absent_classes_match_the_definition(batch: tuple[Tensor, Tensor]) -> None:
    check_definition(*batch)


# Against torchmetrics. Its bins are closed on the left: equal unless a confidence is on an edge.


def test_metrics_match_torchmetrics() -> None:
    log_prob, label = sample(2000, 7)
    keep = label >= 0
    prob, y = log_prob.double().exp()[keep], label[keep]
    tally = tally_batch(log_prob, label)
    found = compute_metrics(tally)
    assert torch.equal(tally.confusion, multiclass_confusion_matrix(prob, y, num_classes=7))
    references: dict[str, Callable[..., Tensor]] = {
        "accuracy": lambda **k: multiclass_accuracy(**k, average="micro"),
        "mean_class_accuracy": lambda **k: multiclass_accuracy(**k, average="macro"),
        "mean_iou": lambda **k: multiclass_jaccard_index(**k, average="macro"),
        "ece": lambda **k: multiclass_calibration_error(**k, n_bins=15, norm="l1"),
        "ece_10": lambda **k: multiclass_calibration_error(**k, n_bins=10, norm="l1"),
    }
    for name, reference in references.items():
        expected = float(reference(preds=prob, target=y, num_classes=7))
        assert found[name] == pytest.approx(expected, rel=1e-5), name  # torchmetrics averages in float32


# Bins and their edges.


@pytest.mark.parametrize("bins", [10, 15, 30])
def test_bins_are_closed_on_the_right_and_nest(bins: int) -> None:
    edges = torch.arange(1, bins + 1, dtype=torch.float64) / bins
    zero, two = edges.new_tensor(0.0), edges.new_tensor(2.0)
    assert probability_bin(edges, bins).tolist() == list(range(bins))
    assert probability_bin(edges.nextafter(zero), bins).tolist() == list(range(bins))
    assert probability_bin(edges[:-1].nextafter(two), bins).tolist() == list(range(1, bins))
    # Rounding may leave a probability slightly above one.
    assert probability_bin(edges.new_tensor([0.0, 1.0, 1.0 + 1e-7]), bins).tolist() == [0, bins - 1, bins - 1]
    fine = torch.arange(FINE_BINS + 1, dtype=torch.float64) / FINE_BINS
    fine = torch.cat([fine, fine.nextafter(zero), fine.nextafter(two)])
    assert torch.equal(probability_bin(fine, FINE_BINS) // (FINE_BINS // bins), probability_bin(fine, bins))


@pytest.mark.parametrize("bins", [10, 15])
def test_reliability_bins_add_up_to_the_error(bins: int) -> None:
    tally = tally_batch(*sample(500, 4))
    drawn = reliability_bins(tally, bins)
    assert json.loads(json.dumps(drawn)) == drawn
    assert drawn["upper"] == [(b + 1) / bins for b in range(bins)]
    assert sum(drawn["count"]) == tally.total
    error = 0.0
    columns = zip(drawn["upper"], drawn["count"], drawn["confidence"], drawn["accuracy"], strict=True)
    for upper, n, confidence, right in columns:
        assert (n == 0) == (confidence is None) == (right is None)
        if confidence is not None and right is not None:
            assert upper - 1 / bins - 1e-12 < confidence <= upper + 1e-12
            error += n / tally.total * abs(right - confidence)
    assert ece(tally, bins) == pytest.approx(error)
    assert None in drawn["accuracy"]  # the first bin must be empty with four classes


# From a confusion matrix.


def test_per_class_values_are_none_for_absent_classes() -> None:
    confusion = torch.tensor([[3, 1, 0, 0], [2, 2, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    assert class_accuracy(confusion) == [3 / 4, 2 / 4, None, 0.0]
    assert class_iou(confusion) == [3 / 7, 2 / 5, None, 0.0]
    assert accuracy(confusion) == 5 / 9
    assert mean_class_accuracy(confusion) == pytest.approx((3 / 4 + 2 / 4) / 3)
    assert mean_iou(confusion) == pytest.approx((3 / 7 + 2 / 5) / 3)
    for left_out in ([3], [3, 3]):  # an excluded class still takes pixels from the others
        assert mean_iou_excluding(confusion, left_out) == pytest.approx((3 / 7 + 2 / 5) / 2)
    assert mean_iou_excluding(confusion, [2]) == mean_iou_excluding(confusion, []) == mean_iou(confusion)
    for wrong in ([-1], [4], [0, 9]):
        with pytest.raises(ValueError, match="cannot exclude class"):
            mean_iou_excluding(confusion, wrong)
    with pytest.raises(ValueError, match="nothing was counted"):
        mean_iou_excluding(confusion, range(4))


# Selective risk.


def from_confidence(log_confidence: Tensor, wrong: Tensor) -> Tally:
    """Make a tally of two classes; the first is predicted with the given confidence, at least a half."""
    s = log_confidence.double()
    return tally_batch(torch.stack([s, (-torch.expm1(s)).log()], 1), wrong.long())


def test_aurc_of_ties_is_the_mean_over_all_orders() -> None:
    log_confidence = torch.tensor([-0.1, -0.2, -0.2, -0.2, -0.2, -0.3, -0.3], dtype=torch.float64)
    wrong = torch.tensor([0, 1, 0, 0, 1, 1, 0], dtype=torch.bool)

    def area(order: Sequence[bool]) -> float:
        return mean([sum(order[: i + 1]) / (i + 1) for i in range(len(order))])

    w = wrong.tolist()
    orders = [[*w[:1], *a, *b] for a in itertools.permutations(w[1:5]) for b in itertools.permutations(w[5:])]
    expected = mean([area(order) for order in orders])
    assert aurc(from_confidence(log_confidence, wrong)) == pytest.approx(expected, rel=1e-13)
    assert slow_aurc(log_confidence.tolist(), w) == pytest.approx(expected, rel=1e-13)


def test_selective_risk_of_heavy_ties_is_exact() -> None:
    generator = torch.Generator().manual_seed(3)
    levels = torch.tensor([0.0, -1e-14, -1e-12, -1e-7, -1e-3, -0.2, -0.5, -0.69], dtype=torch.float64)
    log_confidence = levels[torch.randint(len(levels), (3000,), generator=generator)]
    wrong = torch.rand(3000, generator=generator) < 0.1 - 0.5 * log_confidence
    tally = from_confidence(log_confidence, wrong)
    assert aurc(tally) == pytest.approx(slow_aurc(log_confidence.tolist(), wrong.tolist()), rel=1e-11)
    assert aurc_error_bound(tally) > 1e-3  # the bound does not use that these ties are exact


def test_the_bound_holds_against_the_worst_order_in_a_bin() -> None:
    """All are in one fine bin, and the errors are all slightly more, or all slightly less, confident."""
    n, k = 64, 16
    log_confidence = -0.5 * (1 + 1e-6 * torch.arange(n, dtype=torch.float64))
    for wrong in (torch.arange(n) < k, torch.arange(n) >= n - k):
        tally = from_confidence(log_confidence, wrong)
        error = abs(aurc(tally) - slow_aurc(log_confidence.tolist(), wrong.tolist()))
        assert int((tally.fine_count > 0).sum()) == 1
        assert aurc(tally) == pytest.approx(k / n)
        assert 0.1 < error <= aurc_error_bound(tally)


def test_rank_follows_confidence() -> None:
    s = torch.logspace(-20, 1.2, 20001, dtype=torch.float64)
    rank = confidence_bin(-s)
    assert bool((rank.diff() >= 0).all())
    together = rank.unsqueeze(0) == torch.arange(1, metrics.N_CONFIDENCE_BINS - 1, 1000).unsqueeze(1)
    for inside in (s[row] for row in together if row.sum() > 1):
        assert float(inside.max() / inside.min()) <= 1 + 2**-10
    ends = torch.tensor([1e-9, 0.0, -0.0, -1e-30, -20.0, -math.inf], dtype=torch.float64)
    assert confidence_bin(ends).tolist() == [0] * 4 + [metrics.N_CONFIDENCE_BINS - 1] * 2


# The state: fixed in size, additive, deterministic.


class Watch(TorchDispatchMode):
    """Record the size of the largest float64 tensor created, and every operation that reads from a device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it so
        self.largest, self.reads = 0, list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple) else (made,):
            if isinstance(tensor, Tensor) and tensor.dtype == torch.float64:
                self.largest = max(self.largest, tensor.numel())
        if any(name in str(func) for name in ("_local_scalar_dense", "nonzero", "masked_select")):
            self.reads.append(str(func))
        return made


@pytest.mark.parametrize("shape", [(4, 5, 64, 64), (2000, 5)])
def test_no_large_copy_is_made(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    monkeypatch.setattr(metrics, "CPU_CHUNK_PROBABILITIES", 1000)
    log_prob = torch.randn(shape, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    with Watch() as watch:
        tally_batch(log_prob, torch.zeros(shape[:1] + shape[2:], dtype=torch.int64))
    assert 500 < watch.largest <= 1000


def test_batches_and_processes_add_up() -> None:
    log_prob, label = sample(1000, 5)
    whole = tally_batch(log_prob, label)
    processes = [Tally.empty(5), Tally.empty(5)]
    layout = [(t.shape, t.dtype) for t in processes[0].tensors().values()]
    for i, (rows, y) in enumerate(zip(log_prob.split(64), label.split(64), strict=True)):
        processes[i % 2].update(rows, y)
    processes[0].update(log_prob[:0], label[:0])
    assert [(t.shape, t.dtype) for t in processes[0].tensors().values()] == layout  # of fixed size
    assert {dtype for _, dtype in layout} == {torch.int64, torch.float64}
    same(processes[0] + processes[1], whole)
    states = [process.tensors() for process in processes]
    reduced = Tally(**{name: torch.stack([s[name] for s in states]).sum(0) for name in states[0]})
    same(reduced, whole)
    assert compute_metrics(reduced) == pytest.approx(compute_metrics(whole), rel=1e-12)


def test_negative_labels_are_ignored() -> None:
    log_prob, label = sample(400, 4)
    expected = tally_batch(log_prob[label >= 0], label[label >= 0])
    log_prob[label < 0] = math.nan  # any use would show
    label[label < 0] = torch.where(torch.arange(int((label < 0).sum())) % 2 == 0, -1, -255)
    same(tally_batch(log_prob, label), expected, exact=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_double(dtype: torch.dtype) -> None:
    log_prob, label = sample(5000, 30)
    half = log_prob.to(dtype)
    same(tally_batch(half, label.to(torch.int32)), tally_batch(half.double(), label), exact=True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_device_of_the_input_does_not_matter(device: str) -> None:
    log_prob, label = sample(3000, 19)
    found = tally_batch(log_prob.to(device).requires_grad_(), label)
    same(found, tally_batch(log_prob, label.to(device)))
    assert {t.device.type for t in found.tensors().values()} == {"cpu"}
    assert not any(t.requires_grad for t in found.tensors().values())  # the graph is not kept


# Label maps.


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("chunk", [1, 130, 2**17])
@pytest.mark.parametrize("void", [0.0, 0.1, 1.0])
def test_maps_stream(
    monkeypatch: pytest.MonkeyPatch, chunk: int, void: float, layout: torch.memory_format
) -> None:
    rows, label = sample(6 * 4 * 5, 10, void=void)
    label[::97] = -2
    as_rows = tally_batch(rows, label)
    log_prob = rows.view(6, 4, 5, 10).permute(0, 3, 1, 2).contiguous(memory_format=layout)
    maps = label.view(6, 4, 5).to(torch.int8)
    monkeypatch.setattr(metrics, "CPU_CHUNK_PROBABILITIES", chunk)
    streamed = Tally.empty(10)
    for some, y in zip(log_prob.split(4), maps.split(4), strict=True):  # the last batch is smaller
        streamed.update(some, y)
    for other in (streamed, tally_batch(log_prob, maps), tally_batch(rows, label)):
        same(other, as_rows)
    assert as_rows.total == int((label >= 0).sum())


def test_synchronisations_do_not_grow_with_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read synchronises with a GPU; the number of reads must not grow with the number of chunks."""
    rows, label = sample(2 * 24 * 40, 10)
    log_prob, label = rows.view(2, 24, 40, 10).permute(0, 3, 1, 2), label.view(2, 24, 40)
    reads = []
    for chunk in (2**17, 100):
        monkeypatch.setattr(metrics, "CPU_CHUNK_PROBABILITIES", chunk)
        with Watch() as watch:
            tally_batch(log_prob, label)
        reads.append(watch.reads)
    assert reads[0] == reads[1]
    assert 0 < len(reads[0]) <= 4


# Invalid input.


def test_empty_tally_raises() -> None:
    tally = Tally.empty(3)
    tally.update(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    tally.update(torch.zeros(0, 3, 4, 4), torch.zeros(0, 4, 4, dtype=torch.int64))
    tally.update(torch.zeros(2, 3, 0), torch.zeros(2, 0, dtype=torch.int64))
    tally.update(torch.zeros(2, 3), torch.tensor([-1, -2]))
    readers: list[Callable[[Tally], object]] = [compute_metrics, ece, classwise_ece, aurc, aurc_error_bound]
    for read in (*readers, reliability_bins):
        with pytest.raises(ValueError, match="nothing was counted"):
            read(tally)
    for of_confusion in (accuracy, mean_class_accuracy, mean_iou):
        with pytest.raises(ValueError, match="nothing was counted"):
            of_confusion(tally.confusion)


@pytest.mark.parametrize(
    "not_log_prob",
    [
        pytest.param(torch.tensor([[0.7, 0.3]]), id="probabilities"),
        pytest.param(torch.tensor([[2.0, -1.0]]), id="logits"),
        pytest.param(torch.tensor([[-math.inf, -math.inf]]), id="no mass"),
        pytest.param(torch.tensor([[math.nan, 0.0]]), id="nan"),
    ],
)
def test_invalid_log_probabilities_are_refused_as_a_whole(
    not_log_prob: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "CPU_CHUNK_PROBABILITIES", 2)  # the bad row is in a later chunk
    tally = Tally.empty(2)
    good = torch.tensor([[0.5, 0.5]]).log()
    with pytest.raises(ValueError, match="expected log-probabilities"):
        tally.update(torch.cat([good, not_log_prob]), torch.tensor([0, 0]))
    same(tally, Tally.empty(2), exact=True)


def test_mismatched_input_is_refused() -> None:
    log_prob, label = sample(4, 3, void=0.0)
    for rows, bad, message in (
        (log_prob, torch.tensor([0, 1, 255, 2]), "label 255 for 3 classes"),
        (log_prob, label[:3], "expected log_prob"),
        (log_prob, label.unsqueeze(1), "expected log_prob"),
        (log_prob[0], label[0], "expected log_prob"),
        (log_prob, label.float(), "integer label"),
    ):
        with pytest.raises(ValueError, match=message):
            tally_batch(rows, bad)
    with pytest.raises(ValueError, match="log_prob has 3 classes, the tally 4"):
        Tally.empty(4).update(log_prob, label)
    with pytest.raises(ValueError, match="cannot add tallies of 3 and 4 classes"):
        _ = Tally.empty(3) + Tally.empty(4)
    with pytest.raises(ValueError, match="at least one class"):
        Tally.empty(0)
    with pytest.raises(ValueError, match="cannot be merged into 20"):
        ece(tally_batch(log_prob, label), bins=20)
