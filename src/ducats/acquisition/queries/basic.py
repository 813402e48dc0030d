"""Queries that rank the candidates by one score."""

from torch import Tensor

from ducats.acquisition.queries.spec import RANDOM_COLUMN, UNCERTAINTIES, QuerySpec, StreamingRule
from ducats.acquisition.samples import QueryContext, random_k, top_k


def uniform(context: QueryContext) -> Tensor:
    """Select candidates uniformly at random."""
    return random_k(context.generator, context.budget, context.candidates)


def max_entropy(context: QueryContext) -> Tensor:
    """Select the highest entropy of the expected probabilities."""
    return top_k(context.candidates.column("entropy"), context.budget, context.candidates)


def min_margin(context: QueryContext) -> Tensor:
    """Select the smallest margin between the two most probable classes."""
    return top_k(-context.candidates.column("margin"), context.budget, context.candidates)


def least_confident(context: QueryContext) -> Tensor:
    """Select the lowest probability of the most probable class."""
    return top_k(-context.candidates.column("confidence"), context.budget, context.candidates)


def max_u_dis(context: QueryContext) -> Tensor:
    """Select the highest distribution uncertainty U_dis: little evidence."""
    return top_k(context.candidates.column("u_dis"), context.budget, context.candidates)


def max_u_data(context: QueryContext) -> Tensor:
    """Select the highest data uncertainty U_data: conflicting evidence."""
    return top_k(context.candidates.column("u_data"), context.budget, context.candidates)


RANDOM_SPEC = QuerySpec(
    uniform,
    needs=(),
    streaming=StreamingRule("rank", (RANDOM_COLUMN,)),
    reason="This {unit} was picked at random.",
)
ENTROPY_SPEC = QuerySpec(
    max_entropy,
    needs=("entropy",),
    streaming=StreamingRule("rank", ("entropy",)),
    explained_by=UNCERTAINTIES,
)
MARGIN_SPEC = QuerySpec(
    min_margin,
    needs=("margin",),
    streaming=StreamingRule("rank", ("-margin",)),
    explained_by=UNCERTAINTIES,
)
LEAST_CONFIDENT_SPEC = QuerySpec(
    least_confident,
    needs=("confidence",),
    streaming=StreamingRule("rank", ("-confidence",)),
    explained_by=UNCERTAINTIES,
)
U_DIS_SPEC = QuerySpec(
    max_u_dis, needs=("u_dis",), streaming=StreamingRule("rank", ("u_dis",)), explained_by=("u_dis",)
)
U_DATA_SPEC = QuerySpec(
    max_u_data, needs=("u_data",), streaming=StreamingRule("rank", ("u_data",)), explained_by=("u_data",)
)
