"""Queries that give each row a score and keep the best."""

from torch import Tensor

from ducats import dirichlet
from ducats.randomness import draw_per_address
from ducats.rows import Slate, best


def uniform(slate: Slate) -> Tensor:
    """Every candidate with the same chance."""
    rows = slate.candidates
    return best(draw_per_address(slate.generator, rows.image, rows.position), slate.budget, rows)


def entropy(slate: Slate) -> Tensor:
    """Highest entropy of the expected probabilities."""
    return best(dirichlet.entropy(slate.candidates.z), slate.budget, slate.candidates)


def margin(slate: Slate) -> Tensor:
    """Smallest gap between the two most probable classes (best versus second best)."""
    top = dirichlet.expected_probability(slate.candidates.z).topk(2, dim=1).values
    return best(top[:, 1] - top[:, 0], slate.budget, slate.candidates)


def least_confident(slate: Slate) -> Tensor:
    """Lowest probability of the most probable class."""
    confidence = dirichlet.expected_probability(slate.candidates.z).amax(dim=1)
    return best(-confidence, slate.budget, slate.candidates)


def u_dis(slate: Slate) -> Tensor:
    """Highest distribution uncertainty: where the model lacks evidence."""
    return best(dirichlet.log_distribution_uncertainty(slate.candidates.z), slate.budget, slate.candidates)


def u_data(slate: Slate) -> Tensor:
    """Highest data uncertainty: where the evidence is in conflict."""
    return best(dirichlet.data_uncertainty(slate.candidates.z), slate.budget, slate.candidates)
