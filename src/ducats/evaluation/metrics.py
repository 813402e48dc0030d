"""Accuracy, calibration and selective risk of class probabilities.

All metrics are computed from a ``Tally``: sums of fixed size, independent of the number of images or pixels.
Tallies can be added, e.g. over batches or processes. The input is always **log-probabilities**
``(N, C, ...)``, never logits; values that do not sum to one are rejected. If classes tie, the first is
predicted.

ECE: Naeini et al., AAAI 2015. Classwise ECE: Kull et al., NeurIPS 2019. AURC: Geifman et al., ICLR 2019.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TypedDict

import torch
from torch import Tensor

ECE_BINS = 15  # bins of the main calibration error
FINE_BINS = 30  # bins stored: the smallest number that merges exactly into both 15 and 10
# Probabilities at a time on a CPU: 1 MB per float64 temporary, which fits into caches.
CPU_CHUNK_PROBABILITIES = 2**17
GPU_CHUNK_FACTOR = 32  # times as many on a GPU, where smaller chunks are bound by launch overhead
# Distance of a sum of probabilities from 1: bfloat16 is up to 2 % off, logits are further.
NORMALISATION_TOLERANCE = 0.05

# Confidences are ranked by the leading bits of -log(p): 64 octaves, from 2^-60 to 2^4, of 2^10 bins each.
OCTAVE_BITS = 10
LOWEST_OCTAVE = -60
N_CONFIDENCE_BINS = 64 << OCTAVE_BITS


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over all positions counted so far; tallies can be added.

    Over several processes, sum each tensor and wrap the results:
    ``Tally(**{name: all_reduce(t) for name, t in tally.tensors().items()})``.

    >>> tally = Tally.empty(classes=2)
    >>> tally.update(torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]]).log(), torch.tensor([0, 0, -1]))
    >>> tally.total, tally.confusion.tolist()
    (2, [[1, 1], [0, 0]])
    >>> round(compute_metrics(tally + tally)["ece"], 4)
    0.35
    """

    confusion: Tensor  # int64 (C, C): rows are labels, columns predictions
    bin_count: Tensor  # int64 (FINE_BINS,): positions by confidence, the largest probability
    bin_correct: Tensor  # int64 (FINE_BINS,): those predicted correctly
    bin_confidence: Tensor  # float64 (FINE_BINS,): sum of their confidences
    class_count: Tensor  # int64 (C, ECE_BINS): positions of class c, by the predicted probability of c
    class_confidence: Tensor  # float64 (C, ECE_BINS): sum of the predicted probabilities of c, by probability
    fine_count: (
        Tensor  # int64 (N_CONFIDENCE_BINS,): positions by confidence in fine bins, most confident first
    )
    fine_wrong: Tensor  # int64 (N_CONFIDENCE_BINS,): those predicted wrongly
    nll_sum: Tensor  # float64 (): sum of -log p(label)
    brier_sum: Tensor  # float64 (): sum of squared distances to the one-hot label

    @classmethod
    def empty(cls, classes: int, device: torch.device | str = "cpu") -> "Tally":
        """Return a tally of zeros."""
        if classes < 1:
            raise ValueError(f"a tally needs at least one class, got {classes}")
        int_zeros = partial(torch.zeros, dtype=torch.int64, device=device)
        float_zeros = partial(torch.zeros, dtype=torch.float64, device=device)
        return cls(
            confusion=int_zeros(classes, classes),
            bin_count=int_zeros(FINE_BINS),
            bin_correct=int_zeros(FINE_BINS),
            bin_confidence=float_zeros(FINE_BINS),
            class_count=int_zeros(classes, ECE_BINS),
            class_confidence=float_zeros(classes, ECE_BINS),
            fine_count=int_zeros(N_CONFIDENCE_BINS),
            fine_wrong=int_zeros(N_CONFIDENCE_BINS),
            nll_sum=float_zeros(()),
            brier_sum=float_zeros(()),
        )

    @property
    def classes(self) -> int:
        """Number of classes, whether they occur or not."""
        return len(self.confusion)

    @property
    def total(self) -> int:
        """Number of positions counted; negative labels are not counted."""
        return int(self.confusion.sum())

    def tensors(self) -> dict[str, Tensor]:
        """Return the sums by name, without copying: ``Tally(**tally.tensors())`` shares them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def update(self, log_prob: Tensor, label: Tensor) -> None:
        """Add log-probabilities ``(N, C, ...)`` and labels ``(N, ...)`` in place; all, or none if invalid."""
        if log_prob.ndim > 1 and log_prob.shape[1] != self.classes:
            raise ValueError(f"log_prob has {log_prob.shape[1]} classes, the tally {self.classes}")
        batch = _tally_on_device(log_prob, label).tensors()
        for name, own in self.tensors().items():
            own += batch[name].to(own.device)

    def __add__(self, other: "Tally") -> "Tally":
        if self.classes != other.classes:
            raise ValueError(f"cannot add tallies of {self.classes} and {other.classes} classes")
        others = other.tensors()
        return Tally(**{name: own + others[name] for name, own in self.tensors().items()})


def tally_batch(log_prob: Tensor, label: Tensor) -> Tally:
    """Return the tally of one batch on the CPU, computed on the device of ``log_prob``.

    Args:
        log_prob: log-probabilities ``(N, C, ...)``; ``-inf`` is a probability of zero.
        label: classes ``(N, ...)``; negative labels are not counted.
    """
    return Tally(**{name: t.cpu() for name, t in _tally_on_device(log_prob, label).tensors().items()})


def _tally_on_device(log_prob: Tensor, label: Tensor) -> Tally:
    """Return the tally of one batch on the device of ``log_prob``.

    Synchronises with a GPU a few times per batch, never per chunk.
    """
    _check(log_prob, label)
    device = torch.device("cpu") if log_prob.device.type == "mps" else log_prob.device  # mps has no float64
    sums = Tally.empty(log_prob.shape[1], device)
    chunks = _chunks(log_prob.detach().to(device), label.to(device))
    if masses := [_add_chunk(sums, log_p, y) for log_p, y in chunks]:
        _check_normalised(masses)  # once, at the end: invalid values were only added to new sums
    return sums


def _check(log_prob: Tensor, label: Tensor) -> None:
    if log_prob.ndim < 2 or label.shape != log_prob.shape[:1] + log_prob.shape[2:]:
        shapes = f"{tuple(log_prob.shape)} and {tuple(label.shape)}"
        raise ValueError(f"expected log_prob (N, C, ...) and label (N, ...), got {shapes}")
    if not log_prob.is_floating_point() or label.is_floating_point() or label.dtype == torch.bool:
        raise ValueError(f"expected real log_prob and integer label, got {log_prob.dtype} and {label.dtype}")
    highest = int(label.max()) if label.numel() else -1
    if highest >= log_prob.shape[1]:
        found = f"label {highest} for {log_prob.shape[1]} classes"
        raise ValueError(f"{found}; use a negative label for positions that do not count")


def _chunks(log_prob: Tensor, label: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield positions that count, in chunks, as float64 ``(C, M)`` and labels ``(M,)``."""
    if log_prob.ndim == 2:  # rows are the positions of one map
        log_prob, label = log_prob.T.unsqueeze(0), label.unsqueeze(0)
    log_prob = log_prob.flatten(2)  # (N, C, P); a view, nothing is copied
    label = label.flatten(1)  # (N, P)
    chunk_size = (
        CPU_CHUNK_PROBABILITIES
        if log_prob.device.type == "cpu"
        else CPU_CHUNK_PROBABILITIES * GPU_CHUNK_FACTOR
    )
    counts = label >= 0
    positions = counts.nonzero()[:, 1]  # of all maps, concatenated
    for of_map, y, where in zip(log_prob, label, positions.split(counts.sum(1).tolist()), strict=True):
        for index in where.split(max(1, chunk_size // log_prob.shape[1])) if len(where) else ():
            yield _select_columns(of_map, index).double(), y[index].long()


def _select_columns(log_prob: Tensor, index: Tensor) -> Tensor:
    """Select columns of ``(C, P)``, keeping the memory order: changing it takes twice as long."""
    if log_prob.stride(0) == 1:
        return log_prob.T.index_select(0, index).T
    return log_prob.index_select(1, index)


def _add_chunk(sums: Tally, log_prob: Tensor, label: Tensor) -> Tensor:
    """Add float64 ``(C, M)`` and their labels ``(M,)``; return the lowest and highest sum over C.

    Normalisation is checked later, so every index is clamped to its bounds, NaN included.
    """
    prob = log_prob.exp()
    mass = prob.sum(0)
    best, predicted = log_prob.max(0)
    confidence = best.exp()
    is_correct = predicted == label
    _add_at(sums.confusion, label * sums.classes + predicted)

    fine = probability_bin(confidence, FINE_BINS)
    _add_at(sums.bin_count, fine)
    _add_at(sums.bin_correct, fine, is_correct.long())
    _add_at(sums.bin_confidence, fine, confidence)

    cell = probability_bin(prob, ECE_BINS)
    cell += ECE_BINS * torch.arange(sums.classes, dtype=cell.dtype, device=cell.device).unsqueeze(1)  # (C, M)
    of_label = label.unsqueeze(0)
    _add_at(sums.class_count, cell.gather(0, of_label))
    _add_at(sums.class_confidence, cell, prob)

    fine_bin = confidence_bin(best)
    _add_at(sums.fine_count, fine_bin)
    _add_at(sums.fine_wrong, fine_bin, (~is_correct).long())

    sums.nll_sum.sub_(log_prob.gather(0, of_label).sum())
    # In place to save a copy: from here on, `prob` is the difference to the one-hot label.
    prob.scatter_(0, of_label, prob.gather(0, of_label) - 1)
    sums.brier_sum.add_(prob.square_().sum())
    return torch.stack(mass.aminmax())


def _check_normalised(masses: list[Tensor]) -> None:
    low, high = torch.stack(masses).T.tolist()
    # This form also rejects NaN.
    if not all(abs(mass - 1) <= NORMALISATION_TOLERANCE for mass in (*low, *high)):
        found = f"between {min(low):.3g} and {max(high):.3g}"
        raise ValueError(f"expected log-probabilities: exp must sum to 1 over dim 1, not {found}")


def _add_at(sums: Tensor, index: Tensor, amount: Tensor | None = None) -> None:
    """Add ``amount`` (default: ones) at ``index``; sequential on the CPU, hence deterministic."""
    increments = torch.ones_like(index, dtype=sums.dtype) if amount is None else amount
    sums.view(-1).index_add_(0, index.reshape(-1), increments.reshape(-1))


def probability_bin(prob: Tensor, bins: int) -> Tensor:
    """Return the bin of each float64 probability among ``bins`` equal bins ``(lo, hi]``; 0 is in the first.

    >>> probability_bin(torch.tensor([0.0, 0.5, 0.5001, 1.0], dtype=torch.float64), bins=2).tolist()
    [0, 0, 1, 1]
    """
    # Much faster than a search, and as exact: a factor slightly too small can only give one bin too low, just
    # above that bin's edge, which the comparison with the edge corrects.
    guess = (prob * (bins * (1 - 2**-51))).ceil_()
    guess += prob > guess / bins
    return guess.clamp_(1, bins).sub_(1).int().clamp_(0, bins - 1)  # last clamp: NaN to int is arbitrary


def confidence_bin(log_confidence: Tensor) -> Tensor:
    """Return the fine bin of each float64 log-confidence; lower bins are at least as confident.

    Two confidences share a bin only if their -log p agree within a factor 1 + 2^-10, or are both below 2^-60.

    >>> confidence_bin(torch.tensor([0.0, -1e-15, -1e-9, -0.7, -0.701], dtype=torch.float64)).tolist()
    [0, 10368, 30795, 60825, 60827]
    """
    # Positive floats sort as their bits do: exponent first, then the leading digits. If rounding makes -log p
    # negative, the sign bit makes the integer negative, which correctly gives the first bin.
    bits = (-log_confidence).view(torch.int64) >> (52 - OCTAVE_BITS)
    return (bits - ((1023 + LOWEST_OCTAVE) << OCTAVE_BITS)).clamp(0, N_CONFIDENCE_BINS - 1)


def _check_counted(total: int) -> int:
    if total == 0:
        raise ValueError("nothing was counted: all labels are negative")
    return total


def accuracy(confusion: Tensor) -> float:
    """Return the fraction of correct predictions, from ``(C, C)`` counts."""
    return int(confusion.diagonal().sum()) / _check_counted(int(confusion.sum()))


def class_accuracy(confusion: Tensor) -> list[float | None]:
    """Return the recall of each class; None if the class does not occur.

    >>> class_accuracy(torch.tensor([[3, 1], [0, 0]]))
    [0.75, None]
    """
    return _ratios(confusion.diagonal(), confusion.sum(1))


def mean_class_accuracy(confusion: Tensor) -> float:
    """Return the mean recall over the classes that occur."""
    return _mean(class_accuracy(confusion))


def class_iou(confusion: Tensor) -> list[float | None]:
    """Return the intersection over union of each class; None if it is neither label nor prediction."""
    hit = confusion.diagonal()
    return _ratios(hit, confusion.sum(0) + confusion.sum(1) - hit)


def mean_iou(confusion: Tensor) -> float:
    """Return the mean IoU over the classes that occur as label or prediction."""
    return _mean(class_iou(confusion))


def mean_iou_excluding(confusion: Tensor, excluded_classes: Sequence[int]) -> float:
    """Return the mean IoU over the other classes, e.g. mIoU* of SYNTHIA to Cityscapes.

    Classes are excluded from the mean only: predicting one of them for a pixel of another class is still an
    error. As in ``mean_iou``, a class that is neither label nor prediction is ignored.

    >>> confusion = torch.tensor([[3, 1, 0], [0, 2, 2], [0, 0, 0]])
    >>> class_iou(confusion), mean_iou_excluding(confusion, [2])
    ([0.75, 0.4, 0.0], 0.575)
    """
    wrong = [c for c in excluded_classes if not 0 <= c < len(confusion)]
    if wrong:
        raise ValueError(f"cannot exclude class {wrong[0]} of {len(confusion)} classes")
    return _mean([value for c, value in enumerate(class_iou(confusion)) if c not in set(excluded_classes)])


def _ratios(numerator: Tensor, denominator: Tensor) -> list[float | None]:
    return [p / w if w else None for p, w in zip(numerator.tolist(), denominator.tolist(), strict=True)]


def _mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / _check_counted(len(known))


def ece(tally: Tally, bins: int = ECE_BINS) -> float:
    """Return the expected calibration error ``Σ_m |B_m|/n · |acc(B_m) - conf(B_m)|``, bins ``(lo, hi]``."""
    # |B|/n · |correct/|B| - sum/|B|| = |correct - sum| / n: empty bins need no special case.
    gap = _merge_bins(tally.bin_correct, bins) - _merge_bins(tally.bin_confidence, bins)
    return float(gap.abs().sum()) / _check_counted(tally.total)


def classwise_ece(tally: Tally) -> float:
    """Return the calibration error of each class's probability, averaged over all C classes.

    ``1/C Σ_c Σ_b |B_cb|/n · |freq_cb - mean p_cb|``: ``B_cb`` are the positions, of any label, whose
    probability of class c is in bin b of 15; ``freq_cb`` is the fraction of them with label c. A class that
    does not occur counts too: its probability should be zero.
    """
    gap = tally.class_count - tally.class_confidence
    return float(gap.abs().sum()) / (_check_counted(tally.total) * tally.classes)


class ReliabilityBins(TypedDict):
    """A reliability diagram as lists, one entry per bin ``(upper[i-1], upper[i]]``; None if empty."""

    upper: list[float]
    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]


def reliability_bins(tally: Tally, bins: int = ECE_BINS) -> ReliabilityBins:
    """Return the number of positions, mean confidence and accuracy of each bin."""
    _check_counted(tally.total)
    n = _merge_bins(tally.bin_count, bins)
    return ReliabilityBins(
        upper=[(i + 1) / bins for i in range(bins)],
        count=n.tolist(),
        confidence=_ratios(_merge_bins(tally.bin_confidence, bins), n),
        accuracy=_ratios(_merge_bins(tally.bin_correct, bins), n),
    )


def _merge_bins(fine: Tensor, bins: int) -> Tensor:
    if bins < 1 or FINE_BINS % bins:
        raise ValueError(f"{FINE_BINS} bins cannot be merged into {bins}")
    return fine.view(bins, -1).sum(1)


def aurc(tally: Tally) -> float:
    """Return the area under the risk-coverage curve: ``1/n Σ_i (errors among the i most confident) / i``.

    Positions that share a fine bin (see ``confidence_bin``) are ties: the result is the expectation over
    their random order, in closed form. It is exact for exact ties; otherwise the error is at most
    ``aurc_error_bound``.
    """
    n, wrong, before, harmonic = _rank_sums(tally)
    wrong_before = wrong.cumsum(0) - wrong
    # A bin of m with k errors, after b positions with e errors, adds Σ_j (e + j·k/m) / (b + j), j = 1..m.
    # That is k + (e - b·k/m) · Σ_j 1 / (b + j).
    area = wrong + (wrong_before - before * wrong / n.clamp_min(1)) * harmonic
    return float(area.sum()) / _check_counted(tally.total)


def aurc_error_bound(tally: Tally) -> float:
    """Return an upper bound of the error of ``aurc`` due to binning the confidences.

    Among m ties with k errors, the first j have j·k/m errors in expectation, and in any order their number
    differs from that by at most k(m-k)/m. With at most M positions in any bin, the bound is below
    ``M (1 + log n) / 4n``; it is zero if no bin has both correct and wrong predictions.
    """
    n, wrong, _, harmonic = _rank_sums(tally)
    return float((wrong * (n - wrong) / n.clamp_min(1) * harmonic).sum()) / _check_counted(tally.total)


def _rank_sums(tally: Tally) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return per fine bin: positions, errors, positions before it, and ``Σ 1/i`` over its ranks i."""
    n, wrong = tally.fine_count.cpu().double(), tally.fine_wrong.cpu().double()
    after = n.cumsum(0)
    before = after - n
    return n, wrong, before, torch.digamma(after + 1) - torch.digamma(before + 1)


def compute_metrics(tally: Tally) -> dict[str, float]:
    """Return all metrics by name; raise ``ValueError`` if nothing was counted.

    ``nll`` is infinite if a label has probability zero. ``brier`` is a sum over classes, in [0, 2].

    >>> tally = tally_batch(torch.tensor([[0.8, 0.2], [0.7, 0.3]]).log(), torch.tensor([0, 1]))
    >>> for name, value in compute_metrics(tally).items():
    ...     print(f"{name} {value:.3f}")
    accuracy 0.500
    mean_class_accuracy 0.500
    mean_iou 0.250
    ece 0.450
    ece_10 0.450
    classwise_ece 0.450
    nll 0.714
    brier 0.530
    aurc 0.250
    """
    total = _check_counted(tally.total)
    return {
        "accuracy": accuracy(tally.confusion),
        "mean_class_accuracy": mean_class_accuracy(tally.confusion),
        "mean_iou": mean_iou(tally.confusion),
        "ece": ece(tally),
        "ece_10": ece(tally, bins=10),
        "classwise_ece": classwise_ece(tally),
        "nll": float(tally.nll_sum) / total,
        "brier": float(tally.brier_sum) / total,
        "aurc": aurc(tally),
    }
