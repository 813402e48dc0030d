import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ducats.domain import VOID, Images
from ducats.errors import AwaitingLabels, UserError
from ducats.ledger import Request
from ducats.oracles import People
from ducats.oracles.masks import file_names

POOL = Images(("a/eins.png", "a/zwei.jpg", "drei"), torch.full((3, 3, 4, 6), 100, dtype=torch.uint8))
SIZES = torch.tensor([[4, 6], [8, 12], [4, 6]])  # the second is bought in its original size
CLASSES = ["road", "sky"]
ASKED = Request(1, torch.tensor([1, 1, 0, 0, 0, 1]), torch.tensor([95, 3, 7, 0, 23, 12]))


def people(folder: Path) -> People:
    return People(folder, POOL, CLASSES, SIZES)


@pytest.fixture
def round_folder(tmp_path: Path) -> Path:
    with pytest.raises(
        AwaitingLabels,
        match=r"round 1 waits for 6 of 6 pixels in 2 of 2 images, first .*answers/a/eins.png is not there: "
        r"see .*README.txt, and give the same command again",
    ):
        people(tmp_path)(ASKED)
    return tmp_path / "round-01"


def save(path: Path, values: np.typing.NDArray[np.uint8], mode: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(values)
    (picture.convert(mode) if mode else picture).save(path)


def maps() -> tuple[np.typing.NDArray[np.uint8], np.typing.NDArray[np.uint8]]:
    """Whole label maps; 77 where nobody asked."""
    one, two = np.full(24, 77, np.uint8), np.full(96, 77, np.uint8)
    one[[7, 0, 23]] = [1, 255, 0]
    two[[95, 3, 12]] = [0, 1, 1]
    return one.reshape(4, 6), two.reshape(8, 12)


def test_masks_and_overlays_show_what_is_asked(round_folder: Path) -> None:
    mask = np.asarray(Image.open(round_folder / "masks" / "a" / "zwei.png"))
    assert (mask.shape, np.flatnonzero(mask).tolist(), mask.max()) == ((8, 12), [3, 12, 95], 255)
    shown = np.asarray(Image.open(round_folder / "overlays" / "a" / "zwei.png"))
    assert shown.shape == (8, 12, 3)
    assert shown[7, 11].tolist() == [177, 177, 50]
    assert shown[0, 0].tolist() == [35, 35, 35]
    assert (round_folder / "classes.txt").read_text() == "0 road\n1 sky\n254 not answered yet\n255 void\n"
    assert len((round_folder / "README.txt").read_text().splitlines()) == 3
    with (round_folder / "questions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["key"], row["pixels"], row["answer"]) for row in rows] == [
        ("a/eins.png", "3", "answers/a/eins.png"),
        ("a/zwei.jpg", "3", "answers/a/zwei.png"),
    ]


def test_whole_label_maps_are_answers(round_folder: Path) -> None:
    one, two = maps()
    save(round_folder / "answers" / "a" / "eins.png", one)
    with pytest.raises(
        AwaitingLabels, match=r"3 of 6 pixels in 1 of 2 images, first .*zwei.png is not there"
    ):
        people(round_folder.parent)(ASKED)
    save(round_folder / "answers" / "a" / "zwei.png", two)
    answers = people(round_folder.parent)(ASKED)
    assert (answers.tolist(), answers.dtype) == ([0, 1, 1, VOID, 0, 1], torch.int8)


def test_palettes_and_sixteen_bits_are_one_channel(round_folder: Path) -> None:
    one, two = maps()
    palette = Image.fromarray(one)
    palette.putpalette([value for value in range(256) for _ in range(3)])
    (round_folder / "answers" / "a").mkdir(parents=True)
    palette.save(round_folder / "answers" / "a" / "eins.png")
    with Image.open(round_folder / "answers" / "a" / "eins.png") as saved:
        assert saved.mode == "P"
    Image.fromarray(two.astype(np.uint16)).save(round_folder / "answers" / "a" / "zwei.png")
    assert people(round_folder.parent)(ASKED).tolist() == [0, 1, 1, VOID, 0, 1]


def test_pixels_that_wait_are_counted(round_folder: Path) -> None:
    one, two = maps()
    two[0, 3] = two[7, 11] = 254
    save(round_folder / "answers" / "a" / "eins.png", one)
    save(round_folder / "answers" / "a" / "zwei.png", two)
    with pytest.raises(
        AwaitingLabels, match=r"2 of 6 pixels in 1 of 2 images, .* still has 254 at 2 of them"
    ):
        people(round_folder.parent)(ASKED)


def test_wrong_answers_name_file_and_remedy(round_folder: Path) -> None:
    one, two = maps()
    path = round_folder / "answers" / "a" / "zwei.png"
    save(round_folder / "answers" / "a" / "eins.png", one)
    two[7, 11] = 2
    save(path, two)
    with pytest.raises(UserError, match=r"zwei.png has 2 at x=11, y=7, which is no class: .*classes.txt"):
        people(round_folder.parent)(ASKED)
    save(path, one)
    with pytest.raises(UserError, match=r"zwei.png is 6 x 4, but its mask is 12 x 8"):
        people(round_folder.parent)(ASKED)
    save(path, two, "RGB")
    with pytest.raises(UserError, match=r"zwei.png has colours \(RGB\): save it as a PNG with one channel"):
        people(round_folder.parent)(ASKED)
    path.write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"zwei.png cannot be read as a picture"):
        people(round_folder.parent)(ASKED)


def test_many_classes_need_sixteen_bits(tmp_path: Path) -> None:
    asked = Request(1, torch.tensor([2, 2]), torch.tensor([1, 2]))
    oracle = People(tmp_path, POOL, [f"c{i}" for i in range(300)], SIZES)
    with pytest.raises(AwaitingLabels):
        oracle(asked)
    answer = np.zeros((4, 6), np.uint16)
    answer[0, 1], answer[0, 2] = 299, 65535
    (tmp_path / "round-01" / "answers").mkdir()
    Image.fromarray(answer).save(tmp_path / "round-01" / "answers" / "drei.png")
    assert oracle(asked).tolist() == [299, VOID]
    assert "65535 void" in (tmp_path / "round-01" / "classes.txt").read_text()


def test_an_image_asked_for_as_a_whole_is_shown_as_it_is(tmp_path: Path) -> None:
    asked = Request(1, torch.zeros(24, dtype=torch.long), torch.arange(24), torch.tensor([24]))
    with pytest.raises(AwaitingLabels):
        people(tmp_path)(asked)
    shown = np.asarray(Image.open(tmp_path / "round-01" / "overlays" / "a" / "eins.png"))
    assert np.unique(shown).tolist() == [100]


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (["a/b.jpg", "c"], ["a/b.png", "c.png"]),
        (["x.jpg", "x.png"], ["x.jpg.png", "x.png.png"]),
        (["X.jpg", "x.jpg"], ["X.jpg.png", "x.jpg.1.png"]),
        (["../../etc/x", "/abs"], ["__/__/etc/x.png", "abs.png"]),
        (["", "a:b"], ["_.png", "a_b.png"]),
        (["v1.5"], ["v1.5.png"]),
    ],
)
def test_keys_become_files_that_stay_in_their_folder(keys: list[str], names: list[str]) -> None:
    assert file_names(keys) == names


def test_files_never_fall_together() -> None:
    keys = ["x.jpg.jpg", "x.jpg", "x.png", "x.JPG", "x.jpg.1", "x"]
    assert len({name.lower() for name in file_names(keys)}) == len(keys)
