"""Our own query: uncertain, and unlike each other.

With few labels the most uncertain samples are near-twins, and the budget buys one lesson many times. So the
uncertain ones are clustered by what the last layer sees, and one of each cluster is asked.
"""

import math

from torch import Tensor

from ducats.queries.clusters import REMEDY as REMEDY
from ducats.queries.clusters import check_feasible, one_of_each
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
    rows = slate.candidates[uncertain]
    check_feasible("spread", rows, slate.budget, most=CLUSTERS, gigabytes=GIGABYTES, number=8)
    features = rows.features.flatten(1).double()
    return uncertain[
        one_of_each(features, uncertainty[uncertain], slate.budget, slate.generator, exact=math.inf)
    ]
