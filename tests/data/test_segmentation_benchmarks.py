"""Segmentation benchmarks in the layouts of their authors."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from synthetic_label_files import (
    repeat_values,
    write_colours,
    write_ids,
    write_image,
    write_palette,
    write_png,
    write_red,
)

from ducats.config import load_config
from ducats.data.domain import VOID, AdaptationData
from ducats.data.registry import DATASETS
from ducats.data.segmentation.camvid import camvid_split, carla_camvid, find_camvid
from ducats.data.segmentation.cityscapes import gtav_cityscapes, synthia_cityscapes
from ducats.data.segmentation.class_tables import (
    CAMVID_COLOURS,
    CARLA_CAMVID_CLASSES,
    CLASSES_13,
    CLASSES_16,
    CLASSES_19,
)
from ducats.data.segmentation.label_maps import FileLabelMaps
from ducats.data.spec import DatasetSpec
from ducats.run.factory import load_data
from ducats.utils.errors import UserError

TRAIN_IDS = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]
SMALL_SIZES: dict[str, Any] = {"size": (4, 8), "source_size": (6, 8)}


@pytest.fixture
def gtav(tmp_path: Path) -> Path:
    for i in (1, 2):
        write_image(tmp_path / f"gtav/images/0000{i}.png", i)
        write_palette(tmp_path / f"gtav/labels/0000{i}.png", repeat_values(np.arange(35)))
    write_image(tmp_path / "gtav/images/15188.png", size=(2, 2))  # as published: of another size
    write_palette(tmp_path / "gtav/labels/15188.png", repeat_values([7]))
    return tmp_path / "gtav"


@pytest.fixture
def synthia(tmp_path: Path) -> Path:
    for i in (0, 1):
        write_image(tmp_path / f"synthia/RGB/000000{i}.png", i)
        noise = np.random.default_rng(i).integers(0, 2**16, (8, 16, 3))
        noise[..., 0] = repeat_values(np.arange(23))
        write_png(tmp_path / f"synthia/GT/LABELS/000000{i}.png", noise, 16, 2)
    return tmp_path / "synthia"


@pytest.fixture
def cityscapes(tmp_path: Path) -> Path:
    root = tmp_path / "cityscapes"
    for split, city, count in (("train", "aachen", 2), ("train", "bochum", 1), ("val", "lindau", 2)):
        for i in range(count):
            name = f"{split}/{city}/{city}_00000{i}_000019"
            write_image(root / f"leftImg8bit/{name}_leftImg8bit.png", i)
            write_ids(root / f"gtFine/{name}_gtFine_labelIds.png", repeat_values(np.arange(34)))
            write_image(root / f"gtFine/{name}_gtFine_color.png", i)  # to be ignored
            write_ids(root / f"gtFine/{name}_gtFine_instanceIds.png", repeat_values([0]))
    return root


def classes_by_id(data: AdaptationData, maps: object, ids: Any) -> dict[int, str]:
    """Return class names, or void, by raw id, of the first map at its original size."""
    assert isinstance(maps, FileLabelMaps)
    found: dict[int, str] = {}
    for label_id, index in zip(np.ravel(ids), maps.original(0).flatten().tolist(), strict=True):
        name = "void" if index == VOID else data.classes[index]
        assert found.setdefault(int(label_id), name) == name
    return found


@pytest.mark.parametrize(("memory_gb", "n_files"), [(None, 0), (0.0, 3)])
def test_gtav_to_cityscapes(
    gtav: Path, cityscapes: Path, tmp_path: Path, memory_gb: float | None, n_files: int
) -> None:
    data: Any = gtav_cityscapes(
        source=gtav, target=cityscapes, cache=tmp_path / "cache", memory_gb=memory_gb, **SMALL_SIZES
    )
    cached = sorted(path.name.rsplit("-", 1)[0] for path in tmp_path.glob("cache/*"))
    assert cached == ["images"] * n_files + ["label-maps"] * n_files
    assert " ".join(data.classes) == (
        "road sidewalk building wall fence pole traffic light traffic sign vegetation terrain sky person"
        " rider car truck bus train motorcycle bicycle"
    )
    assert data.source.images.keys == ("00001.png", "00002.png")  # without the one of another size
    assert data.source.images.pixels.shape == (2, 3, 6, 8)
    assert data.source.labels.shape == (2, 6, 8)
    assert data.pool.pixels.shape == (3, 3, 4, 8)
    assert data.pool.keys[0] == "aachen/aachen_000000_000019_leftImg8bit.png"
    assert data.pool.keys[2] == "bochum/bochum_000000_000019_leftImg8bit.png"
    assert data.test.images.keys[0].startswith("lindau/")
    for images in (data.source.images, data.pool, data.test.images):
        assert images.original_sizes.tolist() == [[8, 16]] * len(images)
    names = {
        label_id: CLASSES_19[TRAIN_IDS.index(label_id)] if label_id in TRAIN_IDS else "void"
        for label_id in range(35)
    }
    assert classes_by_id(data, data.source.labels, repeat_values(np.arange(35))) == names
    del names[34]
    for maps in (data.ground_truth, data.test.labels):
        assert classes_by_id(data, maps, repeat_values(np.arange(34))) == names
    assert torch.equal(data.pool.void_masks[:], (data.ground_truth[:] == VOID).to(torch.uint8))
    assert data.source.images.void_masks is None
    with pytest.raises(UserError, match=r"15188\.png is 2x2 .* but .*labels/15188\.png is 8x16"):
        gtav_cityscapes(source=gtav, target=cityscapes, skip_keys=())


def test_sixteen_bit_synthia_to_cityscapes(synthia: Path, cityscapes: Path) -> None:
    data = synthia_cityscapes(source=synthia, target=cityscapes, void_pixels="queried", **SMALL_SIZES)
    assert data.pool.void_masks is None
    assert tuple(data.classes) == CLASSES_16
    published = {
        **{3: "road", 4: "sidewalk", 2: "building", 21: "wall", 5: "fence", 7: "pole", 15: "traffic light"},
        **{9: "traffic sign", 6: "vegetation", 1: "sky", 10: "person", 17: "rider", 8: "car", 19: "bus"},
        **{12: "motorcycle", 11: "bicycle"},
    }
    found = classes_by_id(data, data.source.labels, repeat_values(np.arange(23)))
    assert found == {label_id: published.get(label_id, "void") for label_id in range(23)}
    target = classes_by_id(data, data.ground_truth, repeat_values(np.arange(34)))
    assert {target[label_id] for label_id in (22, 27, 31)} == {"void"}  # terrain, truck, train
    assert sum(name != "void" for name in target.values()) == 16


def test_thirteen_classes(synthia: Path, cityscapes: Path) -> None:
    data = synthia_cityscapes(source=synthia, target=cityscapes, classes=13, **SMALL_SIZES)
    assert tuple(data.classes) == CLASSES_13
    assert tuple(name for name in CLASSES_16 if name not in ("wall", "fence", "pole")) == CLASSES_13
    found = classes_by_id(data, data.source.labels, repeat_values(np.arange(23)))
    assert {found[label_id] for label_id in (21, 5, 7)} == {"void"}
    with pytest.raises(UserError, match="has 16 or 13 classes, not 19"):
        synthia_cityscapes(source=synthia, target=cityscapes, classes=19)


def test_ids_missing_from_the_published_list(gtav: Path, cityscapes: Path) -> None:
    ids = repeat_values(np.arange(34))
    ids[0, :5] = 255
    name = "train/bochum/bochum_000000_000019_gtFine_labelIds.png"
    write_ids(cityscapes / "gtFine" / name, ids)
    with pytest.raises(UserError, match=rf"{name} \(.*id 255 in 5 pixels\); .* data\.params\.extra_ids"):
        gtav_cityscapes(source=gtav, target=cityscapes, **SMALL_SIZES)
    data = gtav_cityscapes(
        source=gtav, target=cityscapes, extra_ids={255: "void"}, void_pixels="queried", **SMALL_SIZES
    )
    assert data.pool.void_masks is None
    assert isinstance(data.ground_truth, FileLabelMaps)
    assert (data.ground_truth.original(2)[0, :5] == VOID).all()


def test_missing_files_name_the_download_page(gtav: Path, cityscapes: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^GTAV: .*cityscapes does not contain .*http.*data.params.source"):
        gtav_cityscapes(source=cityscapes, target=cityscapes)
    with pytest.raises(UserError, match=r"^Cityscapes: .* leftImg8bit/train .*gtFine.*data.params.target"):
        gtav_cityscapes(source=gtav, target=gtav)


def test_cityscapes_without_labels_has_no_ground_truth(gtav: Path, cityscapes: Path) -> None:
    shutil.rmtree(cityscapes / "gtFine/train")
    data: Any = gtav_cityscapes(source=gtav, target=cityscapes, **SMALL_SIZES)
    assert len(data.pool) == 3
    assert (data.ground_truth, data.pool.void_masks) == (None, None)
    assert data.pool.original_sizes is not None
    assert len(data.test) == 2
    shutil.rmtree(cityscapes / "gtFine")
    data = gtav_cityscapes(source=gtav, target=cityscapes, **SMALL_SIZES)
    assert (len(data.pool), data.ground_truth, data.test) == (3, None, None)
    shutil.rmtree(cityscapes / "leftImg8bit/val")
    assert gtav_cityscapes(source=gtav, target=cityscapes, **SMALL_SIZES).test is None
    shutil.rmtree(cityscapes / "leftImg8bit/train")
    with pytest.raises(UserError, match=r"Cityscapes: .* leftImg8bit/train"):
        gtav_cityscapes(source=gtav, target=cityscapes)


def test_cityscapes_with_some_of_its_labels_is_refused(synthia: Path, cityscapes: Path) -> None:
    (cityscapes / "gtFine/train/bochum/bochum_000000_000019_gtFine_labelIds.png").unlink()
    with pytest.raises(UserError, match=r"1 of 3 images .*train have no label file .*bochum_000000_000019_l"):
        synthia_cityscapes(source=synthia, target=cityscapes)
    shutil.rmtree(cityscapes / "leftImg8bit/train/bochum")
    (cityscapes / "gtFine/val/lindau/lindau_000001_000019_gtFine_labelIds.png").unlink()
    with pytest.raises(UserError, match=r"1 of 2 images .*val have no label file .*lindau_000001"):
        synthia_cityscapes(source=synthia, target=cityscapes)
    shutil.rmtree(cityscapes / "gtFine/val")
    with pytest.raises(UserError, match=r"Cityscapes: .* does not contain .*gtFine/val"):
        synthia_cityscapes(source=synthia, target=cityscapes)


# -- CARLA and CamVid --------------------------------------------------------------------------------

FRAMES = {
    "train": ["0001TP_006690", "0006R0_f00930", "0016E5_08190"],
    "val": ["0016E5_07959", "0016E5_08159"],
    "test": ["0001TP_008550", "Seq05VD_f00000"],
}
COLOURS = repeat_values([[int(value) for value in colour.split()] for colour in CAMVID_COLOURS])


def carla_tree(root: Path, tags: int, folders: tuple[str, str] = ("CameraRGB", "CameraSeg")) -> Path:
    for i in range(2):
        write_image(root / folders[0] / f"{i}.png", i)
        write_red(root / folders[1] / f"{i}.png", repeat_values(np.arange(tags)))
    return root


def segnet_tree(root: Path) -> Path:
    for split, frames in FRAMES.items():
        for frame in frames:
            write_image(root / split / f"{frame}.png")
            write_ids(root / f"{split}annot" / f"{frame}.png", repeat_values(np.arange(12)))
    return root


def coloured_tree(
    root: Path, images: str = "701_StillsRaw_full", labels: str = "LabeledApproved_full"
) -> Path:
    for split, frames in FRAMES.items():
        for frame in frames:
            write_image(root / images.format(split) / f"{frame}.png")
            write_colours(root / labels.format(split) / f"{frame}_L.png", COLOURS)
    return root


def copied_tree(root: Path) -> Path:
    return coloured_tree(root, "{}", "{}_labels")


every_layout = pytest.mark.parametrize("make", [segnet_tree, copied_tree, coloured_tree])


def label_of(root: Path, frame: str) -> Path:
    """Return the label file of a frame, in any layout."""
    (path,) = [*root.glob(f"*annot/{frame}.png"), *root.glob(f"*/{frame}_L.png")]
    return path


@every_layout
def test_camvid_in_each_layout(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    root = make(tmp_path / "camvid")
    for split, frames in FRAMES.items():
        files, encoding = find_camvid(root, split)
        assert [key for key, _ in files.images] == [f"{frame}.png" for frame in frames]
        assert encoding.classes == tuple(CARLA_CAMVID_CLASSES)


@pytest.mark.parametrize(
    ("carla_version", "tags", "folders"),
    [
        ("0.9.9", 13, ("images", "labels")),
        ("0.9.13", 23, ("rgb", "semantic_segmentation")),
        ("0.9.14", 29, ("images", "labels")),
        ("0.10.0", 29, ("rgb", "semantic_segmentation")),
    ],
)
def test_carla_to_segnets_camvid(
    tmp_path: Path, carla_version: str, tags: int, folders: tuple[str, str]
) -> None:
    source = carla_tree(tmp_path / "carla", tags, folders)
    target = segnet_tree(tmp_path / "camvid")
    data = carla_camvid(source=source, target=target, carla_version=carla_version, size=(4, 8))
    found = classes_by_id(data, data.source.labels, repeat_values(np.arange(tags)))
    assert [found[i] for i in (1, 3, 7)] == (
        ["road", "building", "sign"] if tags == 29 else ["building", "void", "road"]
    )
    found = classes_by_id(data, data.ground_truth, repeat_values(np.arange(12)))
    assert (found[4], found[10], found[11]) == ("sidewalk", "person", "void")


def test_carla_to_coloured_camvid(tmp_path: Path) -> None:
    data: Any = carla_camvid(
        source=carla_tree(tmp_path / "carla", 29),
        target=coloured_tree(tmp_path / "camvid"),
        test="val",
        size=(4, 8),
    )
    assert isinstance(data.ground_truth, FileLabelMaps)
    names = repeat_values(list(CAMVID_COLOURS.values())).ravel()
    found = dict(zip(names, data.ground_truth.original(0).flatten().tolist(), strict=True))
    assert {name for name, index in found.items() if index == VOID} == {"Void"}
    assert data.classes[found["Sidewalk"]] == "sidewalk"
    assert data.classes[found["LaneMkgsDriv"]] == "road"
    assert data.classes[found["SUVPickupTruck"]] == "car"
    assert len(data.test) == 2


@pytest.mark.parametrize("emptied", [False, True])
@every_layout
def test_camvid_without_labels_has_no_ground_truth(
    tmp_path: Path, make: Callable[[Path], Path], emptied: bool
) -> None:
    source, root = carla_tree(tmp_path / "carla", 29), make(tmp_path / "camvid")
    for frame in FRAMES["train"]:
        label_of(root, frame).unlink()
    data: Any = carla_camvid(source=source, target=root, size=(4, 8))
    assert data.pool.keys == tuple(f"{frame}.png" for frame in FRAMES["train"])
    assert (data.ground_truth, data.pool.void_masks) == (None, None)
    assert data.test.images.keys == tuple(f"{frame}.png" for frame in FRAMES["test"])
    assert isinstance(data.test.labels, FileLabelMaps)
    # At the original size all classes occur, for ids and colours.
    assert data.test.labels.original(0).unique().tolist() == [VOID, *range(len(CARLA_CAMVID_CLASSES))]
    for folder in [path for path in root.iterdir() if "abel" in path.name or path.name.endswith("annot")]:
        shutil.rmtree(folder)
        if emptied:
            folder.mkdir()
    data = carla_camvid(source=source, target=root, size=(4, 8))
    assert (len(data.pool), data.ground_truth, data.test) == (3, None, None)
    if make is not coloured_tree:
        shutil.rmtree(root / "test")
        assert carla_camvid(source=source, target=root, size=(4, 8)).test is None


@every_layout
def test_camvid_with_some_of_its_labels_is_refused(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    source, root = carla_tree(tmp_path / "carla", 29), make(tmp_path / "camvid")
    label_of(root, "0006R0_f00930").unlink()
    with pytest.raises(UserError, match=r"1 of 3 images .* have no label file .*0006R0_f00930\.png"):
        carla_camvid(source=source, target=root)
    make(root)
    for frame in FRAMES["test"]:
        label_of(root, frame).unlink()
    with pytest.raises(UserError, match="but the test split has none"):
        carla_camvid(source=source, target=root)
    assert carla_camvid(source=source, target=root, test="val", size=(4, 8)).test is not None


def test_the_evaluation_split_can_be_set(tmp_path: Path) -> None:
    carla_tree(tmp_path / "carla", 29)
    segnet_tree(tmp_path / "camvid")
    folders = {"source": str(tmp_path / "carla"), "target": str(tmp_path / "camvid"), "size": [4, 8]}
    config = load_config(["data/carla-camvid"], ["data.params.test=val"], {"data": {"params": folders}})
    test: Any = load_data(config).test
    assert test.images.keys == tuple(f"{frame}.png" for frame in FRAMES["val"])


def test_unknown_tags_and_colours_are_refused(tmp_path: Path) -> None:
    source, target = carla_tree(tmp_path / "carla", 29), coloured_tree(tmp_path / "camvid")
    with pytest.raises(UserError, match=r"CameraSeg/0\.png \(.*id 23 in \d+ pixels, .*id 27 .* and 1 more"):
        carla_camvid(source=source, target=target, carla_version="0.9.13", size=(4, 8))
    colours = COLOURS.copy()
    colours[0, 0] = (1, 2, 3)
    write_colours(target / "LabeledApproved_full/0001TP_006690_L.png", colours)
    with pytest.raises(UserError, match=r"0001TP_006690_L\.png \(.*colour 1 2 3 in 1 pixel\)"):
        carla_camvid(source=source, target=target, size=(4, 8))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"carla_version": "new"}, "'new' is not a CARLA version"),
        ({"test": "train"}, "not a CamVid split to evaluate on"),
        ({"source": "{}/camvid"}, "CARLA: .* does not contain images/ and labels/ or CameraRGB/"),
        ({"target": "{}/carla"}, "CamVid: .* contains neither train/ and trainannot/"),
    ],
)
def test_invalid_parameters_of_carla_to_camvid(tmp_path: Path, params: dict[str, Any], message: str) -> None:
    carla_tree(tmp_path / "carla", 29)
    segnet_tree(tmp_path / "camvid")
    given: dict[str, Any] = {"source": "{}/carla", "target": "{}/camvid", **params}
    with pytest.raises(UserError, match=message):
        carla_camvid(**{name: value.format(tmp_path) for name, value in given.items()})
    with pytest.raises(UserError, match=r"mine\.png is not a CamVid frame name"):
        camvid_split("mine.png")


def test_required_options() -> None:
    with pytest.raises(
        UserError, match=r"needs --source and --target and --classes \(or data\.params\.source"
    ):
        DATASETS["segmentation_folders"].require_params("segmentation_folders", {})

    def mine(*, table: str) -> AdaptationData:
        raise NotImplementedError(table)

    with pytest.raises(UserError, match=r"needs --set data\.params\.table=\.\.\. \(or"):
        DatasetSpec(mine).require_params("mine:mine", {})
