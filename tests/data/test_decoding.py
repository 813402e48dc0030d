import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ducats.data import decoding, store
from ducats.data.decoding import (
    decode_image_sets,
    decode_images,
    find_unreadable,
    image_decoder,
    pixels_gb,
    read_aspect_ratios,
)
from ducats.data.store import LazyFileArrays, memory_budget
from ducats.utils.errors import UserError
from ducats.utils.image_files import load_image

BROKEN_EXIF = b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x09broken"
NO_MEMORY_GB = 0.0  # gigabytes of memory: everything goes to a file


def make_image(seed: int = 0, size: tuple[int, int] = (24, 16)) -> Image.Image:
    """Make an image with smooth colours, which lossy formats preserve well."""
    corners = np.random.default_rng(seed).integers(0, 256, (2, 2, 3)).astype(np.uint8)
    return Image.fromarray(corners).resize(size, Image.Resampling.BILINEAR)


def save(folder: Path, count: int = 3) -> list[tuple[str, Path]]:
    """Save images in a folder with an odd name."""
    folder = folder / "größe 日本 %s 'x'"
    folder.mkdir(exist_ok=True)
    files = []
    for i in range(count):
        path = folder / f"{i}.png"
        make_image(i).save(path)
        files.append((path.name, path))
    return files


def in_file(
    files: list[tuple[str, Path]], cache: Path | None = None, size: int | Sequence[int] = 8, channels: int = 3
) -> torch.Tensor:
    """Decode to a temporary file, or to the cache."""
    return decode_images(files, size, cache=cache, memory_gb=NO_MEMORY_GB, channels=channels).pixels[:]


def decode_one(path: Path, size: int = 8, channels: int = 3) -> torch.Tensor:
    return decode_images([("key", path)], size, channels=channels).pixels[0]


def assert_close(found: torch.Tensor, expected: torch.Tensor, within: int) -> None:
    assert found.shape == expected.shape
    assert (found.int() - expected.int()).abs().max() <= within


def test_nothing_to_decode_and_invalid_shapes() -> None:
    assert decode_images([], 8).pixels.shape == (0, 3, 8, 8)
    with pytest.raises(ValueError, match="size of 1 or more"):
        decode_images([], 0)
    with pytest.raises(ValueError, match="channels must be"):
        decode_images([], 8, channels=2)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    upright, exif = make_image(), Image.Exif()
    stored = upright.transpose(undo[orientation]) if orientation in undo else upright
    exif[0x0112] = orientation
    for suffix in ("jpg", "webp", "tif", "png"):
        path = tmp_path / f"rotated.{suffix}"
        stored.save(path, exif=exif)
        assert load_image(path).size == upright.size
        assert read_aspect_ratios([path]).tolist() == [1.5]
    upright.save(tmp_path / "upright.png")
    assert torch.equal(decode_one(path), decode_one(tmp_path / "upright.png"))


def test_broken_exif_is_ignored(tmp_path: Path) -> None:
    make_image().save(tmp_path / "broken.jpg", exif=BROKEN_EXIF)
    make_image().save(tmp_path / "plain.jpg")
    assert torch.equal(decode_one(tmp_path / "broken.jpg"), decode_one(tmp_path / "plain.jpg"))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB"])
def test_transparency_is_composited_on_white(tmp_path: Path, mode: str) -> None:
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))  # transparent black
    image.paste((0, 0, 0, 255), (0, 0, 4, 8))
    if mode == "P":
        indexed = Image.new("P", (8, 8), 1)
        indexed.putpalette([0, 0, 0, 9, 9, 9])
        indexed.paste(0, (0, 0, 4, 8))
        indexed.save(tmp_path / "a.png", transparency=bytes([255, 0]))
    elif mode == "RGB":
        flat = Image.new("RGB", (8, 8), (1, 2, 3))
        flat.paste((0, 0, 0), (0, 0, 4, 8))
        flat.save(tmp_path / "a.png", transparency=(1, 2, 3))
    else:
        image.convert(mode).save(tmp_path / "a.png")
    pixels = decode_one(tmp_path / "a.png")
    assert (pixels[:, :, :4] == 0).all()
    assert (pixels[:, :, 4:] == 255).all()


@pytest.mark.parametrize(
    ("suffix", "mode", "within"),
    [
        *((suffix, "RGB", 0) for suffix in ("png", "bmp", "tiff", "ppm")),
        *(("jpg", "RGB", 40), ("webp", "RGB", 40), ("jpg", "CMYK", 12), ("gif", "P", 0), ("png", "P", 0)),
        *(("png", "L", 0), ("png", "1", 0)),
    ],
)
def test_formats_and_modes(tmp_path: Path, suffix: str, mode: str, within: int) -> None:
    image = make_image().convert(mode)
    image.save(tmp_path / f"a.{suffix}", quality=95)
    image.convert("RGB").save(tmp_path / "b.png")
    assert_close(decode_one(tmp_path / f"a.{suffix}"), decode_one(tmp_path / "b.png"), within)
    if mode == "L":
        assert torch.equal(decode_one(tmp_path / "a.png", channels=1), decode_one(tmp_path / "b.png")[:1])


def write_unreadable_files(folder: Path) -> dict[Path, str]:
    """Write one file per kind of failure; return the expected reasons."""
    make_image(size=(64, 64)).save(folder / "whole.png")
    whole = (folder / "whole.png").read_bytes()
    (folder / "truncated.png").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("not an image at all")
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(folder / "deep.tif")
    (folder / "folder.png").mkdir()
    return {
        folder / "truncated.png": "truncated",
        folder / "empty.jpg": "empty file",
        folder / "text.jpg": "not an image",
        folder / "deep.tif": "16 bits, 1 band, largest value 0",
        folder / "folder.png": "a folder",
        folder / "missing.png": "no such file",
    }


def test_reason_of_each_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = write_unreadable_files(tmp_path)
    found = find_unreadable([tmp_path / "whole.png", *expected])
    assert [path for path, _ in found] == list(expected)
    for path, reason in found:
        assert expected[path] in reason
    path = tmp_path / "whole.png"

    def refuse(*_: object) -> None:  # not chmod, because root can read everything
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Image, "open", refuse)
    assert find_unreadable([path]) == [(path, "no permission to read it")]


@pytest.mark.parametrize("memory_gb", [NO_MEMORY_GB, 4.0])
@pytest.mark.parametrize("folder", ["cache", None])
def test_unreadable_files_are_skipped_and_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_gb: float, folder: str | None
) -> None:
    readable, unreadable = save(tmp_path), write_unreadable_files(tmp_path)
    files = [*readable[:1], *((path.name, path) for path in unreadable), *readable[1:]]
    cache = None if folder is None else tmp_path / folder
    images = decode_images(files, 8, cache=cache, memory_gb=memory_gb)
    assert (images.keys, images.files) == tuple(zip(*readable, strict=True))
    assert torch.equal(images.pixels[:], decode_images(readable, 8).pixels[:])
    assert [path for path, _ in images.unreadable] == list(unreadable)
    assert images.unreadable[1].reason == "empty file"
    if cache is not None and memory_gb == NO_MEMORY_GB:  # the cache lists them, too
        monkeypatch.setattr("ducats.data.decoding._decode_image", lambda *_, **__: 1 / 0)
        assert decode_images(files, 8, cache=cache, memory_gb=memory_gb).unreadable == images.unreadable


@pytest.mark.parametrize("memory_gb", [NO_MEMORY_GB, 4.0])
def test_no_readable_file_is_one_message(tmp_path: Path, memory_gb: float) -> None:
    files, cache = [(path.name, path) for path in write_unreadable_files(tmp_path)], tmp_path / "cache"
    with pytest.raises(UserError, match="6 of 6 images cannot be read") as caught:
        decode_images(files, 8, cache=cache, memory_gb=memory_gb)
    message = str(caught.value)
    assert str(tmp_path / "truncated.png") in message
    assert "(empty file)" in message
    assert "missing.png" not in message  # the sixth
    assert "and 1 more; remove or replace them" in message
    assert "\n" not in message
    assert not cache.exists() or list(cache.iterdir()) == []


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("folder", [None, "new/cache"])
def test_pixels_in_a_file_equal_pixels_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str | None, channels: int
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    files, cache = save(tmp_path), None if folder is None else tmp_path / folder
    in_memory = decode_images(files, 8, channels=channels, cache=cache).pixels[:]
    assert cache is None or not cache.exists()
    assert torch.equal(in_file(files, cache, channels=channels), in_memory)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_cache_is_reused_also_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, cache = save(tmp_path), tmp_path / "cache"
    first = in_file(files, cache).clone()

    def refuse(path: Path, *_: object) -> Image.Image:
        raise AssertionError(f"{path} was read again")

    monkeypatch.setattr(decoding, "load_image", refuse)
    assert torch.equal(in_file(files, cache), first)
    simulate_full_disk(monkeypatch)
    assert torch.equal(in_file(files, cache), first)


def test_every_change_makes_a_new_cache(tmp_path: Path) -> None:
    files, cache = save(tmp_path), tmp_path / "cache"
    os.utime(files[0][1], ns=(1, 1))
    square = in_file(files, cache)
    assert torch.equal(in_file(files, cache, (8, 8)), square)
    assert len(list(cache.iterdir())) == 1
    os.utime(files[0][1], ns=(2, 2))
    in_file(files, cache)  # another time
    in_file(files, cache, 4)  # another size
    in_file(files, cache, (4, 16))  # the same number of bytes
    in_file(files, cache, channels=1)
    in_file(files[::-1], cache)  # another order
    in_file([("x", files[0][1]), *files[1:]], cache)  # another key
    assert len(list(cache.iterdir())) == 7


@pytest.mark.parametrize("n_bytes", [0, 60, 200])
def test_truncated_cache_is_not_used(tmp_path: Path, n_bytes: int) -> None:
    files, cache = save(tmp_path), tmp_path / "cache"
    expected = in_file(files, cache).clone()
    (path,) = cache.iterdir()
    path.write_bytes(path.read_bytes()[:n_bytes])
    assert torch.equal(in_file(files, cache), expected)


def test_killed_process_leaves_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, cache = save(tmp_path), tmp_path / "cache"

    class Killed(BaseException): ...

    def die(path: Path, *_: object) -> Image.Image:
        if path.name == "2.png":
            raise Killed
        return load_image(path)

    with monkeypatch.context() as patch:
        patch.setattr(decoding, "load_image", die)
        with pytest.raises(Killed):
            in_file(files, cache)
    assert list(cache.glob("*.npy")) == []
    assert torch.equal(in_file(files, cache), decode_images(files, 8).pixels[:])


def test_only_old_partial_files_are_removed(tmp_path: Path) -> None:
    files, cache = save(tmp_path), tmp_path / "cache"
    in_file(files, cache)
    (path,) = cache.iterdir()
    path.unlink()
    old, new = cache / f".{path.name}.1.part", cache / f".{path.name}.2.part"
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (0, 0))
    in_file(files, cache)
    assert sorted(cache.iterdir()) == sorted([new, path])


def test_cache_folder_that_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UserError, match="cannot be written to the cache folder"):
        in_file(save(tmp_path), tmp_path / "cache")


def simulate_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)


@pytest.mark.parametrize("folder", ["cache", None])
def test_images_are_decoded_on_demand_if_nothing_else_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str | None
) -> None:
    files = save(tmp_path)
    cache = None if folder is None else tmp_path / folder
    in_memory = decode_images(files, 8)
    simulate_full_disk(monkeypatch)
    message = r"do not fit .*decoded again for every batch.*data\.params\.cache"
    with pytest.warns(UserWarning, match=message):
        images = decode_images(files, 8, cache=cache, memory_gb=NO_MEMORY_GB)
    assert isinstance(images.pixels, LazyFileArrays)
    assert (images.keys, images.files) == (in_memory.keys, in_memory.files)
    assert torch.equal(images.pixels[:], in_memory.pixels[:])
    assert cache is None or not cache.exists()
    with pytest.warns(UserWarning, match=message) as caught:
        decode_image_sets([files[:2], files[2:]], 8, cache=cache, memory_gb=NO_MEMORY_GB)
    assert len(caught) == 1
    files[1][1].write_text("no image")  # found at once, not when it is needed
    with pytest.warns(UserWarning, match=message):
        images = decode_images(files, 8, cache=cache, memory_gb=NO_MEMORY_GB)
    assert images.unreadable == ((files[1][1], "not an image"),)
    assert torch.equal(images.pixels[:], in_memory.pixels[:][[0, 2]])
    with pytest.raises(UserError, match=r"1 of 3 images cannot be read: .*1\.png \(not an image\)"):
        read_aspect_ratios([path for _, path in files])


@pytest.mark.parametrize("channels", [1, 3])
def test_file_arrays_are_indexed_like_a_tensor(tmp_path: Path, channels: int) -> None:
    files = save(tmp_path, 5)
    in_memory = decode_images(files, 8, channels=channels).pixels
    pixels = LazyFileArrays(files, image_decoder(8, channels))
    assert (pixels.shape, pixels.dtype, pixels.ndim, len(pixels)) == (in_memory.shape, in_memory.dtype, 4, 5)
    order = torch.tensor([3, 0, 3])
    for index in (2, -1, slice(1, 4), slice(None), order, torch.arange(5) > 2, order[:0]):
        assert torch.equal(pixels[index], in_memory[index])
    with pytest.raises(IndexError):
        pixels[5]


def test_file_arrays_report_a_corrupt_file(tmp_path: Path) -> None:
    files = save(tmp_path)
    pixels = LazyFileArrays(files, image_decoder(8))
    files[1][1].write_bytes(b"no image")
    assert pixels[torch.tensor([0, 2])].shape == (2, 3, 8, 8)
    with pytest.raises(UserError, match=r"1\.png \(not an image\); remove or replace"):
        pixels[torch.tensor([0, 1])]


def test_sets_share_half_of_the_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, cache = save(tmp_path), tmp_path / "cache"
    monkeypatch.setattr(store, "free_memory_gb", lambda: 2 * pixels_gb(3, 8))
    decode_images(files, 8, cache=cache)
    decode_image_sets([files[:1], files[1:]], 8, cache=cache, memory_gb=None)
    assert not cache.exists()
    monkeypatch.setattr(store, "free_memory_gb", lambda: 1.9 * pixels_gb(3, 8))
    decode_images(files, 8, cache=cache)
    assert len(list(cache.iterdir())) == 1
    # One fits, the other two do not.
    decode_image_sets([files[:1], files[1:]], 8, cache=cache, memory_gb=None)
    assert len(list(cache.iterdir())) == 2
    # The first and the third set fit, not the second.
    first, second, third = decode_image_sets(
        [files, files[:2], files[2:]], 8, cache=cache, memory_gb=pixels_gb(4, 8)
    )
    assert len(list(cache.iterdir())) == 3
    assert torch.equal(torch.cat([second.pixels[:], third.pixels[:]]), first.pixels[:])


def test_memory_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "free_memory_gb", lambda: 24.0)
    assert memory_budget(3.0) == 3.0
    assert memory_budget(None) == 12.0
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    assert memory_budget(None) == 3.0
    monkeypatch.setattr(store, "free_memory_gb", lambda: None)
    assert memory_budget(None) == 4.0


def test_aspects_come_from_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{width}.{suffix}" for width in (10, 20, 40) for suffix in ("png", "jpg")]
    for path in paths:
        make_image(size=(int(path.stem), 20)).save(path)
    make_image().save(tmp_path / "broken_exif.jpg", exif=BROKEN_EXIF)

    def refuse(self: Image.Image) -> None:
        raise AssertionError("the pixels were read")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", refuse)
    found = read_aspect_ratios([*paths, tmp_path / "broken_exif.jpg"])
    assert found.dtype == torch.float32
    assert found.tolist() == [0.5, 0.5, 1.0, 1.0, 2.0, 2.0, 1.5]
    assert read_aspect_ratios([]).shape == (0,)


def test_one_aspect_per_image(tmp_path: Path) -> None:
    images = decode_images(save(tmp_path), 8)
    assert images.aspect is None  # set only if a view needs it
    assert replace(images, aspect=torch.ones(3)).aspect is not None
    with pytest.raises(ValueError, match="for 3 images"):
        replace(images, aspect=torch.ones(2))


@pytest.mark.parametrize("memory_gb", [NO_MEMORY_GB, 4.0])
@pytest.mark.parametrize("size", [(4, 10), [12, 3]])
def test_keys_files_and_resized_pixels_in_order(
    tmp_path: Path, size: Sequence[int], memory_gb: float
) -> None:
    files, (height, width) = save(tmp_path)[::-1], size
    images = decode_images(files, size, memory_gb=memory_gb)
    assert images.keys == ("2.png", "1.png", "0.png")
    assert images.files == tuple(path for _, path in files)
    expected = [Image.open(path).resize((width, height), Image.Resampling.BICUBIC) for _, path in files]
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image in expected])).permute(0, 3, 1, 2)
    assert torch.equal(images.pixels[:], pixels)
    assert torch.equal(LazyFileArrays(files, image_decoder(size))[:], pixels)
    assert pixels_gb(3, size) == 3 * 3 * height * width / 2**30


def test_cache_name_is_stable_across_versions(tmp_path: Path) -> None:
    files, cache = save(tmp_path, 1), tmp_path / "cache"
    in_file(files, cache)
    (key, path), status = files[0], files[0][1].stat()
    text = json.dumps([[2, None], [1, 3, 8, 8], [[key, str(path), status.st_size, status.st_mtime_ns]]])
    (file,) = cache.iterdir()
    assert file.name == f"images-{hashlib.sha256(text.encode()).hexdigest()[:32]}.npy"


@pytest.mark.parametrize("limit", [("_BLOCK_FILES", 3), ("_BLOCK_BYTES", 3 * 3 * 8 * 8)])
def test_blocks_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int]) -> None:
    files = save(tmp_path, 7)
    whole = decode_images(files, 8).pixels[:]
    blocks = []
    try_files = store.try_files

    def watch(fn: object, paths: object, block: int) -> object:
        blocks.append(block)
        return try_files(fn, paths, block)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "try_files", watch)
    monkeypatch.setattr(store, "available_cores", lambda: 1)
    monkeypatch.setattr(store, *limit)
    assert torch.equal(decode_images(files, 8).pixels[:], whole)
    assert blocks == [3]


@pytest.mark.parametrize(
    ("error", "is_cached"),
    [
        (PermissionError(13, "Permission denied"), False),
        (OSError(5, "Input/output error"), False),
        (MemoryError(), False),
        (OSError("image file is truncated"), True),
    ],
    ids=repr,
)
def test_temporary_errors_are_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, is_cached: bool
) -> None:
    files, cache = save(tmp_path), tmp_path / "cache"
    expected = decode_images(files, 8).pixels[:]
    open_image = Image.open

    def fail_on_first(path: Path) -> Image.Image:
        if path == files[0][1]:
            raise error
        return open_image(path)

    with monkeypatch.context() as failing:
        failing.setattr(Image, "open", fail_on_first)
        images = decode_images(files, 8, cache=cache, memory_gb=NO_MEMORY_GB)
    assert [path for path, _ in images.unreadable] == [files[0][1]]
    assert torch.equal(images.pixels[:], expected[1:])
    again = decode_images(files, 8, cache=cache, memory_gb=NO_MEMORY_GB)
    assert len(again) == len(files) - is_cached
