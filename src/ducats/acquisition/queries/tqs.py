"""Query of TQS (Fu et al., CVPR 2021): committee, uncertainty and domainness, with random sampling."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ducats.acquisition.queries.distances import reorder, sort_by_location
from ducats.acquisition.queries.spec import UNCERTAINTIES, QuerySpec
from ducats.acquisition.queries.two_round import sample_from_top
from ducats.acquisition.samples import QueryContext, SampleTable

_SAMPLES_PER_CHUNK = 2**14  # samples per pass


def tqs(
    context: QueryContext,
    *,
    domainness: float = 1.0,
    sigma: float = 0.25,
    candidate_factor: float | None = None,
) -> Tensor:
    """Sample at random from the top by committee disagreement, margin and domainness (TQS).

    The number of top candidates is the expected number of errors, ``N (1 - mean confidence)``. The published
    code uses the error on the test set, whose labels are not available.

    Args:
        domainness: weight of the domainness, ``exp(-(D - 1/2)^2 / (2 sigma^2))``, where D is the
            discriminator's probability of the source.
        sigma: width of the domainness around D = 1/2.
        candidate_factor: sample from this multiple of the budget instead.
    """
    if sigma <= 0:
        raise ValueError(f"query.params.sigma must be above 0, not {sigma}")
    if candidate_factor is not None and candidate_factor < 1:
        raise ValueError(
            f"query.params.candidate_factor must be at least 1, not {candidate_factor}; it is a multiple of "
            "the budget"
        )
    # In a fixed order, as the last bits of a mean depend on it.
    order = sort_by_location(context.candidates)
    if context.budget == 0 or not len(order):
        return order[:0]
    samples = reorder(context.candidates, order)
    domain_uncertainty = torch.exp(-((samples.column("domain").double() - 0.5) ** 2) / (2 * sigma**2))
    score = (
        committee_disagreement(samples)
        + 1
        - samples.column("margin").double()
        + domainness * domain_uncertainty
    )
    if candidate_factor is not None:
        n_candidates = candidate_factor * context.budget
    else:
        n_candidates = len(samples) - round(float(samples.column("confidence").double().sum()))
    return order[sample_from_top(score, n_candidates, samples, context)]


def tqs_needs(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns; the confidence is only needed without `candidate_factor`."""
    always = ("margin", "committee", "domain")
    return (*always, "confidence") if params.get("candidate_factor") is None else always


def committee_disagreement(samples: SampleTable) -> Tensor:
    """Compute the standard deviation of class probabilities over members, mean over classes: ``(R,)``."""
    committee = samples.column("committee")
    correction = min(1, committee.shape[1] - 1)  # a single member has no deviation
    # In chunks: the whole table in float64 would need twice the memory.
    deviations = [
        chunk.double().std(1, correction=correction).mean(1) for chunk in committee.split(_SAMPLES_PER_CHUNK)
    ]
    return torch.cat(deviations)


TQS_SPEC = QuerySpec(tqs, tqs_needs({}), tqs_needs, explained_by=UNCERTAINTIES)
