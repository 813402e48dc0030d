from pathlib import Path

import pytest
import torch
from PIL import Image

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


def test_source_has_labels_and_target_has_none(root: Path) -> None:
    data = folders(source=root / "source", target=root / "target", size=4)
    assert data.classes == ("TV", "Table")  # ASCII order: capitals first
    assert data.source.images.keys == ("TV/deep/er/b.JPG", "TV/ü b.png", "Table/a.png")
    assert data.source.labels[:].tolist() == [0, 0, 1]
    assert data.pool.keys == ("TV/1.png", "Table/2.png", "Table/sub/3.png")
    assert data.pool.pixels[:, 0, 0, 0].tolist() == [40, 50, 60]
    assert data.pool.files is not None
    assert data.pool.files[0] == root / "target/TV/1.png"
    assert data.ground_truth is None
    assert data.test is None


def test_ground_truth_and_test_set(root: Path) -> None:
    data = folders(
        source=root / "source", target=root / "target", test=root / "test", size=4, ground_truth=True
    )
    assert data.ground_truth is not None
    assert data.ground_truth[:].tolist() == [0, 1, 1]
    assert data.ground_truth.dtype == torch.int64
    assert data.test is not None  # a missing class is allowed
    assert data.test.labels[:].tolist() == [1]
    assert data.test.classes == ("TV", "Table")


def test_flat_target(root: Path) -> None:
    write_image(root / "flat/x.png")
    assert folders(source=root / "source", target=root / "flat", size=4).pool.keys == ("x.png",)


def test_target_folder_names_are_ignored_without_ground_truth(root: Path) -> None:
    honest = folders(source=root / "source", target=root / "target", size=4)
    (root / "target/TV").rename(root / "target/not")
    (root / "target/Table").rename(root / "target/TV")
    (root / "target/not").rename(root / "target/Table")
    poisoned = folders(source=root / "source", target=root / "target", size=4)
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
    data = folders(source=root / "source", target=root / "target", size=4)
    assert len(data.pool) == 3


def test_links_are_followed_without_loops(root: Path) -> None:
    (root / "target/loop").symlink_to(root / "target", target_is_directory=True)
    (root / "linked").mkdir()
    (root / "linked/all").symlink_to(root / "target", target_is_directory=True)
    assert len(list_images(root / "target")) == 3
    assert next(key for key, _ in list_images(root / "linked")) == "all/TV/1.png"


def test_home_folder_is_expanded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(root))
    assert len(folders(source=Path("~/source"), target=Path("~/target"), size=4).pool) == 3


def test_test_folder_may_be_the_target_folder(root: Path) -> None:
    data = folders(source=root / "source", target=root / "target", test=root / "target", size=4)
    assert data.test is not None
    assert torch.equal(data.test.images.pixels[:], data.pool.pixels[:])


def test_cached_pixels_equal_pixels_in_memory(root: Path) -> None:
    in_memory = folders(source=root / "source", target=root / "target", size=4)
    in_files = folders(source=root / "source", target=root / "target", size=4, cache=root / "c", memory_gb=0)
    assert torch.equal(in_memory.pool.pixels[:], in_files.pool.pixels[:])
    assert torch.equal(in_memory.source.images.pixels[:], in_files.source.images.pixels[:])
    assert len(list((root / "c").iterdir())) == 2


@pytest.mark.parametrize("role", ["source", "target", "test"])
def test_missing_folder(root: Path, role: str) -> None:
    paths = {name: root / name for name in ("source", "target", "test")} | {role: root / "nowhere"}
    with pytest.raises(UserError, match=rf"the {role} folder .*nowhere does not exist; check the path"):
        folders(source=paths["source"], target=paths["target"], test=paths["test"])


def test_file_instead_of_a_folder(root: Path) -> None:
    with pytest.raises(UserError, match=r"the target folder .*a\.png is a file; give the folder"):
        folders(source=root / "source", target=root / "source/Table/a.png")


@pytest.mark.parametrize("role", ["source", "target", "test"])
def test_folder_without_an_image(root: Path, role: str) -> None:
    (root / "bare/TV").mkdir(parents=True)
    (root / "bare/TV/notes.txt").write_text("")
    paths = {name: root / name for name in ("source", "target", "test")} | {role: root / "bare"}
    with pytest.raises(UserError, match=rf"the {role} folder .*bare contains no images .*\.png"):
        folders(source=paths["source"], target=paths["target"], test=paths["test"])


@pytest.mark.parametrize("role", ["source", "target", "test"])
def test_images_outside_of_class_folders(root: Path, role: str) -> None:
    write_image(root / role / "stray.png")
    with pytest.raises(UserError, match=rf"the {role} folder .* 1 images outside .* as stray\.png"):
        folders(source=root / "source", target=root / "target", test=root / "test", ground_truth=True)


def test_empty_class_folder(root: Path) -> None:
    (root / "source/Lamp").mkdir()
    with pytest.raises(UserError, match=r"source folder .* class folders without images: 'Lamp'"):
        folders(source=root / "source", target=root / "target")


@pytest.mark.parametrize("role", ["target", "test"])
def test_class_that_the_source_lacks(root: Path, role: str) -> None:
    write_image(root / role / "table/x.png")
    with pytest.raises(
        UserError,
        match=rf"the {role} folder .*{role} has classes .*: 'table' .*x\.png.* the source has 'TV', 'Table'",
    ):
        folders(source=root / "source", target=root / "target", test=root / "test", ground_truth=True)


def test_only_one_class(root: Path) -> None:
    write_image(root / "lone/Table/x.png")
    with pytest.raises(UserError, match=r"source folder .*lone has only one class, 'Table'"):
        folders(source=root / "lone", target=root / "target")


def test_same_folder_twice(root: Path) -> None:
    (root / "alias").symlink_to(root / "source", target_is_directory=True)
    with pytest.raises(UserError, match=r"source and target are the same folder, .*; give two"):
        folders(source=root / "source", target=root / "alias")
    with pytest.raises(UserError, match="source and test are the same folder"):
        folders(source=root / "source", target=root / "target", test=root / "source")


@pytest.mark.parametrize(
    ("source", "target", "test"),
    [
        ("source", "source/TV", None),
        (".", "target", None),
        ("source", "target", "source/TV"),
        ("source", "target", "target/TV"),
    ],
)
def test_folder_inside_another(root: Path, source: str, target: str, test: str | None) -> None:
    with pytest.raises(UserError, match=r"one is inside the other"):
        folders(source=root / source, target=root / target, test=root / test if test else None)


def test_corrupt_image(root: Path) -> None:
    (root / "target/broken.png").write_bytes(b"\x89PNG")
    with pytest.raises(UserError, match=r"1 of 4 images cannot be read: .*broken\.png \(not an image\)"):
        folders(source=root / "source", target=root / "target", size=4)


def test_name_that_is_not_utf8(root: Path) -> None:
    path = root / "target/bad\udcff.png"
    try:
        path.write_bytes((root / "target/TV/1.png").read_bytes())
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    with pytest.raises(UserError, match="is not UTF-8; rename the file"):
        folders(source=root / "source", target=root / "target")
