"""Our query: greedy coverage of the candidates' uncertainty.

A label also tells about similar samples. Each pick is the candidate whose label would cover the most
uncertainty that labels and earlier picks leave uncovered. Gains only fall from pick to pick, so lazy greedy
selection is exact (compare uncertainty herding, Bae et al., ICLR 2025).
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ducats.acquisition.queries.distances import lazy_greedy, load_features, reorder, sort_by_location
from ducats.acquisition.queries.spec import UNCERTAINTIES, QuerySpec, StreamingRule
from ducats.acquisition.queries.subsampling import SubsampleBy, subsample_candidates
from ducats.acquisition.samples import QueryContext, SampleTable, top_k
from ducats.utils.randomness import uniform_per_location

CoveredUncertainty = Literal["margin", "entropy"]

IMAGE_TEMPERATURE = 0.2
PIXEL_TEMPERATURE = 0.1
MAX_PIXELS, MAX_PIXELS_ON_CPU = 8192, 2048  # see `coverage`
DEFAULT_SUBSAMPLE = 50_000
MIN_CANDIDATES_PER_PICK = 10  # minimum size of the subsample, as a multiple of the budget
MIN_UNCERTAINTY = 1e-6  # added to the uncertainty: if all samples are certain, coverage alone decides
SHORTLIST_KAPPA = 30.0  # candidates per pick in `ducats score`; 10 lose 30 % of the gain over random picks
TIE_RTOL = 1e-6  # gains that differ by less than this fraction of the largest one differ by rounding only
ROWS_PER_BLOCK = 1024  # the kernel is computed in blocks that stay in the processor's cache
ELEMENTS_PER_BLOCK = 2**20
SAMPLES_PER_PART = 4096  # labelled samples whose features are in memory at a time


def coverage(
    context: QueryContext,
    *,
    uncertainty: CoveredUncertainty = "margin",
    power: float = 1.0,
    temperature: float | None = None,
    centred: bool = True,
    max_pixels: int | None = None,
    max_greedy: int = 512,
    subsample: int | None = DEFAULT_SUBSAMPLE,
    subsample_by: SubsampleBy = "entropy_weighted",
) -> Tensor:
    """Select samples whose labels would cover the most uncertainty of similar samples (ours).

    Greedy: each pick is the candidate j with the highest gain,
    ``gain(j) = sum_i u_i max(0, k(i, j) - max_l k(i, l))``, where l runs over labelled samples and picks. In
    segmentation, l includes pixels that annotators answered with "void". The similarity of features f is
    ``k(i, j) = exp((cos(f_i, f_j) - 1) / temperature)``.

    Args:
        uncertainty: ``margin`` (u is 1 minus the margin) or ``entropy``.
        power: exponent of the uncertainty; 0: all samples count the same.
        temperature: width of the kernel; None: 0.2 for images and 0.1 for pixels.
        centred: whether to subtract the mean feature of the candidates first.
        max_pixels: maximum number of pixels to cover and to select from. If an image has more candidates,
            those on a regular grid are used. None: 8192 on a GPU, and 2048 on a CPU, which takes a tenth of
            the time and covers 2 % less.
        max_greedy: maximum number of greedy picks in one image. Further ones are drawn at random from all its
            pixels, with probability proportional to u.
        subsample: number of images to cover and to select from, at least 10 times the budget; None: all.
            Sampled images are weighted by the inverse of their inclusion probability.
        subsample_by: ``entropy_weighted`` samples them with probability proportional to the entropy;
            ``highest_entropy`` takes the highest entropies.
    """
    _check_params(uncertainty, power, temperature, max_pixels, max_greedy)
    candidates, count = context.candidates, min(context.budget, len(context.candidates))
    if max_pixels is None:
        max_pixels = MAX_PIXELS_ON_CPU if candidates.image.device.type == "cpu" else MAX_PIXELS
    if candidates.shape is None:
        if subsample is not None and subsample >= 1:
            subsample = max(subsample, MIN_CANDIDATES_PER_PICK * count)
        order, inclusion_probability = subsample_candidates(context, subsample, subsample_by)
        temperature, n_greedy = temperature or IMAGE_TEMPERATURE, count
    else:
        order, inclusion_probability = _grid(candidates, max_pixels), None
        temperature, n_greedy = temperature or PIXEL_TEMPERATURE, min(count, len(order), max_greedy)
    if count == len(candidates) or n_greedy == 0:
        return sort_by_location(candidates)[:count]
    samples = reorder(candidates, order)
    weights = _weights(samples, uncertainty, power)
    if inclusion_probability is not None:
        weights = weights / inclusion_probability.to(weights.device)
    features = load_features(samples, "coverage").float()
    mean = features.mean(0) if centred else None
    gains = _CoverageGains(_directions(features, mean), weights, temperature)
    for known in _split(context.labelled if context.acquired is None else context.acquired):
        known_features = load_features(known, "coverage").float().to(features.device)
        gains.cover(_directions(known_features, mean))
    bound = gains.of_all()
    picks = lazy_greedy(
        samples, n_greedy, bound, gains.of, gains.add, tie_tolerance=TIE_RTOL * float(bound.max())
    )
    others = _draw_others(context, order[picks], count - n_greedy, uncertainty, power)
    return torch.cat([order[picks], others])


def _check_params(
    uncertainty: str, power: float, temperature: float | None, max_pixels: int | None, max_greedy: int
) -> None:
    if uncertainty not in get_args(CoveredUncertainty):
        raise ValueError(
            f"query.params.uncertainty must be one of {', '.join(get_args(CoveredUncertainty))}, "
            f"not {uncertainty!r}"
        )
    if temperature is not None and not 0 < temperature < math.inf:
        raise ValueError(f"query.params.temperature must be above 0, not {temperature}; None: by task")
    for name, value, lowest in (
        ("power", power, 0),
        ("max_pixels", max_pixels, 1),
        ("max_greedy", max_greedy, 1),
    ):
        if value is not None and not lowest <= value < math.inf:
            raise ValueError(f"query.params.{name} must be at least {lowest}, not {value}")


def coverage_needs(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of the uncertainty, the features, and the entropy if images are subsampled."""
    names = [params.get("uncertainty", "margin"), "features"]
    if params.get("subsample", DEFAULT_SUBSAMPLE) is not None:
        names.append("entropy")
    return tuple(dict.fromkeys(names))


def shortlist_columns(params: Mapping[str, Any]) -> tuple[str]:
    """Return the column that ranks the most uncertain samples first."""
    name = params.get("uncertainty", "margin")
    return ("-margin" if name == "margin" else name,)


def _grid(samples: SampleTable, max_pixels: int) -> Tensor:
    """Return the indices of all candidates or of those on a grid, in location order."""
    assert samples.shape is not None
    order, (height, width) = sort_by_location(samples), samples.shape
    if len(samples) <= max_pixels:
        return order
    step = math.ceil(math.sqrt(height * width / max_pixels))
    y, x = samples.position[order] // width, samples.position[order] % width
    return order[(y % step == step // 2) & (x % step == step // 2)]


def _weights(samples: SampleTable, uncertainty: CoveredUncertainty, power: float) -> Tensor:
    """Return u of each sample, ``(n,)`` in float64."""
    column = samples.column(uncertainty).double()
    if bool(column.isnan().any()):
        raise ValueError(f"the column {uncertainty!r} contains NaN; check the model")
    values = 1 - column if uncertainty == "margin" else column
    return (values.clamp(min=0) + MIN_UNCERTAINTY) ** power


def _split(samples: SampleTable) -> Iterator[SampleTable]:
    """Yield the samples in parts, so that lazy features are never all in memory."""
    if not len(samples):
        return
    for part in torch.arange(len(samples), device=samples.image.device).split(SAMPLES_PER_PART):
        yield samples[part]


def _draw_others(
    context: QueryContext, picks: Tensor, count: int, uncertainty: CoveredUncertainty, power: float
) -> Tensor:
    """Return random candidates other than the picks, drawn with probability proportional to u."""
    if count == 0:
        return picks[:0]
    candidates = context.candidates
    is_free = torch.ones(len(candidates), dtype=torch.bool, device=picks.device)
    is_free[picks] = False
    free = is_free.nonzero().squeeze(1)
    others = candidates[free]
    weights = _weights(others, uncertainty, power)
    uniform = uniform_per_location(context.generator, others.image, others.position).to(weights.device)
    drawn = top_k(
        uniform.log() / weights,
        count,
        others,
        min_distance=candidates.min_distance,
        apart_from=candidates[picks],
    )
    return free[drawn]


def _directions(features: Tensor, mean: Tensor | None) -> Tensor:
    """Return the features, centred and of unit norm; zeros if there is nothing to normalise."""
    directions = features.clone() if mean is None else features - mean
    directions /= directions.norm(dim=1, keepdim=True).clamp_(min=1e-12)
    return directions


class _CoverageGains:
    """Gains of candidates, given what labels and picks cover so far.

    Args:
        directions: features of the candidates, of unit norm: ``(n, D)``.
        weights: u of each candidate, ``(n,)``.
        temperature: width of the kernel.
    """

    def __init__(self, directions: Tensor, weights: Tensor, temperature: float) -> None:
        self._directions, self._weights, self._temperature = directions, weights.float(), temperature
        self._covered = torch.zeros_like(self._weights)  # largest kernel to a label or pick

    def cover(self, labelled: Tensor) -> None:
        """Add labelled samples."""
        for rows in _blocks(len(self._covered), ROWS_PER_BLOCK):
            for columns in _blocks(len(labelled), _columns_per_block(rows)):
                highest = self._kernel(self._directions[rows], labelled[columns]).amax(1)
                self._covered[rows] = torch.maximum(self._covered[rows], highest)

    def add(self, pick: int) -> None:
        """Add a pick."""
        kernel = self._kernel(self._directions, self._directions[pick : pick + 1])[:, 0]
        self._covered = torch.maximum(self._covered, kernel)

    def of(self, index: Tensor) -> Tensor:
        """Return the gains of some candidates, ``(k,)`` in float64."""
        gains = torch.zeros(len(index), dtype=torch.float64, device=index.device)
        for rows in _blocks(len(index), ROWS_PER_BLOCK):
            directions = self._directions[index[rows]]
            for columns in _blocks(len(self._covered), _columns_per_block(rows)):
                kernel = self._kernel(directions, self._directions[columns])
                gains[rows] += kernel.sub_(self._covered[columns]).clamp_(min=0) @ self._weights[columns]
        return gains

    def of_all(self) -> Tensor:
        """Return the gains of all candidates, ``(n,)`` in float64; computes each pair once."""
        gains = torch.zeros(len(self._covered), dtype=torch.float64, device=self._covered.device)
        for rows in _blocks(len(gains), ROWS_PER_BLOCK):
            for columns in _blocks(len(gains), ROWS_PER_BLOCK, rows.start):
                kernel = self._kernel(self._directions[rows], self._directions[columns])
                gain = (kernel - self._covered[columns]).clamp_(min=0)
                gains[rows] += gain @ self._weights[columns]
                if columns.start > rows.start:
                    gain = kernel.sub_(self._covered[rows, None]).clamp_(min=0)
                    gains[columns] += self._weights[rows] @ gain
        return gains

    def _kernel(self, a: Tensor, b: Tensor) -> Tensor:
        """Return k of all pairs, ``(len(a), len(b))``."""
        return (a @ b.T).sub_(1).div_(self._temperature).exp_()


def _blocks(count: int, size: int, start: int = 0) -> Iterator[slice]:
    return (slice(first, min(first + size, count)) for first in range(start, count, size))


def _columns_per_block(rows: slice) -> int:
    n_rows: int = rows.stop - rows.start
    return max(1, ELEMENTS_PER_BLOCK // n_rows)


COVERAGE_SPEC = QuerySpec(
    coverage,
    coverage_needs({}),
    coverage_needs,
    streaming=StreamingRule("shortlist", shortlist_columns({}), shortlist_columns, SHORTLIST_KAPPA),
    explained_by=UNCERTAINTIES,
)
