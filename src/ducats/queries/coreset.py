"""CoreSet (Sener and Savarese, ICLR 2018): no candidate far from a label, by greedy k-centre."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ducats.errors import UserError
from ducats.queries.among import Chosen, competing
from ducats.queries.distances import (
    FEWER,
    features_of,
    greedy,
    in_order,
    pieces,
    squared_to_nearest,
)
from ducats.randomness import draw_per_address
from ducats.rows import Rows, Slate

TOGETHER = 256  # rows of about the same age are brought up to date at once
BLOCK = 128  # centres that rows of a shard are compared with, before those that are near to one are left out
SAMPLE = 2048  # rows that tell which centres have most rows near to them
ROUNDED = 1e-5  # of the squared lengths: more than float32 errs by in a squared distance


def coreset(
    slate: Slate,
    *,
    centres: Literal["labelled", "source_and_labelled"] = "labelled",
    shards: int = 1,
    among: int | None = None,
    chosen: Chosen = "drawn",
) -> Tensor:
    """Always the candidate farthest from all that is labelled or picked, as the last layer sees it (CoreSet).

    Where nothing is labelled yet, the first pick is the candidate nearest to their mean.

    Args:
        slate: the candidates.
        centres: what counts as labelled: the bought rows, or the source's images, too.
        shards: more than 1, and the features of one random part at a time are looked at: greedy in each part,
            then greedy among all that these picked. The farthest candidate is then at most 4 times as far
            from a label as it must be, instead of twice.
        among: how many candidates compete; None: all.
        chosen: whether these are ``drawn``, with odds by their entropy, or the most ``uncertain`` ones.
    """
    if shards < 1:
        raise ValueError(f"shards must be at least 1, not {shards}")
    known = [features_of(group, "coreset") for group in _known(slate, centres)]
    order, _ = competing(slate, among, chosen)
    count = min(slate.budget, len(order))
    if count == 0:
        return order[:0]
    rows = in_order(slate.candidates, order)
    first = None
    if shards > 1:
        winners, first = _winners(rows, known, count, shards, slate.generator)
        order, rows = order[winners], rows[winners]
    return order[_farthest(rows, known, count, first=first)]


def coreset_source(knobs: Mapping[str, Any]) -> tuple[str, ...]:
    """Columns of the source that it reads."""
    return ("features",) if knobs.get("centres") == "source_and_labelled" else ()


def _known(slate: Slate, centres: str) -> list[Rows]:
    """What is labelled, without what is empty."""
    if centres not in ("labelled", "source_and_labelled"):
        raise ValueError(f"centres must be labelled or source_and_labelled, not {centres}")
    groups = [slate.labelled]
    if centres == "source_and_labelled":
        if slate.source is None:
            raise UserError(
                "the query 'coreset' is not given the source in segmentation: "
                "set query.knobs.centres=labelled"
            )
        groups.append(slate.source)
    return [group for group in groups if len(group)]


def _farthest(
    rows: Rows,
    known: Sequence[Tensor],
    count: int,
    *,
    first: int | None = None,
    enough: float = -torch.inf,
) -> Tensor:
    """Greedy k-centre: indices of the picks, in order.

    Args:
        rows: the candidates, by address.
        known: features of what is labelled.
        count: how many to pick.
        first: the first pick; None: the farthest from what is labelled, or the middle.
        enough: squared distance to a label or a pick, below which no row is picked any more.
    """
    features = features_of(
        rows, "coreset", f"{FEWER}, or query.knobs.shards, how many parts they are dealt to"
    )
    bound = torch.full((len(rows),), torch.inf, dtype=torch.float64, device=features.device)
    for some in known:
        bound = torch.minimum(bound, squared_to_nearest([features], [some.to(features.device)]))
    if first is None and not known:
        mean = features.mean(0, dtype=torch.float64)[None]
        first = int(squared_to_nearest([features], [mean]).argmin())
    covered = _Covered(features, bound, count)
    return greedy(rows, count, bound, covered.refresh, covered.add, first, enough)


def _winners(
    rows: Rows, known: Sequence[Tensor], count: int, shards: int, generator: torch.Generator
) -> tuple[Tensor, int | None]:
    """Rows that stand for all, by address: the greedy picks of each shard. And which is to be the first pick.

    After ``count`` picks in the first shard, some row is at a distance ``r`` from all of them. Whichever
    ``count`` rows are picked, one of these is at least ``r / 2`` away, as two of them share a pick. So in
    the other shards, what is within ``r`` of a pick of the first is covered as well as greedy picks promise,
    and is left out. What is left all wins, or so many greedy picks. Every row is then within twice the best
    radius of a winner.
    """
    luck = draw_per_address(generator, rows.image, rows.position)
    parts = [part for part in _split((luck * shards).long(), shards) if len(part)]
    lead = parts[0][_farthest(rows[parts[0]], known, min(count + 1, len(parts[0])))]
    first, enough = (None if known else int(lead[0])), -torch.inf
    centres = [features_of(rows[lead[:count]], "coreset"), *known]
    if len(lead) > count:
        last = features_of(rows[lead[count:]], "coreset")
        enough = min(float(squared_to_nearest([last], [some.to(last.device)])) for some in centres)
    some = parts[0][luck[parts[0]].argsort(stable=True)[:SAMPLE]]
    ordered = _useful_first(centres, features_of(rows[some], "coreset"), enough)
    won = [lead[:count]]
    for part in parts[1:]:
        left = part[_uncovered(features_of(rows[part], "coreset"), ordered, enough)]
        if len(left) > count:
            left = left[_farthest(rows[left], centres, count, enough=enough)]
        won.append(left)
    winners = torch.cat(won).sort().values
    return winners, None if first is None else int((winners == first).nonzero())


def _split(shard: Tensor, shards: int) -> Iterator[Tensor]:
    """Indices of the rows of each shard, ascending."""
    return (part for part in shard.argsort(stable=True).split(shard.bincount(minlength=shards).tolist()))


def _useful_first(centres: Sequence[Tensor], sample: Tensor, enough: float) -> Tensor:
    """The centres as one table, ``(k, D)``: first those that cover most of a sample, then any.

    Each covers most of what the ones before it leave of the sample. So most rows are found to be covered by
    the first few, where the first that greedy picked, odd ones, would cover hardly any.
    """
    sample = sample.float()
    table = torch.cat([some.to(sample.device).float() for some in centres])
    near = torch.cat([torch.cdist(sample, some).square() <= enough for some in table.split(BLOCK)], 1)
    gain, chosen = near.sum(0), list[int]()
    while int(gain.max()) > 0:
        chosen.append(int(gain.argmax()))
        new = near[:, chosen[-1]].clone()
        gain -= near[new].sum(0)
        near[new] = False
    first = torch.tensor(chosen, dtype=torch.long, device=table.device)
    others = torch.ones(len(table), dtype=torch.bool, device=table.device)
    others[first] = False
    return torch.cat([table[first], table[others]])


def _uncovered(features: Tensor, centres: Tensor, enough: float) -> Tensor:
    """Indices of the rows that are farther than ``enough``, squared, from all centres; in doubt, too."""
    known = [(block, block.square().sum(1)) for block in centres.split(BLOCK)]
    found = []
    for piece in pieces(len(features), features.shape[1] + BLOCK):
        part = features[piece].float()
        left = torch.arange(piece.start, piece.stop, device=features.device)
        length = (1 + ROUNDED) * part.square().sum(1)
        for block, lengths in known:
            near = torch.addmm((1 + ROUNDED) * lengths, part, block.T, alpha=-2).amin(1) + length <= enough
            if bool(near.any()):
                part, left, length = part[~near], left[~near], length[~near]
        found.append(left)
    return torch.cat(found)


class _Covered:
    """Squared distance of each row to the nearest centre, brought up to date where it is asked for."""

    def __init__(self, features: Tensor, squared: Tensor, count: int) -> None:
        self._features, self._squared = features, squared
        self._picked = features.new_empty(count, features.shape[1])
        self._picks = 0
        self._seen = torch.zeros(len(features), dtype=torch.long, device=features.device)

    def add(self, pick: int) -> None:
        self._picked[self._picks] = self._features[pick]
        self._picks += 1

    def refresh(self, index: Tensor) -> Tensor:
        found = self._squared[index]
        age = self._seen[index].argsort(stable=True)
        for some in age.split(TOGETHER):
            missed = self._picked[int(self._seen[index[some[0]]]) : self._picks]
            new = squared_to_nearest([self._features[index[some]]], [missed])
            found[some] = torch.minimum(found[some], new)
        self._seen[index] = self._picks
        return found
