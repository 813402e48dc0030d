"""One of each group: k-means on features, and the row nearest to each centre."""

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from ducats.errors import UserError
from ducats.rows import Rows

Array = np.typing.NDArray[np.floating[np.typing.NBitBase]]

CLUSTERS = 8192  # at most: the time of k-means grows with their number times that of rows
EXACT = 5e7  # rows times clusters: up to here plain k-means takes a minute or two on one core
STEPS = 100  # of mini-batches, beyond
SHORT = 8  # nearest rows kept per centre: another centre may take the nearest
AT_ONCE = 2**25  # distances per pass
REMEDY = "lower ask.budget (as 40/image), set task.unit=image, or choose another query (query.name=duc)"


def one_of_each(
    features: Tensor, weights: Tensor, count: int, generator: torch.Generator, *, exact: float = EXACT
) -> Tensor:
    """Indices of ``count`` rows: of each cluster the row nearest to its centre, no row twice.

    Repeatable, and the order of the rows matters: fix it before. Rows that are identical count as one point;
    if there are fewer points than clusters, the first rows that are left make up the number.

    Args:
        features: ``(R, D)``, at least ``count`` rows.
        weights: ``(R,)``, not negative: how much a row draws its centre.
        count: of clusters.
        generator: gives the seed.
        exact: rows times clusters, up to which all rows are clustered at once; in mini-batches beyond.
    """
    seed = int(torch.randint(0, 2**31, (), generator=generator))
    held = features.cpu()
    # All-zero weights would leave k-means without a mean: a weightless row still counts a little.
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
    """Refuse what k-means cannot do, before the features are computed, which may be what does not fit.

    Args:
        query: its name.
        rows: what would be clustered.
        clusters: how many there would be.
        gigabytes: of features, at most (2**30 bytes).
        number: bytes of a number.
        fewer: how to have fewer rows clustered, for the message.
    """
    if clusters > CLUSTERS:
        what, remedy = f"{clusters} clusters, and {CLUSTERS} are the most", REMEDY
    else:
        width = rows[torch.arange(1, device=rows.image.device)].features.flatten(1).shape[1]
        wanted = len(rows) * width * number / 2**30
        if wanted <= gigabytes:
            return
        what = f"{wanted:.1f} GB of features, and {gigabytes:g} GB are the most"
        remedy = f"{fewer}, {REMEDY}"
    raise UserError(f"the query {query!r} would have to cluster {what}: {remedy}")


def _centres(features: Array, weights: Array, count: int, seed: int, exact: float) -> Array:
    from sklearn.cluster import KMeans, MiniBatchKMeans  # takes a second; before the limit on threads

    # Identical rows are one point: k-means would warn of fewer distinct points than clusters.
    clusters = _distinct(features, count)
    if len(features) * clusters <= exact:
        kmeans = KMeans(clusters, n_init=3, random_state=seed)
    else:
        batch = max(1024, 2 * clusters)
        epochs = max(1, STEPS * batch // len(features))
        kmeans = MiniBatchKMeans(
            clusters, n_init=1, random_state=seed, batch_size=batch, max_iter=epochs, compute_labels=False
        )
    # One thread: sums over several threads come out in any order, and picks must be repeatable.
    with threadpool_limits(1):
        centres: Array = kmeans.fit(features, sample_weight=weights).cluster_centers_
    return centres


def _distinct(features: Array, enough: int) -> int:
    """How many rows differ; counting ends at ``enough``."""
    seen = set[bytes]()
    for row in features:
        seen.add((row + 0).tobytes())  # the sum makes -0 a 0
        if len(seen) == enough:
            break
    return len(seen)


def nearest_each(centres: Tensor, features: Tensor) -> Tensor:
    """The row nearest to each centre; if an earlier centre has taken it, the next nearest that is free.

    Args:
        centres: ``(K, D)``.
        features: ``(R, D)``, at least as many as centres.
    """
    taken = torch.zeros(len(features), dtype=torch.bool)
    picks = []
    for centre, near in zip(centres, _shortlist(centres, features), strict=True):
        some = near[~taken[near]]
        if not len(some):
            left = (~taken).nonzero().squeeze(1)
            some = left[_shortlist(centre[None], features[left])[0]]
        some = some.sort().values  # of equals, the first
        distance = ((features[some].double() - centre.double()) ** 2).sum(1)
        picks.append(int(some[distance.argmin()]))
        taken[picks[-1]] = True
    return torch.tensor(picks, dtype=torch.long)


def _shortlist(centres: Tensor, features: Tensor) -> Tensor:
    """Indices of the rows nearest to each centre, up to rounding: ``(K, SHORT)``, or fewer if there are."""
    middle = centres.mean(0)
    toward = (centres - middle).to(features.dtype)
    least = features.new_empty(len(centres), 0)
    where = torch.empty(len(centres), 0, dtype=torch.long)
    step = max(SHORT, AT_ONCE // len(centres))
    for start in range(0, len(features), step):
        some = features[start : start + step] - middle
        # Half the squared distance, less what is the same for all rows.
        far = (some**2).sum(1) / 2 - toward @ some.T
        low, at = far.topk(min(SHORT, far.shape[1]), largest=False)
        least, where = torch.cat([least, low], 1), torch.cat([where, at + start], 1)
        least, keep = least.topk(min(SHORT, least.shape[1]), largest=False)
        where = where.gather(1, keep)
    return where
