import csv
from pathlib import Path

import pytest

from drawn_pools import failures, keys, write
from ducats.errors import UserError
from ducats.pool import Pool, open_pool

Rows = list[dict[str, str | None]]


def table(path: Path, rows: Rows, mark: str = "") -> Pool:
    """Write a CSV or Parquet table and open it as a pool."""
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            file.write(mark)
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    return open_pool(str(path))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_table_with_paths_only(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / "images" / "b.png", b"one")
    write(tmp_path / "far" / "c.png", b"two")
    pool = table(
        tmp_path / f"pool.{suffix}",
        [{"path": "images/b.png"}, {"path": str(tmp_path / "far/c.png")}, {"path": "images/b,ü.png"}],
    )
    assert keys(pool) == [["images/b.png", str(tmp_path / "far/c.png"), "images/b,ü.png"]]
    one, two, _ = pool.parts(0, 1)
    assert (one.read(), two.read()) == (b"one", b"two")
    assert pool.count == (3 if suffix == "parquet" else None)
    assert pool.counted() == 3
    assert [s.number for s in pool.parts(1, 2)] == [1]
    assert list(failures(pool)) == ["images/b,ü.png"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_manifest_of_a_run_gives_its_pool(tmp_path: Path, suffix: str) -> None:
    rows: Rows = [
        {"path": "s.png", "domain": "source", "label": "x", "key": "s", "split": None},
        {"path": "t.png", "domain": "target", "label": None, "key": "t", "split": None},
        {"path": "u.png", "domain": "target", "label": None, "key": None, "split": "train"},
        {"path": "v.png", "domain": "target", "label": "x", "key": "v", "split": "test"},
        {"path": None, "domain": "target", "label": "x", "key": None, "split": "train"},
    ]
    pool = table(tmp_path / f"pool.{suffix}", rows)
    last = "line 6" if suffix == "csv" else "row 5"
    assert keys(pool) == [["t", "u.png", last]]
    assert (pool.count, pool.counted()) == (None, 3)
    assert failures(pool)[last] == "the path is empty"


@pytest.mark.parametrize(("size", "world"), [(1, 1), (3, 2), (7, 3), (4, 5), (30, 2)])
def test_parquet_and_csv_give_the_same_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, world: int
) -> None:
    """Batches and row groups end within blocks, and blocks end within batches."""
    monkeypatch.setattr("ducats.pool.manifest.ROWS", 5)
    rows: Rows = [{"path": f"{n}.png", "key": f"k{n}" if n % 4 else ""} for n in range(23)]
    pools = [table(tmp_path / f"pool.{suffix}", rows) for suffix in ("csv", "parquet")]
    for rank in range(world):
        found = [
            [[(sample.key, sample.number) for sample in block] for block in pool.blocks(rank, world, size)]
            for pool in pools
        ]
        assert found[0] == found[1]
        assert rank > 0 or found[0]


def test_parquet_rows_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ducats.pool.manifest.ROWS", 3)
    pool = table(tmp_path / "pool.parquet", [{"path": f"{n}.png"} for n in range(20)])
    assert keys(pool, world=2, size=4) == [
        [f"{n}.png" for n in range(20) if n // 4 % 2 == rank] for rank in range(2)
    ]


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    assert keys(table(tmp_path / "pool.csv", [{"path": "a.png"}], mark="\ufeff")) == [["a.png"]]


def test_invalid_table_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no column 'path'"):
        table(tmp_path / "a.csv", [{"file": "a.png"}])
    with pytest.raises(UserError, match="has no column 'path'"):
        table(tmp_path / "a.parquet", [{"file": "a.png"}])
    write(tmp_path / "b.parquet", b"no table")
    with pytest.raises(UserError, match="not a valid Parquet file"):
        open_pool(str(tmp_path / "b.parquet"))
    table(tmp_path / "f.parquet", [{"path": f"{n}.png"} for n in range(3)])
    whole = (tmp_path / "f.parquet").read_bytes()
    write(tmp_path / "f.parquet", whole[:4] + bytes(20) + whole[24:])  # the first page only
    with pytest.raises(UserError, match=r"f\.parquet is corrupt after row 0"):
        keys(open_pool(str(tmp_path / "f.parquet")))
    write(tmp_path / "c.csv", b"path\n" + b"a.png\n" * 5000 + b"\xff.png\n")
    with pytest.raises(UserError, match=r"c\.csv, after line \d{4}: .*UTF-8"):
        keys(open_pool(str(tmp_path / "c.csv")))
    write(tmp_path / "d.csv", b"\xff,path\n")
    with pytest.raises(UserError, match=r"d\.csv, after line 0: .*UTF-8"):
        open_pool(str(tmp_path / "d.csv"))
    write(tmp_path / "e.csv", b'path\n"a"b.png\n')
    with pytest.raises(UserError, match=r"e\.csv, after line 1: "):
        keys(open_pool(str(tmp_path / "e.csv")))
