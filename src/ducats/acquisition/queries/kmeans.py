"""K-means on features, and the sample nearest to each centre."""

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from ducats.acquisition.queries.distances import feature_width
from ducats.acquisition.samples import SampleTable
from ducats.utils.errors import UserError

_FloatArray = np.typing.NDArray[np.floating[np.typing.NBitBase]]

MAX_FEATURE_GIB = 4.0  # maximum size of the features, in units of 2**30 bytes
MAX_CLUSTERS = 8192  # maximum: the time of k-means grows with clusters times samples
FULL_KMEANS_LIMIT = 5e7  # samples times clusters; up to here full k-means takes a minute or two on one core
MINI_BATCH_STEPS = 100  # mini-batch steps, above `FULL_KMEANS_LIMIT`
SHORTLIST_SIZE = 8  # nearest samples kept per centre, as another centre may take the nearest
DISTANCES_PER_CHUNK = 2**25  # distances per pass
KMEANS_REMEDY = (
    "lower acquisition.budget (as in 40/image), set task.unit=image, or use another query (query.name=duc)"
)


def one_per_cluster(
    features: Tensor,
    weights: Tensor,
    n_clusters: int,
    generator: torch.Generator,
    *,
    full_kmeans_limit: float = FULL_KMEANS_LIMIT,
) -> Tensor:
    """Run k-means and return the distinct indices of the samples nearest to the centres.

    Deterministic for a given order of the samples. Identical samples count as one point. If there are fewer
    points than clusters, the first remaining samples fill up the number.

    Args:
        features: ``(R, D)``, with at least ``n_clusters`` samples.
        weights: ``(R,)``, non-negative sample weights.
        full_kmeans_limit: limit of samples times clusters for full k-means; above it, mini-batches are used.
    """
    seed = int(torch.randint(0, 2**31, (), generator=generator))
    cpu_features = features.cpu()
    # All-zero weights would leave k-means without a mean, so every sample gets a small weight.
    sample_weight = weights.cpu().double() + 1e-12
    centres = _fit_centres(cpu_features.numpy(), sample_weight.numpy(), n_clusters, seed, full_kmeans_limit)
    picks = nearest_unique(torch.from_numpy(centres), cpu_features)
    free = torch.ones(len(cpu_features), dtype=torch.bool)
    free[picks] = False
    rest = free.nonzero().squeeze(1)[: n_clusters - len(picks)]
    return torch.cat([picks, rest]).to(features.device)


def check_kmeans_feasible(query: str, samples: SampleTable, n_clusters: int) -> None:
    """Raise if k-means is infeasible, before the features are computed.

    Args:
        query: name of the query, for the message.

    Raises:
        UserError: If there are too many clusters or the features are too large.
    """
    check_cluster_count(query, n_clusters)
    needed_gib = len(samples) * feature_width(samples) * 4 / 2**30
    if needed_gib > MAX_FEATURE_GIB:
        raise UserError(
            f"the query {query!r} needs to cluster {needed_gib:.1f} GB of features; the maximum is "
            f"{MAX_FEATURE_GIB:g} GB. To fix it: set query.params.subsample, {KMEANS_REMEDY}"
        )


def check_cluster_count(query: str, n_clusters: int) -> None:
    """Raise if a query needs too many clusters at once."""
    if n_clusters > MAX_CLUSTERS:
        raise UserError(
            f"the query {query!r} needs {n_clusters} clusters; the maximum is {MAX_CLUSTERS}. To fix it: "
            f"{KMEANS_REMEDY}"
        )


def _fit_centres(
    features: _FloatArray, weights: _FloatArray, max_clusters: int, seed: int, full_kmeans_limit: float
) -> _FloatArray:
    from sklearn.cluster import KMeans, MiniBatchKMeans  # takes a second; must precede the limit on threads

    # Identical samples are one point: k-means would warn about fewer distinct points than clusters.
    n_clusters = _count_distinct(features, max_clusters)
    if len(features) * n_clusters <= full_kmeans_limit:
        kmeans = KMeans(n_clusters, n_init=3, random_state=seed)
    else:
        batch = max(1024, 2 * n_clusters)
        epochs = max(1, MINI_BATCH_STEPS * batch // len(features))
        kmeans = MiniBatchKMeans(
            n_clusters, n_init=1, random_state=seed, batch_size=batch, max_iter=epochs, compute_labels=False
        )
    # One thread: the order of summation varies across threads, and picks must be deterministic.
    with threadpool_limits(1):
        centres: _FloatArray = kmeans.fit(features, sample_weight=weights).cluster_centers_
    return centres


def _count_distinct(features: _FloatArray, limit: int) -> int:
    """Number of distinct rows; counting stops at ``limit``."""
    seen = set[bytes]()
    for row in features:
        seen.add((row + 0).tobytes())  # adding 0 turns -0 into 0
        if len(seen) == limit:
            break
    return len(seen)


def nearest_unique(centres: Tensor, features: Tensor) -> Tensor:
    """Return the sample nearest to each centre; if an earlier centre took it, the next nearest free one.

    ``(K, D), (R, D) -> (K,)``, with at least as many samples as centres.
    """
    taken = torch.zeros(len(features), dtype=torch.bool)
    picks = []
    for centre, nearest in zip(centres, _shortlist(centres, features), strict=True):
        shortlist = nearest[~taken[nearest]]
        if not len(shortlist):
            left = (~taken).nonzero().squeeze(1)
            shortlist = left[_shortlist(centre[None], features[left])[0]]
        shortlist = shortlist.sort().values  # ties go to the first
        distance = ((features[shortlist].double() - centre.double()) ** 2).sum(1)
        picks.append(int(shortlist[distance.argmin()]))
        taken[picks[-1]] = True
    return torch.tensor(picks, dtype=torch.long)


def _shortlist(centres: Tensor, features: Tensor) -> Tensor:
    """Indices of the samples nearest to each centre, up to rounding: ``(K, min(SHORTLIST_SIZE, R))``."""
    mean = centres.mean(0)
    centred_centres = (centres - mean).to(features.dtype)
    best_distances = features.new_empty(len(centres), 0)
    best_indices = torch.empty(len(centres), 0, dtype=torch.long)
    step = max(SHORTLIST_SIZE, DISTANCES_PER_CHUNK // len(centres))
    for start in range(0, len(features), step):
        chunk = features[start : start + step] - mean
        # Half the squared distance, minus a term that is the same for all samples.
        half_distances = (chunk**2).sum(1) / 2 - centred_centres @ chunk.T
        chunk_distances, chunk_indices = half_distances.topk(
            min(SHORTLIST_SIZE, half_distances.shape[1]), largest=False
        )
        best_distances = torch.cat([best_distances, chunk_distances], 1)
        best_indices = torch.cat([best_indices, chunk_indices + start], 1)
        best_distances, keep = best_distances.topk(
            min(SHORTLIST_SIZE, best_distances.shape[1]), largest=False
        )
        best_indices = best_indices.gather(1, keep)
    return best_indices
