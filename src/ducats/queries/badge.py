"""BADGE (Ash et al., ICLR 2020): large and diverse gradients of the last layer.

A sample is represented by the gradient of the last layer for its predicted class, the outer product of
``onehot - p`` and the features. k-means++ seeding selects among them: each with a probability proportional to
D², its squared distance to the nearest pick.
"""

import torch
from torch import Tensor

from ducats.dirichlet import expected_probability
from ducats.queries.among import Chosen, competing
from ducats.queries.distances import (
    Free,
    features_of,
    in_order,
    pieces,
    squared_length,
    squared_to_nearest,
)
from ducats.rows import Rows, Slate

# Rejected draws before D² is updated for all samples: this number, or one per this number of samples if that
# is more. Until then rejections are cheaper than the update.
PATIENCE = 64


def badge(slate: Slate, *, among: int | None = None, chosen: Chosen = "drawn") -> Tensor:
    """Select large and diverse last-layer gradients by k-means++ seeding (BADGE).

    The first pick is the largest gradient. Once every candidate equals a pick, the rest is uniform.

    Args:
        among: number of candidates to consider; None: all. Sampled candidates are weighted by the inverse of
            their inclusion probability.
        chosen: ``drawn`` samples them with probability proportional to the entropy; ``uncertain`` takes the
            highest entropies.
    """
    order, chance = competing(slate, among, chosen)
    count = min(slate.budget, len(order))
    if count == 0:
        return order[:0]
    rows = in_order(slate.candidates, order)
    features = features_of(rows, "badge")  # before `z`: raises if they are too large
    gradients = (_residual(rows.z), features)
    seeds = _Seeds(rows, gradients, count, slate.generator, None if chance is None else 1 / chance)
    while len(seeds.picks) < count:
        seeds.add(seeds.draw() if seeds.picks else seeds.longest())
    return order[torch.tensor(seeds.picks, dtype=torch.long, device=order.device)]


def _residual(z: Tensor) -> Tensor:
    """``onehot - p`` for the predicted class, ``(n, C)``; computed in float64, as ``1 - p`` cancels."""
    found = torch.empty(z.shape, dtype=torch.float32, device=z.device)
    for piece in pieces(len(z), z.shape[1]):
        part = z[piece].double()
        residual = -expected_probability(part)
        residual.scatter_add_(1, part.argmax(1, keepdim=True), torch.ones_like(part[:, :1]))
        found[piece] = residual
    return found


class _Seeds:
    """k-means++ seeding by rejection sampling, which computes few of the D².

    D² only decreases, so a stale value is an upper bound. A sample drawn by stale values is accepted with
    probability new / stale, which is a draw by the new values. Only drawn samples are recomputed.

    Args:
        rows: the candidates, in location order.
        gradients: the two factors of each gradient, ``(n, C)`` and ``(n, D)``.
        count: number of picks.
        stands_for: sample weights, ``(n,)``; None: all 1.
    """

    def __init__(
        self,
        rows: Rows,
        gradients: tuple[Tensor, Tensor],
        count: int,
        generator: torch.Generator,
        stands_for: Tensor | None = None,
    ) -> None:
        self.picks = list[int]()
        self._gradients, self._generator, self._free = gradients, generator, Free(rows)
        self._stands_for = stands_for
        self._picked = [factor.new_empty(count, factor.shape[1], dtype=torch.float64) for factor in gradients]
        self._lengths = self._picked[0].new_empty(count)  # squared norms of the picks
        self._old = torch.full((len(rows),), torch.inf, dtype=torch.float64, device=rows.image.device)
        self._seen = 0  # number of picks that the stale D² account for
        self._up_to = self._old.cpu()  # cumulative sum of the stale D² of open samples
        self._in_vain = 0

    def longest(self) -> int:
        """Return the index of the largest gradient; ties go to the first."""
        nothing = [factor.new_zeros(1, factor.shape[1]) for factor in self._gradients]
        return int(squared_to_nearest(self._gradients, nothing).argmax())

    def add(self, pick: int) -> None:
        """Add a pick."""
        for picked, factor in zip(self._picked, self._gradients, strict=True):
            picked[len(self.picks)] = factor[pick]
        last = slice(len(self.picks), len(self.picks) + 1)
        self._lengths[last] = squared_length([picked[last] for picked in self._picked])
        self.picks.append(pick)
        if self._free.take(pick) or len(self.picks) == 1:
            self._update()

    def draw(self) -> int:
        """Sample an open index with probability proportional to D²; uniformly if all D² are 0."""
        while True:
            total = float(self._up_to[-1])
            if total == 0:
                left = self._free.open.nonzero().squeeze(1)
                return int(left[int(torch.randint(len(left), (), generator=self._generator))])
            place, luck = torch.rand(2, dtype=torch.float64, generator=self._generator).tolist()
            row = min(int(torch.searchsorted(self._up_to, place * total, right=True)), len(self._up_to) - 1)
            one = slice(row, row + 1)
            if bool(self._free.open[row]) and luck * float(self._old[row]) < float(self._new(one)):
                return row
            self._in_vain += 1
            if self._in_vain >= max(PATIENCE, len(self._old) // 64):
                self._update()

    def _new(self, which: slice) -> Tensor:
        rows = [factor[which] for factor in self._gradients]
        missed = slice(self._seen, len(self.picks))
        centres = [picked[missed] for picked in self._picked]
        return torch.minimum(self._old[which], squared_to_nearest(rows, centres, self._lengths[missed]))

    def _update(self) -> None:
        self._old = self._new(slice(None))
        self._seen, self._in_vain = len(self.picks), 0
        # Summed on the CPU: on a GPU the order of summation varies, and draws must be deterministic.
        mass = self._old.masked_fill(~self._free.open, 0.0)
        if self._stands_for is not None:
            mass = mass * self._stands_for
        self._up_to = mass.cpu().cumsum(0)
