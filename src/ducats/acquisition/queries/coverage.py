"""Our query: greedy coverage of the candidates' uncertainty.

A label tells about similar samples, too. So each pick is the candidate whose label would cover the most
uncertainty that earlier labels and picks leave uncovered. The sum is submodular: the gain of a candidate only
decreases from pick to pick, and lazy greedy selection is exact (uncertainty herding, Bae et al., ICLR 2025).
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from ducats.acquisition.queries.distances import (
    chunk_slices,
    lazy_greedy,
    load_features,
    reorder,
    sort_by_location,
)
from ducats.acquisition.queries.spec import UNCERTAINTIES, QuerySpec, StreamingRule
from ducats.acquisition.queries.subsampling import SubsampleBy, subsample_candidates
from ducats.acquisition.samples import QueryContext, SampleTable, top_k
from ducats.utils.randomness import uniform_per_location

CoveredUncertainty = Literal["margin", "entropy", "u_data"]
IMAGE_TEMPERATURE = 0.2
PIXEL_TEMPERATURE = 0.1


def coverage(
    context: QueryContext,
    *,
    uncertainty: CoveredUncertainty = "margin",
    power: float = 1.0,
    temperature: float | None = None,
    sigma: float = 0.0,
    centred: bool = True,
    max_pixels: int = 8192,
    max_greedy: int = 512,
    subsample: int | None = None,
    subsample_by: SubsampleBy = "entropy_weighted",
) -> Tensor:
    """Select samples whose labels would cover the most uncertainty around them (ours)."""
    for name, value in (("temperature", temperature), ("max_pixels", max_pixels)):
        if value is not None and value <= 0:
            raise ValueError(f"query.params.{name} must be above 0, not {value}")
    candidates = context.candidates
    inclusion_probability = None
    if candidates.shape is None:
        order, inclusion_probability = subsample_candidates(context, subsample, subsample_by)
    else:
        order = _grid(candidates, max_pixels)
    if len(order) <= context.budget:
        rest = torch.ones(len(candidates), dtype=torch.bool, device=order.device)
        rest[order] = False
        rest_index = rest.nonzero().squeeze(1)
        doubt = _uncertainty(candidates[rest_index], uncertainty, power)
        extra = rest_index[top_k(doubt, context.budget - len(order), candidates[rest_index])]
        return torch.cat([order, extra])
    samples = reorder(candidates, order)
    weights = _uncertainty(samples, uncertainty, power)
    if inclusion_probability is not None:
        weights = weights / inclusion_probability.to(weights.device)
    is_pixel = candidates.shape is not None
    tau = temperature or (PIXEL_TEMPERATURE if is_pixel else IMAGE_TEMPERATURE)
    features = load_features(samples, "coverage").float()
    mean = features.mean(0) if centred else torch.zeros((), device=features.device)
    kernel = _Kernel(F.normalize(features - mean), samples, tau, sigma)
    covered = torch.zeros(len(samples), device=features.device)
    labelled = context.labelled if context.acquired is None or not context.acquired.columns else context.acquired
    if len(labelled):
        known = F.normalize(load_features(labelled, "coverage").float() - mean)
        for chunk in chunk_slices(len(labelled), len(samples)):
            covered = torch.maximum(covered, kernel.to(known[chunk], labelled.position[chunk]).amax(1))
    gains = _Gains(kernel, weights.float(), covered)
    n_greedy = min(context.budget, max_greedy) if is_pixel else context.budget
    everything = torch.arange(len(samples), device=features.device)
    picks = lazy_greedy(samples, n_greedy, gains.refresh(everything), gains.refresh, gains.add)
    if n_greedy < context.budget:
        free = torch.ones(len(samples), dtype=torch.bool, device=picks.device)
        free[picks] = False
        index = free.nonzero().squeeze(1)
        sub = samples[index]
        keys = uniform_per_location(context.generator, sub.image, sub.position).log().to(weights.device)
        more = top_k(keys / weights[index], context.budget - n_greedy, sub)
        picks = torch.cat([picks, index[more]])
    return order[picks]


def coverage_needs(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of the uncertainty and the features."""
    names = [params.get("uncertainty", "margin"), "features"]
    if params.get("subsample") is not None:
        names.append("entropy")
    return tuple(dict.fromkeys(names))


def _grid(samples: SampleTable, max_pixels: int) -> Tensor:
    """Indices of at most ``max_pixels`` candidates on a regular grid of the image, in location order."""
    assert samples.shape is not None
    order = sort_by_location(samples)
    step = max(1, round(math.sqrt(samples.shape[0] * samples.shape[1] / max_pixels))) if len(samples) > max_pixels else 1
    if step == 1:
        return order
    y, x = samples.position[order] // samples.shape[1], samples.position[order] % samples.shape[1]
    return order[(y % step == step // 2) & (x % step == step // 2)]


def _uncertainty(samples: SampleTable, name: str, power: float) -> Tensor:
    column = samples.column(name).double()
    return ((1 - column if name == "margin" else column).clamp(min=0) + 1e-6) ** power


class _Kernel:
    def __init__(self, directions: Tensor, samples: SampleTable, temperature: float, sigma: float) -> None:
        self.directions, self.temperature, self.sigma = directions, temperature, sigma
        self.position, self.shape = samples.position, samples.shape

    def to(self, directions: Tensor, position: Tensor) -> Tensor:
        k = ((self.directions @ directions.T - 1) / self.temperature).exp_()
        if self.sigma > 0 and self.shape is not None:
            width = self.shape[1]
            scale = self.sigma * width
            ya, xa = (self.position // width).float() / scale, (self.position % width).float() / scale
            yb, xb = (position // width).float() / scale, (position % width).float() / scale
            k *= (-((ya[:, None] - yb) ** 2 + (xa[:, None] - xb) ** 2) / 2).exp_()
        return k

    def columns(self, index: Tensor) -> Tensor:
        return self.to(self.directions[index], self.position[index])


class _Gains:
    def __init__(self, kernel: _Kernel, weights: Tensor, covered: Tensor) -> None:
        self._kernel, self._weights, self._covered = kernel, weights, covered

    def add(self, pick: int) -> None:
        index = torch.tensor([pick], device=self._covered.device)
        self._covered = torch.maximum(self._covered, self._kernel.columns(index)[:, 0])

    def refresh(self, index: Tensor) -> Tensor:
        parts = []
        for chunk in chunk_slices(len(index), len(self._covered)):
            new = self._kernel.columns(index[chunk]).sub_(self._covered[:, None]).clamp_(min=0)
            parts.append(self._weights @ new)
        return torch.cat(parts).double()


COVERAGE_SPEC = QuerySpec(
    coverage,
    coverage_needs({}),
    coverage_needs,
    streaming=StreamingRule("shortlist", ("-margin",)),
    explained_by=UNCERTAINTIES,
)
_ = get_args
