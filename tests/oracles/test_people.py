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

POOL = Images(
    tuple(f"sub dir/ü{i},x.png" for i in range(6)),
    torch.arange(6 * 3 * 4 * 4, dtype=torch.uint8).reshape(6, 3, 4, 4),
)
ASKED = Request(2, torch.tensor([4, 1, 3]), torch.zeros(3, dtype=torch.long))


@pytest.fixture
def round_folder(tmp_path: Path) -> Path:
    with pytest.raises(AwaitingLabels, match=r"round 2 waits for 3 labels: copy .*questions.csv"):
        People(tmp_path, POOL, ["cat", "dog"])(ASKED)
    return tmp_path / "round-02"


def answer(folder: Path, *lines: str, header: str = "key,label") -> torch.Tensor:
    (folder / "answers.csv").write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return People(folder.parent, POOL, ["cat", "dog"])(ASKED)


def key(image: int) -> str:
    return f'"{POOL.keys[image]}"'


def test_questions_name_images_and_show_them(round_folder: Path) -> None:
    with (round_folder / "questions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["key"] for row in rows] == [POOL.keys[i] for i in (4, 1, 3)]
    assert [row["label"] for row in rows] == ["", "", ""]
    shown = Image.open(round_folder / rows[0]["thumbnail"])
    assert shown.size == (256, 256)
    assert shown.resize((4, 4), Image.Resampling.NEAREST).getpixel((0, 0)) == tuple(
        POOL.pixels[4, :, 0, 0].tolist()
    )
    assert (round_folder / "classes.txt").read_text().split() == ["cat", "dog"]


def test_thumbnails_show_the_file_not_the_stored_squash(tmp_path: Path) -> None:
    wide = Image.new("RGBA", (300, 100), (255, 0, 0, 0))  # transparent: seen on white
    wide.paste((0, 0, 255, 255), (0, 0, 150, 100))
    wide.save(tmp_path / "wide.png")
    pool = Images(("wide.png",), torch.zeros(1, 3, 4, 4, dtype=torch.uint8), (tmp_path / "wide.png",))
    with pytest.raises(AwaitingLabels):
        People(tmp_path / "q", pool, ["cat", "dog"])(Request(1, torch.tensor([0]), torch.tensor([0])))
    shown = Image.open(tmp_path / "q" / "round-01" / "thumbnails" / "0001.png")
    assert shown.size == (256, 85)
    assert shown.getpixel((20, 40)) == (0, 0, 255)
    assert shown.getpixel((230, 40)) == (255, 255, 255)


def asked_about(path: Path) -> Image.Image:
    """The thumbnail that a person sees of a file."""
    pool = Images((path.name,), torch.zeros(1, 3, 4, 4, dtype=torch.uint8), (path,))
    with pytest.raises(AwaitingLabels):
        People(path.parent / "q", pool, ["cat", "dog"])(Request(1, torch.tensor([0]), torch.tensor([0])))
    return Image.open(path.parent / "q" / "round-01" / "thumbnails" / "0001.png")


def test_sixteen_bits_are_shown_as_the_model_sees_them(tmp_path: Path) -> None:
    values = np.full((100, 300), 257 * 40, np.uint16)
    values[:, 150:] = 257 * 200
    Image.fromarray(values).save(tmp_path / "deep.png")
    shown = asked_about(tmp_path / "deep.png")
    assert [shown.getpixel((x, 40)) for x in (20, 230)] == [(40, 40, 40), (200, 200, 200)]


def test_a_file_that_has_gone_bad_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"bad\.png cannot be read as a picture"):
        asked_about(tmp_path / "bad.png")


def test_answers_in_any_order_with_spare_columns_and_excel_marks(round_folder: Path) -> None:
    lines = [f"3,{key(3)},dog ", f"1,{key(4)},cat", f"2,{key(1)},Void"]
    labels = answer(round_folder, *lines, header="\ufeffnumber,key,label")
    assert labels.tolist() == [0, VOID, 1]


def test_the_filled_in_questions_are_answers(round_folder: Path) -> None:
    with (round_folder / "questions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with (round_folder / "answers.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows([row | {"label": "dog"} for row in rows])
    assert People(round_folder.parent, POOL, ["cat", "dog"])(ASKED).tolist() == [1, 1, 1]


def test_some_answers_are_kept_waiting_for_the_rest(round_folder: Path) -> None:
    with pytest.raises(
        AwaitingLabels,
        match=r"waits for 2 of 3 labels, first 'sub dir/ü1,x.png'",
    ):
        answer(round_folder, f"{key(4)},cat", f"{key(1)},")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([f"{key(4)},bird"], "line 2: 'bird' is no class; write one of: cat, dog"),
        ([f"{key(4)},cat", f"{key(4)},cat"], "line 3: .* is answered again to line 2; keep one"),
        ([f"{key(4)},cat", f"{key(4)},dog"], "line 3: .* is answered in contradiction to line 2; keep one"),
        ([f"{key(0)},cat"], "line 2: .* was not asked in this round; remove the line"),
    ],
)
def test_bad_answers_are_one_sentence_and_change_nothing(
    round_folder: Path, lines: list[str], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        answer(round_folder, *lines)
    assert len((round_folder / "answers.csv").read_text(encoding="utf-8").splitlines()) == len(lines) + 1


def test_a_file_without_the_columns(round_folder: Path) -> None:
    with pytest.raises(UserError, match=r"needs the columns `key` and `label`"):
        answer(round_folder, "a|b", header="key|label")


def test_answers_of_a_spreadsheet_with_semicolons_and_capitals(round_folder: Path) -> None:
    lines = [
        f"{number};{key(image)};{word}"
        for number, image, word in ((1, 4, "CAT"), (2, 1, "dog"), (3, 3, "Dog"))
    ]
    assert answer(round_folder, *lines, header="number;key;label").tolist() == [0, 1, 1]


def test_the_contact_sheet_shows_every_question(round_folder: Path) -> None:
    page = (round_folder / "questions.html").read_text(encoding="utf-8")
    assert page.count("<img") == 3
    assert all(name in page for name in ("cat", "dog", "sub dir/ü4,x.png", "thumbnails/0001.png"))


def test_a_file_that_is_no_text(round_folder: Path) -> None:
    (round_folder / "answers.csv").write_bytes(b"key,label\n\xff\xfe,cat\n")
    with pytest.raises(UserError, match=r"CSV UTF-8"):
        People(round_folder.parent, POOL, ["cat", "dog"])(ASKED)


def test_asking_again_does_not_write_the_questions_again(round_folder: Path) -> None:
    before = (round_folder / "questions.csv").stat().st_mtime_ns
    with pytest.raises(AwaitingLabels):
        People(round_folder.parent, POOL, ["cat", "dog"])(ASKED)
    assert (round_folder / "questions.csv").stat().st_mtime_ns == before
