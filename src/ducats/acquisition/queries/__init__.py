"""Queries: select the samples to label.

A query is a function from a `QueryContext` to the indices of the selected candidates. Its parameters are
keyword-only and have defaults. A `QuerySpec` also declares the columns that the query reads, so random
selection needs no forward pass.
"""

from collections.abc import Mapping

from ducats.acquisition.criteria import compute_columns as compute_columns
from ducats.acquisition.queries.aada import AADA_SPEC
from ducats.acquisition.queries.badge import BADGE_SPEC
from ducats.acquisition.queries.basic import (
    ENTROPY_SPEC,
    LEAST_CONFIDENT_SPEC,
    MARGIN_SPEC,
    RANDOM_SPEC,
    U_DATA_SPEC,
    U_DIS_SPEC,
)
from ducats.acquisition.queries.clue import CLUE_SPEC
from ducats.acquisition.queries.coreset import CORESET_SPEC
from ducats.acquisition.queries.coverage import COVERAGE_SPEC
from ducats.acquisition.queries.dbal import DBAL_SPEC
from ducats.acquisition.queries.eada import EADA_SPEC
from ducats.acquisition.queries.euq import EUQ_SPEC
from ducats.acquisition.queries.las import LAS_SPEC
from ducats.acquisition.queries.mada import MADA_SPEC
from ducats.acquisition.queries.ripu import RIPU_POINTS_SPEC, RIPU_SPEC
from ducats.acquisition.queries.sdm import SDM_SPEC
from ducats.acquisition.queries.spec import QueryFn as QueryFn
from ducats.acquisition.queries.spec import QuerySpec as QuerySpec
from ducats.acquisition.queries.spec import StreamingRule as StreamingRule
from ducats.acquisition.queries.spec import as_query_spec as as_query_spec
from ducats.acquisition.queries.tqs import TQS_SPEC
from ducats.acquisition.queries.two_round import DUC_SPEC
from ducats.acquisition.queries.waal import WAAL_SPEC
from ducats.utils.registry import resolve

QUERIES: Mapping[str, QuerySpec] = {
    "random": RANDOM_SPEC,
    "entropy": ENTROPY_SPEC,
    "margin": MARGIN_SPEC,
    "least_confident": LEAST_CONFIDENT_SPEC,
    "coreset": CORESET_SPEC,
    "badge": BADGE_SPEC,
    "waal": WAAL_SPEC,
    "aada": AADA_SPEC,
    "dbal": DBAL_SPEC,
    "tqs": TQS_SPEC,
    "clue": CLUE_SPEC,
    "eada": EADA_SPEC,
    "duc": DUC_SPEC,
    "euq": EUQ_SPEC,
    "sdm": SDM_SPEC,
    "las": LAS_SPEC,
    "coverage": COVERAGE_SPEC,
    "u_dis": U_DIS_SPEC,
    "u_data": U_DATA_SPEC,
    "mada": MADA_SPEC,
    "ripu": RIPU_SPEC,
    "ripu_points": RIPU_POINTS_SPEC,
}


def resolve_query(name: str) -> QuerySpec:
    """Return a query by its name in `QUERIES`, or a user's own as ``package.module:attribute``."""
    return resolve("query", QUERIES, name, as_query_spec)
