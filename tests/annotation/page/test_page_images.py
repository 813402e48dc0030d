"""Images of questions: orientation, crops and outlines."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_client import client, fetch_image, post, state
from page_rounds import COLOURS, image_questions, pixel_questions
from PIL import Image


def is_close(found: Any, wanted: tuple[int, int, int]) -> bool:
    return all(abs(a - b) <= 12 for a, b in zip(found, wanted, strict=True))


def outline_mask(crop: Image.Image) -> np.typing.NDArray[np.bool_]:
    """Return a mask of the outline's colour."""
    away = np.abs(np.asarray(crop, np.int16) - np.array([255, 230, 0], np.int16))
    return np.asarray(np.all(away <= 12, axis=2), np.bool_)


def test_an_image_is_upright_and_a_missing_file_falls_back_to_its_thumbnail(tmp_path: Path) -> None:
    store = image_questions(tmp_path, 2)
    file = Path(store.question_round(1).questions[0].original_path)
    turned = Image.new("RGB", (40, 20), "white")
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(file, "JPEG", exif=exif)
    page = client(tmp_path)
    assert fetch_image(page, "/image/whole/1/1").size == (20, 40)
    assert fetch_image(page, "/image/whole/1/2").size == (160, 120)
    Path(store.question_round(1).questions[1].original_path).unlink()
    again = client(tmp_path)
    assert fetch_image(again, "/image/whole/1/2").size == (64, 48)
    assert [one["gone"] for one in state(again)["next"]] == [False, True]
    (store.round_folder(1) / "thumbnails" / "0002.png").unlink()
    assert client(tmp_path).get("/image/whole/1/2").status_code == 404


@pytest.mark.parametrize("zoom", [-9, -1, 0, 1, 9])
def test_a_crop_shows_the_question_pixel(tmp_path: Path, zoom: int) -> None:
    pixel_questions(tmp_path)
    page = client(tmp_path)
    crop = fetch_image(page, f"/image/crop/1/3?zoom={zoom}")  # y 17, x 33: the green square's corner
    assert max(crop.size) == 720
    # Find the light outline in the image; inside it is the pixel's own colour.
    ys, xs = np.nonzero(outline_mask(crop))
    left, right, top, bottom = int(xs.min()), int(xs.max()), int(ys.min()), int(ys.max())
    assert is_close(crop.getpixel(((left + right) // 2, (top + bottom) // 2)), COLOURS["green"])
    if zoom == 9:  # eight cells high: check the neighbouring cells
        cell = crop.height / 8
        x, y = (left + right) / 2, (top + bottom) / 2
        assert is_close(crop.getpixel((int(x - cell), int(y))), COLOURS["green"])
        assert is_close(crop.getpixel((int(x + cell), int(y))), COLOURS["blue"])
        assert is_close(crop.getpixel((int(x), int(y + cell))), COLOURS["blue"])


def test_a_crop_falls_back_to_the_overlay_when_the_file_is_missing(tmp_path: Path) -> None:
    pixel_questions(tmp_path)
    (tmp_path / "street.png").unlink()
    crop = fetch_image(client(tmp_path), "/image/crop/1/4?zoom=2")  # y 3, x 5: at the left edge
    assert is_close(crop.getpixel((crop.width // 2, crop.height - 3)), COLOURS["red"])


def test_the_whole_image_has_a_frame_where_the_crop_is(tmp_path: Path) -> None:
    pixel_questions(tmp_path)
    whole = fetch_image(client(tmp_path), "/image/context/1/5?zoom=2")
    assert whole.size == (800, 400)
    assert is_close(whole.getpixel((5, 5)), COLOURS["red"])
    white = np.argwhere((np.asarray(whole, np.int16) > 230).all(2))  # only the frame is white
    # 8 cells high and 4/3 as wide, in the lower right corner: 32 x 42.7 image pixels, 3.125 times enlarged.
    found = [*white.min(0)[::-1], *white.max(0)[::-1]]
    assert all(abs(a - b) <= 3 for a, b in zip(found, (667, 300, 799, 399), strict=True))
    assert fetch_image(client(tmp_path), "/image/tile/1/5").size == (224, 224)


def test_questions_in_one_segment_are_listed_and_outlined_together(tmp_path: Path) -> None:
    pixel_questions(tmp_path)
    page = client(tmp_path)
    questions = state(page)["next"]
    assert questions[0]["together"] == ["street.png#16,31", "street.png#17,33"]
    assert questions[3]["together"] == []
    alone = outline_mask(fetch_image(page, "/image/crop/1/1?zoom=2")).sum()
    all_three = outline_mask(fetch_image(page, "/image/crop/1/1?zoom=2&together=1&annotator=ada")).sum()
    assert all_three > alone > 0
    questions = post(page, ("street.png#16,31", "green"))["next"]
    assert questions[0]["together"] == ["street.png#17,33"]
