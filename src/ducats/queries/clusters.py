"""K-means on features, and the sample nearest to each centre."""

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from ducats.errors import UserError
from ducats.rows import Rows

Array = np.typing.NDArray[np.floating[np.typing.NBitBase]]

CLUSTERS = 8192  # maximum: the time of k-means grows with clusters times samples
EXACT = 5e7  # samples times clusters; up to here full k-means takes a minute or two on one core
STEPS = 100  # mini-batch steps, above `EXACT`
SHORT = 8  # nearest samples kept per centre, as another centre may take the nearest
AT_ONCE = 2**25  # distances per pass
REMEDY = (
    "lower acquisition.budget (as in 40/image), set task.unit=image, or use another query (query.name=duc)"
)


def one_of_each(
    features: Tensor, weights: Tensor, count: int, generator: torch.Generator, *, exact: float = EXACT
) -> Tensor:
    """Cluster into ``count`` clusters and return the distinct indices of the samples nearest to the centres.

    Deterministic for a given order of the samples. Identical samples count as one point. If there are fewer
    points than clusters, the first remaining samples fill up the number.

    Args:
        features: ``(R, D)``, with at least ``count`` samples.
        weights: ``(R,)``, non-negative sample weights.
        count: number of clusters.
        generator: supplies the seed.
        exact: limit of samples times clusters for full k-means; above it, mini-batches are used.
    """
    seed = int(torch.randint(0, 2**31, (), generator=generator))
    held = features.cpu()
    # All-zero weights would leave k-means without a mean, so every sample gets a small weight.
    heavy = weights.cpu().double() + 1e-12
    centres = _centres(held.numpy(), heavy.numpy(), count, seed, exact)
    picks = nearest_each(torch.from_numpy(centres), held)
    free = torch.ones(len(held), dtype=torch.bool)
    free[picks] = False
    rest = free.nonzero().squeeze(1)[: count - len(picks)]
    return torch.cat([picks, rest]).to(features.device)


def check_feasible(
    query: str, rows: Rows, clusters: int, *, gigabytes: float, number: int, fewer: str
) -> None:
    """Raise if k-means is infeasible, before the features are computed.

    Args:
        query: name of the query, for the message.
        rows: the samples to cluster.
        clusters: number of clusters.
        gigabytes: maximum size of the features, in units of 2**30 bytes.
        number: bytes per value.
        fewer: how to cluster fewer samples, for the message.

    Raises:
        UserError: If there are too many clusters or the features are too large.
    """
    if clusters > CLUSTERS:
        what, remedy = f"needs {clusters} clusters; the maximum is {CLUSTERS}", REMEDY
    else:
        width = rows[torch.arange(1, device=rows.image.device)].features.flatten(1).shape[1]
        wanted = len(rows) * width * number / 2**30
        if wanted <= gigabytes:
            return
        what = f"needs to cluster {wanted:.1f} GB of features; the maximum is {gigabytes:g} GB"
        remedy = f"{fewer}, {REMEDY}"
    raise UserError(f"the query {query!r} {what}. To fix it: {remedy}")


def _centres(features: Array, weights: Array, count: int, seed: int, exact: float) -> Array:
    from sklearn.cluster import KMeans, MiniBatchKMeans  # takes a second; must precede the limit on threads

    # Identical samples are one point: k-means would warn about fewer distinct points than clusters.
    clusters = _distinct(features, count)
    if len(features) * clusters <= exact:
        kmeans = KMeans(clusters, n_init=3, random_state=seed)
    else:
        batch = max(1024, 2 * clusters)
        epochs = max(1, STEPS * batch // len(features))
        kmeans = MiniBatchKMeans(
            clusters, n_init=1, random_state=seed, batch_size=batch, max_iter=epochs, compute_labels=False
        )
    # One thread: the order of summation varies across threads, and picks must be deterministic.
    with threadpool_limits(1):
        centres: Array = kmeans.fit(features, sample_weight=weights).cluster_centers_
    return centres


def _distinct(features: Array, enough: int) -> int:
    """Number of distinct rows; counting stops at ``enough``."""
    seen = set[bytes]()
    for row in features:
        seen.add((row + 0).tobytes())  # adding 0 turns -0 into 0
        if len(seen) == enough:
            break
    return len(seen)


def nearest_each(centres: Tensor, features: Tensor) -> Tensor:
    """Return the sample nearest to each centre; if an earlier centre took it, the next nearest free one.

    Args:
        centres: ``(K, D)``.
        features: ``(R, D)``, at least as many samples as centres.
    """
    taken = torch.zeros(len(features), dtype=torch.bool)
    picks = []
    for centre, near in zip(centres, _shortlist(centres, features), strict=True):
        some = near[~taken[near]]
        if not len(some):
            left = (~taken).nonzero().squeeze(1)
            some = left[_shortlist(centre[None], features[left])[0]]
        some = some.sort().values  # ties go to the first
        distance = ((features[some].double() - centre.double()) ** 2).sum(1)
        picks.append(int(some[distance.argmin()]))
        taken[picks[-1]] = True
    return torch.tensor(picks, dtype=torch.long)


def _shortlist(centres: Tensor, features: Tensor) -> Tensor:
    """Indices of the samples nearest to each centre, up to rounding: ``(K, min(SHORT, R))``."""
    middle = centres.mean(0)
    toward = (centres - middle).to(features.dtype)
    least = features.new_empty(len(centres), 0)
    where = torch.empty(len(centres), 0, dtype=torch.long)
    step = max(SHORT, AT_ONCE // len(centres))
    for start in range(0, len(features), step):
        some = features[start : start + step] - middle
        # Half the squared distance, minus a term that is the same for all samples.
        far = (some**2).sum(1) / 2 - toward @ some.T
        low, at = far.topk(min(SHORT, far.shape[1]), largest=False)
        least, where = torch.cat([least, low], 1), torch.cat([where, at + start], 1)
        least, keep = least.topk(min(SHORT, least.shape[1]), largest=False)
        where = where.gather(1, keep)
    return where
