"""Streaming top-k against a full sort."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ducats.acquisition import streaming_top_k
from ducats.acquisition.queries.two_round import two_round
from ducats.acquisition.samples import QueryContext, SampleTable, run_query
from ducats.acquisition.streaming_top_k import (
    ScoredSamples,
    StreamingTopK,
    concat_samples,
    merge_top_k,
    select_in_two_rounds,
)
from ducats.utils.errors import UserError

LEVELS = [0.0, -0.0, 0.25, 0.5, 1.0, -np.inf]  # few levels, so most rows tie


def table(
    first: list[float], second: list[float] | None = None, keys: list[str] | None = None
) -> ScoredSamples:
    key = np.empty(len(first), object)
    key[:] = keys if keys is not None else [f"{index:04d}" for index in range(len(first))]
    columns = {"first": np.array(first, np.float32)}
    if second is not None:
        columns["second"] = np.array(second, np.float32)
    return ScoredSamples(key, np.arange(len(first)), columns)


def sorted_keys(some: ScoredSamples, column: str, k: int) -> list[str]:
    """Sort all rows by score, then by key."""
    rows = zip((-some.columns[column]).tolist(), some.key.tolist(), strict=True)
    return [key for _, key in sorted(rows)][:k]


@st.composite
def streams(draw: st.DrawFn) -> tuple[ScoredSamples, list[list[np.ndarray]], int]:
    """Draw a table with many ties, its rows permuted, split into shares and chunks, and a k."""
    count = draw(st.integers(0, 60))
    values = draw(st.lists(st.sampled_from(LEVELS), min_size=count, max_size=count))
    seconds = draw(st.lists(st.sampled_from(LEVELS), min_size=count, max_size=count))
    keys = draw(st.lists(st.text("abé", max_size=6), min_size=count, max_size=count, unique=True))
    order = np.array(draw(st.permutations(range(count))), int)
    n_shares = draw(st.integers(1, 4))
    cuts = sorted(draw(st.lists(st.integers(0, count), max_size=6)))
    shares = [[chunk[rank::n_shares] for chunk in np.split(order, cuts)] for rank in range(n_shares)]
    return table(values, seconds, keys), shares, draw(st.integers(0, count + 3))


@given(streams(), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_top_k_does_not_depend_on_order_chunks_and_shares(
    stream: tuple[ScoredSamples, list[list[np.ndarray]], int], slack: int
) -> None:
    some, shares, k = stream
    kept = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming_top_k, "MIN_BUFFER_ROWS", slack)  # small: rows are dropped all the time
        for chunks in shares:
            selector = StreamingTopK("first", k)
            for chunk in chunks:
                selector.add(some[chunk])
            kept.append(selector.top_k())
            mine = some[np.concatenate(chunks)]
            assert kept[-1].key.tolist() == sorted_keys(mine, "first", k)
        found = merge_top_k(kept[::-1], "first", k)
    assert found.key.tolist() == sorted_keys(some, "first", k)
    # Rows stay intact: each number still belongs to its key.
    assert [some.key[number] for number in found.pool_index] == found.key.tolist()


@given(streams(), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_two_rounds_match_the_query(
    stream: tuple[ScoredSamples, list[list[np.ndarray]], int], kappa: int
) -> None:
    some, shares, k = stream
    keys = np.array(sorted(some.key), object)  # same tie-breaking
    some = ScoredSamples(keys, some.pool_index, some.columns)
    k = min(k, len(some))
    kept = []
    for chunks in shares:
        selector = StreamingTopK("first", kappa * k)
        for chunk in chunks:
            selector.add(some[chunk])
        kept.append(selector.top_k())
    found = select_in_two_rounds(merge_top_k(kept, "first", kappa * k), "first", "second", kappa * k, k)
    columns = {"u_dis": torch.from_numpy(some.columns["first"])}
    columns["u_data"] = torch.from_numpy(some.columns["second"])
    samples = SampleTable(
        torch.from_numpy(some.pool_index), torch.zeros(len(some), dtype=torch.long), columns
    )
    context = QueryContext(samples, samples[torch.zeros(0, dtype=torch.long)], k, torch.Generator())
    expected = run_query(lambda context: two_round(context, kappa=kappa), context)
    assert found.pool_index.tolist() == expected.tolist()


@pytest.mark.parametrize("kind", ["S4", "U4", object])
def test_keys_of_any_kind(kind: object) -> None:
    some = table([1.0] * 50)
    keys = some.key.astype(kind)  # type: ignore[call-overload]
    found = merge_top_k([ScoredSamples(keys, some.pool_index, some.columns)], "first", 7)
    assert found.pool_index.tolist() == list(range(7))


def test_vector_columns_stay_with_their_rows() -> None:
    random = np.random.default_rng(0)
    score, wide = random.random(30_000).astype(np.float32), random.random((30_000, 3)).astype(np.float32)
    selector = StreamingTopK("first", 100)
    for rows in np.split(np.arange(30_000), 30):
        key = np.array([f"{row:05d}".encode() for row in rows])
        selector.add(ScoredSamples(key, rows, {"first": score[rows], "features": wide[rows]}))
    found = selector.top_k()
    order = np.argsort(-score)[:100]
    np.testing.assert_array_equal(found.pool_index, order)
    np.testing.assert_array_equal(found.columns["features"], wide[order])


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rising scores are the worst case: every chunk beats all earlier ones."""
    lengths = []
    original = streaming_top_k._top_indices

    def watched(score: np.ndarray, key: np.ndarray, k: int) -> np.ndarray:
        lengths.append(len(score))
        return original(score, key, k)

    monkeypatch.setattr(streaming_top_k, "_top_indices", watched)
    selector, chunk = StreamingTopK("first", 5000), 1000
    for start in range(0, 60_000, chunk):
        rows = np.arange(start, start + chunk)
        selector.add(ScoredSamples(rows.astype("S9"), rows, {"first": rows.astype(np.float64)}))
    assert selector.top_k().pool_index.tolist() == list(range(59_999, 54_999, -1))
    assert max(lengths) <= 2 * 5000 + chunk
    assert len(lengths) < 60_000 / 5000 + 2  # sorting is rare


def test_nan_and_duplicate_samples_are_refused() -> None:
    with pytest.raises(UserError, match="the first of 0001 is NaN"):
        merge_top_k([table([0.0, np.nan, 1.0])], "first", 1)
    some = table([0.5, 0.25])
    with pytest.raises(UserError, match="two samples of the pool have the key '0000'"):
        merge_top_k([some, some], "first", 2)


def test_empty_tables() -> None:
    empty, one = concat_samples([]), table([1.0])
    for found in (empty, merge_top_k([], "first", 3), merge_top_k([one], "first", 0)):
        assert len(found) == 0
    assert merge_top_k([empty, one], "first", 3).key.tolist() == ["0000"]


def test_invalid_tables_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        ScoredSamples(np.array(["a"]), np.zeros(1), {"first": np.zeros(2)})
    with pytest.raises(ValueError, match="k must not be negative"):
        StreamingTopK("first", -1)
    with pytest.raises(ValueError, match="must be at least k"):
        select_in_two_rounds(table([1.0], [1.0]), "first", "second", 1, 2)
