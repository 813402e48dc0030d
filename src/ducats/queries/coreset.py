"""CoreSet (Sener and Savarese, ICLR 2018): no candidate far from a label, by greedy k-centre."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from ducats.errors import UserError
from ducats.queries.distances import by_address, features_of, greedy, in_order, squared_to_nearest
from ducats.rows import Rows, Slate

TOGETHER = 256  # rows of about the same age are brought up to date at once


def coreset(slate: Slate, *, centres: Literal["labelled", "source_and_labelled"] = "labelled") -> Tensor:
    """Always the candidate farthest from all that is labelled or picked, as the last layer sees it (CoreSet).

    Where nothing is labelled yet, the first pick is the candidate nearest to their mean.

    Args:
        slate: the candidates.
        centres: what counts as labelled: the bought rows, or the source's images, too.
    """
    known = _known(slate, centres)
    order = by_address(slate.candidates)
    count = min(slate.budget, len(order))
    if count == 0:
        return order[:0]
    rows = in_order(slate.candidates, order)
    features = features_of(rows, "coreset")
    bound = torch.full((len(rows),), torch.inf, dtype=torch.float64, device=features.device)
    for group in known:
        some = features_of(group, "coreset").to(features.device)
        bound = torch.minimum(bound, squared_to_nearest([features], [some]))
    first = None
    if not known:
        mean = features.mean(0, dtype=torch.float64)[None]
        first = int(squared_to_nearest([features], [mean]).argmin())
    covered = _Covered(features, bound, count)
    return order[greedy(rows, count, bound, covered.refresh, covered.add, first)]


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
