"""CoreSet (Sener and Savarese, ICLR 2018): greedy k-centre, so no candidate is far from a label."""

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

TOGETHER = 256  # samples of similar staleness updated together
BLOCK = 128  # centres compared with a shard before covered samples are dropped
SAMPLE = 2048  # samples used to estimate how many samples each centre covers
ROUNDED = 1e-5  # bound on the float32 error of a squared distance, relative to the squared norms


def coreset(
    slate: Slate,
    *,
    centres: Literal["labelled", "source_and_labelled"] = "labelled",
    shards: int = 1,
    among: int | None = None,
    chosen: Chosen = "drawn",
) -> Tensor:
    """Repeatedly select the candidate farthest from all labelled and selected samples (CoreSet).

    Distances are between features. If nothing is labelled yet, the first pick is the candidate nearest to the
    mean of the candidates.

    Args:
        centres: initial centres: the labelled target samples, with or without the source images.
        shards: if above 1, split the candidates at random, run greedy k-centre in each shard and again on the
            union of their picks. Only one shard of features is in memory at a time. The guarantee on the
            largest distance to a label is then 4 times the optimum instead of 2.
        among: number of candidates to consider; None: all.
        chosen: ``drawn`` samples them with probability proportional to the entropy; ``uncertain`` takes the
            highest entropies.
    """
    if shards < 1:
        raise ValueError(f"query.params.shards must be at least 1, not {shards}")
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


def coreset_source(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the source columns that `coreset` reads."""
    return ("features",) if params.get("centres") == "source_and_labelled" else ()


def _known(slate: Slate, centres: str) -> list[Rows]:
    """Non-empty tables of initial centres."""
    if centres not in ("labelled", "source_and_labelled"):
        raise ValueError(f"query.params.centres must be labelled or source_and_labelled, not {centres}")
    groups = [slate.labelled]
    if centres == "source_and_labelled":
        if slate.source is None:
            raise UserError(
                "the query 'coreset' cannot use the source in segmentation; set query.params.centres=labelled"
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
        rows: the candidates, in location order.
        known: features of the labelled samples, one tensor per table.
        first: the first pick; None: the farthest from the labelled samples, or the nearest to the mean.
        enough: stop when all squared distances to a label or a pick are at most this.
    """
    features = features_of(rows, "coreset", f"{FEWER}, or query.params.shards, the number of shards")
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
    """Representatives of all shards (their greedy picks, in location order), and the first pick among them.

    After ``count`` picks in the first shard, some sample is at a distance ``r`` from all of them. For any
    choice of ``count`` samples, one of these ``count + 1`` is at least ``r / 2`` away, as two of them share a
    nearest choice. So samples of other shards within ``r`` of a pick of the first are already covered as well
    as greedy picks guarantee, and are dropped. The rest become representatives, or ``count`` greedy picks of
    them if they are more. Every sample is then within twice the optimal radius of a representative.
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
    """Ascending indices of the samples of each shard."""
    return (part for part in shard.argsort(stable=True).split(shard.bincount(minlength=shards).tolist()))


def _useful_first(centres: Sequence[Tensor], sample: Tensor, enough: float) -> Tensor:
    """The centres as one table, ``(k, D)``, ordered by how much of a sample they cover.

    Greedy set cover: each centre covers the most of what earlier ones leave uncovered. Most samples are then
    covered by the first few centres. The first greedy k-centre picks are outliers and cover hardly any.
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
    """Indices of samples whose squared distance to all centres may exceed ``enough``, given rounding."""
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
    """Squared distance of each sample to the nearest centre, updated on demand."""

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
