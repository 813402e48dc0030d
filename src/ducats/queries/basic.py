"""Queries that rank the candidates by one score."""

from torch import Tensor

from ducats.randomness import draw_per_address
from ducats.rows import Slate, best


def uniform(context: Slate) -> Tensor:
    """Select candidates uniformly at random."""
    samples = context.candidates
    return best(draw_per_address(context.generator, samples.image, samples.position), context.budget, samples)


def max_entropy(context: Slate) -> Tensor:
    """Select the highest entropy of the expected probabilities."""
    return best(context.candidates.column("entropy"), context.budget, context.candidates)


def min_margin(context: Slate) -> Tensor:
    """Select the smallest margin between the two most probable classes."""
    return best(-context.candidates.column("margin"), context.budget, context.candidates)


def least_confident(context: Slate) -> Tensor:
    """Select the lowest probability of the most probable class."""
    return best(-context.candidates.column("confidence"), context.budget, context.candidates)


def max_u_dis(context: Slate) -> Tensor:
    """Select the highest distribution uncertainty U_dis: little evidence."""
    return best(context.candidates.column("u_dis"), context.budget, context.candidates)


def max_u_data(context: Slate) -> Tensor:
    """Select the highest data uncertainty U_data: conflicting evidence."""
    return best(context.candidates.column("u_data"), context.budget, context.candidates)
