"""Files with known digests are decoded only when their pixels are read."""

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ducats.data import decoding, store
from ducats.data.decoding import decode_image_sets, decode_images
from ducats.data.domain import Images, pixel_digest, subset_images
from ducats.data.embedding_cache import EmbeddingCache, digest_pixels
from ducats.data.store import FirstUseArrays, decode_on_first_use
from ducats.utils.errors import UserError
from ducats.utils.image_files import load_image

Files = Sequence[tuple[str, Path]]


def save_image(path: Path, seed: int) -> None:
    Image.fromarray(np.random.default_rng(seed).integers(256, size=(9, 12, 3), dtype=np.uint8)).save(path)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    found = [(str(number), tmp_path / f"{number}.png") for number in range(4)]
    for number, (_, path) in enumerate(found):
        save_image(path, number)
    return found


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were decoded."""
    names = list[str]()

    def note(file: Path, value_range: object) -> Image.Image:
        names.append(file.name)
        return load_image(file, value_range)  # type: ignore[arg-type]

    monkeypatch.setattr(decoding, "load_image", note)
    return names


def read(files: Files, cache: Path, size: int = 8, max_gb: float = 1.0, memory_gb: float = 1.0) -> Images:
    with decode_on_first_use(EmbeddingCache(cache, max_gb)):
        return decode_images(files, size, memory_gb=memory_gb)


def digests(images: Images) -> list[bytes]:
    return [pixel_digest(images.pixels, number) for number in range(len(images))]


@pytest.mark.parametrize("memory_gb", [1.0, 0.0])
def test_known_files_are_decoded_once_when_read(
    tmp_path: Path, files: Files, decoded: list[str], memory_gb: float
) -> None:
    expected = decode_images(files, 8)
    first = read(files, tmp_path / "cache", memory_gb=memory_gb)
    assert torch.equal(first.pixels[:], expected.pixels[:])
    decoded.clear()
    images = read(files, tmp_path / "cache", memory_gb=memory_gb)
    assert digests(images) == digests(first) == digests(expected)
    assert digests(subset_images(images, torch.tensor([2, 0]))) == [digests(expected)[i] for i in (2, 0)]
    assert decoded == []
    for index in (1, -3, slice(0, 2), torch.tensor([1, 1, 0]), torch.arange(4) < 2):
        assert torch.equal(images.pixels[index], expected.pixels[index])
    assert sorted(decoded) == ["0.png", "1.png"]
    assert torch.equal(images.pixels[:], expected.pixels[:])
    assert len(decoded) == 4


def test_content_decides(tmp_path: Path, files: Files, decoded: list[str]) -> None:
    read(files, tmp_path / "cache")
    status = files[1][1].stat()
    save_image(files[1][1], 99)
    os.utime(files[1][1], ns=(status.st_atime_ns, status.st_mtime_ns))
    shutil.copy(files[0][1], tmp_path / "copy.png")
    decoded.clear()
    images = read([*files, ("copy", tmp_path / "copy.png")], tmp_path / "cache")
    assert decoded == ["1.png"]
    assert torch.equal(images.pixels[:4], decode_images(files, 8).pixels[:])
    assert torch.equal(images.pixels[4], images.pixels[0])


def test_whatever_determines_the_pixels_is_in_the_index(
    tmp_path: Path, files: Files, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"

    def count() -> int:
        decoded.clear()
        read(files, cache)
        return len(decoded)

    assert (count(), count()) == (4, 0)
    read(files, cache, size=6)
    assert len(decoded) == 4
    with decode_on_first_use(EmbeddingCache(cache)):
        decode_images(files, 8, channels=1)
        decode_images(files, 8, value_range=(0, 4095))
    assert len(decoded) == 12
    monkeypatch.setattr(decoding, "_DECODER_VERSION", 99)
    assert (count(), count()) == (4, 0)
    monkeypatch.setattr(store, "__version__", "0.1")
    assert (count(), count()) == (4, 0)


def test_unreadable_files_are_found_each_time(tmp_path: Path, files: Files) -> None:
    files[1][1].write_bytes(files[1][1].read_bytes()[:60])
    os.mkfifo(tmp_path / "pipe.png")
    given = [*files, ("gone", tmp_path / "gone.png"), ("pipe", tmp_path / "pipe.png")]
    expected = decode_images(given, 8)
    assert len(expected.unreadable) == 3
    for _ in range(2):
        images = read(given, tmp_path / "cache")
        assert (images.keys, images.unreadable) == (expected.keys, expected.unreadable)
        assert digests(images) == digests(expected)
        assert torch.equal(images.pixels[:], expected.pixels[:])
    with pytest.raises(UserError, match="cannot be read"):
        read(given[4:], tmp_path / "cache")
    assert len(read([files[0], given[4]], tmp_path / "cache")) == 1  # known files count as readable


def test_a_file_that_changes_later_is_no_other_image(tmp_path: Path, files: Files) -> None:
    read(files, tmp_path / "cache")
    images = read(files, tmp_path / "cache")
    save_image(files[1][1], 99)
    files[2][1].unlink()
    assert images.pixels[0].shape == (3, 8, 8)
    with pytest.raises(UserError, match=r"1\.png has changed"):
        images.pixels[1]
    with pytest.raises(UserError, match=r"2\.png \(no such file\)"):
        images.pixels[2]


def test_a_file_that_changes_while_it_is_decoded_is_not_added(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace_first(file: Path, value_range: object) -> Image.Image:
        if file == files[0][1]:
            save_image(file, 99)
        return load_image(file, value_range)  # type: ignore[arg-type]

    with monkeypatch.context() as changing:
        changing.setattr(decoding, "load_image", replace_first)
        read(files, tmp_path / "cache")
    save_image(files[0][1], 0)
    assert digests(read(files, tmp_path / "cache")) == digests(decode_images(files, 8))


@pytest.mark.parametrize("name", ["rows.bin", "keys.bin", "space.json"])
def test_a_damaged_index_is_rebuilt(tmp_path: Path, files: Files, decoded: list[str], name: str) -> None:
    read(files, tmp_path / "cache")
    (space,) = EmbeddingCache(tmp_path / "cache").spaces()
    path, expected = space.folder / name, digests(decode_images(files, 8))
    for content in (bytes([7]) * path.stat().st_size, path.read_bytes()[:-3], b""):
        path.write_bytes(content)
        for _ in range(2):
            decoded.clear()
            assert digests(read(files, tmp_path / "cache")) == expected
        assert decoded == []


def test_many_processes_add_files(tmp_path: Path, files: Files, decoded: list[str]) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda file: read([file], tmp_path / "cache"), files))
    decoded.clear()
    assert digests(read(files, tmp_path / "cache")) == digests(decode_images(files, 8))
    assert len(decoded) == 4  # by `decode_images`


def test_the_index_is_bounded_listed_and_cleared(tmp_path: Path, files: Files, decoded: list[str]) -> None:
    cache = EmbeddingCache(tmp_path / "cache")
    read(files, cache.folder)
    (space,) = cache.spaces()
    assert (space.images, space.is_file_index) == (4, True)
    assert EmbeddingCache(cache.folder, space.size_bytes / 2**30).make_room(1, [])
    assert cache.spaces() == []
    assert isinstance(read(files, cache.folder, max_gb=1e-9).pixels, FirstUseArrays)
    assert sum(space.images for space in cache.spaces()) == 0
    cache.clear()
    assert isinstance(read(files, cache.folder, max_gb=0).pixels, torch.Tensor)
    assert cache.spaces() == []


def test_all_is_decoded_at_once_outside(files: Files) -> None:
    (images,) = decode_image_sets([files], 8, cache=None, memory_gb=None)
    assert isinstance(images.pixels, torch.Tensor)
    assert pixel_digest(images.pixels, 1) == digest_pixels(images.pixels[1].numpy())
