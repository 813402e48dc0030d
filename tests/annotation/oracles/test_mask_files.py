from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from commands import read_csv
from ducats.annotation import AnnotationStore, QuestionArea
from ducats.annotation.oracles import HumanOracle
from ducats.annotation.oracles.mask_files import png_names
from ducats.data.domain import VOID, Images
from ducats.ledger import Request
from ducats.utils.errors import AwaitingLabels, UserError

POOL = Images(("a/eins.png", "a/zwei.jpg", "drei"), torch.full((3, 3, 4, 6), 100, dtype=torch.uint8))
SIZES = torch.tensor([[4, 6], [8, 12], [4, 6]])  # the second is labelled at its original size
CLASSES = ["road", "sky"]
REQUEST = Request(1, torch.tensor([1, 1, 0, 0, 0, 1]), torch.tensor([95, 3, 7, 0, 23, 12]))


def human_oracle(folder: Path) -> HumanOracle:
    return HumanOracle(folder, POOL, CLASSES, SIZES)


def ask_again(round_folder: Path) -> torch.Tensor:
    return human_oracle(round_folder.parent)(REQUEST)


@pytest.fixture
def round_folder(tmp_path: Path) -> Path:
    message = r"waits for 6 of 6 pixels in 2 of 2 images; first: .*answers/a/eins.png is missing.*README.txt"
    with pytest.raises(AwaitingLabels, match=message):
        human_oracle(tmp_path)(REQUEST)
    return tmp_path / "round-01"


def save(path: Path, values: np.typing.NDArray[np.uint8], mode: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(values)
    (image.convert(mode) if mode else image).save(path)


def maps() -> tuple[np.typing.NDArray[np.uint8], np.typing.NDArray[np.uint8]]:
    """Return complete label maps; 77 at pixels that are not requested."""
    one, two = np.full(24, 77, np.uint8), np.full(96, 77, np.uint8)
    one[[7, 0, 23]] = [1, 255, 0]
    two[[95, 3, 12]] = [0, 1, 1]
    return one.reshape(4, 6), two.reshape(8, 12)


def test_masks_and_overlays_show_the_requested_pixels(round_folder: Path) -> None:
    mask = np.asarray(Image.open(round_folder / "masks" / "a" / "zwei.png"))
    assert (mask.shape, np.flatnonzero(mask).tolist(), mask.max()) == ((8, 12), [3, 12, 95], 255)
    overlay = np.asarray(Image.open(round_folder / "overlays" / "a" / "zwei.png"))
    assert overlay.shape == (8, 12, 3)
    assert overlay[7, 11].tolist() == [177, 177, 50]
    assert overlay[0, 0].tolist() == [35, 35, 35]
    assert (round_folder / "classes.txt").read_text() == "0 road\n1 sky\n254 not answered yet\n255 void\n"
    assert len((round_folder / "README.txt").read_text().splitlines()) == 4
    rows = read_csv(round_folder / "questions.csv")
    assert [(row["key"], row["pixels"], row["answer"]) for row in rows] == [
        ("a/eins.png", "3", "answers/a/eins.png"),
        ("a/zwei.jpg", "3", "answers/a/zwei.png"),
    ]


def test_label_maps_of_any_depth_are_answers(round_folder: Path) -> None:
    one, two = maps()
    (round_folder / "answers" / "a").mkdir(parents=True)
    palette = Image.fromarray(one)
    palette.putpalette([value for value in range(256) for _ in range(3)])
    palette.save(round_folder / "answers" / "a" / "eins.png")
    with pytest.raises(AwaitingLabels, match=r"3 of 6 pixels in 1 of 2 images; first: .*zwei.png is missing"):
        ask_again(round_folder)
    path = round_folder / "answers" / "a" / "zwei.png"
    partial = two.copy()
    partial[0, 3] = partial[7, 11] = 254
    save(path, partial)
    with pytest.raises(AwaitingLabels, match=r"2 of 6 pixels in 1 of 2 images; .* still has 254 at 2"):
        ask_again(round_folder)
    for depth in (np.uint8, np.uint16):
        Image.fromarray(two.astype(depth)).save(path)
        answers = ask_again(round_folder)
        assert (answers.tolist(), answers.dtype) == ([0, 1, 1, VOID, 0, 1], torch.int8)


def test_invalid_label_pngs_are_reported(round_folder: Path) -> None:
    one, two = maps()
    path = round_folder / "answers" / "a" / "zwei.png"
    save(round_folder / "answers" / "a" / "eins.png", one)
    two[7, 11] = 2
    for values, mode, words in (
        (two, None, r"zwei.png has the value 2 at x=11, y=7"),
        (one, None, r"zwei.png is 6 x 4, but its mask is 12 x 8"),
        (two, "RGB", r"zwei.png is a colour image"),
    ):
        save(path, values, mode)
        with pytest.raises(UserError, match=words):
            ask_again(round_folder)
    two[7, 11] = 0
    Image.fromarray(two.astype(np.uint8)).save(path, "JPEG")
    with pytest.raises(UserError, match=r"zwei.png is not a readable image \(its content is JPEG"):
        ask_again(round_folder)
    path.write_bytes(b"not an image")
    with pytest.raises(UserError, match=r"zwei.png is not a readable image"):
        ask_again(round_folder)


def test_many_classes_need_sixteen_bits(tmp_path: Path) -> None:
    request = Request(1, torch.tensor([2, 2]), torch.tensor([1, 2]))
    oracle = HumanOracle(tmp_path, POOL, [f"c{i}" for i in range(300)], SIZES)
    with pytest.raises(AwaitingLabels):
        oracle(request)
    answer = np.zeros((4, 6), np.uint16)
    answer[0, 1], answer[0, 2] = 299, 65535
    (tmp_path / "round-01" / "answers").mkdir()
    Image.fromarray(answer).save(tmp_path / "round-01" / "answers" / "drei.png")
    assert oracle(request).tolist() == [299, VOID]
    assert "65535 void" in (tmp_path / "round-01" / "classes.txt").read_text()


def test_a_whole_requested_image_is_not_dimmed(tmp_path: Path) -> None:
    request = Request(1, torch.zeros(24, dtype=torch.long), torch.arange(24), torch.tensor([24]))
    with pytest.raises(AwaitingLabels):
        human_oracle(tmp_path)(request)
    overlay = np.asarray(Image.open(tmp_path / "round-01" / "overlays" / "a" / "eins.png"))
    assert np.unique(overlay).tolist() == [100]


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
def test_file_names_stay_in_their_folder(keys: list[str], names: list[str]) -> None:
    assert png_names(keys) == names
    keys = ["x.jpg.jpg", "x.jpg", "x.png", "x.JPG", "x.jpg.1", "x"]
    assert len({name.lower() for name in png_names(keys)}) == len(keys)


# ---- one class name per unit, through the annotation store

REGIONS = Request(  # an L of three pixels, one pixel; and two in another image
    1,
    torch.tensor([0, 0, 0, 0, 2, 2]),
    torch.tensor([0, 6, 7, 23, 3, 4]),
    torch.tensor([3, 1, 2]),
)
IDS = ["a/eins.png#1,0", "a/eins.png#3,5", "drei#0,3"]


def region_oracle(folder: Path, **params: Any) -> HumanOracle:
    return HumanOracle(folder / "questions", POOL, CLASSES, SIZES, unit="region", **params)


def ask_regions(folder: Path, **params: Any) -> AnnotationStore:
    with pytest.raises(AwaitingLabels, match=r"with `ducats label .*README.txt.*`ducats push"):
        region_oracle(folder, **params)(REGIONS)
    return AnnotationStore(folder / "questions")


@pytest.fixture
def store(tmp_path: Path) -> AnnotationStore:
    return ask_regions(tmp_path)


def submit(store: AnnotationStore, question: str, word: str, annotator: str = "anna", **more: Any) -> None:
    answer = {"question": question, "word": word, "annotator": annotator, **more}
    assert store.receive([answer], channel="test")[0].reject_reason is None


def save_answers(store: AnnotationStore, name: str, labels: dict[tuple[int, int], int]) -> None:
    """Save a label PNG with answers at some pixels (y, x)."""
    values = np.full((4, 6), 254, np.uint8)
    for pixel, label in labels.items():
        values[pixel] = label
    save(store.round_folder(1) / "answers" / name, values)


def test_each_unit_has_a_question_with_its_pixels(store: AnnotationStore) -> None:
    question_round = store.question_round(1)
    assert [question.id for question in question_round.questions] == IDS
    assert question_round.questions[0].area == QuestionArea(1, 0, 4, 6, ((0, 1), (6, 2)))
    assert {q.image_path for q in question_round.questions} == {"overlays/a/eins.png", "overlays/drei.png"}
    rows = read_csv(question_round.folder / "pixels.csv")
    assert [(row["id"], row["y"], row["x"], row["pixels"]) for row in rows] == [
        (IDS[0], "1", "0", "3"),
        (IDS[1], "3", "5", "1"),
        (IDS[2], "0", "3", "2"),
    ]


def test_one_answer_labels_all_pixels_of_its_unit(store: AnnotationStore, tmp_path: Path) -> None:
    submit(store, IDS[0], "sky", seconds=2.0)
    submit(store, IDS[1], "void", seconds=1.0)
    with pytest.raises(AwaitingLabels, match=r"2 of 6 pixels in 1 of 2 images; .*drei.png is missing"):
        region_oracle(tmp_path)(REGIONS)
    (store.round_folder(1) / "answers.csv").write_text("key,y,x,label\ndrei,0,3,road\n")
    oracle = region_oracle(tmp_path)
    labels = oracle(REGIONS)
    assert (labels.tolist(), labels.dtype) == ([1, 1, 1, VOID, 0, 0], torch.int8)
    seconds = oracle.annotation_seconds(REGIONS)
    assert seconds is not None
    assert seconds.tolist() == [2.0, 1.0, 0.0]


def test_label_pngs_fill_open_questions(store: AnnotationStore, tmp_path: Path) -> None:
    submit(store, IDS[0], "sky")
    save_answers(store, "a/eins.png", {(3, 5): 255})
    with pytest.raises(AwaitingLabels, match="2 of 6 pixels in 1 of 2 images"):
        region_oracle(tmp_path)(REGIONS)
    assert store.closed_round(1) is None
    save_answers(store, "drei.png", {(0, 3): 0, (0, 4): 1})  # a PNG may split a unit
    assert region_oracle(tmp_path)(REGIONS).tolist() == [1, 1, 1, VOID, 0, 1]
    assert store.receive([{"question": IDS[1], "word": "road"}], channel="test")[0].reject_reason == "late"
    assert region_oracle(tmp_path)(REGIONS).tolist() == [1, 1, 1, VOID, 0, 1]


def test_units_of_another_request_are_refused(store: AnnotationStore, tmp_path: Path) -> None:
    submit(store, IDS[0], "sky")
    other = Request(1, REGIONS.image, torch.tensor([0, 6, 1, 23, 3, 4]), REGIONS.unit_sizes)
    with pytest.raises(UserError, match="do not match the run's request"):
        region_oracle(tmp_path)(other)


def test_a_png_that_contradicts_an_answer_is_reported(store: AnnotationStore, tmp_path: Path) -> None:
    submit(store, IDS[0], "sky")
    save_answers(store, "a/eins.png", {(0, 0): 1, (1, 1): 0})
    with pytest.raises(UserError, match=r"at x=1, y=1 is road, which contradicts .*#1,0' \(anna: sky\)"):
        region_oracle(tmp_path)(REGIONS)
    assert store.closed_round(1) is None


def test_disputes_about_pixels_are_reported(tmp_path: Path) -> None:
    store = ask_regions(tmp_path, rule="unanimous")
    submit(store, IDS[2], "sky", "anna")
    submit(store, IDS[2], "void", "bob")
    with pytest.raises(AwaitingLabels, match=r"'drei#0,3': anna: sky, bob: void"):
        region_oracle(tmp_path, rule="unanimous")(REGIONS)


def test_a_partly_labelled_unit_is_dropped_at_the_time_limit(tmp_path: Path) -> None:
    store = ask_regions(tmp_path, max_seconds=lambda _: 3.0)
    # A third of the first unit, all of the second.
    save_answers(store, "a/eins.png", {(0, 0): 0, (3, 5): 0})
    submit(store, IDS[2], "sky", seconds=3.0)
    assert region_oracle(tmp_path)(REGIONS).tolist() == [-1, -1, -1, 0, 1, 1]


@pytest.mark.parametrize("reason", ["many", "whole", "unit"])
def test_some_rounds_need_label_pngs(tmp_path: Path, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request, unit = REGIONS, "image" if reason == "unit" else "region"
    if reason == "many":
        monkeypatch.setattr("ducats.annotation.oracles.human.MAX_LISTED_QUESTIONS", 2)
    elif reason == "whole":
        request = Request(1, torch.zeros(24, dtype=torch.long), torch.arange(24), torch.tensor([24]))
    oracle = HumanOracle(tmp_path / "questions", POOL, CLASSES, SIZES, unit=unit)
    with pytest.raises(AwaitingLabels, match=r"is missing. To answer, see .*README.txt"):
        oracle(request)
    folder = tmp_path / "questions" / "round-01"
    assert not (folder / "rules.json").exists()
    for name in ("a/eins.png", "drei.png"):
        save(folder / "answers" / name, np.ones((4, 6), np.uint8))
    assert oracle(request).tolist() == [1] * len(request)
    assert oracle.annotation_seconds(request) is None


def test_a_class_in_classes_txt_can_be_edited_while_the_run_waits(tmp_path: Path) -> None:
    oracle, folder = human_oracle(tmp_path), tmp_path / "round-01"
    with pytest.raises(AwaitingLabels):
        oracle(REQUEST)
    written = (folder / "classes.txt").read_text()
    for name, values in zip(("a/eins.png", "a/zwei.png"), maps(), strict=True):
        (folder / "classes.txt").write_text(written + "2 poel\n")
        with pytest.raises(AwaitingLabels):
            oracle(REQUEST)
        save(folder / "answers" / name, np.where(values == 1, 2, values).astype(np.uint8))
    (folder / "classes.txt").write_text(written + "2 pole\n")
    assert oracle(REQUEST).max() == 2
    assert oracle.classes.names == ("road", "sky", "pole")
