"""Figure of labelled pixels: highlighted cells, colours and selection of images."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image

import tiny_segmentation_data
from ducats.config import Config, load_config
from ducats.data.domain import VOID, Images
from ducats.deploy.picks import labelled_image, select_image_keys, write_picks_figure
from ducats.deploy.pool_images import load_images
from ducats.ledger import Ledger, Request
from ducats.report.figures.pixels import NEW_COLOUR
from ducats.report.figures.render import RASTER_DPI
from ducats.run.factory import load_data
from ducats.utils.errors import UserError
from ducats.utils.palette import TAB20_COLOURS, class_colours
from image_kinds import png16_bytes

KEYS = tuple(f"day/{number}.png" for number in range(9))
SIZE = (30, 360)


def make_ledger(
    folder: Path,
    rounds: Sequence[dict[int, Sequence[tuple[int, int]]]],
    size: tuple[int, int] | None = SIZE,
    keys: Sequence[str] = KEYS,
) -> Ledger:
    """Write a ledger of positions and labels by round and image."""
    ledger = Ledger(folder / "ledger", keys, None if size is None else [size] * len(keys))
    for number, by_image in enumerate(rounds, start=1):
        rows = [(image, *pair) for image, pairs in by_image.items() for pair in pairs]
        image, position, label = torch.tensor(rows, dtype=torch.long).reshape(-1, 3).unbind(1)
        ledger.append(Request(number, image, position), label)
    return ledger


def make_pool(size: tuple[int, int] = SIZE, channels: int = 3, keys: Sequence[str] = KEYS) -> Images:
    return Images(tuple(keys), torch.full((len(keys), channels, *size), 200, dtype=torch.uint8))


def read_png(out: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    with Image.open(out) as opened:
        return np.array(opened.convert("RGB"))


def test_labels_since_the_previous_column_are_new(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, [{2: [(5, 0)]}, {2: [(1, 1)]}, {2: [(7, VOID)]}])
    shown = labelled_image(ledger, make_pool(), "day/2.png", [1, 3])
    assert [position.tolist() for position in shown.positions] == [[5], [1, 7]]
    assert [label.tolist() for label in shown.labels] == [[0], [1, VOID]]
    assert (shown.key, shown.size, shown.image.size) == ("day/2.png", SIZE, SIZE[::-1])


@pytest.mark.parametrize("size", [(1024, 2048), (20, 30), (8, 500)])
@pytest.mark.parametrize("channels", [1, 3])
def test_single_pixel_is_visible_at_any_size(tmp_path: Path, size: tuple[int, int], channels: int) -> None:
    ledger = make_ledger(tmp_path, [{0: [(size[0] * size[1] - 1, 2)]}], size)
    pool, path = make_pool((16, 32), channels), tmp_path / "new" / "picks.png"
    out = write_picks_figure(ledger, pool, path, image_keys=KEYS[:1])
    legend_height = round(0.65 * RASTER_DPI)
    assert (read_png(out)[:-legend_height] == NEW_COLOUR).all(-1).any()


def test_default_images_are_evenly_spaced(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, [{image: [(image, 0)] for image in (1, 2, 3, 5, 6, 8)}])
    assert select_image_keys(ledger, n_images=3) == ["day/2.png", "day/5.png", "day/8.png"]
    assert len(select_image_keys(ledger, n_images=40)) == 6


def test_invalid_requests_raise(tmp_path: Path) -> None:
    ledger, out = make_ledger(tmp_path, [{1: [(7, 0)]}]), tmp_path / "picks.png"
    with pytest.raises(UserError, match=r"no image 'night/1'.*such as 'day/0\.png'"):
        select_image_keys(ledger, ["day/1.png", "night/1"])
    with pytest.raises(UserError, match="0 images"):
        select_image_keys(ledger, n_images=0)
    with pytest.raises(UserError, match="no labels yet"):
        select_image_keys(make_ledger(tmp_path / "empty", []))
    with pytest.raises(UserError, match="whole images"):
        select_image_keys(make_ledger(tmp_path / "images", [{1: [(0, 0)]}], size=None))
    with pytest.raises(UserError, match="use the data of the run"):
        write_picks_figure(ledger, make_pool(keys=["other"]), out, image_keys=["day/1.png"])
    assert not out.exists()


def test_long_names_fit_in_the_figure(tmp_path: Path) -> None:
    keys = ["city/" * 400 + "end.png"]
    ledger, pool = make_ledger(tmp_path, [{0: [(7, 0)]}], keys=keys), make_pool(keys=keys)
    plain, long = (
        write_picks_figure(ledger, pool, tmp_path / f"{len(name)}.png", image_keys=keys, classes=[name])
        for name in ("road", "a very long class " * 80)
    )
    assert read_png(long).shape[1] == read_png(plain).shape[1]


def test_twenty_colours_match_matplotlib() -> None:
    twenty = (255 * matplotlib.colormaps["tab20"](np.arange(20))[:, :3]).round().astype(int).tolist()
    assert [list(colour) for colour in TAB20_COLOURS] == twenty[::2] + twenty[1::2]


def test_palette_uses_cityscapes_colours_or_distinct_ones() -> None:
    assert class_colours(["Traffic_Sign", "sign"]) == [(220, 220, 0)] * 2
    own = class_colours([f"own {i}" for i in range(20)])
    assert len(set(own)) == 20
    assert class_colours([f"own {i}" for i in range(21)])[20] == own[0]


def file_config(root: Path, *settings: str) -> Config:
    data_params = {role: str(root / role) for role in ("source", "target")}
    data_params |= {"classes": str(root / "classes.txt"), "ground_truth": True, "size": [12, 16]}  # type: ignore[dict-item]
    return load_config(["segmentation"], settings, {"data": {"params": data_params}})


def test_only_the_chosen_files_are_read(tmp_path: Path) -> None:
    root = tiny_segmentation_data.write_tree(tmp_path)
    for path in [
        *root.glob("source/*/*.png"),
        *root.glob("target/*/10[023].png"),
        *root.glob("target/labels/*"),
    ]:
        path.write_bytes(b"not to be read")
    images = load_images(file_config(root), ["101.png", "101.png"])
    assert (images.keys, images.files) == (("101.png",), (root / "target/images/101.png",))
    assert images.pixels.shape == (1, 3, 12, 16)
    with pytest.raises(UserError, match=r"no image '900\.png'"):
        load_images(file_config(root), ["101.png", "900.png"])


@pytest.mark.parametrize("layout", ["folders", "manifest"])
def test_only_the_chosen_images_of_folders_and_manifests_are_read(tmp_path: Path, layout: str) -> None:
    for name in ("source/a/0.png", "source/b/0.png", "target/0.png", "target/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"not to be read")
    (tmp_path / "target/1.png").write_bytes(png16_bytes(np.full((4, 4), 1000, np.uint16)))
    rows = ["path,domain,label", "source/a/0.png,source,a", "target/0.png,target,", "target/1.png,target,"]
    (tmp_path / "table.csv").write_text("\n".join(rows))
    files = {"source": str(tmp_path / "source"), "target": str(tmp_path / "target")}
    params = files if layout == "folders" else {"path": str(tmp_path / "table.csv")}
    data = {"name": layout, "params": {**params, "size": 8, "range": [0, 2000]}}
    key = "1.png" if layout == "folders" else "target/1.png"
    images = load_images(load_config([], [], {"data": data}), [key])
    assert (images.keys, images.pixels[:].unique().tolist()) == ((key,), [128])


def test_images_have_the_size_that_the_run_stored(tmp_path: Path) -> None:
    for name in ("source/a/0.png", "source/b/0.png", "target/0.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    params = {"source": str(tmp_path / "source"), "target": str(tmp_path / "target")}
    data = {"name": "folders", "params": params}
    for settings, size in ((["views.size=14"], 16), (["views.size=14", "data.params.size=20"], 20)):
        config = load_config([], settings, {"data": data})
        shown = load_images(config, ["0.png"]).pixels
        assert shown.shape == load_data(config).pool.pixels.shape == (1, 3, size, size)


def test_data_without_files_returns_the_whole_pool() -> None:
    config = load_config(
        ["data/streets"], ["data.params={n_source: 2, n_pool: 3, n_test: 2, height: 32, width: 64}"]
    )
    assert len(load_images(config, ["any"])) == 3
