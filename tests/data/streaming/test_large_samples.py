"""Files that would fill the memory: refused by their size, before they are read."""

import io
import tarfile
import tracemalloc
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from ducats.data.parquet import batch_rows, open_parquet, parquet_batches
from ducats.data.streaming import open_pool, shards
from ducats.utils.errors import UserError
from synthetic_pools import chunk_keys, read_errors, write_file, write_tar

LIMIT_MB, SIZE = 0.01, 10_000_000
TOO_LARGE = "more than the 0.01 MB of --max-sample-mb"


def peak_bytes_of_errors(path: Path) -> tuple[dict[str, str], int]:
    """Read a pool; return its unreadable samples, and the memory that this took."""
    pool = open_pool(str(path), max_sample_mb=LIMIT_MB)
    tracemalloc.start()
    try:
        return read_errors(pool), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz", "w"])
def test_a_large_member_is_unreadable_and_others_are_read(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "x.tar"
    write_tar(path, {"a.png": b"a", "b.png": bytes(SIZE), "c.png": bytes(10_000)}, mode)
    found, peak = peak_bytes_of_errors(path)
    assert found == {"x.tar/b.png": f"its 10 MB are {TOO_LARGE}"}
    assert peak < SIZE
    assert chunk_keys(open_pool(str(path), max_sample_mb=LIMIT_MB), 3) == [
        [f"x.tar/{name}.png"] for name in "abc"
    ]


def tar_header(type_: bytes, position: int, number: bytes) -> bytes:
    """Return the header of a member with 12 bytes replaced."""
    info = tarfile.TarInfo("a.png")
    info.type = type_
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[position : position + 12] = number
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def test_a_member_of_negative_size_ends_the_shard(tmp_path: Path) -> None:
    """It would be read again and again."""
    member = tar_header(tarfile.REGTYPE, 124, b"\xff" * 10 + b"\xfe\0")  # -512
    write_file(tmp_path / "x.tar", tar_header(tarfile.REGTYPE, 124, b"0" * 12) + member + bytes(1024))
    samples = list(islice(open_pool(str(tmp_path / "x.tar")).samples(0, 1), 10))
    assert [sample.key for sample in samples] == ["x.tar/a.png", "x.tar"]


def test_a_sparse_member_is_refused_by_its_full_size(tmp_path: Path) -> None:
    size = b"\x80" + (100 * 10**9).to_bytes(11, "big")  # with its holes
    write_file(tmp_path / "x.tar", tar_header(tarfile.GNUTYPE_SPARSE, 483, size) + bytes(1024))
    found, peak = peak_bytes_of_errors(tmp_path / "x.tar")
    assert found == {"x.tar/a.png": f"its 100,000 MB are {TOO_LARGE}"}
    assert peak < 10**6


@pytest.mark.parametrize("is_first", [True, False])
def test_large_headers_of_a_shard_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    monkeypatch.setattr(shards, "MAX_HEADER_BYTES", 10_000)
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as tar:
        if not is_first:
            tar.addfile(tarfile.TarInfo("a.png"))
        info = tarfile.TarInfo("b.png")
        info.pax_headers = {"comment": "x" * SIZE}
        tar.addfile(info, io.BytesIO())
    found, peak = peak_bytes_of_errors(tmp_path / "x.tar.gz")
    assert list(found) == ["x.tar.gz"]
    assert "headers of a member have more than" in found["x.tar.gz"]
    assert peak < SIZE


@pytest.mark.parametrize("pool", ["", "pool.csv"])
def test_a_large_or_endless_file_is_unreadable(tmp_path: Path, pool: str) -> None:
    write_file(tmp_path / "a.png", b"a")
    write_file(tmp_path / "b.png", bytes(SIZE))
    write_file(tmp_path / "pool.csv", b"path\na.png\nb.png\n/dev/zero\n")
    found, peak = peak_bytes_of_errors(tmp_path / pool)
    assert found.pop("b.png") == f"its 10 MB are {TOO_LARGE}"
    assert found == ({"/dev/zero": "not a regular file"} if pool else {})
    assert peak < SIZE


def test_a_large_remote_file_is_unreadable() -> None:
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    store.pipe({"/large/a.png": b"a", "/large/b.png": bytes(SIZE)})
    found = read_errors(open_pool("memory://large", max_sample_mb=LIMIT_MB))
    assert found == {"b.png": f"it has {TOO_LARGE}"}
    store.rm("/large", recursive=True)


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_large_cells_of_a_small_table_take_little_memory_or_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_dictionary: bool
) -> None:
    monkeypatch.setattr("ducats.data.parquet.MAX_BATCH_BYTES", 2**20)
    path = tmp_path / "pool.parquet"
    write_equal_cells(path, "x" * 8000, 1000, use_dictionary)  # 8 MB
    assert path.stat().st_size < 20_000
    table = open_parquet("pool", path)
    batches = [batch for _, batch in parquet_batches("pool", table, ("path",))]
    assert max(batch.nbytes for batch in batches) < 2**20
    assert sum(len(batch) for batch in batches) == 1000
    assert len(next(batch_rows(batches[-1]))["path"]) == 8000
    write_equal_cells(path, "x" * 8193, 10, use_dictionary)
    with pytest.raises(UserError, match=r"pool\.parquet has a cell of 8193 bytes in the column 'path'"):
        chunk_keys(open_pool(str(path)))


def test_a_column_of_lists_is_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    write_parquet(pyarrow.table({"path": [["a.png"]]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="column 'path' of type list"):
        chunk_keys(open_pool(str(tmp_path / "a.parquet")))


def write_equal_cells(path: Path, text: str, count: int, use_dictionary: bool) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    cells = pyarrow.array([text]).take(pyarrow.array([0] * count))
    write_parquet(pyarrow.table({"path": cells}), path, use_dictionary=use_dictionary, compression="zstd")


def write_parquet(table: Any, path: Path, **options: Any) -> None:
    pytest.importorskip("pyarrow.parquet").write_table(table, path, **options)


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_the_limit_must_be_positive(tmp_path: Path, limit: float) -> None:
    with pytest.raises(UserError, match="--max-sample-mb must be a positive number"):
        open_pool(str(tmp_path), max_sample_mb=limit)
