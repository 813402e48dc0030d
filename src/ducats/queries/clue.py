"""CLUE's query (Prabhu et al., ICCV 2021): clusters of all candidates, drawn to the uncertain."""

import torch
from torch import Tensor

from ducats import dirichlet
from ducats.queries.among import Chosen, competing
from ducats.queries.clusters import EXACT, check_feasible, one_of_each
from ducats.queries.distances import features_of, in_order
from ducats.rows import Slate, best

GIGABYTES = 4.0  # (2**30 bytes) of features, at most
AT_ONCE = 2**16  # rows per pass


def clue(
    slate: Slate,
    *,
    temperature: float = 1.0,
    exact: float = EXACT,
    among: int | None = None,
    chosen: Chosen = "drawn",
) -> Tensor:
    """One from each cluster of the features, weighted by entropy (CLUE).

    K-means of all candidates, with as many clusters as the budget; from each cluster the sample nearest to
    its centre.

    Args:
        slate: the candidates.
        temperature: of the softmax whose entropy is the weight; lower, and the sure count less.
        exact: candidates times budget, up to which k-means sees all at once; mini-batches beyond.
        among: how many candidates are clustered at all; None: all. Those that are drawn stand for the others.
        chosen: whether these are ``drawn``, with odds by their entropy, or the most ``uncertain`` ones.

    Raises:
        UserError: That is more than k-means can do: over CLUSTERS clusters, or over GIGABYTES of features.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, not {temperature}")
    order, chance = competing(slate, among, chosen)
    if slate.budget == 0 or len(order) <= slate.budget:
        return order[: slate.budget]
    rows = in_order(slate.candidates, order)
    weights = torch.cat([dirichlet.entropy(z / temperature) for z in rows.z.split(AT_ONCE)])
    if chance is not None:
        weights = weights / chance.to(weights.device)
    if rows.apart:
        # Regions that overlap would be bought twice: as many as certainly do not, the most uncertain first.
        apart = best(weights, max(slate.budget, len(rows) // (2 * rows.apart + 1) ** 2), rows)
        order, rows, weights = order[apart], rows[apart], weights[apart]
        if len(order) <= slate.budget:
            return order
    check_feasible("clue", rows, slate.budget, gigabytes=GIGABYTES, number=4, fewer="set query.knobs.among")
    features = features_of(rows, "clue").float()
    return order[one_of_each(features, weights, slate.budget, slate.generator, exact=exact)]
