"""BADGE (Ash et al., ICLR 2020): gradients that are long and unlike each other.

A row stands for the gradient that its predicted class would give the last layer, the outer product of
``onehot - p`` and the features. k-means++ seeding picks among them: each with a probability in proportion to
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

# Draws in vain, before every row's D² is brought up to date: so many, or one for every so many rows, if that
# is more. Then they have cost less than that will.
PATIENCE = 64


def badge(slate: Slate, *, among: int | None = None, chosen: Chosen = "drawn") -> Tensor:
    """Rows whose gradients of the last layer are long and unlike each other, by k-means++ seeding (BADGE).

    The first is the longest gradient. Where no row differs from all picks any more, the rest is uniform.

    Args:
        slate: the candidates.
        among: how many candidates compete; None: all. Each that is drawn counts for those it stands for.
        chosen: whether these are ``drawn``, with odds by their entropy, or the most ``uncertain`` ones.
    """
    order, chance = competing(slate, among, chosen)
    count = min(slate.budget, len(order))
    if count == 0:
        return order[:0]
    rows = in_order(slate.candidates, order)
    features = features_of(rows, "badge")  # first: they may be too many
    gradients = (_residual(rows.z), features)
    seeds = _Seeds(rows, gradients, count, slate.generator, None if chance is None else 1 / chance)
    while len(seeds.picks) < count:
        seeds.add(seeds.draw() if seeds.picks else seeds.longest())
    return order[torch.tensor(seeds.picks, dtype=torch.long, device=order.device)]


def _residual(z: Tensor) -> Tensor:
    """``onehot - p`` of the predicted class, ``(n, C)``; from float64, as ``1 - p`` cancels."""
    found = torch.empty(z.shape, dtype=torch.float32, device=z.device)
    for piece in pieces(len(z), z.shape[1]):
        part = z[piece].double()
        residual = -expected_probability(part)
        residual.scatter_add_(1, part.argmax(1, keepdim=True), torch.ones_like(part[:, :1]))
        found[piece] = residual
    return found


class _Seeds:
    """Draws in proportion to D², of which few are computed.

    D² only falls, so an old one is a bound. A row that is drawn by the old ones is kept with probability new
    over old, or else another is drawn: that is a draw by the new ones, and only those drawn are computed.

    Args:
        rows: the candidates, by address.
        gradients: the two factors of each, ``(n, C)`` and ``(n, D)``.
        count: how many will be picked.
        generator: for the draws.
        stands_for: how many candidates each stands for, and so counts for in a draw; None: one.
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
        self._lengths = self._picked[0].new_empty(count)  # squared, of the picked
        self._old = torch.full((len(rows),), torch.inf, dtype=torch.float64, device=rows.image.device)
        self._seen = 0  # picks that the old D² know
        self._up_to = self._old.cpu()  # sums of the old D² of open rows
        self._in_vain = 0

    def longest(self) -> int:
        """The longest gradient, the first of equals."""
        nothing = [factor.new_zeros(1, factor.shape[1]) for factor in self._gradients]
        return int(squared_to_nearest(self._gradients, nothing).argmax())

    def add(self, pick: int) -> None:
        """Make a row a pick."""
        for picked, factor in zip(self._picked, self._gradients, strict=True):
            picked[len(self.picks)] = factor[pick]
        last = slice(len(self.picks), len(self.picks) + 1)
        self._lengths[last] = squared_length([picked[last] for picked in self._picked])
        self.picks.append(pick)
        if self._free.take(pick) or len(self.picks) == 1:
            self._update()

    def draw(self) -> int:
        """A row that is open, by D²; if that is 0 everywhere, any."""
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
        # Summed on the CPU: on a GPU the order of the sum is open, and draws must be repeatable.
        mass = self._old.masked_fill(~self._free.open, 0.0)
        if self._stands_for is not None:
            mass = mass * self._stands_for
        self._up_to = mass.cpu().cumsum(0)
