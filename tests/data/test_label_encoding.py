"""Label encodings, and how label files are read."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from synthetic_label_files import (
    AnyArray,
    repeat_values,
    save_image,
    write_colours,
    write_ids,
    write_palette,
    write_png,
    write_red,
)

from ducats.data.domain import VOID
from ducats.data.segmentation.class_tables import (
    CAMVID_COLOURS,
    CARLA_CAMVID_CLASSES,
    CARLA_IDS_BEFORE_0_9_14,
    CARLA_IDS_SINCE_0_9_14,
    CARLA_VOID,
    SEGNET_IDS,
    carla_camvid_encoding,
    names_by_colour_id,
)
from ducats.data.segmentation.label_encoding import LabelEncoding, LabelFormat, parse_label_id
from ducats.data.segmentation.label_files import read_ids, read_mask, resize_label_map
from ducats.utils.errors import UserError

ENCODING = LabelEncoding(
    ("road", "car"),
    {0: "road", 3: "lane", 7: "car", 255: "sky"},
    {"road": ("road", "lane"), "car": ("car",)},
    frozenset({"sky"}),
)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64])
def test_ids_become_indices_and_void(dtype: type) -> None:
    found = ENCODING.encode(np.array([[0, 3], [7, 255]], dtype))
    assert found.tolist() == [[0, 0], [1, VOID]]
    assert found.dtype == np.int8
    raw: AnyArray = np.array([0, 4, 4, 9, 7], dtype)
    with pytest.raises(ValueError, match="id 4 in 2 pixels, id 9 in 1 pixel"):
        ENCODING.encode(raw)


def test_an_id_beyond_the_table() -> None:
    with pytest.raises(ValueError, match="id -1 in 1 pixel, id 70000 in 1 pixel"):
        ENCODING.encode(np.array([70000, -1, 0]))
    known = LabelEncoding(("a", "b"), {-1: "a", 70000: "b"}, {"a": ("a",), "b": ("b",)}, frozenset())
    assert known.encode(np.array([70000, -1])).tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"id 0 in 1 pixel, .* id 4 in 1 pixel and 3 more"):
        known.encode(np.arange(8, dtype=np.uint8))


def test_a_name_belongs_to_one_class_or_void() -> None:
    with pytest.raises(UserError, match="'sky' is neither in a class nor void"):
        LabelEncoding(("a",), {0: "a", 1: "sky"}, {"a": ("a",)}, frozenset())
    with pytest.raises(UserError, match="'a' is in two classes, or in a class and void"):
        LabelEncoding(("a",), {0: "a"}, {"a": ("a",)}, frozenset({"a"}))
    with pytest.raises(ValueError, match="members of"):
        LabelEncoding(("a", "b"), {0: "a"}, {"a": ("a",)}, frozenset())


def test_ids_can_be_added() -> None:
    more = ENCODING.with_ids({9: "void", "10": "car", 11: "lane", 12: "sky"})
    assert more.encode(np.array([9, 10, 11, 12, 0])).tolist() == [VOID, 1, 0, VOID, 0]
    assert ENCODING.with_ids(None) == ENCODING
    with pytest.raises(UserError, match="maps 9 to 'tree'; use void or one of car, lane, road, sky"):
        ENCODING.with_ids({9: "tree"})
    with pytest.raises(UserError, match="maps 7 to 'road', which means 'car'"):
        ENCODING.with_ids({7: "road"})
    merged = carla_camvid_encoding(CARLA_IDS_SINCE_0_9_14, CARLA_VOID, "red_channel").with_ids({99: "sign"})
    assert merged.classes[merged.encode(np.array([99]))[0]] == "sign"


def test_invalid_ids_and_colours() -> None:
    for given in ("a", "1 2", None, 1.5, [1, 2]):
        with pytest.raises(UserError, match="is not an id"):
            parse_label_id(given)
    for given in ("a b c", "1 2", "0 0 256", 7):
        with pytest.raises(UserError, match="is not a colour"):
            parse_label_id(given, "colours")


# -- files -------------------------------------------------------------------------------------------

IDS = repeat_values(np.arange(35))


@pytest.mark.parametrize("label_format", ["ids", "red_channel"])
def test_ids_are_read_as_stored(tmp_path: Path, label_format: LabelFormat) -> None:
    for write_as in (write_ids, write_palette):
        assert np.array_equal(read_ids(write_as(tmp_path / "a.png", IDS), label_format), IDS)
    with Image.open(tmp_path / "a.png") as image:
        image.load()
        image.save(tmp_path / "transparent.png", transparency=bytes([0] * 10))
    assert np.array_equal(read_ids(tmp_path / "transparent.png", label_format), IDS)


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_grey_of_any_depth_is_read_as_stored(tmp_path: Path, depth: int) -> None:
    ids = repeat_values(np.arange(100)) % 2**depth * (257 if depth == 16 else 1)
    assert np.array_equal(read_ids(write_png(tmp_path / "a.png", ids, depth, 0), "ids"), ids)


@pytest.mark.parametrize(("colour_type", "channels"), [(2, 3), (4, 2), (6, 4)])
def test_sixteen_bits_in_several_channels(tmp_path: Path, colour_type: int, channels: int) -> None:
    """As in SYNTHIA: the class is in the first channel; its upper 8 bits, which Pillow keeps, are zero."""
    noise = np.random.default_rng(0).integers(0, 2**16, (*IDS.shape, channels))
    noise[..., 0] = IDS
    path = write_png(tmp_path / "a.png", noise, 16, colour_type)
    assert np.array_equal(read_ids(path, "red_channel"), IDS)
    noise[..., 0] = 1000 + IDS
    assert np.array_equal(read_ids(write_png(path, noise, 16, colour_type), "red_channel"), 1000 + IDS)


def test_the_red_channel_is_not_read_as_ids(tmp_path: Path) -> None:
    red = write_red(tmp_path / "red.png", IDS)
    assert np.array_equal(read_ids(red, "red_channel"), IDS)
    with pytest.raises(ValueError, match=r"channels differ; set data.params.label_format=red_channel"):
        read_ids(red, "ids")
    grey = write_colours(tmp_path / "grey.png", np.stack([IDS] * 3, -1))
    assert np.array_equal(read_ids(grey, "ids"), IDS)


@pytest.mark.parametrize("alpha", [False, True])
def test_colours(tmp_path: Path, alpha: bool) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (*IDS.shape, 4 if alpha else 3))
    path = write_colours(tmp_path / "a.png", colours)
    r, g, b = (colours[..., i] for i in range(3))
    assert np.array_equal(read_ids(path, "colours"), r * 65536 + g * 256 + b)
    path = write_palette(path, repeat_values([0, 1, 2]))  # the displayed colours count
    assert np.unique(read_ids(path, "colours")).tolist() == sorted(
        (255 - i) << 16 | (7 * i) << 8 | 13 * i for i in range(3)
    )


def test_files_without_ids(tmp_path: Path) -> None:
    save_image(tmp_path / "float.tif", Image.fromarray(np.zeros((4, 4), np.float32)))
    save_image(tmp_path / "cmyk.tif", Image.new("CMYK", (4, 4)))
    for name in ("float.tif", "cmyk.tif"):
        with pytest.raises(ValueError, match="cannot be ids; save as PNG"):
            read_ids(tmp_path / name, "ids")
    deep = write_png(tmp_path / "deep.png", repeat_values(np.zeros((1, 3), int)), 16, 2)
    with pytest.raises(ValueError, match="16-bit colours"):
        read_ids(deep, "colours")


def test_masks_are_non_zero_pixels(tmp_path: Path) -> None:
    expected = (IDS % 3 == 0).astype(np.uint8)
    assert np.array_equal(read_mask(write_ids(tmp_path / "a.png", expected * 200)), expected)
    blue = np.stack([0 * expected, 0 * expected, expected], -1)
    assert np.array_equal(read_mask(write_colours(tmp_path / "b.png", blue)), expected)
    assert np.array_equal(read_mask(write_palette(tmp_path / "c.png", expected)), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
@pytest.mark.parametrize("size", [(8, 16), (5, 10), (3, 7), (16, 40), (1, 1)])
def test_resizing_is_pillows_nearest(dtype: type, size: tuple[int, int]) -> None:
    values: AnyArray = (np.arange(8 * 16) - 2).reshape(8, 16).astype(dtype)
    indices = Image.fromarray(np.arange(8 * 16, dtype=np.int32).reshape(8, 16))
    resized = np.asarray(indices.resize(size[::-1], Image.Resampling.NEAREST))
    found = resize_label_map(values, *size)
    assert found.dtype == dtype
    assert np.array_equal(found, values.ravel()[resized])


# -- tables ------------------------------------------------------------------------------------------


def test_camvid_and_carla_share_ten_classes() -> None:
    assert len(CAMVID_COLOURS) == len(names_by_colour_id(CAMVID_COLOURS)) == 32
    assert len(SEGNET_IDS) == 12
    segnet = dict(carla_camvid_encoding(SEGNET_IDS, ("unlabelled",), "ids").index_by_id)
    assert [list(CARLA_CAMVID_CLASSES)[segnet[i]] for i in range(11)] == [
        *("sky", "building", "pole", "road", "sidewalk", "vegetation", "sign", "fence", "car", "person"),
        "person",
    ]
    assert segnet[11] == VOID
    old, new = (
        dict(carla_camvid_encoding(tags, CARLA_VOID, "red_channel").index_by_id)
        for tags in (CARLA_IDS_BEFORE_0_9_14, CARLA_IDS_SINCE_0_9_14)
    )
    names = list(CARLA_CAMVID_CLASSES)
    assert [names[old[i]] for i in (7, 8, 1, 2, 5, 12, 9, 13, 4, 10)] == names
    assert [names[new[i]] for i in (1, 2, 3, 5, 6, 8, 9, 11, 12, 14)] == names
    assert [i for i in old if old[i] == VOID] == [0, 3, 14, 15, 16, 17, 19, 20, 21]
    assert [i for i in new if new[i] == VOID] == [0, 17, 18, 19, 20, 21, 22, 23, 25, 26, 27, 28]
