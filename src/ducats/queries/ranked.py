"""Queries that give each row a score and keep the best."""

from torch import Tensor

from ducats.randomness import draw_per_address
from ducats.rows import Slate, best


def uniform(slate: Slate) -> Tensor:
    """Every candidate with the same chance."""
    rows = slate.candidates
    return best(draw_per_address(slate.generator, rows.image, rows.position), slate.budget, rows)


def entropy(slate: Slate) -> Tensor:
    """Highest entropy of the expected probabilities."""
    return best(slate.candidates.column("entropy"), slate.budget, slate.candidates)


def margin(slate: Slate) -> Tensor:
    """Smallest gap between the two most probable classes (best versus second best)."""
    return best(-slate.candidates.column("margin"), slate.budget, slate.candidates)


def least_confident(slate: Slate) -> Tensor:
    """Lowest probability of the most probable class."""
    return best(-slate.candidates.column("confidence"), slate.budget, slate.candidates)


def u_dis(slate: Slate) -> Tensor:
    """Highest distribution uncertainty: where the model lacks evidence."""
    return best(slate.candidates.column("u_dis"), slate.budget, slate.candidates)


def u_data(slate: Slate) -> Tensor:
    """Highest data uncertainty: where the evidence is in conflict."""
    return best(slate.candidates.column("u_data"), slate.budget, slate.candidates)
