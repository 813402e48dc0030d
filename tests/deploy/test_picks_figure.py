"""Figure of labelled pixels: highlighted cells, colours and selection of images."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import tiny_segmentation_data
from ducats.config import Config, load_config
from ducats.data.domain import VOID, Images
from ducats.deploy.picks_figure import (
    EARLIER_PIXEL_COLOUR,
    GAP_PIXELS,
    LINE_HEIGHT,
    NEW_PIXEL_COLOUR,
    TILE_WIDTH,
    VOID_COLOUR,
    load_images,
    write_picks_figure,
)
from ducats.utils.errors import UserError
from ducats.utils.palette import TAB20_COLOURS, class_colours

CLASSES = ("road", "car", "unicorn")


class ImageLabels(NamedTuple):
    position: Tensor
    label: Tensor


class InMemoryLedger:
    """In-memory ledger: positions and labels by round and image."""

    def __init__(self, rounds: Sequence[dict[int, Sequence[tuple[int, int]]]], size: tuple[int, int]) -> None:
        self.keys = [f"day/{number}.png" for number in range(9)]
        self.sizes: Tensor | None = torch.tensor([size] * 9)
        self._rounds = rounds

    @property
    def n_rounds(self) -> int:
        return len(self._rounds)

    def image_labels(self, image: int, n_rounds: int | None = None) -> ImageLabels:
        pairs = [pair for ledger_round in self._rounds[:n_rounds] for pair in ledger_round.get(image, ())]
        table = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)
        return ImageLabels(table[:, 0], table[:, 1])

    def labels_per_image(self, n_rounds: int | None = None) -> Tensor:
        return torch.tensor([len(self.image_labels(image, n_rounds).position) for image in range(9)])


def make_pool(size: tuple[int, int], channels: int = 3) -> Images:
    pixels = torch.full((9, channels, *size), 200, dtype=torch.uint8)
    return Images(tuple(f"day/{number}.png" for number in range(9)), pixels)


def read_png(out: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    with Image.open(out) as opened:
        return np.array(opened.convert("RGB"))


def read_tiles(
    out: Path, size: tuple[int, int], columns: int, row: int = 0
) -> list[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    """Return the tiles of one row; all images here are as wide as a tile."""
    figure = read_png(out)
    step = (figure.shape[1] - GAP_PIXELS) // columns
    top = LINE_HEIGHT + GAP_PIXELS + row * (size[0] + 2 * LINE_HEIGHT + GAP_PIXELS) + LINE_HEIGHT
    return [
        figure[top : top + size[0], GAP_PIXELS + c * step : GAP_PIXELS + c * step + size[1]]
        for c in range(columns)
    ]


def test_new_and_earlier_pixels_have_different_colours(tmp_path: Path) -> None:
    size = (40, TILE_WIDTH)
    first, second = 3 * TILE_WIDTH + 5, 17 * TILE_WIDTH + 300
    ledger = InMemoryLedger([{4: [(first, 0)]}, {4: [(second, 1), (0, VOID)]}], size)
    out = write_picks_figure(ledger, make_pool(size), tmp_path / "new" / "picks.png", classes=CLASSES)
    one, two, labels = read_tiles(out, size, columns=3)
    assert one[3, 5].tolist() == list(NEW_PIXEL_COLOUR)
    assert two[3, 5].tolist() == list(EARLIER_PIXEL_COLOUR)
    assert two[17, 300].tolist() == list(NEW_PIXEL_COLOUR)
    assert one[17, 300].tolist() not in (list(NEW_PIXEL_COLOUR), list(EARLIER_PIXEL_COLOUR))
    assert int((one == NEW_PIXEL_COLOUR).all(-1).sum()) == 1
    assert int((two == NEW_PIXEL_COLOUR).all(-1).sum()) == 2
    assert [labels[y, x].tolist() for y, x in ((3, 5), (17, 300), (0, 0))] == [
        [128, 64, 128],
        [0, 0, 142],
        list(VOID_COLOUR),
    ]


def test_skipped_rounds_count_as_new(tmp_path: Path) -> None:
    size = (30, TILE_WIDTH)
    ledger = InMemoryLedger([{2: [(0, 0)]}, {2: [(1, 0)]}, {2: [(2, 0)]}], size)
    out = write_picks_figure(ledger, make_pool(size), tmp_path / "picks.png", rounds=[3, 1])
    one, three, _ = read_tiles(out, size, columns=3)
    assert [one[0, x].tolist() == list(NEW_PIXEL_COLOUR) for x in range(3)] == [True, False, False]
    assert [three[0, x].tolist() for x in range(3)] == [
        list(EARLIER_PIXEL_COLOUR),
        list(NEW_PIXEL_COLOUR),
        list(NEW_PIXEL_COLOUR),
    ]


@pytest.mark.parametrize("size", [(1024, 2048), (20, 30), (8, 500)])
@pytest.mark.parametrize("channels", [1, 3])
def test_single_pixel_is_visible_at_any_size(tmp_path: Path, size: tuple[int, int], channels: int) -> None:
    last = size[0] * size[1] - 1
    out = write_picks_figure(
        InMemoryLedger([{0: [(last, 2)]}], size), make_pool((16, 32), channels), tmp_path / "picks.png"
    )
    inside = read_png(out)[: -(LINE_HEIGHT + GAP_PIXELS)]  # without the legend
    assert int((inside == NEW_PIXEL_COLOUR).all(-1).sum()) == max(1, TILE_WIDTH // size[1]) ** 2


def test_default_images_are_evenly_spaced(tmp_path: Path) -> None:
    size = (30, TILE_WIDTH)
    ledger = InMemoryLedger([{image: [(image, 0)] for image in (1, 2, 3, 5, 6, 8)}], size)
    out = write_picks_figure(ledger, make_pool(size), tmp_path / "picks.png", n_images=3)
    tiles = [read_tiles(out, size, 2, row)[0] for row in range(3)]
    assert [int((tile[0] == NEW_PIXEL_COLOUR).all(-1).nonzero()[0][0]) for tile in tiles] == [2, 5, 8]
    few = write_picks_figure(ledger, make_pool(size), tmp_path / "few.png", n_images=40)
    assert read_png(few).shape[0] > read_png(out).shape[0]


def test_output_is_deterministic(tmp_path: Path) -> None:
    size = (30, TILE_WIDTH)
    ledger = InMemoryLedger([{1: [(7, 0)]}], size)
    one, two = (
        write_picks_figure(ledger, make_pool(size), tmp_path / name).read_bytes()
        for name in ("a.png", "b.png")
    )
    assert one == two


def test_invalid_requests_raise(tmp_path: Path) -> None:
    size = (30, TILE_WIDTH)
    ledger, images, out = InMemoryLedger([{1: [(7, 0)]}], size), make_pool(size), tmp_path / "picks.png"
    with pytest.raises(UserError, match=r"no image 'night/1'.*such as 'day/0\.png'"):
        write_picks_figure(ledger, images, out, image_keys=["day/1.png", "night/1"])
    with pytest.raises(UserError, match="rounds 1 to 1"):
        write_picks_figure(ledger, images, out, rounds=[2])
    with pytest.raises(UserError, match="0 images"):
        write_picks_figure(ledger, images, out, n_images=0)
    with pytest.raises(UserError, match="no labels yet"):
        write_picks_figure(InMemoryLedger([], size), images, out)
    with pytest.raises(UserError, match="use the data of the run"):
        write_picks_figure(ledger, Images(("other",), images.pixels[:1]), out)
    ledger.sizes = None
    with pytest.raises(UserError, match="whole images"):
        write_picks_figure(ledger, images, out)
    assert not out.exists()


def test_long_names_fit_in_the_figure(tmp_path: Path) -> None:
    size = (30, TILE_WIDTH)
    ledger = InMemoryLedger([{1: [(7, 0)]}], size)
    ledger.keys[1] = "city/" * 400 + "end.png"
    images = Images(tuple(ledger.keys), make_pool(size).pixels)
    out = write_picks_figure(ledger, images, tmp_path / "picks.png", classes=["a very long class " * 80])
    assert read_png(out).shape[1] < 3 * (TILE_WIDTH + GAP_PIXELS)


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


def test_data_without_files_returns_the_whole_pool() -> None:
    config = load_config(
        ["data/streets"], ["data.params={n_source: 2, n_pool: 3, n_test: 2, height: 32, width: 64}"]
    )
    assert len(load_images(config, ["any"])) == 3
