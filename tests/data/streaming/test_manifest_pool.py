import csv
from pathlib import Path

import pytest

from ducats.data.streaming import Pool, open_pool
from ducats.utils.errors import UserError
from synthetic_pools import chunk_keys, read_errors, write_file

TableRows = list[dict[str, str | None]]


def write_table(path: Path, rows: TableRows, bom: str = "") -> Pool:
    """Write a CSV or Parquet table and open it as a pool."""
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            file.write(bom)
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
    write_file(tmp_path / "images" / "b.png", b"one")
    write_file(tmp_path / "far" / "c.png", b"two")
    pool = write_table(
        tmp_path / f"pool.{suffix}",
        [{"path": "images/b.png"}, {"path": str(tmp_path / "far/c.png")}, {"path": "images/b,ü.png"}],
        bom="\ufeff",
    )
    assert chunk_keys(pool) == [["images/b.png", str(tmp_path / "far/c.png"), "images/b,ü.png"]]
    one, two, _ = pool.samples(0, 1)
    assert (one.read(), two.read()) == (b"one", b"two")
    assert pool.n_samples == (3 if suffix == "parquet" else None)
    assert pool.count_samples() == 3
    assert [s.pool_index for s in pool.samples(1, 2)] == [1]
    assert list(read_errors(pool)) == ["images/b,ü.png"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_manifest_of_a_run_gives_its_pool(tmp_path: Path, suffix: str) -> None:
    rows: TableRows = [
        {"path": "s.png", "domain": "source", "label": "x", "key": "s", "split": None},
        {"path": "t.png", "domain": "target", "label": None, "key": "t", "split": None},
        {"path": "u.png", "domain": "target", "label": None, "key": None, "split": "train"},
        {"path": "v.png", "domain": "target", "label": "x", "key": "v", "split": "test"},
        {"path": None, "domain": "target", "label": "x", "key": None, "split": "train"},
    ]
    pool = write_table(tmp_path / f"pool.{suffix}", rows)
    last = "line 6" if suffix == "csv" else "row 5"
    assert chunk_keys(pool) == [["t", "u.png", last]]
    assert (pool.n_samples, pool.count_samples()) == (None, 3)
    assert read_errors(pool)[last] == "the path is empty"


@pytest.mark.parametrize(("block_size", "n_chunks"), [(1, 1), (3, 2), (7, 3), (4, 5), (30, 2)])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_blocks_and_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, block_size: int, n_chunks: int
) -> None:
    """Batches and row groups end within blocks, and blocks end within batches."""
    monkeypatch.setattr("ducats.data.parquet.MAX_BATCH_ROWS", 5)
    rows: TableRows = [{"path": f"{n}.png", "key": f"k{n}" if n % 4 else ""} for n in range(23)]
    pool = write_table(tmp_path / f"pool.{suffix}", rows)
    samples = [(f"k{n}" if n % 4 else f"{n}.png", n) for n in range(23)]
    blocks = [samples[start : start + block_size] for start in range(0, 23, block_size)]
    for chunk in range(n_chunks):
        found = pool.blocks(chunk, n_chunks, block_size)
        assert [[(s.key, s.pool_index) for s in block] for block in found] == blocks[chunk::n_chunks]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"file\na.png\n", "has no column 'path'"),
        ("b.parquet", b"no table", "not a valid Parquet file"),
        ("c.csv", b"path\n" + b"a.png\n" * 5000 + b"\xff.png\n", r"c\.csv, after line \d{4}: .*UTF-8"),
        ("d.csv", b"\xff,path\n", r"d\.csv, after line 0: .*UTF-8"),
        ("e.csv", b'path\n"a"b.png\n', r"e\.csv, after line 1: "),
    ],
)
def test_invalid_table(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    write_file(tmp_path / name, content)
    with pytest.raises(UserError, match=message):
        chunk_keys(open_pool(str(tmp_path / name)))


def test_invalid_parquet_table(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no column 'path'"):
        write_table(tmp_path / "a.parquet", [{"file": "a.png"}])
    write_table(tmp_path / "f.parquet", [{"path": f"{n}.png"} for n in range(3)])
    whole = (tmp_path / "f.parquet").read_bytes()
    write_file(tmp_path / "f.parquet", whole[:4] + bytes(20) + whole[24:])  # the first page only
    with pytest.raises(UserError, match="corrupt after row 0"):
        chunk_keys(open_pool(str(tmp_path / "f.parquet")))
