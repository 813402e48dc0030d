import math

import pytest

from conftest import quick
from ducats.deploy.scoring import make_streaming_query
from ducats.deploy.scoring.streaming_query import default_query, needs_pool_size
from ducats.utils.errors import UserError


@pytest.mark.parametrize(
    ("settings", "query", "kappa", "expected"),
    [
        ((), "duc", None, (70, "u_dis", "u_data")),
        ((), "duc", 2.5, (18, "u_dis", "u_data")),
        (("query.params={kappa: 3, order: data_dis}",), "duc", None, (21, "u_data", "u_dis")),
        (("query.params={kappa: 3, order: data_dis}",), "duc", 5.0, (35, "u_data", "u_dis")),
        (("query.params={epsilon: 1.0e-7}",), "duc", None, (70, "published_u_dis@1e-07", "u_data")),
        (("query.params={pool_fraction: 0.01}",), "duc", None, (100, "u_dis", "u_data")),
        (("query.params={pool_fraction: 0.0001}",), "duc", None, (7, "u_dis", "u_data")),
        (("query={name: coverage, params: {uncertainty: entropy}}",), "duc", None,
         (70, "u_dis", "u_data")),
        ((), "clue", 3.0, (21, "entropy", None)),
        ((), "coverage", None, (210, "-margin", None)),
        ((), "coverage", 2.0, (14, "-margin", None)),
        (("query={name: coverage, params: {uncertainty: entropy}}",), "coverage", None,
         (210, "entropy", None)),
        ((), "margin", None, (7, "-margin", None)),
        ((), "least_confident", None, (7, "-confidence", None)),
        ((), "random", None, (7, "random", None)),
    ],
)  # fmt: skip
def test_candidates_kept(
    settings: tuple[str, ...], query: str, kappa: float | None, expected: tuple[int, str, str | None]
) -> None:
    streaming_query = make_streaming_query(quick(*settings), query, 7, kappa=kappa, pool_size=1000)
    assert (
        streaming_query.n_candidates,
        streaming_query.first_column,
        streaming_query.second_column,
    ) == expected
    assert streaming_query.selects == (query in ("clue", "coverage"))


def test_pool_fraction_needs_pool_size() -> None:
    with_fraction, plain = quick("query.params={pool_fraction: 0.01}"), quick()
    assert needs_pool_size(with_fraction, "duc")
    assert not needs_pool_size(with_fraction, "u_dis")
    assert not needs_pool_size(plain, "duc")
    with pytest.raises(ValueError, match="needs the pool size"):
        make_streaming_query(with_fraction, "duc", 7)


@pytest.mark.parametrize(
    ("settings", "query", "kappa", "message"),
    [
        ((), "mada", None, "--query mada cannot score a pool; choose from: random"),
        ((), "duc", 0.5, "at least 1, not 0.5"),
        ((), "duc", math.inf, "at least 1, not inf"),
        ((), "clue", math.nan, "at least 1, not nan"),
        ((), "entropy", 3.0, "--kappa does not apply to --query entropy"),
        (
            ("query={name: coreset, params: {centres: source_and_labelled}}",),
            "coreset",
            None,
            "the source images",
        ),
    ],
)
def test_invalid_query_or_kappa_is_a_user_error(
    settings: tuple[str, ...], query: str, kappa: float | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_streaming_query(quick(*settings), query, 7, kappa=kappa)


def test_default_query_is_that_of_the_run() -> None:
    names = {name: default_query(quick(f"query={{name: {name}}}")) for name in ("clue", "random", "eada")}
    assert names == {"clue": "clue", "random": "random", "eada": "coverage"}
