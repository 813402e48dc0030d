"""Label maps: storage, values and pairing with images."""

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from synthetic_label_files import repeat_values, write_ids, write_image

from ducats.data.decoding import parse_size, read_image_sizes
from ducats.data.domain import UNLABELLED, VOID, RenumberedMaps, original_map
from ducats.data.segmentation.file_pairs import FileLayout, concat_files, find_pairs
from ducats.data.segmentation.label_encoding import LabelEncoding
from ducats.data.segmentation.label_files import read_ids
from ducats.data.segmentation.label_maps import FileLabelMaps, load_label_maps, make_void_masks
from ducats.data.store import ArrayStore, KeyedPaths, LazyFileArrays
from ducats.utils.errors import UserError

ENCODING = LabelEncoding(
    ("road", "car", "tree"),
    {0: "road", 1: "car", 2: "tree", 255: "void"},
    {name: (name,) for name in ("road", "car", "tree")},
    frozenset({"void"}),
    ids_param="classes",
)
SIZE = (5, 9)
LAYOUT = FileLayout("images", "labels")
ENOUGH_MEMORY_GB, NO_MEMORY_GB = 1.0, 0.0  # gigabytes


def label_files(folder: Path, count: int = 5) -> KeyedPaths:
    files = []
    for i in range(count):
        ids = np.random.default_rng(i).choice([0, 1, 2, 255], (8 + i, 16))
        files.append((f"{i}.jpg", write_ids(folder / f"{i}.png", ids)))
    return files


def expected(path: Path, size: tuple[int, int] | None) -> torch.Tensor:
    """Compute independently: resize first, then look up each id."""
    with Image.open(path) as image:
        resized = image if size is None else image.resize(size[::-1], Image.Resampling.NEAREST)
        ids = np.asarray(resized)
    index = {0: 0, 1: 1, 2: 2, 255: VOID}
    return torch.tensor([[index[int(value)] for value in row] for row in ids], dtype=torch.int8)


def load_in_memory(files: KeyedPaths) -> FileLabelMaps:
    return load_label_maps(ArrayStore(None, ENOUGH_MEMORY_GB), files, ENCODING, SIZE)


def load_into(
    storage: str, files: KeyedPaths, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> FileLabelMaps:
    """Load maps into memory, a cache, a temporary file, or on demand."""
    if storage == "demand":
        monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
    store = ArrayStore(
        folder / "cache" if storage == "cache" else None,
        ENOUGH_MEMORY_GB if storage == "memory" else NO_MEMORY_GB,
    )
    maps = load_label_maps(store, files, ENCODING, SIZE)
    if storage == "demand":
        assert isinstance(maps._maps, LazyFileArrays)
        with pytest.warns(UserWarning, match="decoded again for every batch"):
            store.warn_if_on_demand()
    return maps


@pytest.mark.parametrize("storage", ["memory", "cache", "temporary", "demand"])
def test_maps_do_not_depend_on_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str) -> None:
    files = label_files(tmp_path)
    maps = load_into(storage, files, tmp_path, monkeypatch)
    whole = torch.stack([expected(path, SIZE) for _, path in files])
    assert (maps.shape, maps.dtype, maps.ndim, len(maps)) == (whole.shape, torch.int8, 3, 5)
    for index in (2, -1, slice(1, 4), slice(None), torch.tensor([3, 0, 3]), torch.arange(5) > 2):
        assert torch.equal(maps[index], whole[index])
    for i, (_, path) in enumerate(files):
        assert torch.equal(maps.original(i), expected(path, None))
        assert torch.equal(original_map(maps, i), expected(path, None))
    with pytest.raises(IndexError):
        maps[5]


def test_another_encoding_makes_another_cache(tmp_path: Path) -> None:
    files = label_files(tmp_path)
    members = {"car": ("car",), "road": ("road", "tree")}
    other = LabelEncoding(("car", "road"), {**ENCODING.id_names}, members, frozenset({"void"}))
    found = [
        load_label_maps(ArrayStore(tmp_path / "cache", NO_MEMORY_GB), files, encoding, SIZE)[:]
        for encoding in (ENCODING, other, ENCODING)
    ]
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], torch.tensor([1, 0, 1, VOID, 9], dtype=torch.int8)[found[0].long()])


def test_many_classes_are_cached_with_16_bits(tmp_path: Path) -> None:
    names = tuple(f"c{i}" for i in range(200))
    encoding = LabelEncoding(names, dict(enumerate(names)), {name: (name,) for name in names}, frozenset())
    ids = repeat_values(np.arange(200), (16, 16))
    files = [("a", write_ids(tmp_path / "a.png", ids))]
    for memory_gb in (ENOUGH_MEMORY_GB, NO_MEMORY_GB):
        maps = load_label_maps(ArrayStore(tmp_path / "cache", memory_gb), files, encoding, (16, 16))
        assert maps.dtype == torch.int16
        assert np.array_equal(maps[0].numpy(), ids)


@pytest.mark.parametrize("storage", ["memory", "cache", "temporary"])
def test_unknown_ids_name_file_id_pixels_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    files = label_files(tmp_path)
    ids = repeat_values([0, 1, 2])
    ids[0, :3] = 77  # of 8 x 16: lost when resized to 5 x 9, but still reported
    write_ids(files[3][1], ids)
    with pytest.raises(
        UserError, match=f"1 of 5 label maps .*{files[3][1]} .*id 77 in 3 pixels.*data.params.classes"
    ):
        load_into(storage, files, tmp_path, monkeypatch)


def test_unknown_ids_found_after_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = label_files(tmp_path)
    maps = load_into("demand", files, tmp_path, monkeypatch)
    write_ids(files[1][1], repeat_values([0, 9]))
    for read in (maps.__getitem__, maps.original):
        with pytest.raises(UserError, match=r"1\.png \(unknown values: id 9 in 64 pixels\)"):
            read(1)


# -- masks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_files", [False, True])
@pytest.mark.parametrize("with_maps", [False, True])
def test_masks_mark_void_pixels(tmp_path: Path, with_maps: bool, with_files: bool) -> None:
    files = label_files(tmp_path)
    maps = load_in_memory(files) if with_maps else None
    mask_files = []
    for i, (key, path) in enumerate(files):
        shape = expected(path, None).shape
        mask = np.random.default_rng(90 + i).integers(0, 2, shape)
        mask_files.append((key, write_ids(tmp_path / "masks" / f"{i}.png", mask * 9)))
    masks: Any = make_void_masks(maps, mask_files if with_files else None, SIZE)
    if not (with_maps or with_files):
        assert masks is None
        return
    assert (masks.shape, masks.dtype, masks.ndim, len(masks)) == ((5, *SIZE), torch.uint8, 3, 5)

    def expected_mask(i: int, size: tuple[int, int] | None) -> torch.Tensor:
        found = torch.zeros(size or expected(files[i][1], None).shape, dtype=torch.bool)
        if with_maps:
            found |= expected(files[i][1], size) == VOID
        if with_files:
            with Image.open(mask_files[i][1]) as image:
                resized = image.resize(size[::-1], Image.Resampling.NEAREST) if size else image
                found |= torch.tensor(np.asarray(resized) != 0)
        return found.to(torch.uint8)

    whole = torch.stack([expected_mask(i, SIZE) for i in range(5)])
    assert 0 < whole.float().mean() < 1
    for index in (0, -1, slice(1, 3), torch.tensor([4, 0])):
        assert torch.equal(masks[index], whole[index])
    for i in range(5):
        assert torch.equal(masks.original(i), expected_mask(i, None))


def test_masks_have_no_reference_to_the_maps(tmp_path: Path) -> None:
    maps = load_in_memory(label_files(tmp_path))
    masks: Any = make_void_masks(maps, None, SIZE)
    visited: list[object] = []

    def visit(thing: object) -> None:
        if any(thing is other for other in visited):
            return
        visited.append(thing)
        for cell in getattr(thing, "__closure__", None) or ():
            visit(cell.cell_contents)
        if isinstance(thing, list | tuple):
            for item in thing:
                visit(item)
        for value in getattr(thing, "__dict__", {}).values():
            visit(value)

    visit(masks)
    assert len(visited) > 5
    assert not any(thing is maps or isinstance(thing, FileLabelMaps) for thing in visited)


# -- pairs -------------------------------------------------------------------------------------------


def write_tree(root: Path, names: tuple[str, ...] = ("a", "b/c", "d")) -> Path:
    for seed, name in enumerate(names):
        write_image(root / "images" / f"{name}.jpg", seed)
        write_ids(root / "labels" / f"{name}.png", repeat_values([0, 1, 2, 255]))
    return root


def test_every_image_has_its_label_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = find_pairs(write_tree(tmp_path), LAYOUT).validated()
    assert [key for key, _ in files.images] == ["a.jpg", "b/c.jpg", "d.jpg"]
    assert files.labels == tuple((key, tmp_path / f"labels/{key[:-3]}png") for key, _ in files.images)
    kept = files.filter_keys(lambda key: key != "a.jpg")
    assert [key for key, _ in kept.images] == [key for key, _ in kept.labels or ()] == ["b/c.jpg", "d.jpg"]

    def refuse(self: Image.Image) -> None:
        raise AssertionError("the image itself was read")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", refuse)
    assert torch.equal(files.read_sizes()[1], torch.tensor([[8, 16]] * 3))
    assert read_image_sizes([]).shape == (0, 2)


def test_order_of_keys_does_not_depend_on_suffixes(tmp_path: Path) -> None:
    for name in ("a.png", "a.b.jpg", "B.jpg", "a-.png"):
        write_image(tmp_path / "images" / name)
        write_ids(tmp_path / "labels" / f"{name.rsplit('.', 1)[0]}.png", repeat_values([0]))
    files = find_pairs(tmp_path, LAYOUT).validated()
    assert [key for key, _ in files.images] == ["B.jpg", "a-.png", "a.b.jpg", "a.png"]
    assert [path.stem for _, path in files.labels or ()] == ["B", "a-", "a.b", "a"]


def test_unpaired_files_are_named(tmp_path: Path) -> None:
    write_tree(tmp_path, tuple("abcdef"))
    for name in "abcd":
        (tmp_path / "labels" / f"{name}.png").unlink()
    with pytest.raises(UserError, match=r"4 of 6 images in .*images .* in .*labels: a\.jpg, .* and 1 more"):
        find_pairs(tmp_path, LAYOUT).validated()
    assert find_pairs(tmp_path, LAYOUT, with_labels=False).validated().labels is None
    for name in "abcde":
        (tmp_path / f"images/{name}.jpg").unlink()
    with pytest.raises(UserError, match=r"1 of 2 label files in .* have no image in .*: e\.png"):
        find_pairs(tmp_path, LAYOUT).validated()
    write_image(tmp_path / "images/f.png")
    with pytest.raises(UserError, match=r"differ only in their suffix, f\.jpg and f\.png"):
        find_pairs(tmp_path, LAYOUT).validated()


@pytest.mark.parametrize("suffix", ["jpg", "JPEG", "webp"])
def test_lossy_label_files_are_refused(tmp_path: Path, suffix: str) -> None:
    write_tree(tmp_path)
    (tmp_path / "labels/a.png").unlink()
    write_image(tmp_path / f"labels/a.{suffix}")
    with pytest.raises(UserError, match=rf"lossy format, such as a\.{suffix}.*use PNG"):
        find_pairs(tmp_path, LAYOUT).validated()


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no folder .*images"):
        find_pairs(tmp_path, LAYOUT).validated()
    (tmp_path / "images").mkdir()
    with pytest.raises(UserError, match="images contains no images"):
        find_pairs(tmp_path, LAYOUT).validated()
    write_image(tmp_path / "images/a.png")
    with pytest.raises(UserError, match=r"there is no folder .*labels"):
        find_pairs(tmp_path, LAYOUT).validated()


def test_a_label_file_of_another_size_names_both(tmp_path: Path) -> None:
    write_tree(tmp_path)
    write_ids(tmp_path / "labels/b/c.png", repeat_values([0], (16, 8)))
    write_ids(tmp_path / "labels/d.png", repeat_values([0], (4, 8)))
    with pytest.raises(UserError, match=r"b/c\.jpg is 8x16 .*labels/b/c\.png is 16x8 \(1 more"):
        find_pairs(tmp_path, LAYOUT).validated().read_sizes()


def test_files_are_concatenated(tmp_path: Path) -> None:
    one, two = (find_pairs(write_tree(tmp_path / name), LAYOUT).validated() for name in ("x", "y"))
    assert concat_files([("x", one)]) == one
    both = concat_files([("x", one), ("y", two)])
    keys = [f"{name}/{key}" for name in "xy" for key in ("a.jpg", "b/c.jpg", "d.jpg")]
    assert [key for key, _ in both.images] == [key for key, _ in both.labels or ()] == keys


# -- sizes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1, 2, 3), (4,), "ab", (2.5, 3), 0, (0, 4), (4, -1)])
def test_invalid_sizes(size: object) -> None:
    with pytest.raises(UserError, match=r"must be a whole number|give a size of 1 or more"):
        parse_size(size)  # type: ignore[arg-type]


def write_huge_png(path: Path) -> None:
    """Write a PNG whose header claims 50,000 x 50,000 pixels."""
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b""))
    encoded = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(encoded))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: Image.new("L", (16, 8)).save(path, "JPEG"), "its content is JPEG"),
        (lambda path: Image.new("L", (16, 8)).save(path, "BMP"), "its content is BMP"),
        (write_huge_png, "too many pixels"),
        (os.mkfifo, "not a regular file"),
    ],
)
def test_files_that_are_no_label_maps(tmp_path: Path, damage: Callable[[Path], Any], message: str) -> None:
    path = tmp_path / "labels.png"
    damage(path)
    with pytest.raises(ValueError, match=message):
        read_ids(path, "ids")
    bitmap = tmp_path / "labels.bmp"
    Image.new("L", (16, 8), 3).save(bitmap)
    assert np.unique(read_ids(bitmap, "ids")).tolist() == [3]


def test_label_maps_get_other_numbers_without_a_copy() -> None:
    maps = torch.tensor([[[0, 1], [2, UNLABELLED]], [[VOID, 2], [1, 1]]], dtype=torch.int8)
    renumbered = RenumberedMaps(maps, torch.tensor([0, 300, 0]))
    assert (renumbered.shape, renumbered.dtype, len(renumbered)) == (maps.shape, torch.int16, 2)
    assert renumbered[0].tolist() == [[0, 300], [0, UNLABELLED]]
    assert renumbered[torch.tensor([1])].tolist() == [[[VOID, 0], [300, 300]]]
    assert original_map(renumbered, 0).tolist() == renumbered[0].tolist()
