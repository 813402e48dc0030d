"""Our own query: uncertain, and unlike each other.

With few labels the most uncertain samples are near-twins, and the budget buys one lesson many times. So the
uncertain ones are clustered by what the last layer sees, and one of each cluster is asked.
"""

import math

import numpy as np
import torch
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits
from torch import Tensor

from ducats.errors import UserError
from ducats.rows import Slate, best

CLUSTERS = 4096  # at most: the time of k-means grows with their number times that of samples
GIGABYTES = 2.0  # (2**30 bytes) of features to cluster, at most: k-means holds several such tables


def spread(slate: Slate, *, kappa: float = 10.0) -> Tensor:
    """One from each cluster of the kappa times budget candidates of highest entropy.

    K-means with as many clusters as the budget, on the features, weighted by entropy; from each cluster the
    sample nearest to its centre.

    Args:
        slate: the candidates.
        kappa: how many times the budget are clustered.

    Raises:
        UserError: That is more than k-means can do: over CLUSTERS clusters, or over GIGABYTES of features.
    """
    if kappa < 1:
        raise ValueError(f"kappa must be at least 1, not {kappa}: a cluster needs a sample")
    uncertainty = slate.candidates.column("entropy")
    # `best` also fixes the order, so the clustering does not depend on the order of the pool.
    uncertain = best(uncertainty, math.ceil(kappa * slate.budget), slate.candidates)
    if len(uncertain) <= slate.budget:
        return uncertain
    _check_feasible(slate, uncertain)
    features = slate.candidates[uncertain].features.flatten(1).cpu().double().numpy()
    # All-zero weights would leave k-means without a mean: a certain sample still counts a little.
    weights = uncertainty[uncertain].cpu().double().numpy() + 1e-12
    seed = int(torch.randint(0, 2**31, (), generator=slate.generator))
    centres = _centres(features, weights, slate.budget, seed)
    return uncertain[torch.from_numpy(_nearest_each(centres, features)).to(uncertain.device)]


def _check_feasible(slate: Slate, uncertain: Tensor) -> None:
    """Refuse before the features are computed, which may be what does not fit."""
    if slate.budget > CLUSTERS:
        what = f"{slate.budget} clusters, and {CLUSTERS} are the most"
    else:
        width = slate.candidates[uncertain[:1]].features.flatten(1).shape[1]
        gigabytes = len(uncertain) * width * 8 / 2**30
        if gigabytes <= GIGABYTES:
            return
        what = f"{gigabytes:.1f} GB of features, and {GIGABYTES:g} GB are the most"
    raise UserError(f"the query 'spread' would have to cluster {what}: {REMEDY}")


REMEDY = "lower ask.budget (as 40/image), set task.unit=image, or choose another query (query.name=duc)"


def _centres(
    features: np.typing.NDArray[np.float64], weights: np.typing.NDArray[np.float64], count: int, seed: int
) -> np.typing.NDArray[np.float64]:
    # Identical images are one point: k-means would warn of fewer distinct points than clusters.
    distinct = len(np.unique(features, axis=0))
    kmeans = KMeans(min(count, distinct), n_init=3, random_state=seed)
    # One thread: sums over several threads come out in any order, and picks must be repeatable.
    with threadpool_limits(1):
        centres: np.typing.NDArray[np.float64] = kmeans.fit(features, sample_weight=weights).cluster_centers_
    # Too few distinct points: the surplus of the budget goes to the points that are left, in their order.
    surplus = features[: count - len(centres)]
    return np.concatenate([centres, surplus])


def _nearest_each(
    centres: np.typing.NDArray[np.float64], features: np.typing.NDArray[np.float64]
) -> np.typing.NDArray[np.int64]:
    """The sample nearest to each centre, no sample twice."""
    taken = np.zeros(len(features), dtype=bool)
    picks = []
    for centre in centres:
        distance = ((features - centre) ** 2).sum(axis=1)
        distance[taken] = np.inf
        picks.append(int(distance.argmin()))
        taken[picks[-1]] = True
    return np.array(picks, dtype=np.int64)
