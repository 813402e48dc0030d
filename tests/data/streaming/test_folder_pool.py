import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ducats.data.folders import list_images
from ducats.data.streaming import open_pool
from ducats.utils.errors import UserError
from synthetic_pools import chunk_keys, read_errors, write_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Names whose sorted order differs from a plain walk: '-' < '.' < '/' < '0'."""
    for key in ("a/b/1.png", "a/2.JPG", "a.png", "a-b.png", "a0/x.webp", "é/ü.png", "B.png"):
        write_file(tmp_path / "pool" / key, key.encode())
    for key in ("a/notes.txt", ".hidden.png", ".git/x.png", "a/no-image"):
        write_file(tmp_path / "pool" / key, b"")
    return tmp_path / "pool"


def test_keys_and_order_match_predict(folder: Path) -> None:
    pool = open_pool(str(folder))
    listed = [key for key, _ in list_images(folder)]
    assert chunk_keys(pool) == [listed]
    assert listed == ["B.png", "a-b.png", "a.png", "a/2.JPG", "a/b/1.png", "a0/x.webp", "é/ü.png"]
    assert [(s.pool_index, s.read()) for s in pool.samples(0, 1)] == [
        (n, key.encode()) for n, key in enumerate(listed)
    ]
    assert (pool.name, pool.n_samples, pool.count_samples()) == (str(folder), None, 7)
    assert [s.pool_index for s in pool.samples(1, 3)] == [1, 4]
    with pytest.raises(ValueError, match="chunk 2 of 2"):
        next(pool.samples(2, 2))


@given(n_chunks=st.integers(1, 9), block_size=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_blocks_do_not_depend_on_number_of_chunks(
    tmp_path_factory: pytest.TempPathFactory, n_chunks: int, block_size: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "eleven"
    if not folder.exists():
        for number in range(11):
            write_file(folder / f"{number:02d}.png", b"")
    pool = open_pool(str(folder), pool_format="folder")
    whole = [list(range(start, min(start + block_size, 11))) for start in range(0, 11, block_size)]
    for chunk in range(n_chunks):
        blocks = pool.blocks(chunk, n_chunks, block_size)
        assert [[s.pool_index for s in block] for block in blocks] == whole[chunk::n_chunks]


def test_links_are_followed_except_to_parents_and_pipes_are_skipped(folder: Path) -> None:
    (folder / "a" / "up").symlink_to(folder)
    (folder / "z").symlink_to(folder / "a0")
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    os.mkfifo(folder / "pipe.png")
    pool = open_pool(str(folder))
    assert [key for key in chunk_keys(pool)[0] if key[0] in "gpz"] == ["gone.png", "z/x.webp"]
    assert chunk_keys(open_pool(f"file://{folder}")) == chunk_keys(pool)
    assert pool.count_samples() == 9
    (message,) = read_errors(pool).values()
    assert "No such file" in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_unreadable_folder_is_an_unreadable_sample(folder: Path) -> None:
    (folder / "a" / "b").chmod(0)
    try:
        assert read_errors(open_pool(str(folder))) == {"a/b/": "the folder cannot be read: Permission denied"}
    finally:
        (folder / "a" / "b").chmod(0o700)


def test_deleted_folder_is_an_unreadable_sample(folder: Path) -> None:
    pool = open_pool(str(folder))
    stream = pool.samples(0, 1)
    next(stream)
    for path in (folder / "a" / "b" / "1.png", folder / "a" / "b"):
        path.unlink() if path.is_file() else path.rmdir()
    write_file(folder / "a" / "b", b"")
    rest = {sample.key: sample for sample in stream}
    assert "a/b/1.png" not in rest
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    folder.rmdir()
    with pytest.raises(OSError, match="the folder cannot be read: No such file"):
        next(pool.samples(0, 1)).read()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_non_utf8_name_is_an_unreadable_sample(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.png")).touch()
    pool = open_pool(str(folder))
    assert pool.count_samples() == 8
    assert read_errors(pool) == {"\\xff.png": "the name is not UTF-8; rename the file"}


@pytest.mark.parametrize(
    ("name", "pool_format", "message"),
    [
        ("nowhere", "auto", "pool .* does not exist"),
        ("nowhere", "folder", "folder .* does not exist"),
        ("nowhere.csv", "auto", "table .* does not exist"),
        ("nowhere.tar", "auto", "shard .* does not exist"),
        ("no*.tar", "auto", "no tar files found"),
        ("a", "shards", "no tar files found"),
        ("both", "auto", "contains images and tar files"),
        ("a", "zip", "--pool-format zip is not a pool format"),
        ("a\udcff", "auto", r"a\\xff is not valid UTF-8"),
    ],
)
def test_invalid_pool_is_a_user_error(folder: Path, name: str, pool_format: str, message: str) -> None:
    write_file(folder / "both" / "x.tar", b"")
    write_file(folder / "both" / "x.png", b"")
    with pytest.raises(UserError, match=message):
        open_pool(str(folder / name), pool_format=pool_format)  # type: ignore[arg-type]
