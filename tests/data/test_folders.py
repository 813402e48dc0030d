from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from ducats.data.domain import AdaptationData
from ducats.data.folders import folders, list_images
from ducats.utils.errors import UserError


def write_image(path: Path, shade: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 4), (shade, shade // 2, 0)).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Folders with two classes; every image has its own shade."""
    write_image(tmp_path / "source/Table/a.png", 10)
    write_image(tmp_path / "source/TV/deep/er/b.JPG", 20)
    write_image(tmp_path / "source/TV/ü b.png", 30)
    write_image(tmp_path / "target/TV/1.png", 40)
    write_image(tmp_path / "target/Table/2.png", 50)
    write_image(tmp_path / "target/Table/sub/3.png", 60)
    write_image(tmp_path / "test/Table/t.png", 70)
    return tmp_path


def load(root: Path, source: str = "source", target: str = "target", **params: Any) -> AdaptationData:
    """Load folders below a root."""
    if "test" in params:
        params["test"] = root / params["test"]
    return folders(source=root / source, target=root / target, **{"size": 4, **params})


def test_source_has_labels_and_target_has_none(root: Path) -> None:
    data: Any = load(root)
    assert data.classes == ("TV", "Table")  # ASCII order: capitals first
    assert data.source.images.keys == ("TV/deep/er/b.JPG", "TV/ü b.png", "Table/a.png")
    assert data.source.labels[:].tolist() == [0, 0, 1]
    assert data.pool.keys == ("TV/1.png", "Table/2.png", "Table/sub/3.png")
    assert data.pool.pixels[:, 0, 0, 0].tolist() == [40, 50, 60]
    assert data.pool.files[0] == root / "target/TV/1.png"
    assert data.ground_truth is None
    assert data.test is None


def test_ground_truth_and_test_set(root: Path) -> None:
    data: Any = load(root, test="test", ground_truth=True, cache=root / "cache", memory_gb=0)
    assert len(list((root / "cache").iterdir())) == 3
    assert data.pool.pixels[:, 0, 0, 0].tolist() == [40, 50, 60]
    assert data.ground_truth[:].tolist() == [0, 1, 1]
    assert data.ground_truth.dtype == torch.int64
    assert data.test is not None  # a missing class is allowed
    assert data.test.labels[:].tolist() == [1]
    assert data.test.classes == ("TV", "Table")
    data = load(root, test="target")  # may be the target folder
    assert torch.equal(data.test.images.pixels[:], data.pool.pixels[:])


def test_flat_target_and_home_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(root))
    write_image(root / "flat/x.png")
    assert folders(source=Path("~/source"), target=Path("~/flat"), size=4).pool.keys == ("x.png",)


def test_target_folder_names_are_ignored_without_ground_truth(root: Path) -> None:
    honest = load(root)
    (root / "target/TV").rename(root / "target/not")
    (root / "target/Table").rename(root / "target/TV")
    (root / "target/not").rename(root / "target/Table")
    poisoned = load(root)
    assert poisoned.ground_truth is None
    assert poisoned.classes == honest.classes
    assert set(poisoned.pool.keys) == {"Table/1.png", "TV/2.png", "TV/sub/3.png"}

    def content(pixels: torch.Tensor) -> list[list[int]]:
        return sorted(pixels.flatten(1).tolist())

    assert content(poisoned.pool.pixels[:]) == content(honest.pool.pixels[:])


def test_hidden_and_other_files_are_skipped(root: Path) -> None:
    write_image(root / "target/.hidden/x.png")
    write_image(root / "target/._x.png")
    (root / "target/notes.txt").write_text("")
    (root / "source/README.md").write_text("")
    (root / "source/.cache").mkdir()
    assert len(load(root).pool) == 3


def test_links_are_followed_without_loops(root: Path) -> None:
    (root / "target/loop").symlink_to(root / "target", target_is_directory=True)
    (root / "linked").mkdir()
    (root / "linked/all").symlink_to(root / "target", target_is_directory=True)
    assert len(list_images(root / "target")) == 3
    assert next(key for key, _ in list_images(root / "linked")) == "all/TV/1.png"


@pytest.mark.parametrize("role", ["source", "target", "test"])
def test_missing_empty_or_mixed_folder(root: Path, role: str) -> None:
    (root / "bare/TV").mkdir(parents=True)
    (root / "bare/TV/notes.txt").write_text("")
    for name, message in (("nowhere", "does not exist"), ("bare", r"contains no images .*\.png")):
        with pytest.raises(UserError, match=rf"the {role} folder .*{name} {message}"):
            load(root, **{"test": "test", role: name})
    write_image(root / role / "stray.png")
    with pytest.raises(UserError, match=rf"the {role} folder .* 1 image outside .* as stray\.png"):
        load(root, test="test", ground_truth=True)


@pytest.mark.parametrize(
    ("image", "params", "message"),
    [
        ("target/table/x.png", {}, r"the target folder .*: 'table' .*x\.png.* the classes are 'TV', 'Table'"),
        ("test/table/x.png", {}, "the test folder .* has unknown classes: 'table'"),
        ("lone/Table/x.png", {"source": "lone"}, "lone has only one class, 'Table'"),
        ("flat/x.png", {"target": "flat/x.png"}, r"the target folder .*x\.png is a file"),
        (None, {"target": "alias"}, "source and target are the same folder"),
        (None, {"test": "source"}, "source and test are the same folder"),
        (None, {"target": "source/TV"}, "one is inside the other"),
        (None, {"source": "."}, "one is inside the other"),
        (None, {"test": "source/TV"}, "one is inside the other"),
        (None, {"test": "target/TV"}, "one is inside the other"),
    ],
)
def test_invalid_folders(root: Path, image: str | None, params: dict[str, Any], message: str) -> None:
    (root / "alias").symlink_to(root / "source", target_is_directory=True)
    if image:
        write_image(root / image)
    with pytest.raises(UserError, match=message):
        load(root, ground_truth=True, **{"test": "test", **params})


def test_unreadable_images_are_skipped_with_their_labels(root: Path) -> None:
    paths = [root / "source/TV/ü b.png", root / "target/Table/2.png", root / "test/TV/empty.png"]
    paths[2].parent.mkdir()
    for path in paths:
        path.write_bytes(b"\x89PNG")
    data: Any = load(root, test="test", ground_truth=True)
    assert [[file.path for file in images.unreadable] for images in data.image_sets.values()] == [
        [path] for path in paths
    ]
    assert (data.source.images.keys, data.source.labels.tolist()) == (
        ("TV/deep/er/b.JPG", "Table/a.png"),
        [0, 1],
    )
    assert (data.pool.keys, data.ground_truth.tolist()) == (("TV/1.png", "Table/sub/3.png"), [0, 1])
    assert (data.test.images.keys, data.test.labels.tolist()) == (("Table/t.png",), [1])
    assert data.pool.pixels[:][:, 0, 0, 0].tolist() == [40, 60]


def test_empty_class_folder_and_name_that_is_not_utf8(root: Path) -> None:
    (root / "source/Lamp").mkdir()
    with pytest.raises(UserError, match=r"source folder .* class folders without images: 'Lamp'"):
        load(root)
    (root / "source/Lamp").rmdir()
    try:
        (root / "target/bad\udcff.png").write_bytes(b"")
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    with pytest.raises(UserError, match="is not UTF-8; rename the file"):
        load(root)
