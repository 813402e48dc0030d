from itertools import pairwise
from pathlib import Path

import pytest

from drawn_pools import failures, keys, tar, write
from ducats.pool import open_pool
from ducats.pool.shards import EACH


def shards(folder: Path, count: int, each: int = 7, suffix: str = "tar", mode: str = "w") -> list[str]:
    """Write shards; return the keys of all samples."""
    found = []
    for shard in range(count):
        members = {}
        for number in range(each + shard):  # of different lengths
            members[f"./{number:03d}.json"] = b"{}"
            members[f"./{number:03d}.jpg"] = f"{shard}/{number}".encode()
            members[f"./{number:03d}.seg.png"] = b"another image of the same sample"
            found.append(f"{shard}.{suffix}/{number:03d}.jpg")
        tar(folder / f"{shard}.{suffix}", members, mode)
    return found


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_every_sample_is_in_one_chunk_and_batch(tmp_path: Path, count: int, size: int, world: int) -> None:
    everyone = shards(tmp_path, count)
    pool = open_pool(str(tmp_path))
    parts = keys(pool, world, size)
    assert sorted(key for part in parts for key in part) == everyone
    # Batches do not depend on the number of chunks and never mix shards; whole shards if there are enough.
    batches = {tuple(s.key for s in block) for block in pool.blocks(0, 1, size)}
    found = [tuple(s.key for s in block) for rank in range(world) for block in pool.blocks(rank, world, size)]
    assert set(found) == batches
    assert len(found) == len(batches)
    assert all(len({key.split("/")[0] for key in batch}) == 1 for batch in batches)
    if count >= world:
        for rank, part in enumerate(parts):
            assert part == [key for key in everyone if int(key[0]) % world == rank]
    assert pool.counted() == len(everyone)


def test_read_returns_the_image(tmp_path: Path) -> None:
    shards(tmp_path, 2)
    samples = list(open_pool(str(tmp_path)).parts(0, 1))
    assert [s.read().decode() for s in samples[5:9]] == ["0/5", "0/6", "1/0", "1/1"]
    assert [s.number for s in samples[5:9]] == [5, 6, EACH, EACH + 1]
    assert all(a.number < b.number for a, b in pairwise(samples))


@pytest.mark.parametrize(("suffix", "mode"), [("tar.gz", "w:gz"), ("tgz", "w:gz"), ("tar.xz", "w:xz")])
def test_compressed_shards(tmp_path: Path, suffix: str, mode: str) -> None:
    everyone = shards(tmp_path, 2, suffix=suffix, mode=mode)
    pool = open_pool(str(tmp_path))
    assert failures(pool) == {}
    assert sorted(key for part in keys(pool, 3, 2) for key in part) == everyone


def test_one_shard_range_and_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everyone = shards(tmp_path, 3)
    one = [key for key in everyone if key.startswith("1.tar")]
    assert keys(open_pool(str(tmp_path / "1.tar"))) == [one]
    for pattern in ("{0..2}.tar", "*.tar", "?.tar"):
        assert keys(open_pool(str(tmp_path / pattern))) == [everyone]
    monkeypatch.chdir(tmp_path)
    assert keys(open_pool("1*.tar")) == keys(open_pool("1.tar")) == [one]


def test_shards_of_same_name_have_distinct_keys(tmp_path: Path) -> None:
    for folder in ("0", "1"):
        tar(tmp_path / folder / "x.tar", {"a.png": b""})
    found = keys(open_pool(str(tmp_path / "{0..1}" / "x.tar")))[0]
    assert found == [f"{tmp_path}/{folder}/x.tar/a.png" for folder in ("0", "1")]


def test_stems_end_at_the_first_dot_of_the_file(tmp_path: Path) -> None:
    names = ("v1.0/a.png", "v1.0/b.jpg", "v1.0/b.png", "a.png", ".hidden.png", "notes.txt", "c.left.png")
    tar(tmp_path / "x.tar", dict.fromkeys(names, b""))
    found = [key.removeprefix("x.tar/") for key in keys(open_pool(str(tmp_path / "x.tar")))[0]]
    assert found == ["v1.0/a.png", "v1.0/b.jpg", "a.png", "c.left.png"]


def test_repeated_stem_is_another_sample(tmp_path: Path) -> None:
    names = ("a.jpg", "._a.png", "a.png", "b.json", "a.webp")
    tar(tmp_path / "x.tar", dict.fromkeys(names, b""))
    assert keys(open_pool(str(tmp_path / "x.tar"))) == [["x.tar/a.jpg", "x.tar/a.webp"]]


def test_non_utf8_name_is_an_unreadable_sample(tmp_path: Path) -> None:
    tar(tmp_path / "x.tar", {"a.png": b"", "caf\udce9.png": b"", "\xe9.png": b""})
    pool = open_pool(str(tmp_path / "x.tar"))
    assert keys(pool) == [["x.tar/a.png", "x.tar/caf\\xe9.png", "x.tar/\xe9.png"]]
    assert failures(pool) == {"x.tar/caf\\xe9.png": "the name is not UTF-8; rename the file"}


def cut(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])


@pytest.mark.parametrize(
    ("spoil", "before", "why"),
    [
        (lambda path: write(path, b""), 0, "not a tar file"),
        (lambda path: write(path, b"no tar" * 1000), 0, "not a tar file"),
        (lambda path: cut(path, 2 * 1024), 2, "truncated"),  # between two members, like a regular end
        (lambda path: cut(path, 2 * 1024 + 512 + 10), 2, "truncated|unexpected end"),  # within an image
        (lambda path: cut(path, 2 * 1024 + 100), 2, "truncated|unexpected end"),  # within a header
        (
            lambda path: path.write_bytes(path.read_bytes()[:2048] + b"\1" * 512 + path.read_bytes()[2560:]),
            2,
            "corrupt header",
        ),
    ],
)
@pytest.mark.parametrize(("world", "size"), [(1, 2), (3, 1), (3, 2), (3, 3), (4, 3)])
def test_corrupt_shard_is_reported_and_others_are_read(
    tmp_path: Path, spoil: object, before: int, why: str, world: int, size: int
) -> None:
    for shard in range(2):  # a header and an image take 512 bytes each
        tar(tmp_path / f"{shard}.tar", {f"{n}.png": b"x" * 300 for n in range(4)})
    spoil(tmp_path / "0.tar")  # type: ignore[operator]
    pool = open_pool(str(tmp_path))
    expected = [f"0.tar/{n}.png" for n in range(before)] + [f"1.tar/{n}.png" for n in range(4)]
    parts = keys(pool, world, size)
    assert sorted(key for part in parts for key in part if key != "0.tar") == expected
    assert [part.count("0.tar") for part in parts] == [1] * world  # reported by each chunk
    assert pool.counted() == len(expected) + 1
    (found,) = failures(pool).items()
    assert found[0] == "0.tar"
    assert found[1].startswith(f"after {before} images: ")
    with pytest.raises(OSError, match=why):
        next(s for s in pool.parts(0, 1) if s.key == "0.tar").read()


def test_tar_members_are_not_accumulated(tmp_path: Path) -> None:
    """`tarfile` keeps every member that it has read unless the list is cleared."""
    import tarfile

    tar(tmp_path / "x.tar", {f"{n:04d}.png": b"" for n in range(500)})
    most, genuine = 0, tarfile.TarFile.next

    def watched(self: tarfile.TarFile) -> tarfile.TarInfo | None:
        nonlocal most
        found = genuine(self)
        most = max(most, len(self.members))  # type: ignore[attr-defined]
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tarfile.TarFile, "next", watched)
        assert open_pool(str(tmp_path / "x.tar")).counted() == 500
    assert most <= 2
