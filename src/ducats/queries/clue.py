"""Query of CLUE (Prabhu et al., ICCV 2021): uncertainty-weighted clustering of all candidates."""

import torch
from torch import Tensor

from ducats import dirichlet
from ducats.queries.among import Chosen, competing
from ducats.queries.clusters import EXACT, check_feasible, one_of_each
from ducats.queries.distances import features_of, in_order
from ducats.rows import Slate, best

GIGABYTES = 4.0  # maximum size of the features, in units of 2**30 bytes
AT_ONCE = 2**16  # samples per pass


def clue(
    slate: Slate,
    *,
    temperature: float = 1.0,
    exact: float = EXACT,
    among: int | None = None,
    chosen: Chosen = "drawn",
) -> Tensor:
    """Select one sample per cluster of the features, weighted by entropy (CLUE).

    Runs k-means on all candidates with as many clusters as the budget, and takes the sample nearest to each
    centre.

    Args:
        temperature: temperature of the softmax whose entropy is the weight; lower values reduce the weight of
            confident samples.
        exact: limit of candidates times budget for full k-means; above it, mini-batches are used.
        among: number of candidates to cluster; None: all. Sampled candidates are weighted by the inverse of
            their inclusion probability.
        chosen: ``drawn`` samples them with probability proportional to the entropy; ``uncertain`` takes the
            highest entropies.

    Raises:
        UserError: If there are more than `CLUSTERS` clusters or more than `GIGABYTES` of features.
    """
    if temperature <= 0:
        raise ValueError(f"query.params.temperature must be above 0, not {temperature}")
    order, chance = competing(slate, among, chosen)
    if slate.budget == 0 or len(order) <= slate.budget:
        return order[: slate.budget]
    rows = in_order(slate.candidates, order)
    weights = torch.cat([dirichlet.entropy(z / temperature) for z in rows.z.split(AT_ONCE)])
    if chance is not None:
        weights = weights / chance.to(weights.device)
    if rows.apart:
        # Overlapping regions would be labelled twice: keep as many as surely fit, most uncertain first.
        apart = best(weights, max(slate.budget, len(rows) // (2 * rows.apart + 1) ** 2), rows)
        order, rows, weights = order[apart], rows[apart], weights[apart]
        if len(order) <= slate.budget:
            return order
    check_feasible("clue", rows, slate.budget, gigabytes=GIGABYTES, number=4, fewer="set query.params.among")
    features = features_of(rows, "clue").float()
    return order[one_of_each(features, weights, slate.budget, slate.generator, exact=exact)]
