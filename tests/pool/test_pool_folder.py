import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_pools import failures, keys, write
from ducats.data.folders import list_images
from ducats.errors import UserError
from ducats.pool import open_pool


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Names whose sorted order differs from a plain walk: '-' < '.' < '/' < '0'."""
    for key in ("a/b/1.png", "a/2.JPG", "a.png", "a-b.png", "a0/x.webp", "é/ü.png", "B.png"):
        write(tmp_path / "pool" / key, key.encode())
    for key in ("a/notes.txt", ".hidden.png", ".git/x.png", "a/no-image"):
        write(tmp_path / "pool" / key, b"")
    return tmp_path / "pool"


def test_keys_and_order_match_predict(folder: Path) -> None:
    pool = open_pool(str(folder))
    listed = [key for key, _ in list_images(folder)]
    assert keys(pool) == [listed]
    assert listed == ["B.png", "a-b.png", "a.png", "a/2.JPG", "a/b/1.png", "a0/x.webp", "é/ü.png"]
    assert [(s.number, s.read()) for s in pool.parts(0, 1)] == [
        (n, key.encode()) for n, key in enumerate(listed)
    ]
    assert (pool.name, pool.count, pool.counted()) == (str(folder), None, 7)


def test_chunks_are_strided(folder: Path) -> None:
    pool = open_pool(str(folder), kind="folder")
    assert [[s.number for s in pool.parts(rank, 3)] for rank in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]


@given(world=st.integers(1, 9), size=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_blocks_do_not_depend_on_number_of_chunks(
    tmp_path_factory: pytest.TempPathFactory, world: int, size: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "eleven"
    if not folder.exists():
        for number in range(11):
            write(folder / f"{number:02d}.png", b"")
    pool = open_pool(str(folder))
    whole = [[s.number for s in block] for block in pool.blocks(0, 1, size)]
    assert whole == [list(range(start, min(start + size, 11))) for start in range(0, 11, size)]
    for rank in range(world):
        assert [[s.number for s in block] for block in pool.blocks(rank, world, size)] == whole[rank::world]


def test_links_are_followed_except_to_parents(folder: Path) -> None:
    (folder / "a" / "up").symlink_to(folder)
    (folder / "z").symlink_to(folder / "a0")
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    pool = open_pool(str(folder))
    assert [key for key in keys(pool)[0] if key[0] in "gz"] == ["gone.png", "z/x.webp"]
    assert keys(open_pool(f"file://{folder}")) == keys(pool)
    assert pool.counted() == 9
    assert "No such file" in failures(pool)["gone.png"]


def test_pipes_are_skipped(folder: Path) -> None:
    os.mkfifo(folder / "pipe.png")
    assert failures(open_pool(str(folder))) == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_unreadable_folder_is_an_unreadable_sample(folder: Path) -> None:
    (folder / "a" / "b").chmod(0)
    try:
        assert failures(open_pool(str(folder))) == {"a/b/": "the folder cannot be read: Permission denied"}
    finally:
        (folder / "a" / "b").chmod(0o700)


def test_deleted_folder_is_an_unreadable_sample(folder: Path) -> None:
    pool = open_pool(str(folder))
    stream = pool.parts(0, 1)
    next(stream)
    for path in (folder / "a" / "b" / "1.png", folder / "a" / "b"):
        path.unlink() if path.is_file() else path.rmdir()
    write(folder / "a" / "b", b"")
    rest = {sample.key: sample for sample in stream}
    assert "a/b/1.png" not in rest
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    folder.rmdir()
    with pytest.raises(OSError, match="the folder cannot be read: No such file"):
        next(pool.parts(0, 1)).read()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_non_utf8_name_is_an_unreadable_sample(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.png")).touch()
    pool = open_pool(str(folder))
    assert pool.counted() == 8
    assert failures(pool) == {"\\xff.png": "the name is not UTF-8; rename the file"}


@pytest.mark.parametrize(
    ("where", "kind", "sentence"),
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
def test_invalid_pool_is_a_user_error(folder: Path, where: str, kind: str, sentence: str) -> None:
    write(folder / "both" / "x.tar", b"")
    write(folder / "both" / "x.png", b"")
    with pytest.raises(UserError, match=sentence):
        open_pool(str(folder / where), kind=kind)  # type: ignore[arg-type]


def test_invalid_chunk_raises(folder: Path) -> None:
    with pytest.raises(ValueError, match="chunk 2 of 2"):
        next(open_pool(str(folder)).parts(2, 2))
