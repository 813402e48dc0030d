"""Subsampling of candidates, for pools too large to compare all samples with each other.

Only the entropy is read for all candidates. Other columns, notably the features, are computed for the
subsample alone.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ducats.acquisition.queries.distances import sort_by_location
from ducats.acquisition.samples import QueryContext, top_k
from ducats.utils.randomness import uniform_per_location

SubsampleBy = Literal["entropy_weighted", "highest_entropy"]

MIN_ENTROPY_WEIGHT = 1e-12  # added to the entropy: a certain sample keeps a non-zero probability


class Subsample(NamedTuple):
    """Candidates that a query considers."""

    indices: Tensor  # their indices, in location order
    inclusion_probability: Tensor | None  # inclusion probability of each; None: not sampled at random


def subsample_candidates(
    context: QueryContext, subsample: int | None, subsample_by: SubsampleBy
) -> Subsample:
    """Return all candidates, or a subsample of them that is at least as large as the budget.

    Dividing each sampled value by its inclusion probability gives an unbiased estimate of the sum over all
    candidates. The result does not depend on the order of the pool.

    Args:
        context: needs the column ``entropy`` if a subsample is taken.
        subsample: size of the subsample; None: all candidates.
        subsample_by: ``entropy_weighted`` samples without replacement, with probability proportional to the
            entropy; ``highest_entropy`` takes the candidates with the highest entropy.
    """
    if subsample_by not in get_args(SubsampleBy):
        raise ValueError(
            f"query.params.subsample_by must be one of {', '.join(get_args(SubsampleBy))}, "
            f"not {subsample_by!r}"
        )
    if subsample is not None and subsample < 1:
        raise ValueError(
            f"query.params.subsample must be at least 1, not {subsample}; None considers all candidates"
        )
    samples = context.candidates
    count = len(samples) if subsample is None else max(math.ceil(subsample), context.budget)
    if count >= len(samples):
        return Subsample(sort_by_location(samples), None)
    entropy = samples.column("entropy").double()
    if subsample_by == "highest_entropy":
        selected = top_k(entropy, count, samples)
        return Subsample(sort_by_location(samples, selected), None)
    # Weighted sampling without replacement: keep the samples with the highest log(u) / w, u uniform. The
    # first key that is not kept is the threshold, from which the inclusion probability of each follows.
    weight = entropy.clamp(min=0) + MIN_ENTROPY_WEIGHT
    sampling_keys = (
        uniform_per_location(context.generator, samples.image, samples.position).log().to(weight.device)
        / weight
    )
    selected = top_k(sampling_keys, count + 1, samples)
    threshold, selected = sampling_keys[selected[-1]], selected[:-1]
    selected = sort_by_location(samples, selected)
    return Subsample(selected, -torch.expm1(threshold * weight[selected]))


def needs_with_subsampling(*needs: str) -> Callable[[Mapping[str, Any]], tuple[str, ...]]:
    """Return a function from parameters to the columns of a query, with the entropy if it subsamples."""

    def needs_for(params: Mapping[str, Any]) -> tuple[str, ...]:
        return needs if params.get("subsample") is None else ("entropy", *needs)

    return needs_for
