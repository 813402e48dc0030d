"""How good, and how honest, a model's probabilities are: accuracy, calibration, selective risk.

Everything is read from a ``Tally``: sums of fixed size, whatever the number of images or pixels. Tallies
add up, so batches, and processes, may be counted apart. The input is always **log-probabilities**
``(N, C, ...)``, never logits; what does not sum to one is refused. Where classes tie, the first is predicted.

ECE: Naeini et al., AAAI 2015. Classwise ECE: Kull et al., NeurIPS 2019. AURC: Geifman et al., ICLR 2019.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TypedDict

import torch
from torch import Tensor

BINS = 15  # of the calibration error that is reported first
FINE_BINS = 30  # kept: the least number from which both 15 and 10 bins follow without error
CHUNK = 2**17  # probabilities looked at together on a CPU: 1 MB for each float64 temporary, so caches hold it
WIDER = 32  # times as many on a GPU, which would wait for its next orders otherwise
TOLERANCE = 0.05  # of a sum of probabilities about one: bfloat16 may be 2 % off, logits are further

# Confidences are ranked by the leading bits of -log(p): 64 octaves, from 2^-60 to 2^4, of 2^10 bins each.
OCTAVE_BITS = 10
LOWEST_OCTAVE = -60
RANKS = 64 << OCTAVE_BITS


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over all positions counted so far; every one may be added to that of another tally.

    Over several processes, sum each tensor and wrap the results:
    ``Tally(**{name: all_reduce(t) for name, t in tally.tensors().items()})``.

    >>> tally = Tally.empty(classes=2)
    >>> tally.update(torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]]).log(), torch.tensor([0, 0, -1]))
    >>> tally.total, tally.confusion.tolist()
    (2, [[1, 1], [0, 0]])
    >>> round(compute(tally + tally)["ece"], 4)
    0.35
    """

    confusion: Tensor  # int64 (C, C): row the label, column the prediction
    bin_count: Tensor  # int64 (FINE_BINS,): positions by confidence, the largest probability
    bin_correct: Tensor  # int64 (FINE_BINS,): those of them predicted rightly
    bin_confidence: Tensor  # float64 (FINE_BINS,): sum of their confidences
    class_count: Tensor  # int64 (C, BINS): positions of class c, by the probability given to c
    class_confidence: Tensor  # float64 (C, BINS): sum of the probabilities given to c, by themselves
    rank_count: Tensor  # int64 (RANKS,): positions by confidence, finely, the most confident first
    rank_wrong: Tensor  # int64 (RANKS,): those of them predicted wrongly
    nll_sum: Tensor  # float64 (): of -log p(label)
    brier_sum: Tensor  # float64 (): of squared distances to the one-hot label

    @classmethod
    def empty(cls, classes: int, device: torch.device | str = "cpu") -> "Tally":
        """Nothing counted yet."""
        if classes < 1:
            raise ValueError(f"a tally needs at least one class, got {classes}")

        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        def real(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        return cls(
            confusion=whole(classes, classes),
            bin_count=whole(FINE_BINS),
            bin_correct=whole(FINE_BINS),
            bin_confidence=real(FINE_BINS),
            class_count=whole(classes, BINS),
            class_confidence=real(classes, BINS),
            rank_count=whole(RANKS),
            rank_wrong=whole(RANKS),
            nll_sum=real(),
            brier_sum=real(),
        )

    @property
    def classes(self) -> int:
        """Number of classes, whether they occur or not."""
        return len(self.confusion)

    @property
    def total(self) -> int:
        """Number of positions counted; those with a label below zero are not."""
        return int(self.confusion.sum())

    def tensors(self) -> dict[str, Tensor]:
        """Sums by name, not copies: ``Tally(**tally.tensors())`` shares them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def update(self, log_prob: Tensor, label: Tensor) -> None:
        """Add ``(N, C, ...)`` log-probabilities and ``(N, ...)`` labels in place; all, or none if refused."""
        if log_prob.ndim > 1 and log_prob.shape[1] != self.classes:
            raise ValueError(f"log_prob has {log_prob.shape[1]} classes, the tally {self.classes}")
        more = _sums(log_prob, label).tensors()
        for name, mine in self.tensors().items():
            mine += more[name].to(mine.device)

    def __add__(self, other: "Tally") -> "Tally":
        if self.classes != other.classes:
            raise ValueError(f"cannot add tallies of {self.classes} and {other.classes} classes")
        theirs = other.tensors()
        return Tally(**{name: mine + theirs[name] for name, mine in self.tensors().items()})


def count(log_prob: Tensor, label: Tensor) -> Tally:
    """Tally of one batch, on the CPU; the work is done where ``log_prob`` lives.

    Args:
        log_prob: log-probabilities ``(N, C, ...)``; ``-inf`` is a probability of zero.
        label: classes ``(N, ...)``; below zero means that the position does not count.
    """
    return Tally(**{name: t.cpu() for name, t in _sums(log_prob, label).tensors().items()})


def _sums(log_prob: Tensor, label: Tensor) -> Tally:
    """Tally of one batch, where ``log_prob`` lives. Waits for a GPU a few times a batch, never in a chunk."""
    _check(log_prob, label)
    device = torch.device("cpu") if log_prob.device.type == "mps" else log_prob.device  # mps has no float64
    sums = Tally.empty(log_prob.shape[1], device)
    chunks = _chunks(log_prob.detach().to(device), label.to(device))
    if masses := [_count_rows(sums, log_p, y) for log_p, y in chunks]:
        _check_normalised(masses)  # once, at the end: what is refused was added to new sums only
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
        raise ValueError(f"{found}; give positions that do not count a label below zero")


def _chunks(log_prob: Tensor, label: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions that count, as float64 ``(C, M)`` and labels ``(M,)``, about CHUNK numbers at once."""
    if log_prob.ndim == 2:  # rows are the positions of one map
        log_prob, label = log_prob.T.unsqueeze(0), label.unsqueeze(0)
    log_prob = log_prob.flatten(2)  # (N, C, P); a map keeps its memory, nothing is copied
    label = label.flatten(1)  # (N, P)
    many = CHUNK if log_prob.device.type == "cpu" else CHUNK * WIDER
    counts = label >= 0
    positions = counts.nonzero()[:, 1]  # of all maps, one after the other
    for of_map, y, where in zip(log_prob, label, positions.split(counts.sum(1).tolist()), strict=True):
        for index in where.split(max(1, many // log_prob.shape[1])) if len(where) else ():
            yield _columns(of_map, index).double(), y[index].long()


def _columns(log_prob: Tensor, index: Tensor) -> Tensor:
    """Some columns of ``(C, P)``, in the same order of memory: a walk across it takes twice as long."""
    if log_prob.stride(0) == 1:
        return log_prob.T.index_select(0, index).T
    return log_prob.index_select(1, index)


def _count_rows(sums: Tally, log_prob: Tensor, label: Tensor) -> Tensor:
    """Add float64 ``(C, M)`` and their labels ``(M,)``; return the least and greatest sum over C.

    Whether these are one is checked later, so every index is kept in its bounds, NaN or not.
    """
    prob = log_prob.exp()
    mass = prob.sum(0)
    best, predicted = log_prob.max(0)
    confidence = best.exp()
    right = predicted == label
    _deposit(sums.confusion, label * sums.classes + predicted)

    fine = bin_of(confidence, FINE_BINS)
    _deposit(sums.bin_count, fine)
    _deposit(sums.bin_correct, fine, right.long())
    _deposit(sums.bin_confidence, fine, confidence)

    cell = bin_of(prob, BINS)
    cell += BINS * torch.arange(sums.classes, dtype=cell.dtype, device=cell.device).unsqueeze(1)  # (C, M)
    of_label = label.unsqueeze(0)
    _deposit(sums.class_count, cell.gather(0, of_label))
    _deposit(sums.class_confidence, cell, prob)

    rank = rank_of(best)
    _deposit(sums.rank_count, rank)
    _deposit(sums.rank_wrong, rank, (~right).long())

    sums.nll_sum.sub_(log_prob.gather(0, of_label).sum())
    # In place, to save a copy: from here on `prob` is the difference to the one-hot label.
    prob.scatter_(0, of_label, prob.gather(0, of_label) - 1)
    sums.brier_sum.add_(prob.square_().sum())
    return torch.stack(mass.aminmax())


def _check_normalised(masses: list[Tensor]) -> None:
    low, high = torch.stack(masses).T.tolist()
    if not all(abs(mass - 1) <= TOLERANCE for mass in (*low, *high)):  # written so that NaN is caught too
        found = f"between {min(low):.3g} and {max(high):.3g}"
        raise ValueError(f"expected log-probabilities: exp must sum to 1 over dim 1, not {found}")


def _deposit(sums: Tensor, index: Tensor, amount: Tensor | None = None) -> None:
    """Add ``amount`` (else one each) at ``index``: one after the other on the CPU, so the same each time."""
    what = torch.ones_like(index, dtype=sums.dtype) if amount is None else amount
    sums.view(-1).index_add_(0, index.reshape(-1), what.reshape(-1))


def bin_of(prob: Tensor, bins: int) -> Tensor:
    """Which of ``bins`` equal bins ``(lo, hi]`` each float64 probability is in; zero is in the first.

    >>> bin_of(torch.tensor([0.0, 0.5, 0.5001, 1.0], dtype=torch.float64), bins=2).tolist()
    [0, 0, 1, 1]
    """
    # Much quicker than a search, and as exact: a factor a little too small can only guess one bin too low,
    # and only just above that bin's edge, which the comparison with the edge itself mends.
    guess = (prob * (bins * (1 - 2**-51))).ceil_()
    guess += prob > guess / bins
    return guess.clamp_(1, bins).sub_(1).int().clamp_(0, bins - 1)  # the last for NaN, an int of any size


def rank_of(log_confidence: Tensor) -> Tensor:
    """Fine bin of each float64 log-confidence: a lower number is more confident, or as confident.

    Two confidences share a bin only if their -log p agree within a factor 1 + 2^-10, or are both below 2^-60.

    >>> rank_of(torch.tensor([0.0, -1e-15, -1e-9, -0.7, -0.701], dtype=torch.float64)).tolist()
    [0, 10368, 30795, 60825, 60827]
    """
    # Floats are ordered as their bits are: exponent first, then the leading digits. Below zero, where
    # rounding may leave -log p, the sign bit makes the integer negative: the first bin, as it should be.
    bits = (-log_confidence).view(torch.int64) >> (52 - OCTAVE_BITS)
    return (bits - ((1023 + LOWEST_OCTAVE) << OCTAVE_BITS)).clamp(0, RANKS - 1)


def _positive(total: int) -> int:
    if total == 0:
        raise ValueError("nothing was counted: no position had a label of zero or more")
    return total


def accuracy(confusion: Tensor) -> float:
    """Share of positions predicted rightly, from ``(C, C)`` counts."""
    return int(confusion.diagonal().sum()) / _positive(int(confusion.sum()))


def class_accuracy(confusion: Tensor) -> list[float | None]:
    """Share of each class's positions predicted rightly (its recall); None where the class does not occur.

    >>> class_accuracy(torch.tensor([[3, 1], [0, 0]]))
    [0.75, None]
    """
    return _shares(confusion.diagonal(), confusion.sum(1))


def mean_class_accuracy(confusion: Tensor) -> float:
    """Mean accuracy over the classes that occur."""
    return _mean(class_accuracy(confusion))


def class_iou(confusion: Tensor) -> list[float | None]:
    """Intersection over union of each class; None where it is neither label nor prediction."""
    hit = confusion.diagonal()
    return _shares(hit, confusion.sum(0) + confusion.sum(1) - hit)


def mean_iou(confusion: Tensor) -> float:
    """Mean intersection over union over the classes that occur as label or prediction."""
    return _mean(class_iou(confusion))


def mean_iou_without(confusion: Tensor, classes_left_out: Sequence[int]) -> float:
    """Mean intersection over union over the other classes: mIoU* of SYNTHIA to Cityscapes, say.

    Only the mean leaves them out: a pixel of another class that is taken for one of them is still a mistake.
    As in ``mean_iou``, a class that is neither label nor prediction is in no mean.

    >>> confusion = torch.tensor([[3, 1, 0], [0, 2, 2], [0, 0, 0]])
    >>> class_iou(confusion), mean_iou_without(confusion, [2])
    ([0.75, 0.4, 0.0], 0.575)
    """
    wrong = [c for c in classes_left_out if not 0 <= c < len(confusion)]
    if wrong:
        raise ValueError(f"class {wrong[0]} cannot be left out of {len(confusion)} classes")
    return _mean([value for c, value in enumerate(class_iou(confusion)) if c not in set(classes_left_out)])


def _shares(part: Tensor, whole: Tensor) -> list[float | None]:
    return [p / w if w else None for p, w in zip(part.tolist(), whole.tolist(), strict=True)]


def _mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / _positive(len(known))


def ece(tally: Tally, bins: int = BINS) -> float:
    """Expected calibration error ``Σ_m |B_m|/n · |acc(B_m) - conf(B_m)|`` over equal bins ``(lo, hi]``."""
    # |B|/n · |correct/|B| - sum/|B|| = |correct - sum| / n: empty bins need no special case.
    gap = _merged(tally.bin_correct, bins) - _merged(tally.bin_confidence, bins)
    return float(gap.abs().sum()) / _positive(tally.total)


def classwise_ece(tally: Tally) -> float:
    """Calibration error of every class's own probability, averaged over all C classes.

    ``1/C Σ_c Σ_b |B_cb|/n · |freq_cb - mean p_cb|``: ``B_cb`` holds the positions, of any label, whose
    probability of class c is in bin b of 15; ``freq_cb`` is the share of them with label c. A class that
    does not occur counts too: it should have been given no probability.
    """
    gap = tally.class_count - tally.class_confidence
    return float(gap.abs().sum()) / (_positive(tally.total) * tally.classes)


class Reliability(TypedDict):
    """A reliability diagram as plain lists, one entry per bin ``(upper[i-1], upper[i]]``; None if empty."""

    upper: list[float]
    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]


def reliability(tally: Tally, bins: int = BINS) -> Reliability:
    """What a reliability diagram shows: positions, mean confidence and accuracy of each bin."""
    _positive(tally.total)
    n = _merged(tally.bin_count, bins)
    return Reliability(
        upper=[(i + 1) / bins for i in range(bins)],
        count=n.tolist(),
        confidence=_shares(_merged(tally.bin_confidence, bins), n),
        accuracy=_shares(_merged(tally.bin_correct, bins), n),
    )


def _merged(fine: Tensor, bins: int) -> Tensor:
    if bins < 1 or FINE_BINS % bins:
        raise ValueError(f"{FINE_BINS} bins are kept; they cannot be merged into {bins}")
    return fine.view(bins, -1).sum(1)


def aurc(tally: Tally) -> float:
    """Area under the risk-coverage curve: ``1/n Σ_i (errors among the i most confident) / i``.

    Positions that share a fine bin (see ``rank_of``) are ties: this is the expectation over their random
    order, in closed form. For exact ties that is exact; else the error is at most ``aurc_error_bound``.
    """
    n, wrong, before, harmonic = _rank_sums(tally)
    wrong_before = wrong.cumsum(0) - wrong
    # A bin of m with k errors, after b positions with e errors, adds Σ_j (e + j·k/m) / (b + j), j = 1..m.
    # That is k + (e - b·k/m) · Σ_j 1 / (b + j).
    area = wrong + (wrong_before - before * wrong / n.clamp_min(1)) * harmonic
    return float(area.sum()) / _positive(tally.total)


def aurc_error_bound(tally: Tally) -> float:
    """How far ``aurc`` can be, for these counts, from that of the confidences themselves.

    Of m ties with k errors, the first j hold j·k/m errors in expectation, and in no order does their number
    differ from that by more than k(m-k)/m. With at most M positions in any bin, the bound is below
    ``M (1 + log n) / 4n``; it is zero if no bin holds both right and wrong predictions.
    """
    n, wrong, _, harmonic = _rank_sums(tally)
    return float((wrong * (n - wrong) / n.clamp_min(1) * harmonic).sum()) / _positive(tally.total)


def _rank_sums(tally: Tally) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Per fine bin: positions, errors, positions before it, and ``Σ 1/i`` over its places i in the order."""
    n, wrong = tally.rank_count.cpu().double(), tally.rank_wrong.cpu().double()
    after = n.cumsum(0)
    before = after - n
    return n, wrong, before, torch.digamma(after + 1) - torch.digamma(before + 1)


def compute(tally: Tally) -> dict[str, float]:
    """Every metric by name; ``ValueError`` if nothing was counted.

    ``nll`` is infinite if a label was given probability zero. ``brier`` sums over classes: it is in [0, 2].

    >>> tally = count(torch.tensor([[0.8, 0.2], [0.7, 0.3]]).log(), torch.tensor([0, 1]))
    >>> for name, value in compute(tally).items():
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
    total = _positive(tally.total)
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
