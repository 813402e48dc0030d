"""Queries that rank the candidates by one score."""

from torch import Tensor

from ducats.randomness import draw_per_address
from ducats.rows import Slate, best


def uniform(slate: Slate) -> Tensor:
    """Select candidates uniformly at random."""
    rows = slate.candidates
    return best(draw_per_address(slate.generator, rows.image, rows.position), slate.budget, rows)


def entropy(slate: Slate) -> Tensor:
    """Select the highest entropy of the expected probabilities."""
    return best(slate.candidates.column("entropy"), slate.budget, slate.candidates)


def margin(slate: Slate) -> Tensor:
    """Select the smallest margin between the two most probable classes."""
    return best(-slate.candidates.column("margin"), slate.budget, slate.candidates)


def least_confident(slate: Slate) -> Tensor:
    """Select the lowest probability of the most probable class."""
    return best(-slate.candidates.column("confidence"), slate.budget, slate.candidates)


def u_dis(slate: Slate) -> Tensor:
    """Select the highest distribution uncertainty U_dis: little evidence."""
    return best(slate.candidates.column("u_dis"), slate.budget, slate.candidates)


def u_data(slate: Slate) -> Tensor:
    """Select the highest data uncertainty U_data: conflicting evidence."""
    return best(slate.candidates.column("u_data"), slate.budget, slate.candidates)
