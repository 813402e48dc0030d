"""Where a query runs: on the GPU if its table fits there, else on the CPU."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from ducats.acquisition.queries import QUERIES, QuerySpec
from ducats.acquisition.samples import QueryContext, SampleTable, run_query
from ducats.data.domain import UNLABELLED
from ducats.run import select

GPU = torch.device("cuda", 0)
N = 40


def pool_table() -> SampleTable:
    generator = torch.Generator().manual_seed(0)
    columns = {name: torch.rand(N, generator=generator) for name in ("margin", "entropy", "domain")}
    columns |= {name: torch.randn(N, 8, generator=generator) for name in ("z", "features")}
    return SampleTable(torch.arange(N), torch.zeros(N, dtype=torch.long), columns)


def picks(name: str, device: torch.device | None) -> list[int]:
    known = torch.full((N,), UNLABELLED)
    generator = torch.Generator().manual_seed(1)
    request = select.select_images(QUERIES[name], pool_table(), known, 5, 1, generator, device=device)
    return request.image.tolist()


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Devices to which contexts were moved; the values stay on the CPU."""
    devices = list[torch.device]()

    def to(context: QueryContext, device: torch.device) -> QueryContext:
        devices.append(device)
        return context

    monkeypatch.setattr(QueryContext, "to", to)
    return devices


def set_gpu_memory(monkeypatch: pytest.MonkeyPatch, n_bytes: float) -> None:
    properties = SimpleNamespace(total_memory=n_bytes)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


def test_features_are_compared_on_a_gpu_on_which_they_fit(
    monkeypatch: pytest.MonkeyPatch, moved: list[torch.device]
) -> None:
    table_bytes = pool_table().nbytes
    assert table_bytes == N * (3 + 8 + 8) * 4
    set_gpu_memory(monkeypatch, table_bytes / select.MAX_TABLE_SHARE - 1000)
    expected = picks("coverage", None)
    assert picks("coverage", GPU) == expected
    assert not moved
    set_gpu_memory(monkeypatch, table_bytes / select.MAX_TABLE_SHARE + 1000)
    assert picks("coverage", GPU) == expected
    assert moved == [GPU]


def test_a_run_on_the_cpu_moves_nothing(moved: list[torch.device]) -> None:
    picks("coverage", torch.device("cpu"))
    assert not moved


def test_a_users_query_stays_on_the_cpu(monkeypatch: pytest.MonkeyPatch, moved: list[torch.device]) -> None:
    def first(context: QueryContext) -> torch.Tensor:
        return torch.arange(context.budget)

    set_gpu_memory(monkeypatch, 1e12)
    monkeypatch.setitem(QUERIES, "first", QuerySpec(first))
    assert picks("first", GPU) == [0, 1, 2, 3, 4]
    assert not moved


def test_a_query_that_runs_out_of_gpu_memory_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    set_gpu_memory(monkeypatch, 1e12)
    expected, n_calls = picks("clue", None), 0

    def run_out_of_memory_once(fn: Callable[[QueryContext], object], context: QueryContext) -> torch.Tensor:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 1:
            torch.rand((), generator=context.generator)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run_query(fn, context)

    monkeypatch.setattr(QueryContext, "to", lambda context, _: context)
    monkeypatch.setattr(select, "run_query", run_out_of_memory_once)
    assert picks("clue", GPU) == expected  # the same random numbers
    assert n_calls == 2
