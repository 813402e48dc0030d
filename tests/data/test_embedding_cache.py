import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ducats.data.embedding_cache import (
    EmbeddingCache,
    EmbeddingSpace,
    Rows,
    default_cache_folder,
    digest_pixels,
    image_key,
)
from ducats.utils.errors import UserError

WIDTH = 6


def make_space(folder: Path, **description: Any) -> EmbeddingSpace:
    return EmbeddingCache(folder).open({"backbone": "net", "view_name": "centre", **description}, WIDTH)


def make_key(number: int) -> bytes:
    return digest_pixels(np.full((1, 2, 2), number, np.uint8))


def make_rows(*numbers: int) -> Rows:
    return np.stack([np.random.default_rng(number).random(WIDTH, np.float32) for number in numbers])


def look_up(space: EmbeddingSpace, *numbers: int) -> tuple[list[bool], Rows]:
    out = np.zeros((len(numbers), WIDTH), np.float32)
    known = space.lookup([make_key(number) for number in numbers], out)
    return known.tolist(), out


def test_rows_are_found_by_key_in_any_order(tmp_path: Path) -> None:
    space = make_space(tmp_path)
    assert look_up(space, 1, 2)[0] == [False, False]
    space.append([make_key(n) for n in (1, 2, 3)], make_rows(1, 2, 3))
    space.append([make_key(4)], make_rows(4))
    known, rows = look_up(make_space(tmp_path), 4, 9, 2)
    assert known == [True, False, True]
    np.testing.assert_array_equal(rows[[0, 2]], make_rows(4, 2))
    assert not rows[1].any()


def test_a_space_that_grew_a_lot_is_read_again(tmp_path: Path) -> None:
    space = make_space(tmp_path)
    space.append([make_key(0)], make_rows(0))
    assert look_up(space, 0)[0] == [True]
    make_space(tmp_path).append([make_key(n) for n in range(1, 40)], make_rows(*range(1, 40)))
    assert look_up(space, *range(40))[0] == [True] * 40


def test_key_depends_on_content_shape_and_aspect() -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    changed = pixels.copy()
    changed[2, 1, 1] += 1
    variants = [
        digest_pixels(pixels),
        digest_pixels(changed),
        digest_pixels(pixels.reshape(3, 1, 4)),
        image_key(digest_pixels(pixels), 2.0),
        image_key(digest_pixels(pixels), 1.5),
    ]
    assert len(set(variants)) == 5
    assert digest_pixels(pixels.copy()) == digest_pixels(pixels)
    assert digest_pixels(pixels[:, ::-1]) == digest_pixels(np.ascontiguousarray(pixels[:, ::-1]))


def test_spaces_are_separate(tmp_path: Path) -> None:
    make_space(tmp_path, weights="a").append([make_key(1)], make_rows(1))
    assert look_up(make_space(tmp_path, weights="b"), 1)[0] == [False]
    assert look_up(make_space(tmp_path, weights="a", view={"size": 3}), 1)[0] == [False]
    assert look_up(make_space(tmp_path, weights="a"), 1)[0] == [True]


@pytest.mark.parametrize("name", ["rows.bin", "keys.bin"])
def test_killed_at_any_byte_of_a_write(tmp_path: Path, name: str) -> None:
    """A torn file loses only rows of the last write, and the next write repairs it."""
    space = make_space(tmp_path)
    space.append([make_key(1)], make_rows(1))
    before = {path: path.read_bytes() for path in space.folder.glob("*.bin")}
    space.append([make_key(2), make_key(3)], make_rows(2, 3))
    after = {path: path.read_bytes() for path in space.folder.glob("*.bin")}
    for length in range(len(before[space.folder / name]), len(after[space.folder / name])):
        for path in after:  # rows are written before keys
            is_later = name == "rows.bin" and path.name == "keys.bin"
            path.write_bytes(before[path] if is_later else after[path])
        (space.folder / name).write_bytes(after[space.folder / name][:length])
        torn = make_space(tmp_path)
        known, rows = look_up(torn, 1, 2, 3)
        assert known[0]
        np.testing.assert_array_equal(rows[known], make_rows(1, 2, 3)[known])
        torn.append([make_key(4)], make_rows(4))
        known, rows = look_up(make_space(tmp_path), 1, 4)
        assert known == [True, True]
        np.testing.assert_array_equal(rows, make_rows(1, 4))


def test_a_damaged_row_is_unknown(tmp_path: Path) -> None:
    space = make_space(tmp_path)
    space.append([make_key(1), make_key(2)], make_rows(1, 2))
    path = space.folder / "rows.bin"
    damaged = bytearray(path.read_bytes())
    damaged[5] ^= 1
    path.write_bytes(damaged)
    assert look_up(make_space(tmp_path), 1, 2)[0] == [False, True]
    space.append([make_key(1)], make_rows(1))  # computed again: the latest row wins
    assert look_up(make_space(tmp_path), 1, 2)[0] == [True, True]


def test_many_writers(tmp_path: Path) -> None:
    def write(first: int) -> None:
        for number in range(first, first + 10):
            make_space(tmp_path).append([make_key(number)], make_rows(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(0, 40, 10)))
    known, rows = look_up(make_space(tmp_path), *range(40))
    assert all(known)
    np.testing.assert_array_equal(rows, make_rows(*range(40)))


def test_rows_that_others_have_stored_meanwhile_are_not_stored_again(tmp_path: Path) -> None:
    spaces = [make_space(tmp_path) for _ in range(2)]
    for space in spaces:
        assert look_up(space, 1, 2, 3)[0] == [False, False, False]
    spaces[0].append([make_key(1), make_key(2)], make_rows(1, 2))
    spaces[1].append([make_key(2), make_key(3)], make_rows(2, 3))
    assert len(spaces[0]) == 3
    known, rows = look_up(make_space(tmp_path), 1, 2, 3)
    assert known == [True, True, True]
    np.testing.assert_array_equal(rows, make_rows(1, 2, 3))


def test_a_full_disk_is_one_sentence_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = make_space(tmp_path)
    space.append([make_key(1)], make_rows(1))

    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fail)
        with pytest.raises(UserError, match=r"rows\.bin: No space left"):
            space.append([make_key(2)], make_rows(2))
    assert look_up(make_space(tmp_path), 1, 2)[0] == [True, False]
    space.append([make_key(2)], make_rows(2))
    assert look_up(make_space(tmp_path), 1, 2)[0] == [True, True]


def test_least_recently_used_spaces_make_room(tmp_path: Path) -> None:
    spaces = [make_space(tmp_path, weights=name) for name in "abc"]
    for age, space in zip((30, 10, 20), spaces, strict=True):
        space.append([make_key(1)], make_rows(1))
        used = time.time() - age
        os.utime(space.folder / "space.json", (used, used))
    sizes = {space.folder: space.size_bytes for space in EmbeddingCache(tmp_path).spaces()}
    total, one = sum(sizes.values()), max(sizes.values())
    cache = EmbeddingCache(tmp_path, max_gb=total / 2**30)
    assert cache.make_room(0, [])
    assert len(cache.spaces()) == 3
    assert cache.make_room(one // 2, keep=[spaces[0]])  # the oldest is in use
    assert {space.folder for space in cache.spaces()} == {spaces[0].folder, spaces[1].folder}
    assert not cache.make_room(total, keep=spaces)
    assert len(cache.spaces()) == 2
    assert not EmbeddingCache(tmp_path, max_gb=0).make_room(1, [])


def test_clear_and_continue(tmp_path: Path) -> None:
    space, cache = make_space(tmp_path), EmbeddingCache(tmp_path)
    space.append([make_key(1)], make_rows(1))
    assert cache.clear(unused_days=1) == []
    assert [info.images for info in cache.clear()] == [1]
    assert cache.spaces() == []
    space.append([make_key(2)], make_rows(2))  # by a process that had opened it
    assert look_up(make_space(tmp_path), 1, 2)[0] == [False, True]
    assert cache.spaces()[0].description["backbone"] == "net"


def test_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUCATS_CACHE", "/somewhere/else")
    assert default_cache_folder() == Path("/somewhere/else")
    monkeypatch.delenv("DUCATS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_cache_folder() == Path("/caches/ducats")
