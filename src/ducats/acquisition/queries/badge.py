"""BADGE (Ash et al., ICLR 2020): large and diverse gradients of the last layer.

A sample is represented by the gradient of the last layer for its predicted class, the outer product of
``onehot - p`` and the features. k-means++ seeding selects among them: each with a probability proportional to
D², its squared distance to the nearest pick.
"""

import torch
from torch import Tensor

from ducats.acquisition.queries.distances import (
    AvailableSamples,
    chunk_slices,
    load_features,
    reorder,
    squared_distance_to_nearest,
    squared_norm,
)
from ducats.acquisition.queries.spec import UNCERTAINTIES, QuerySpec
from ducats.acquisition.queries.subsampling import SubsampleBy, needs_with_subsampling, subsample_candidates
from ducats.acquisition.samples import QueryContext, SampleTable
from ducats.dirichlet import expected_probability

# Rejected draws before D² is updated for all samples: this number, or one per this number of samples if that
# is more. Until then rejections are cheaper than the update.
MIN_REJECTIONS_BEFORE_UPDATE = 64


def badge(
    context: QueryContext, *, subsample: int | None = None, subsample_by: SubsampleBy = "entropy_weighted"
) -> Tensor:
    """Select large and diverse last-layer gradients by k-means++ seeding (BADGE).

    The first pick is the largest gradient. Once every candidate equals a pick, the rest is uniform.

    Args:
        subsample: number of candidates to consider; None: all. Sampled candidates are weighted by the inverse
            of their inclusion probability.
        subsample_by: ``entropy_weighted`` samples them with probability proportional to the entropy;
            ``highest_entropy`` takes the highest entropies.
    """
    order, inclusion_probability = subsample_candidates(context, subsample, subsample_by)
    count = min(context.budget, len(order))
    if count == 0:
        return order[:0]
    samples = reorder(context.candidates, order)
    features = load_features(samples, "badge")  # before `z`: raises if they are too large
    gradients = (_residual(samples.z), features)
    seeds = _KMeansPlusPlus(
        samples,
        gradients,
        count,
        context.generator,
        None if inclusion_probability is None else 1 / inclusion_probability,
    )
    while len(seeds.picks) < count:
        seeds.add(seeds.sample() if seeds.picks else seeds.longest())
    return order[torch.tensor(seeds.picks, dtype=torch.long, device=order.device)]


def _residual(z: Tensor) -> Tensor:
    """``onehot - p`` for the predicted class, ``(n, C)``; computed in float64, as ``1 - p`` cancels."""
    residuals = torch.empty(z.shape, dtype=torch.float32, device=z.device)
    for chunk in chunk_slices(len(z), z.shape[1]):
        chunk_z = z[chunk].double()
        residual = -expected_probability(chunk_z)
        residual.scatter_add_(1, chunk_z.argmax(1, keepdim=True), torch.ones_like(chunk_z[:, :1]))
        residuals[chunk] = residual
    return residuals


class _KMeansPlusPlus:
    """k-means++ seeding by rejection sampling, which computes few of the D².

    D² only decreases, so a stale value is an upper bound. A sample drawn by stale values is accepted with
    probability new / stale, which is a draw by the new values. Only drawn samples are recomputed.

    Args:
        samples: the candidates, in location order.
        gradients: the two factors of each gradient, ``(n, C)`` and ``(n, D)``.
        sample_weight: sample weights, ``(n,)``; None: all 1.
    """

    def __init__(
        self,
        samples: SampleTable,
        gradients: tuple[Tensor, Tensor],
        count: int,
        generator: torch.Generator,
        sample_weight: Tensor | None = None,
    ) -> None:
        self.picks = list[int]()
        self._gradients, self._generator, self._available = gradients, generator, AvailableSamples(samples)
        self._sample_weight = sample_weight
        self._picked = [factor.new_empty(count, factor.shape[1], dtype=torch.float64) for factor in gradients]
        self._picked_squared_norms = self._picked[0].new_empty(count)  # squared norms of the picks
        self._stale = torch.full((len(samples),), torch.inf, dtype=torch.float64, device=samples.image.device)
        self._n_applied_picks = 0  # number of picks that the stale D² account for
        self._cumulative_mass = self._stale.cpu()  # cumulative sum of the stale D² of open samples
        self._rejections = 0

    def longest(self) -> int:
        """Return the index of the largest gradient; ties go to the first."""
        zeros = [factor.new_zeros(1, factor.shape[1]) for factor in self._gradients]
        return int(squared_distance_to_nearest(self._gradients, zeros).argmax())

    def add(self, pick: int) -> None:
        """Add a pick."""
        for picked, factor in zip(self._picked, self._gradients, strict=True):
            picked[len(self.picks)] = factor[pick]
        last = slice(len(self.picks), len(self.picks) + 1)
        self._picked_squared_norms[last] = squared_norm([picked[last] for picked in self._picked])
        self.picks.append(pick)
        if self._available.mark_picked(pick) or len(self.picks) == 1:
            self._update()

    def sample(self) -> int:
        """Sample an open index with probability proportional to D²; uniformly if all D² are 0."""
        while True:
            total = float(self._cumulative_mass[-1])
            if total == 0:
                open_indices = self._available.mask.nonzero().squeeze(1)
                return int(open_indices[int(torch.randint(len(open_indices), (), generator=self._generator))])
            mass_fraction, acceptance = torch.rand(2, dtype=torch.float64, generator=self._generator).tolist()
            index = min(
                int(torch.searchsorted(self._cumulative_mass, mass_fraction * total, right=True)),
                len(self._cumulative_mass) - 1,
            )
            one = slice(index, index + 1)
            threshold = acceptance * float(self._stale[index])
            if bool(self._available.mask[index]) and threshold < float(self._refreshed(one)):
                return index
            self._rejections += 1
            if self._rejections >= max(MIN_REJECTIONS_BEFORE_UPDATE, len(self._stale) // 64):
                self._update()

    def _refreshed(self, selection: slice) -> Tensor:
        factors = [factor[selection] for factor in self._gradients]
        new_picks = slice(self._n_applied_picks, len(self.picks))
        centres = [picked[new_picks] for picked in self._picked]
        return torch.minimum(
            self._stale[selection],
            squared_distance_to_nearest(factors, centres, self._picked_squared_norms[new_picks]),
        )

    def _update(self) -> None:
        self._stale = self._refreshed(slice(None))
        self._n_applied_picks, self._rejections = len(self.picks), 0
        # Summed on the CPU: on a GPU the order of summation varies, and draws must be deterministic.
        mass = self._stale.masked_fill(~self._available.mask, 0.0)
        if self._sample_weight is not None:
            mass = mass * self._sample_weight
        self._cumulative_mass = mass.cpu().cumsum(0)


BADGE_SPEC = QuerySpec(
    badge, ("z", "features"), needs_with_subsampling("z", "features"), explained_by=UNCERTAINTIES
)
