"""Contract of all queries, on images and on pixels."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ducats.criteria import IMAGE_COLUMNS
from ducats.errors import UserError
from ducats.queries import QUERIES as PLAIN
from ducats.queries import compute_columns
from ducats.samples import QueryContext, SampleTable
from ducats.units.pixel_columns import PixelColumns

SHAPE = (20, 24)

# Settings for large pools fulfil the same contract.
LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "clue drawn": ("clue", {"among": 25}),
    "clue uncertain": ("clue", {"among": 25, "chosen": "highest_entropy", "exact": 0.0}),
    "badge drawn": ("badge", {"among": 25}),
    "badge uncertain": ("badge", {"among": 25, "chosen": "highest_entropy"}),
    "coreset drawn": ("coreset", {"among": 25}),
    "coreset in shards": ("coreset", {"shards": 3}),
    "coreset in shards of the uncertain": (
        "coreset",
        {"shards": 3, "among": 40, "chosen": "highest_entropy"},
    ),
    "las drawn": ("las", {"among": 25, "chosen": "entropy_weighted"}),
    "las among a few neighbours": ("las", {"pairs": 1000.0}),
    "las uncertain": ("las", {"among": 25, "chosen": "highest_entropy", "pairs": 1000.0}),
    "spread in batches": ("spread", {"exact": 0.0}),
    "dbal of a subset": ("dbal", {"subset": 25}),
}
QUERIES = {**PLAIN, **{label: PLAIN[name].bind(params) for label, (name, params) in LARGE.items()}}


def probe_outputs(count: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Random outputs of probes."""
    return {
        "domain": torch.rand(count, generator=generator),
        "critic": torch.randn(count, generator=generator),
        "committee": torch.randn(count, 4, 5, generator=generator).softmax(2),
    }


def table(name: str, count: int, pixels: bool, seed: int = 0) -> SampleTable:
    """Candidates with only the declared columns, some of them exact duplicates."""
    generator = torch.Generator().manual_seed(seed)
    needs, where = QUERIES[name].needs, torch.arange(count)
    if pixels:
        z = torch.randn(5, *SHAPE, generator=generator) * 3
        z[:, SHAPE[0] // 2 :] = z[:, : SHAPE[0] // 2]
        features = torch.randn(8, 5, 6, generator=generator).relu()
        # Probes have their own grid.
        told = {k: v.movedim(0, -1).unflatten(-1, (3, 4)) for k, v in probe_outputs(12, generator).items()}
        scene = PixelColumns(z, features, SHAPE, told)
        position = where * 5
        columns = (
            scene.for_regions(needs, 1, position)
            if "impurity" in needs
            else scene.for_pixels(needs, position)
        )
        return SampleTable(torch.full_like(where, 3), position, columns, SHAPE)
    return SampleTable(where * 2, torch.zeros_like(where), images(needs, count, generator))


def images(needs: Sequence[str], count: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Columns of images; every seventh of the second half duplicates the first."""
    z = torch.randn(count, 5, generator=generator) * 3
    features, told = torch.randn(count, 8, generator=generator).relu(), probe_outputs(count, generator)
    whole = {"descriptor": torch.randn(count, 40, generator=generator)}
    for column in (z, features, *told.values(), *whole.values()):
        column[count // 2 :: 7] = column[0].clone()
    made = compute_columns(z, features, [name for name in needs if name not in IMAGE_COLUMNS], told)
    return made | {name: whole[name] for name in needs if name in IMAGE_COLUMNS}


def make_context(
    name: str, rows: SampleTable, budget: int, seed: int = 0, labelled: SampleTable | None = None
) -> QueryContext:
    """Context as in a run: with source and last layer only if declared."""
    strategy, generator, source = QUERIES[name], torch.Generator().manual_seed(9), None
    if strategy.source_needs and rows.shape is None:
        where = torch.arange(30)
        source = SampleTable(where, torch.zeros_like(where), images(strategy.source_needs, 30, generator))
    head = torch.randn(5, 8, generator=generator) if strategy.needs_head else None
    bought = rows[torch.arange(0)] if labelled is None else labelled
    return QueryContext(rows, bought, budget, torch.Generator().manual_seed(seed), source, head)


def select(
    name: str, rows: SampleTable, budget: int, seed: int = 0, labelled: SampleTable | None = None
) -> Tensor:
    return QUERIES[name].fn(make_context(name, rows, budget, seed, labelled))


def needs_whole_images(name: str) -> bool:
    return any(need in IMAGE_COLUMNS for need in QUERIES[name].needs)


every_query = pytest.mark.parametrize("name", PLAIN)
every_kind = pytest.mark.parametrize(
    ("name", "pixels"),
    [(n, True) for n in QUERIES if not needs_whole_images(n)]
    + [(n, False) for n in QUERIES if needs_whole_images(n) or not QUERIES[n].per_pixel],
)


@every_kind
@pytest.mark.parametrize(("count", "budget"), [(60, 7), (60, 60), (5, 9), (60, 1), (60, 0), (0, 3)])
def test_distinct_within_budget_from_declared_columns(
    name: str, pixels: bool, count: int, budget: int
) -> None:
    rows = table(name, count, pixels) if count else table(name, 60, pixels)[torch.arange(0)]
    picks = select(name, rows, budget)
    assert picks.dtype == torch.long
    assert len(picks) == len(picks.unique()) == min(count, budget)
    assert not len(picks) or (picks.min() >= 0 and picks.max() < count)


@every_kind
def test_same_seed_same_picks(name: str, pixels: bool) -> None:
    rows = table(name, 80, pixels)
    assert torch.equal(select(name, rows, 9, seed=4), select(name, rows, 9, seed=4))


@every_kind
def test_a_pool_of_identical_rows_still_spends_the_budget(name: str, pixels: bool) -> None:
    one = table(name, 20, pixels)[torch.zeros(20, dtype=torch.long)]
    columns = {column: one.column(column) for column in one.columns}
    where = torch.arange(20)
    twins = SampleTable(where, where, columns, SHAPE if pixels else None)
    assert len(select(name, twins, 6).unique()) == 6


@every_kind
def test_a_permuted_pool_permutes_the_picks(name: str, pixels: bool) -> None:
    everything = table(name, 90, pixels)
    rows, labelled = everything[torch.arange(80)], everything[torch.arange(80, 90)]
    mixed = torch.randperm(80, generator=torch.Generator().manual_seed(2))
    for bought in (None, labelled):
        picks, same = select(name, rows, 9, 0, bought), select(name, rows[mixed], 9, 0, bought)
        assert torch.equal(mixed[same], picks)


@every_query
def test_summary_is_one_line(name: str) -> None:
    assert len(QUERIES[name].summary) > 20
    assert "\n" not in QUERIES[name].summary


@pytest.mark.parametrize("name", [n for n in QUERIES if QUERIES[n].per_pixel and not needs_whole_images(n)])
def test_queries_of_neighbourhoods_reject_images(name: str) -> None:
    with pytest.raises(UserError, match=r"defined for pixels only"):
        table(name, 5, pixels=False)


def test_random_depends_on_the_seed() -> None:
    rows = table("random", 80, False)
    assert not torch.equal(select("random", rows, 9, seed=0), select("random", rows, 9, seed=1))


def test_undeclared_columns_raise() -> None:
    with pytest.raises(KeyError, match="declare it"):
        select("entropy", table("random", 10, False), 2)


@pytest.mark.parametrize(
    ("name", "params", "needs"),
    [
        ("random", {}, ()),
        ("entropy", {}, ("entropy",)),
        ("duc", {"kappa": 3}, ("u_dis", "u_data")),
        ("duc", {"epsilon": 1e-7}, ("published_u_dis@1e-07", "u_data")),
        ("euq", {}, ("epistemic_variance", "aleatoric_variance")),
        ("euq", {"uncertainty": "entropy"}, ("u_dis", "u_data")),
        ("tqs", {}, ("margin", "committee", "domain", "confidence")),
        ("tqs", {"reach": 2}, ("margin", "committee", "domain")),
        ("ripu_points", {}, ("impurity@32", "entropy")),
        ("ripu_points", {"radius": 2}, ("impurity@2", "entropy")),
    ],
)
def test_needs_depend_on_params(name: str, params: dict[str, object], needs: tuple[str, ...]) -> None:
    assert QUERIES[name].bind(params).needs == needs


@pytest.mark.parametrize(("centres", "source"), [("labelled", ()), ("source_and_labelled", ("features",))])
def test_source_columns_depend_on_params(centres: str, source: tuple[str, ...]) -> None:
    assert QUERIES["coreset"].bind({"centres": centres}).source_needs == source
    assert QUERIES["dbal"].bind({}).source_needs == ("features",)


def test_a_missing_probe_raises() -> None:
    with pytest.raises(UserError, match="no probe provides it"):
        compute_columns(torch.zeros(1, 2), None, QUERIES["waal"].needs, {"domain": torch.zeros(1)})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_kind
def test_budget_on_a_gpu(name: str, pixels: bool) -> None:
    def there(rows: SampleTable | None) -> SampleTable | None:
        if rows is None:
            return None
        columns = {column: rows.column(column).cuda() for column in rows.columns}
        return SampleTable(rows.image.cuda(), rows.position.cuda(), columns, rows.shape)

    here = make_context(name, table(name, 60, pixels), 9)
    head = None if here.head is None else here.head.cuda()
    candidates, labelled, source = map(there, (here.candidates, here.labelled, here.source))
    assert candidates is not None
    assert labelled is not None
    picks = QUERIES[name].fn(QueryContext(candidates, labelled, 9, torch.Generator(), source, head))
    assert len(picks.unique()) == 9
