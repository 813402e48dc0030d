"""Questions as Label Studio tasks, and annotations as answers."""

import base64
import hashlib
import io
import itertools
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from fake_studio import choice
from PIL import Image
from studio_rounds import CLASSES, area_store, image_store, pixel_store

from ducats.annotation import AnnotationStore, RoundRules
from ducats.annotation.label_studio import label_config, rle
from ducats.annotation.label_studio.annotation_parser import parse_annotation
from ducats.annotation.label_studio.task_images import common_image_folder, make_image_factory
from ducats.annotation.label_studio.tasks import group_by_image, make_tasks, resize_mask, run_fingerprint
from ducats.utils.errors import UserError


def build_tasks(store: AnnotationStore, *, blind: bool = False, max_side: int = 1024) -> list[dict[str, Any]]:
    question_round = store.question_round(1)
    groups = list(group_by_image(question_round).values())
    images = make_image_factory("inline", None, max_side)
    tasks = list(make_tasks(question_round, groups, run_fingerprint(store), images, blind=blind))
    for task in tasks:
        check_task(task, question_round.rules)
    return tasks


def check_task(task: dict[str, Any], rules: RoundRules) -> None:
    """Check that a task matches the labelling config. The server does not check this."""
    view = ElementTree.fromstring(label_config.make_label_config(rules))
    control = next(tag for tag in view if tag.tag in label_config.RESULT_TYPE_BY_TAG)
    result_type = label_config.RESULT_TYPE_BY_TAG[control.tag]
    assert {"image", "round"} <= task["data"].keys()
    for prediction in task.get("predictions", ()):
        for region in prediction["result"]:
            tags = (region["from_name"], region["to_name"], region["type"])
            assert tags == (control.get("name"), control.get("toName"), result_type)
            assert region["value"][result_type][0] in {tag.get("value") for tag in control}


@pytest.mark.parametrize("name", ["a\x1bb", "a\nb", "\x00", "a\x85b", "\ud800"])
def test_a_class_name_with_a_control_character_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="control character; rename the class"):
        label_config.make_label_config(RoundRules(1, ("cat", name)))


def decode_image(task: dict[str, Any]) -> Image.Image:
    head, _, text = task["data"]["image"].partition(",")
    assert head in ("data:image/png;base64", "data:image/jpeg;base64")
    return Image.open(io.BytesIO(base64.b64decode(text)))


def square(y: int, x: int, side: int = 3) -> list[tuple[int, int]]:
    return list(itertools.product(range(y, y + side), range(x, x + side)))


def test_the_config_has_a_button_per_class_and_two_more() -> None:
    view = ElementTree.fromstring(label_config.make_label_config(RoundRules(1, CLASSES)))
    assert [(one.get("value"), one.get("hotkey")) for one in view.findall("Choices/Choice")] == [
        *zip(CLASSES, "123", strict=True),
        ("none of these", "v"),
        ("unsure", "u"),
    ]
    tags = {tag.tag: (tag.get("name"), tag.get("value"), tag.get("toName")) for tag in view}
    assert (tags["Image"], tags["Choices"]) == (("image", "$image", None), ("class", None, "image"))


@pytest.mark.parametrize(("unit", "tag"), [("pixel", "KeyPointLabels"), ("region", "BrushLabels")])
def test_the_config_of_pixels_also_has_a_label_for_open_questions(unit: str, tag: str) -> None:
    names = tuple(f"class {number}" for number in range(40))
    view = ElementTree.fromstring(label_config.make_label_config(RoundRules(1, names, unit=unit)))
    labels = view.findall(f"{tag}/Label")
    assert [one.get("value") for one in labels] == [*names, "none of these", "unsure", "?"]
    keys = [key for one in labels if (key := one.get("hotkey"))]
    assert len(keys) == len(set(keys)) == 24 + 2  # more classes than keys: the others need the mouse
    assert all(str(one.get("background")).startswith("#") for one in labels)


def test_classes_named_like_special_buttons() -> None:
    assert label_config.words_by_button_text(["?", "none of these", "none of these *"]) == {
        "?": "?",
        "none of these": "none of these",
        "none of these *": "none of these *",
        "none of these * *": "void",
        "unsure": "unsure",
        "? *": None,
    }
    assert label_config.button_text(None, ["?"]) == "? *"
    assert label_config.button_text("?", ["?"]) == "?"


def test_image_tasks_have_key_prediction_and_score(tmp_path: Path) -> None:
    store = image_store(tmp_path / "questions")
    first, second, *_ = found = build_tasks(store)
    assert [task["data"]["key"] for task in found] == list(store.question_round(1).by_id)
    asks = hashlib.sha256(b"cam/1-1.png").hexdigest()[:16]
    assert second["meta"] == {"run": run_fingerprint(store), "round": 1, "key": "cam/1-1.png", "asks": asks}
    assert second["data"]["questions"] == ["cam/1-1.png"]
    assert (second["data"]["round"], second["data"]["number"]) == (1, 2)
    assert (second["data"]["u_dis"], second["data"]["u_data"]) == (0.1, 0.2)
    result = [{"id": "q2", **choice("dog")[0]}]
    assert second["predictions"] == [{"model_version": "ducats-round-1", "score": 0.51, "result": result}]
    file = Image.open(store.question_round(1).questions[0].original_path)
    assert np.array_equal(np.asarray(decode_image(first)), np.asarray(file))
    assert decode_image(build_tasks(store, max_side=32)[0]).size == (32, 24)


def test_blind_tasks_have_no_predictions(tmp_path: Path) -> None:
    open_task = build_tasks(image_store(tmp_path / "a" / "questions"), blind=True)[0]
    assert "predictions" not in open_task
    assert not {"guess", "probability", "u_dis", "u_data", "score"} & open_task["data"].keys()
    pixels = build_tasks(pixel_store(tmp_path / "b" / "questions", [[(0, 0), (5, 7)]]), blind=True)[0]
    regions = pixels["predictions"][0]["result"]
    assert [region["value"]["keypointlabels"] for region in regions] == [["?"], ["?"]]
    assert "score" not in pixels["predictions"][0]


def test_missing_originals_use_the_thumbnail_and_large_images_are_jpeg(tmp_path: Path) -> None:
    store = image_store(tmp_path / "questions", 2)
    one, two = store.question_round(1).questions
    Path(one.original_path).unlink()
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(noise).save(two.original_path)
    small, large = build_tasks(store)
    assert decode_image(small).size == (32, 24)
    assert large["data"]["image"].startswith("data:image/jpeg")
    (store.question_round(1).folder / one.image_path).unlink()
    with pytest.raises(UserError, match=r"image of 'cam/1-0.png' cannot be read"):
        build_tasks(store)


def test_points_are_in_percent(tmp_path: Path) -> None:
    task = build_tasks(pixel_store(tmp_path / "questions", [[(0, 0), (39, 59)]]))[0]
    first, last = (region["value"] for region in task["predictions"][0]["result"])
    assert (first["x"], first["y"]) == pytest.approx((0.5 / 60 * 100, 0.5 / 40 * 100))
    assert (last["x"], last["y"]) == pytest.approx((59.5 / 60 * 100, 39.5 / 40 * 100))
    assert task["data"]["questions"] == ["street-0#0,0", "street-0#39,59"]


def point(column: float, row: float, text: str) -> dict[str, Any]:
    x, y = (column + 0.5) / 60 * 100, (row + 0.5) / 40 * 100
    return {"type": "keypointlabels", "value": {"x": x, "y": y, "keypointlabels": [text]}}


def test_points_are_assigned_to_their_pixels(tmp_path: Path) -> None:
    store = pixel_store(tmp_path / "questions", [list(itertools.product(range(0, 40, 3), range(0, 60, 3)))])
    question_round = store.question_round(1)
    questions, rules = question_round.questions, question_round.rules
    parsed = parse_annotation(build_tasks(store)[0]["predictions"][0]["result"], questions, rules)
    assert parsed == ({question.id: question.guess for question in questions}, 0, 0)
    too_large = {"type": "keypointlabels", "value": {"x": 10**400, "y": 0, "keypointlabels": ["dog"]}}
    drawn = [
        point(3.45, 0.45, "dog"),  # within its pixel
        point(7, 7, "dog"),  # outside the queried pixels
        point(0, 0, "cat"),
        point(0, 0, "none of these"),  # on top of it
        point(6, 6, "?"),  # still open
        point(9, 9, "unsure"),
        point(12, 12, "unicorn"),
        {"type": "keypointlabels", "value": {"keypointlabels": ["dog"]}},  # no position
        {"type": "choices", "value": {"choices": ["dog"]}},  # another type
        {"type": "keypointlabels", "value": None},
        too_large,
        point(float("nan"), 0, "dog"),
    ]
    words = {"0,3": "dog", "0,0": "void", "9,9": "unsure", "12,12": "unicorn"}
    expected = {f"street-0#{place}": word for place, word in words.items()}
    assert parse_annotation(drawn, questions, rules) == (expected, 2, 3)


def test_areas_round_trip(tmp_path: Path) -> None:
    store = area_store(tmp_path / "questions", [[square(0, 0), square(10, 20)], [square(5, 5)]], "region")
    question_round = store.question_round(1)
    first, second = build_tasks(store)
    assert decode_image(first).size == (60, 40)  # size of the grid: a mask matches pixel by pixel
    region = first["predictions"][0]["result"][1]
    mask = rle.decode_mask(region["value"]["rle"], region["original_height"], region["original_width"])
    expected = np.zeros((40, 60), dtype=np.bool_)
    expected[10:13, 20:23] = True
    assert np.array_equal(mask, expected)
    for task, questions in ((first, question_round.questions[:2]), (second, question_round.questions[2:])):
        parsed = parse_annotation(task["predictions"][0]["result"], questions, question_round.rules)
        assert parsed.words == {question.id: question.guess for question in questions}


def test_the_label_that_covers_most_of_an_area_counts(tmp_path: Path) -> None:
    store = area_store(
        tmp_path / "questions", [[square(0, 0, 4), square(20, 20, 4), square(30, 30, 4)]], "superpixel"
    )
    question_round = store.question_round(1)

    def stroke(text: str, rows: slice, columns: slice, size: tuple[int, int] = (40, 60)) -> dict[str, Any]:
        mask = np.zeros(size, dtype=np.bool_)
        mask[rows, columns] = True
        value = {"format": "rle", "rle": rle.encode_mask(mask), "brushlabels": [text]}
        return {"type": "brushlabels", "original_height": size[0], "original_width": size[1], "value": value}

    hostile: list[tuple[Any, Any]] = [(0, [0, 0, 0, 0, 57, 27, 248]), (float("inf"), [0]), (8, 10**18)]
    drawn = [
        stroke("cat", slice(0, 3), slice(0, 4)),  # 12 of 16
        stroke("dog", slice(2, 4), slice(0, 4)),  # 8
        stroke("?", slice(0, 40), slice(0, 60)),  # open: covers nothing
        stroke("dog", slice(40, 48), slice(60, 72), (80, 180)),  # at the original size: all of the second
        stroke("cat", slice(20, 24), slice(20, 24)),  # also all of it, and later
        {"type": "brushlabels", "value": {"rle": [1, 2], "brushlabels": ["cat"]}},
        *(
            {"type": "brushlabels", "original_height": height, "original_width": 5, "value": value}
            for height, values in hostile
            for value in [{"rle": values, "brushlabels": ["cat"]}]
        ),
    ]
    first, second, _ = (question.id for question in question_round.questions)
    parsed = parse_annotation(drawn, question_round.questions, question_round.rules)
    assert parsed == ({first: "cat", second: "cat"}, 0, 4)
    drawn[3], drawn[4] = drawn[4], drawn[3]
    assert parse_annotation(drawn, question_round.questions, question_round.rules).words[second] == "dog"


def test_masks_are_resized() -> None:
    mask = np.array([[True, False], [False, True]])
    large = resize_mask(mask, 4, 6)
    assert np.array_equal(large, np.kron(mask, np.ones((2, 3))) > 0)
    assert np.array_equal(resize_mask(large, 2, 2), mask)


def test_local_and_remote_images(tmp_path: Path) -> None:
    store = image_store(tmp_path / "questions", 2)
    question_round = store.question_round(1)
    question, folder = question_round.questions[0], tmp_path / "media" / "pool" / "cam"
    local = make_image_factory("local-files", tmp_path, 1024)(question_round, question)
    assert local == ("/data/local-files/?d=media/pool/cam/1-0.png", 48, 64)
    assert common_image_folder(question_round, tmp_path) == str(folder.resolve())
    with pytest.raises(UserError, match="cannot serve its document root"):
        common_image_folder(question_round, folder)
    with pytest.raises(UserError, match="is not below --document-root"):
        make_image_factory("local-files", tmp_path / "else", 1024)(question_round, question)
    web = make_image_factory("https://example.org/pool/", None, 1024)(question_round, question)
    assert web.url == "https://example.org/pool/cam/1-0.png"
    for images, root in (("local-files", None), ("inline", tmp_path), ("file:///etc", None)):
        with pytest.raises(UserError, match="--images"):
            make_image_factory(images, root, 1024)
    with pytest.raises(UserError, match="--max-side"):
        make_image_factory("inline", None, 0)


def test_the_fingerprint_does_not_change_when_the_run_is_moved(tmp_path: Path) -> None:
    one, other = image_store(tmp_path / "a" / "questions"), image_store(tmp_path / "b" / "questions", 3)
    before = run_fingerprint(one)
    assert run_fingerprint(other) != before
    (tmp_path / "a").rename(tmp_path / "c")
    assert run_fingerprint(AnnotationStore(tmp_path / "c" / "questions")) == before
