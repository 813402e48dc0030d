import re
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest

from ducats.data.streaming import open_pool
from ducats.data.streaming.shards import MAX_SAMPLES_PER_SHARD
from synthetic_pools import chunk_keys, read_errors, write_file, write_tar


def write_shards(folder: Path, count: int, each: int = 7, suffix: str = "tar", mode: str = "w") -> list[str]:
    """Write shards; return the keys of all samples."""
    found = []
    for shard in range(count):
        members = {}
        for number in range(each + shard):  # of different lengths
            members[f"./{number:03d}.json"] = b"{}"
            members[f"./{number:03d}.jpg"] = f"{shard}/{number}".encode()
            members[f"./{number:03d}.seg.png"] = b"another image of the same sample"
            found.append(f"{shard}.{suffix}/{number:03d}.jpg")
        write_tar(folder / f"{shard}.{suffix}", members, mode)
    return found


@pytest.mark.parametrize("n_chunks", [1, 2, 3])
@pytest.mark.parametrize("block_size", [1, 3, 100])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_every_sample_is_in_one_chunk_and_batch(
    tmp_path: Path, count: int, block_size: int, n_chunks: int
) -> None:
    all_keys = write_shards(tmp_path, count)
    pool = open_pool(str(tmp_path))
    keys_by_chunk = chunk_keys(pool, n_chunks, block_size)
    assert sorted(key for keys in keys_by_chunk for key in keys) == all_keys
    # Batches do not depend on the number of chunks and never mix shards; whole shards if there are enough.
    batches = {tuple(s.key for s in block) for block in pool.blocks(0, 1, block_size)}
    found = [
        tuple(s.key for s in block)
        for chunk in range(n_chunks)
        for block in pool.blocks(chunk, n_chunks, block_size)
    ]
    assert set(found) == batches
    assert len(found) == len(batches)
    assert all(len({key.split("/")[0] for key in batch}) == 1 for batch in batches)
    if count >= n_chunks:
        for chunk, keys in enumerate(keys_by_chunk):
            assert keys == [key for key in all_keys if int(key[0]) % n_chunks == chunk]
    assert pool.count_samples() == len(all_keys)


def test_read_returns_the_image(tmp_path: Path) -> None:
    write_shards(tmp_path, 2)
    samples = list(open_pool(str(tmp_path)).samples(0, 1))
    assert [s.read().decode() for s in samples[5:9]] == ["0/5", "0/6", "1/0", "1/1"]
    assert [s.pool_index for s in samples[5:9]] == [5, 6, MAX_SAMPLES_PER_SHARD, MAX_SAMPLES_PER_SHARD + 1]
    assert all(a.pool_index < b.pool_index for a, b in pairwise(samples))


@pytest.mark.parametrize(("suffix", "mode"), [("tar.gz", "w:gz"), ("tgz", "w:gz"), ("tar.xz", "w:xz")])
def test_compressed_shards(tmp_path: Path, suffix: str, mode: str) -> None:
    all_keys = write_shards(tmp_path, 2, suffix=suffix, mode=mode)
    pool = open_pool(str(tmp_path))
    assert read_errors(pool) == {}
    assert sorted(key for keys in chunk_keys(pool, 3, 2) for key in keys) == all_keys


def test_one_shard_range_and_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    all_keys = write_shards(tmp_path, 3)
    one = [key for key in all_keys if key.startswith("1.tar")]
    assert chunk_keys(open_pool(str(tmp_path / "1.tar"))) == [one]
    for pattern in ("{0..2}.tar", "*.tar", "?.tar"):
        assert chunk_keys(open_pool(str(tmp_path / pattern))) == [all_keys]
    monkeypatch.chdir(tmp_path)
    assert chunk_keys(open_pool("1*.tar")) == chunk_keys(open_pool("1.tar")) == [one]


def test_shards_of_same_name_have_distinct_keys(tmp_path: Path) -> None:
    for folder in ("0", "1"):
        write_tar(tmp_path / folder / "x.tar", {"a.png": b""})
    found = chunk_keys(open_pool(str(tmp_path / "{0..1}" / "x.tar")))[0]
    assert found == [f"{tmp_path}/{folder}/x.tar/a.png" for folder in ("0", "1")]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            "v1.0/a.png v1.0/b.jpg v1.0/b.png a.png .hidden.png notes.txt c.left.png",
            "v1.0/a.png v1.0/b.jpg a.png c.left.png",
        ),
        ("a.jpg ._a.png a.png b.json a.webp", "a.jpg a.webp"),  # a stem that returns is another sample
    ],
)
def test_one_sample_per_stem(tmp_path: Path, names: str, expected: str) -> None:
    """A stem ends at the first dot of the file name."""
    write_tar(tmp_path / "x.tar", dict.fromkeys(names.split(), b""))
    assert chunk_keys(open_pool(str(tmp_path / "x.tar"))) == [[f"x.tar/{name}" for name in expected.split()]]


def test_non_utf8_name_is_an_unreadable_sample(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", {"a.png": b"", "caf\udce9.png": b"", "\xe9.png": b""})
    pool = open_pool(str(tmp_path / "x.tar"))
    assert chunk_keys(pool) == [["x.tar/a.png", "x.tar/caf\\xe9.png", "x.tar/\xe9.png"]]
    assert read_errors(pool) == {"x.tar/caf\\xe9.png": "the name is not UTF-8; rename the file"}


def truncate(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])


@pytest.mark.parametrize(
    ("corrupt", "n_readable", "reason"),
    [
        (lambda path: write_file(path, b""), 0, "not a tar file"),
        (lambda path: write_file(path, b"no tar" * 1000), 0, "not a tar file"),
        (lambda path: truncate(path, 2 * 1024), 2, "truncated"),  # between two members, like a regular end
        (lambda path: truncate(path, 2 * 1024 + 512 + 10), 2, "truncated|unexpected end"),  # within an image
        (lambda path: truncate(path, 2 * 1024 + 100), 2, "truncated|unexpected end"),  # within a header
        (
            lambda path: path.write_bytes(path.read_bytes()[:2048] + b"\1" * 512 + path.read_bytes()[2560:]),
            2,
            "corrupt header",
        ),
    ],
)
@pytest.mark.parametrize(("n_chunks", "block_size"), [(1, 2), (3, 1), (4, 3)])
def test_corrupt_shard_is_reported_and_others_are_read(
    tmp_path: Path, corrupt: object, n_readable: int, reason: str, n_chunks: int, block_size: int
) -> None:
    for shard in range(2):  # a header and an image take 512 bytes each
        write_tar(tmp_path / f"{shard}.tar", {f"{n}.png": b"x" * 300 for n in range(4)})
    corrupt(tmp_path / "0.tar")  # type: ignore[operator]
    pool = open_pool(str(tmp_path))
    expected = [f"0.tar/{n}.png" for n in range(n_readable)] + [f"1.tar/{n}.png" for n in range(4)]
    keys_by_chunk = chunk_keys(pool, n_chunks, block_size)
    assert sorted(key for keys in keys_by_chunk for key in keys if key != "0.tar") == expected
    assert [keys.count("0.tar") for keys in keys_by_chunk] == [1] * n_chunks  # reported by each chunk
    assert pool.count_samples() == len(expected) + 1
    ((key, message),) = read_errors(pool).items()
    assert key == "0.tar"
    assert re.match(f"after {n_readable} images: .*({reason})", message)


def test_tar_members_are_not_accumulated(tmp_path: Path) -> None:
    """`tarfile` keeps every member that it has read unless the list is cleared."""
    write_tar(tmp_path / "x.tar", {f"{n:04d}.png": b"" for n in range(500)})
    max_members, original = 0, tarfile.TarFile.next

    def watched(self: tarfile.TarFile) -> tarfile.TarInfo | None:
        nonlocal max_members
        found = original(self)
        max_members = max(max_members, len(self.members))  # type: ignore[attr-defined]
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tarfile.TarFile, "next", watched)
        assert open_pool(str(tmp_path / "x.tar")).count_samples() == 500
    assert max_members <= 2
