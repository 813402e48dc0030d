"""Pools behind a URL, tested with fsspec's in-memory file system."""

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

from ducats.data.streaming import open_pool
from ducats.utils.errors import UserError
from synthetic_pools import chunk_keys, image_bytes, read_errors

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def store() -> Iterator[Any]:
    memory = fsspec.filesystem("memory")
    yield memory
    for path in list(memory.store):
        memory.rm(path)


def put_files(store: Any, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        store.pipe_file(path, data)


def test_folder(store: Any) -> None:
    images = {"a-b.png": b"1", "a/b/1.png": b"2", "a.png": b"3", "a0.png": b"4", "é.png": b"5"}
    put_files(store, {f"/pool/{key}": data for key, data in images.items()})
    put_files(store, {"/pool/.hidden/x.png": b"", "/pool/notes.txt": b"", "/other/x.png": b""})
    pool = open_pool("memory://pool")
    assert chunk_keys(pool) == [["a-b.png", "a.png", "a/b/1.png", "a0.png", "é.png"]]
    assert {s.key: s.read() for chunk in range(2) for s in pool.samples(chunk, 2)} == images
    store.rm("/pool/a.png")
    assert chunk_keys(pool, 2) == [["a-b.png", "a0.png"], ["a/b/1.png", "é.png"]]


def test_shards(store: Any) -> None:
    for shard in range(3):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as archive:
            for number in range(4):
                info = tarfile.TarInfo(f"{number}.png")
                info.size = len(image_bytes(number))
                archive.addfile(info, io.BytesIO(image_bytes(number)))
        put_files(store, {f"/shards/{shard}.tar": file.getvalue()})
    all_keys = [f"{shard}.tar/{number}.png" for shard in range(3) for number in range(4)]
    for uri in ("memory://shards", "memory://shards/{0..2}.tar", "memory://shards/*.tar"):
        pool = open_pool(uri)
        assert chunk_keys(pool) == [all_keys]
        assert sorted(key for keys in chunk_keys(pool, 5, 2) for key in keys) == all_keys
    assert [s.read() for s in pool.samples(0, 3)] == [image_bytes(n) for n in range(4)]


def test_table_with_relative_absolute_and_url_paths(store: Any, tmp_path: Any) -> None:
    (tmp_path / "here.png").write_bytes(b"here")
    put_files(store, {"/data/images/x.png": b"x", "/far/y.png": b"y"})
    put_files(
        store, {"/data/pool.csv": b"path\nimages/x.png\nmemory://far/y.png\n/far/y.png\nimages/z.png\n"}
    )
    pool = open_pool("memory://data/pool.csv")
    *good, bad = pool.samples(0, 1)
    assert [s.read() for s in good] == [b"x", b"y", b"y"]
    with pytest.raises(FileNotFoundError):
        bad.read()
    (tmp_path / "pool.csv").write_text("path\nhere.png\nmemory://far/y.png\n", encoding="utf-8")
    assert read_errors(open_pool(str(tmp_path / "pool.csv"))) == {}
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    file = io.BytesIO()
    parquet.write_table(pyarrow.table({"path": ["images/x.png"]}), file)
    put_files(store, {"/data/pool.parquet": file.getvalue()})
    assert [s.read() for s in open_pool("memory://data/pool.parquet").samples(0, 1)] == [b"x"]


def test_inaccessible_url_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"pool memory://nowhere does not exist"):
        open_pool("memory://nowhere")
    with pytest.raises(UserError, match="cannot access"):
        open_pool("nonsense://nowhere")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UserError, match=r"needs fsspec; run pip install 'ducats\[stream\]'"):
        open_pool("memory://nowhere")


def test_local_path_imports_no_optional_package(tmp_path: Any) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    code = (
        "import sys; from ducats.data.streaming import open_pool; "
        f"assert open_pool({str(tmp_path)!r}).count_samples() == 1; "
        "sys.exit(any(name in sys.modules for name in ('fsspec', 'pyarrow', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
