"""Findings of the doctor about segmentation data and plans."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import tiny_segmentation_data
from doctor_findings import (
    contains_words,
    error_messages,
    messages,
    note_messages,
    run_error,
    warning_messages,
)
from ducats.config import Config, load_config
from ducats.data.domain import AdaptationData, Domain, Images
from ducats.data.registry import DATASETS
from ducats.data.segmentation.reader import SegmentationReader
from ducats.data.store import ReadFailure, try_files
from ducats.doctor import diagnose, verdict
from ducats.doctor import label_maps as maps_module
from ducats.doctor import plan as plan_module
from ducats.models import MODELS
from ducats.models.output import Output

SETTINGS = (
    "model={name: small_fcn, params: {width: 4, dilations: [1]}, evidence: exp_at_most_10}",
    "train.epochs=10",
    "acquisition={budget: 10%, rounds: 2}",
    "engine.device=cpu",
)
Edit = Callable[[Path], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tiny_segmentation_data.write_tree(tmp_path / "data")


def make_config(root: Path, *settings: str, **params: Any) -> Config:
    given: dict[str, Any] = {role: root / role for role in ("source", "target", "test")}
    given |= {"classes": root / "classes.txt", "size": [12, 16], "ground_truth": True, **params}
    relative = {name: root / value[1:] for name, value in given.items() if str(value).startswith("@")}
    texts = {name: str(value) for name, value in (given | relative).items() if isinstance(value, Path)}
    return load_config(["segmentation"], [*SETTINGS, *settings], {"data": {"params": {**given, **texts}}})


def save(array: NDArray[Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def nothing(root: Path) -> None:
    pass


# ---- valid data


def test_valid_folders_have_notes_only(root: Path) -> None:
    findings = diagnose(make_config(root))
    assert {finding.severity for finding in findings} == {"note"}
    notes = messages(findings, "note")
    for role in ("source", "target", "test"):
        assert contains_words(notes, f"{role}: 4 images with label maps, 10.0 % of their pixels void")
    assert contains_words(
        notes, "76 pixels", "of 4 images of the target", "19 per image, 9 to 10 per image and round"
    )
    assert contains_words(notes, "38 + 38 in total after epoch 2, 4 of 10", "task.resolution=network")
    assert contains_words(notes, "decoded images and label maps take less than 0.01 GB")
    assert verdict(findings)[1] == 0
    assert {finding.severity for finding in diagnose(make_config(root, source_size=[16, 20]))} == {"note"}


def test_synthetic_streets_are_valid() -> None:
    findings = diagnose(load_config(["data/streets"], ["data.params={n_source: 30, n_pool: 3, n_test: 20}"]))
    assert messages(findings, "error") == []
    for words in ("source: 30 images with label maps, 0.0 %", "target: 3 images with label maps, 10.9 %"):
        assert contains_words(messages(findings, "note"), words)


@pytest.mark.parametrize("config_name", ["gtav-cityscapes", "synthia-cityscapes", "carla-camvid"])
def test_benchmarks_with_missing_files(config_name: str, root: Path) -> None:
    given = {"source": str(root / "none"), "target": str(root)}
    config = load_config([f"data/{config_name}"], SETTINGS, {"data": {"params": given}})
    assert contains_words(error_messages(config)[:1], str(root / "none"), "does not contain")
    assert run_error(config, root / "run") == error_messages(config)[0]


def test_a_benchmark_with_and_without_target_labels(tmp_path: Path) -> None:
    carla, camvid, size = tmp_path / "carla", tmp_path / "camvid", tiny_segmentation_data.SIZE
    tags = np.resize(np.arange(29), size).astype(np.uint8)
    for number in range(3):
        for folder in (carla / "images", camvid / "train", camvid / "test"):
            image, _ = tiny_segmentation_data.scene(10 * number + len(folder.parts[-1]))
            save(image, folder / f"{number}.png")
        save(np.stack([tags, tags, 0 * tags], -1), carla / f"labels/{number}.png")
    params = {"source": str(carla), "target": str(camvid), "size": [12, 16]}
    config = load_config(["data/carla-camvid"], SETTINGS, {"data": {"params": params}})
    findings = diagnose(config)
    assert messages(findings, "error") == []
    assert contains_words(messages(findings, "note"), "target: 3 images without labels")
    assert contains_words(messages(findings, "note"), "human annotators label")
    for number in range(3):
        for split, n_ids in (("train", 12), ("test", 14)):
            save(np.resize(np.arange(n_ids), size).astype(np.uint8), camvid / f"{split}annot/{number}.png")
    findings = diagnose(config)
    assert contains_words(messages(findings, "note"), "source: 3 images with label maps")
    assert contains_words(messages(findings, "note"), "target: 3 images with label maps, 8.3 %")
    assert contains_words(
        messages(findings, "error"), "label files of the test", "id 12", "id 13", "data.params.extra_ids"
    )


def test_an_unlabelled_target_needs_human_annotators(root: Path) -> None:
    mask = np.zeros(tiny_segmentation_data.SIZE, np.uint8)
    mask[:5] = 255
    for number in range(4):
        save(mask, root / f"target/masks/{100 + number}.png")
    findings = diagnose(make_config(root, "acquisition.budget=20/image", ground_truth=False))
    assert {finding.severity for finding in findings} == {"note"}
    notes = messages(findings, "note")
    assert contains_words(notes, "target: 4 images without labels; masks exclude 25.0 % of the pixels")
    assert contains_words(notes, "80 pixels", "20 per image, 10 per image and round; 40 + 40 in total")
    assert contains_words(notes, "human annotators label 40 pixels in each of 2 rounds", "label PNGs")


# ---- errors that a run raises, too


@pytest.mark.parametrize(
    ("edit", "settings", "params", "words"),
    [
        (nothing, (), {"target": "@none"}, "does not exist"),
        (nothing, (), {"test": "@test/images"}, "there is no folder"),
        (nothing, (), {"classes": "@none.txt"}, "cannot be read"),
        (nothing, (), {"target": "@source"}, "source and target are the same folder"),
        (nothing, (), {"sizes": 3}, "has no parameter 'sizes'"),
        (nothing, (), {"size": "big"}, "[height, width], not 'big'"),
        (nothing, (), {"size": [1, 2, 3]}, "[height, width]"),
        (nothing, (), {"void_pixels": "perhaps"}, "excluded or queried"),
        (lambda root: (root / "source/labels/000.png").unlink(), (), {}, "have no label file"),
        (lambda root: (root / "source/images/001.png").unlink(), (), {}, "have no image"),
        (
            lambda root: (root / "source/labels/000.png").rename(root / "source/labels/000.jpg"),
            (),
            {},
            "lossy format, such as 000.jpg",
        ),
        (nothing, ("acquisition.budget=200/image",), {}, "200 pixels of image 0, which has 192"),
        (nothing, ("acquisition.budget='5 %%'",), {}, "must be a count"),
        (nothing, ("acquisition.budget=0%",), {}, "rounds without pixels"),
        (nothing, ("acquisition.budget=1",), {}, "at least one of 2 rounds without pixels"),
        (nothing, ("views.test={crop: center, size: 8}",), {}, "views.test must show whole images"),
        (nothing, ("views.scoring={crop: none, size: [6, 8]}",), {}, "views.scoring must show whole"),
        (nothing, ("views.test.flip=0.5",), {}, "evaluation.average_flipped"),
        (nothing, ("views.source.randaugment=[2, 10]",), {}, "not their label maps"),
        (
            nothing,
            ("views.source={crop: random, size: [13, 8]}",),
            {},
            "views.source takes a random crop of 8 x 13 pixels from images stored as 16 x 12",
        ),
        (nothing, ("evaluation.miou_star_exclude=[horse]",), {}, "'horse', but the classes are road, car"),
        (nothing, ("evaluation.miou_star_exclude=[road, car, sky]",), {}, "leave at least one"),
        (
            nothing,
            ("task={name: classification, unit: image}",),
            {},
            "'segmentation_folders' has one label per pixel",
        ),
        (nothing, ("model={name: small_cnn}",), {}, "'small_cnn' outputs one class per image"),
        (nothing, ("query={name: ripu}",), {}, "undefined for single pixels"),
    ],
)
def test_a_run_raises_what_the_doctor_reports(
    root: Path, edit: Edit, settings: tuple[str, ...], params: dict[str, Any], words: str
) -> None:
    edit(root)
    config = make_config(root, *settings, **params)
    errors = error_messages(config)
    assert words in errors[0]
    assert run_error(config, root / "run") == errors[0]


def test_superpixels_need_scikit_image(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(root, "task.unit=superpixel", "task.n_superpixels=4", "query={name: random}")
    assert error_messages(config) == []
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    assert contains_words(error_messages(config)[:1], "needs scikit-image", "ducats[superpixels]")
    assert run_error(config, root / "run") == error_messages(config)[0]


# ---- files


def test_broken_and_missing_files_are_all_named(root: Path) -> None:
    whole = (root / "target/images/101.png").read_bytes()
    (root / "target/images/101.png").write_bytes(whole[: len(whole) // 2])
    (root / "source/labels/000.png").unlink()
    (root / "source/images/001.png").unlink()
    (root / "source/labels/002.png").write_bytes(b"")
    (root / "test/images/203.png").write_text("<html>")
    with Image.open(root / "target/labels/102.png") as opened:
        opened.resize((15, 10), Image.Resampling.NEAREST).save(root / "target/labels/102.png")
    found = error_messages(make_config(root))
    for words in (
        ("1 of 3 images", "source/images have no label file", "000.png"),
        ("1 of 3 label files", "source/labels have no image", "001.png"),
        ("1 of 2 label files of the source cannot be read", "002.png"),
        ("1 of 4 images of the target cannot be read", "101.png"),
        ("1 of 4 label files of the target differ in size", "102.png is 10 x 15", "is 20 x 30"),
        ("1 of 4 images of the test cannot be read", "203.png (not an image)"),
    ):
        assert contains_words(found, *words), words
    assert len(found) == 6


def test_copies_across_roles(root: Path) -> None:
    (root / "test/images/200.png").write_bytes((root / "target/images/101.png").read_bytes())
    assert contains_words(
        error_messages(make_config(root)), "1 image of the test is also in the target", "101.png", "200.png"
    )


def test_parameters_of_a_wrong_type(root: Path) -> None:
    assert contains_words(error_messages(make_config(root, memory_gb="much")), "memory_gb is 'much'")
    assert contains_words(error_messages(make_config(root, source=5)), "cannot be listed", "TypeError")


# ---- classes


def test_unknown_ids_are_named_with_their_pixels(root: Path) -> None:
    for number in (0, 2):
        path = root / f"source/labels/{number:03d}.png"
        ids = np.array(Image.open(path))
        ids[0, :5], ids[1, 0] = 9, 13
        Image.fromarray(ids).save(path)
    (message,) = error_messages(make_config(root))
    assert f"id 9 (10 pixels in 2 files, first {root / 'source/labels/000.png'})" in message
    assert "id 13 (2 pixels in 2 files" in message
    assert "data.params.classes" in message


def test_classes_that_never_occur(root: Path) -> None:
    (root / "classes.txt").write_text(tiny_segmentation_data.CLASS_LIST + "8 tram\n9 bicycle\n")
    found = warning_messages(make_config(root))
    assert contains_words(
        found, "the source has no pixels of 'tram', 'bicycle'", "target pixels", "data.params.keep_classes"
    )
    assert contains_words(found, "the test has no pixels of 'tram', 'bicycle'", "cannot be evaluated")
    assert warning_messages(make_config(root, keep_classes=["road", "car", "sky"])) == []


@pytest.mark.parametrize(("label", "words"), [(7, "only one class, 'sky'"), (255, "only void pixels")])
def test_a_source_of_one_class_or_none(root: Path, label: int, words: str) -> None:
    for path in (root / "source/labels").iterdir():
        save(np.full(tiny_segmentation_data.SIZE, label, np.uint8), path)
    assert contains_words(error_messages(make_config(root)), f"the source has {words}")


def test_large_sets_are_sampled_and_this_is_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps_module, "FULL_CHECK_LIMIT", 3)
    monkeypatch.setattr(maps_module, "N_SAMPLED_FILES", 2)
    (root / "classes.txt").write_text(tiny_segmentation_data.CLASS_LIST + "8 tram\n")
    for role, number in (("source", 1), ("target", 102)):  # of four, the first and the third are read
        (root / role / f"labels/{number:03d}.png").write_bytes(b"")
    (root / "test/images/201.png").write_bytes(b"")
    findings = diagnose(make_config(root))
    errors, notes = messages(findings, "error"), messages(findings, "note")
    assert not contains_words(errors, "label files of the source")
    assert contains_words(errors, "1 of 4 label files of the target (2 of 4 checked", "102.png")
    # Every header is still read.
    assert contains_words(errors, "1 of 4 images of the test (2 of 4 checked", "201.png")
    assert contains_words(notes, "source: 4 images with label maps (2 of 4 checked, evenly spaced)")
    # A rare class may be in the other files.
    assert contains_words(notes, "the source has no pixels of 'tram' in the 2 label maps that were checked")
    assert messages(findings, "warning") == []


def test_label_files_are_read_one_by_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[Any] = []

    def recorded(fn: Any, paths: Sequence[Path], *more: Any) -> Any:
        for outcome in try_files(fn, paths, *more):
            outcomes.append(outcome)
            yield outcome

    monkeypatch.setattr(maps_module, "try_files", recorded)
    diagnose(make_config(root))
    assert outcomes
    # Only a few numbers of each file are kept, never its pixels.
    assert all(isinstance(one, ReadFailure | tuple) or np.size(one) <= 4 for one in outcomes)


def build_data(invalid_index: int = 0) -> AdaptationData:
    pixels = torch.arange(5 * 3 * 16 * 16).remainder(251).to(torch.uint8).view(5, 3, 16, 16)
    labels = torch.arange(16 * 16).remainder(2).to(torch.int8).view(1, 16, 16).repeat(3, 1, 1)
    labels[0, 0, 0] = invalid_index
    images = [
        Images(tuple(f"{role}{i}" for i in range(n)), pixels[:n] + k)
        for k, (role, n) in enumerate((("s", 3), ("t", 2)))
    ]
    return AdaptationData(Domain(images[0], labels, ("a", "b")), images[1], ground_truth=labels[:2])


def test_built_label_maps_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "own_maps", sys.modules[__name__])
    findings = diagnose(load_config(["segmentation"], [*SETTINGS, "data={name: 'own_maps:build_data'}"]))
    assert messages(findings, "error") == []
    assert contains_words(messages(findings, "note"), "source: 3 images with label maps, 0.0 %")
    assert contains_words(messages(findings, "note"), "evaluated on", "without the labelled ones")
    wrong = "data={name: 'own_maps:build_data', params: {invalid_index: 7}}"
    found = error_messages(load_config(["segmentation"], [*SETTINGS, wrong]))
    assert contains_words(found, "source contain 7, which is not a class index", "0 to 1, or -2")
    own_task = ("task={name: classification, unit: image}", "data={name: 'own_maps:build_data'}")
    found = error_messages(load_config(["segmentation"], [*SETTINGS, *own_task]))
    assert contains_words(found, "has one label per pixel")


# ---- settings and plan


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("task.resolution=network",), "76 pixels"),
        (
            ("task.resolution=original",),
            "240 pixels (10 %) of 4 images of the target: 60 per image, 30 per image and round",
        ),
        (
            ("task.unit=image", "acquisition.budget=50%"),
            "2 whole images from 4 images of the target: 1 per round",
        ),
        (("acquisition.budget=1/image",), "4 pixels"),  # one pixel of half the images in each round
    ],
)
def test_the_budget_is_described(root: Path, settings: tuple[str, ...], words: str) -> None:
    findings = diagnose(make_config(root, *settings))
    assert contains_words(messages(findings, "note"), words)
    assert messages(findings, "error") == []


def test_budgets_of_images_of_several_sizes_and_without_held_out_images(root: Path) -> None:
    config = make_config(root, "evaluation={split: held_out, test_fraction: 0.25}", test=None)
    assert contains_words(note_messages(config), "57 pixels", "of 3 images of the target")
    tiny_segmentation_data.write_image(root / "target", 104, size=(40, 60))
    notes = note_messages(make_config(root, "task.resolution=original"))
    assert contains_words(notes, "480 pixels (10 %)", "60 to 240 per image, 30 to 120 per image and round")


@pytest.mark.parametrize(
    "settings",
    [
        ("views.source={crop: random, size: [12, 8], flip: 0.5}",),
        ("evaluation={miou_star_exclude: [car], average_flipped: true}",),
        *((f"query={{name: {query}}}",) for query in ("duc", "random", "entropy", "margin")),
        ("query={name: ripu}", "task.unit=region"),
    ],
)
def test_valid_settings(root: Path, settings: tuple[str, ...]) -> None:
    assert {finding.severity for finding in diagnose(make_config(root, *settings))} == {"note"}


def test_specs_say_whether_labels_and_logits_are_per_pixel() -> None:
    for name, spec in DATASETS.items():
        assert spec.per_pixel is (isinstance(spec.load, SegmentationReader) or name == "streets")
    with torch.no_grad():
        for name, model in MODELS.items():
            params = {} if name.startswith("small") else {"backbone": "resnet10t", "pretrained": False}
            output: Any = model.build(classes=2, channels=3, **params).eval()(torch.zeros(1, 3, 32, 32))
            logits = output[0] if isinstance(output, tuple | Output) else output
            assert model.per_pixel is (logits.ndim == 4)


@pytest.mark.parametrize("query", ["spread", "clue", "las"])
def test_more_clusters_than_k_means_can_make(root: Path, query: str) -> None:
    settings = f"query={{name: {query}}}", "acquisition={budget: 24%, rounds: 2}"
    stored = {"size": [300, 300]}  # 24 % of 90000 in two rounds: 10800
    found = error_messages(make_config(root, *settings, **stored))
    assert contains_words(found, f"{query!r} needs 10800 clusters", "maximum is 8192", "task.unit=image")
    for valid in (
        (*settings, "task.unit=region"),
        (*settings, "task.unit=superpixel"),
        (settings[0], "acquisition={budget: 18%, rounds: 2}"),
        settings[1:],
    ):
        assert error_messages(make_config(root, *valid, **stored)) == []


def test_memory_counts_images_and_label_maps(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "free_memory_gb", lambda: 8.0)
    large = {"size": [8192, 8192]}  # 12 images of 3 + 1 bytes per pixel
    notes = note_messages(make_config(root, **large, memory_gb=100))
    assert contains_words(notes, "decoded images and label maps take 3.00 GB; 100 GB may be kept")
    # The source takes 0.75 + 0.25 GB; no other array fits into the remaining 0.1 GB.
    notes = note_messages(make_config(root, **large, memory_gb=1.1, cache=str(root / "cache")))
    assert contains_words(notes, f"so 2.00 GB go to {root / 'cache'}")
    notes = note_messages(make_config(root, **large, memory_gb=100, ground_truth=False))
    assert contains_words(notes, "take 2.75 GB")


def test_the_origin_of_weights_is_reported(root: Path) -> None:
    config = make_config(root, "model={name: deeplab_v3plus, params: {backbone: resnet18}}")
    assert contains_words(note_messages(config), "the weights of timm's resnet18 are downloaded")
    found = error_messages(make_config(root, "model={name: deeplab_v2, params: {weights: none.pth}}"))
    assert contains_words(found, "the weights file", "none.pth")
