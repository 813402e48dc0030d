"""Segmentation data in folders with label files and a class list."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from synthetic_label_files import repeat_values, write_colours, write_ids, write_image, write_red

from ducats.config import load_config
from ducats.data.domain import VOID, AdaptationData
from ducats.data.registry import DATASETS
from ducats.data.segmentation.class_list import encoding_from_class_list
from ducats.data.segmentation.folders import load_segmentation_folder, segmentation_folders
from ducats.data.segmentation.label_maps import FileLabelMaps, VoidMasks
from ducats.utils.errors import UserError
from image_kinds import png16_bytes

CLASS_LIST = (
    "0 road\n1 sidewalk\n2 building\n3 wall\n4 fence\n5 pole\n6 traffic light\n7 traffic sign\n"
    "8 vegetation\n9 terrain\n10 sky\n11 person\n12 rider\n13 car\n14 truck\n15 bus\n16 train\n"
    "17 motorcycle\n18 bicycle\n255 ignore\n"
)
IDS = [*range(19), 255]
SIZE = (4, 8)


def write_domain(root: Path, names: tuple[str, ...] = ("a", "b"), ids: Any = IDS) -> Path:
    for seed, name in enumerate(names):
        write_image(root / f"images/{name}.jpg", seed)
        write_ids(root / f"labels/{name}.png", repeat_values(ids))
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("carla_a", "carla_b", "camvid_train", "camvid_val", "camvid_test"):
        write_domain(tmp_path / name)
    (tmp_path / "classes.txt").write_text(CLASS_LIST)
    return tmp_path


def load_folders(root: Path, **params: Any) -> AdaptationData:
    given = {"source": "carla_a", "target": "camvid_train", "classes": "classes.txt", "size": SIZE, **params}
    return segmentation_folders(root=root, **given)


def test_the_config_of_carla_to_camvid_folders(root: Path) -> None:
    data = load_config(["data/streets-carla-camvid"], extra={"data": {"params": {"root": str(root)}}}).data
    loaded = DATASETS[data.name].load(**data.params)
    assert list(loaded.classes) == [
        *("road", "sidewalk", "building", "fence", "pole", "sign", "vegetation", "sky", "person", "car")
    ]
    assert loaded.source.images.pixels.shape == (4, 3, 256, 512)
    assert loaded.source.images.keys == ("carla_a/a.jpg", "carla_a/b.jpg", "carla_b/a.jpg", "carla_b/b.jpg")
    assert isinstance(loaded.ground_truth, FileLabelMaps)
    expected = [0, 1, 2, 2, 3, 4, 5, 5, 6, 6, 7, 8, 8, 9] + [VOID] * 6
    assert loaded.ground_truth.original(0).flatten()[:20].tolist() == expected
    assert loaded.test is not None
    assert loaded.pool.void_masks is not None


def test_the_configs_of_the_benchmarks() -> None:
    for name in ("gtav_cityscapes", "synthia_cityscapes", "carla_camvid", "segmentation_folders"):
        config = "streets-carla-camvid" if name == "segmentation_folders" else name.replace("_", "-")
        data = load_config([f"data/{config}"]).data
        assert data.name == name
        assert set(data.params) <= set(DATASETS[name].parameters)


def test_target_labels_are_read_only_with_ground_truth(root: Path) -> None:
    for path in (root / "camvid_train/labels").iterdir():
        path.unlink()
    data = load_folders(root)
    assert data.ground_truth is None
    assert data.pool.void_masks is None
    assert data.test is None
    assert data.pool.keys == ("a.jpg", "b.jpg")
    assert data.pool.original_sizes is not None
    with pytest.raises(UserError, match=r"2 of 2 images in .*camvid_train/images have no label file"):
        load_folders(root, ground_truth=True)


@pytest.mark.parametrize("ground_truth", [False, True])
def test_masks_of_the_target(root: Path, ground_truth: bool) -> None:
    mask = np.zeros((8, 16))
    mask[4:] = 1
    for name in "ab":
        write_ids(root / f"camvid_train/masks/{name}.png", mask)
    assert load_folders(root, ground_truth=ground_truth, void_pixels="queried").pool.void_masks is None
    data = load_folders(root, ground_truth=ground_truth, void_pixels="excluded")
    assert isinstance(data.pool.void_masks, VoidMasks)
    expected = torch.tensor(mask != 0)
    if ground_truth:
        expected = expected | torch.tensor(repeat_values(IDS) == 255)
    assert torch.equal(data.pool.void_masks.original(0), expected.to(torch.uint8))
    assert (data.pool.void_masks[:][:, 2:] == 1).all()


def test_masks_must_be_complete_and_of_the_images_size(root: Path) -> None:
    write_ids(root / "camvid_train/masks/a.png", repeat_values([0]))
    with pytest.raises(UserError, match=r"1 of 2 images .* have no mask file .*: b\.jpg"):
        load_folders(root)
    write_ids(root / "camvid_train/masks/b.png", repeat_values([0], (4, 4)))
    with pytest.raises(UserError, match=r"b\.jpg is 8x16 .*, but .*masks/b\.png is 4x4"):
        load_folders(root)


def test_ids_in_the_red_channel(root: Path) -> None:
    for path in (root / "carla_a/labels").iterdir():
        write_red(path, repeat_values(IDS))
    with pytest.raises(UserError, match=r"2 of 2 label maps .*data\.params\.label_format=red_channel"):
        load_folders(root)
    data = load_folders(root, label_format="red_channel")
    single_channel = load_folders(root, source="carla_b")
    assert torch.equal(data.source.labels[:], single_channel.source.labels[:])


def test_a_list_of_colours(root: Path) -> None:
    (root / "classes.txt").write_text("128 64 128\troad\n0 0 142\t\tcar\n0 0 0\tvoid\n")
    colours = repeat_values([[128, 64, 128], [0, 0, 142], [0, 0, 0]])
    for name in ("a", "b"):
        write_colours(root / f"carla_a/labels/{name}.png", colours)
    data = load_folders(root)
    assert tuple(data.classes) == ("road", "car")
    assert isinstance(data.source.labels, FileLabelMaps)
    assert data.source.labels.original(0).flatten()[:4].tolist() == [0, 1, VOID, 0]


def test_sources_of_one_name_get_distinct_keys(root: Path) -> None:
    write_domain(root / "more/carla_a", ("a",))
    data: Any = load_folders(root, source=["carla_a", "more/carla_a"], test="camvid_train")
    assert data.test.images.keys == data.pool.keys  # the test folder may be the target
    assert data.source.images.keys == ("carla_a/a.jpg", "carla_a/b.jpg", "more/carla_a/a.jpg")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"source": []}, "data.params.source is empty"),
        ({"source": "nowhere"}, "the source folder .*nowhere does not exist"),
        ({"source": ["carla_a", "carla_a"]}, "overlap"),
        ({"target": "carla_a"}, "source and target are the same folder"),
        ({"test": "carla_a"}, "source and test are the same folder"),
        ({"classes": "none.txt"}, "the class list .*none.txt cannot be read"),
        ({"void_pixels": "maybe"}, "void_pixels must be excluded or queried"),
        ({"label_format": "blue"}, "label_format must be ids or red_channel or colours, not 'blue'"),
        ({"size": (0, 4)}, "give a size of 1 or more"),
    ],
)
def test_invalid_parameters(root: Path, params: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_folders(root, **params)


def test_an_id_missing_from_the_list(root: Path) -> None:
    (root / "classes.txt").write_text(CLASS_LIST.replace("13 car\n", ""))
    with pytest.raises(UserError, match=r"labels/a\.png \(unknown values: id 13 in \d+ pixels\)"):
        load_folders(root)


# -- class lists -------------------------------------------------------------------------------------


def names_by_id(encoding: Any) -> dict[int, str]:
    return {label_id: "void" if i == VOID else encoding.classes[i] for label_id, i in encoding.index_by_id}


@pytest.mark.parametrize(
    "text",
    [
        "0 road\n1 car\n255 ignore\n",
        "# ids\n\n0: road\n1: car  # or van\n255: Unlabeled\n",
        "0,road\n1,car\n255,void\n",
        "\ufeff0\troad\r\n1\tcar\r\n255\tsky (void)\r\n",
    ],
)
def test_lists_in_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "classes.txt").write_text(text, encoding="utf-8")
    encoding = encoding_from_class_list(tmp_path / "classes.txt")
    assert encoding.classes == ("road", "car")
    assert names_by_id(encoding) == {0: "road", 1: "car", 255: "void"}
    assert len(encoding.void_names) == 1


@pytest.mark.parametrize(
    "given", [{0: "road", "1": "car", 2: "void"}, ["road", "car", "void"], ("road", "car", "sky (void)")]
)
def test_lists_given_as_values(given: Any) -> None:
    assert names_by_id(encoding_from_class_list(given)) == {0: "road", 1: "car", 2: "void"}


def test_colours_and_several_ids_of_one_name() -> None:
    encoding = encoding_from_class_list({"0 0 1": "road", "0 1 0": "car", "1 0 0": "void"})
    assert encoding.label_format == "colours"
    assert names_by_id(encoding) == {1: "road", 256: "car", 65536: "void"}
    several = {0: "road", 1: "car", 2: "road", 254: "void", 255: "void"}
    assert names_by_id(encoding_from_class_list(several)) == several


CLASS_NAMES = {0: "road", 1: "wall", 2: "building", 3: "light", 4: "plate", 5: "sky", 255: "void"}


def test_classes_are_merged_and_kept_by_name() -> None:
    encoding = encoding_from_class_list(
        CLASS_NAMES, merge_classes={"building": ["wall"], "sign": ["light", "plate"]}
    )
    assert encoding.classes == ("road", "building", "sign", "sky")
    assert encoding.members["building"] == ("wall", "building")
    kept = encoding_from_class_list(
        CLASS_NAMES, merge_classes={"sign": ["light", "plate"]}, keep_classes=["sign", "road"]
    )
    assert kept.classes == ("sign", "road")
    assert kept.void_names == {"void", "wall", "building", "sky"}
    assert names_by_id(kept) == {
        **{0: "road", 3: "sign", 4: "sign"},
        **dict.fromkeys((1, 2, 5, 255), "void"),
    }


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"merge_classes": {"sign": ["lamp"]}}, "'lamp', which is not in data.params.classes"),
        ({"merge_classes": {"a": ["sky"], "b": ["sky"]}}, "has 'sky' in 'a' and in 'b'"),
        ({"merge_classes": {"a": "sky"}}, r"must be a list, such as \[sky\]"),
        ({"keep_classes": ["road", "lamp"]}, "distinct classes from road, wall"),
        ({"keep_classes": ["road", "road"]}, "keep_classes must be a list of distinct classes"),
        ({"keep_classes": "road"}, "keep_classes must be a list"),
        ({"keep_classes": ["road"]}, "fewer than two classes"),
        ({"label_format": "colours"}, "lists ids, but data.params.label_format=colours needs"),
    ],
)
def test_invalid_merging(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        encoding_from_class_list(CLASS_NAMES, **params)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff\xfe\x00", r"cannot be read \(not a text file\)"),
        (b"0 road\ncar\n", "line 2: 'car' is not `id name`"),
        (b"0 road\n1 car\n1 bus\n", "gives 1 the names 'car' and 'bus'"),
        (b"", "fewer than two classes"),
        (b"0 road\n1 2 3 car\n0 bus\n", "gives 0 the names 'road' and 'bus'"),
    ],
)
def test_invalid_lists(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "classes.txt").write_bytes(text)
    with pytest.raises(UserError, match=message):
        encoding_from_class_list(tmp_path / "classes.txt")


def test_missing_range_stops_a_run_but_not_the_evaluation_of_a_folder(root: Path) -> None:
    image = root / "carla_a/images/a.jpg"
    with Image.open(image) as opened:
        width, height = opened.size
    image.write_bytes(png16_bytes(np.full((height, width), 3000, np.uint16)))
    with pytest.raises(UserError, match=r"a\.jpg .*data\.params\.range=\[0,4095\]"):
        load_folders(root)
    found = load_segmentation_folder(root / "carla_a", size=SIZE, classes=root / "classes.txt").images
    assert [path for path, _ in found.unreadable] == [image]
