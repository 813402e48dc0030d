"""Findings of the doctor about segmentation data and plans."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tiny_segmentation_data
from doctor_findings import contains_words, error_messages, messages, note_messages, warning_messages
from ducats.config import Config, load_config
from ducats.data import DATASETS
from ducats.data.domain import AdaptationData, Domain, Images
from ducats.data.segmentation import SegmentationReader
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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tiny_segmentation_data.write_tree(tmp_path / "data")


def make_config(root: Path, *settings: str, **params: Any) -> Config:
    given: dict[str, Any] = {role: str(root / role) for role in ("source", "target", "test")}
    given |= {"classes": str(root / "classes.txt"), "size": [12, 16], "ground_truth": True}
    return load_config(["segmentation"], [*SETTINGS, *settings], {"data": {"params": {**given, **params}}})


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
    assert verdict(findings)[1] == 0


def test_synthetic_streets_are_valid() -> None:
    findings = diagnose(load_config(["data/streets"], ["data.params={n_source: 30, n_pool: 3, n_test: 20}"]))
    assert messages(findings, "error") == []
    assert contains_words(
        messages(findings, "note"), "source: 30 images with label maps, 0.0 % of their pixels void"
    )
    assert contains_words(
        messages(findings, "note"), "target: 3 images with label maps, 10.9 % of their pixels void"
    )


@pytest.mark.parametrize("config_name", ["gtav-cityscapes", "synthia-cityscapes", "carla-camvid"])
def test_benchmarks_with_missing_files(config_name: str, root: Path) -> None:
    given = {"source": str(root / "none"), "target": str(root)}
    found = error_messages(load_config([f"data/{config_name}"], SETTINGS, {"data": {"params": given}}))
    assert contains_words(found, str(root / "none"), "does not contain")


def test_a_benchmark_in_its_published_layout(tmp_path: Path) -> None:
    carla, camvid = tmp_path / "carla", tmp_path / "camvid"
    for number in range(3):
        for folder in (carla / "images", camvid / "train", camvid / "test"):
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(tiny_segmentation_data.scene(number + len(folder.parts[-1]))[0]).save(
                folder / f"{number}.png"
            )
        tags = np.resize(np.arange(29), tiny_segmentation_data.SIZE).astype(np.uint8)
        (carla / "labels").mkdir(exist_ok=True)
        Image.fromarray(np.stack([tags, tags, 0 * tags], -1)).save(carla / f"labels/{number}.png")
        for split in ("train", "test"):
            (camvid / f"{split}annot").mkdir(exist_ok=True)
            ids = np.resize(np.arange(12 if split == "train" else 14), tiny_segmentation_data.SIZE).astype(
                np.uint8
            )
            Image.fromarray(ids).save(camvid / f"{split}annot/{number}.png")
    params = {"source": str(carla), "target": str(camvid), "size": [12, 16]}
    findings = diagnose(load_config(["data/carla-camvid"], SETTINGS, {"data": {"params": params}}))
    assert contains_words(
        messages(findings, "note"), "source: 3 images with label maps", "% of their pixels void"
    )
    assert contains_words(
        messages(findings, "note"), "target: 3 images with label maps, 8.3 % of their pixels void"
    )
    assert contains_words(
        messages(findings, "error"), "label files of the test", "id 12", "id 13", "data.params.extra_ids"
    )


def test_a_benchmark_without_target_labels(tmp_path: Path) -> None:
    tags = np.resize(np.arange(29), tiny_segmentation_data.SIZE).astype(np.uint8)
    for number in range(3):
        for folder in ("carla/images", "camvid/train", "camvid/test"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            image = tiny_segmentation_data.scene(10 * number + len(folder))[0]
            Image.fromarray(image).save(tmp_path / folder / f"{number}.png")
        (tmp_path / "carla/labels").mkdir(exist_ok=True)
        Image.fromarray(np.stack([tags] * 3, -1)).save(tmp_path / f"carla/labels/{number}.png")
    given = {"source": str(tmp_path / "carla"), "target": str(tmp_path / "camvid"), "size": [12, 16]}
    findings = diagnose(load_config(["data/carla-camvid"], SETTINGS, {"data": {"params": given}}))
    assert messages(findings, "error") == []
    assert contains_words(messages(findings, "note"), "target: 3 images without labels")
    assert contains_words(messages(findings, "note"), "human annotators label")


def test_an_unlabelled_target_needs_human_annotators(root: Path) -> None:
    findings = diagnose(make_config(root, "acquisition.budget=20/image", ground_truth=False))
    assert {finding.severity for finding in findings} == {"note"}
    notes = messages(findings, "note")
    assert contains_words(notes, "target: 4 images without labels")
    assert contains_words(notes, "80 pixels", "20 per image, 10 per image and round; 40 + 40 in total")
    assert contains_words(notes, "human annotators label 40 pixels in each of 2 rounds", "label PNGs")


def test_the_share_of_masked_pixels_is_reported(root: Path) -> None:
    for number in range(4):
        mask = np.zeros(tiny_segmentation_data.SIZE, np.uint8)
        mask[:5] = 255
        path = root / f"target/masks/{100 + number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(mask).save(path)
    assert contains_words(
        note_messages(make_config(root, ground_truth=False)),
        "4 images without labels; masks exclude 25.0 % of the pixels",
    )


# ---- files


def test_broken_images_and_label_files_are_named(root: Path) -> None:
    whole = (root / "source/images/001.png").read_bytes()
    (root / "source/images/001.png").write_bytes(whole[: len(whole) // 2])
    (root / "source/labels/002.png").write_bytes(b"")
    (root / "test/images/203.png").write_text("<html>")
    found = error_messages(make_config(root))
    assert contains_words(found, "1 of 4 images of the source cannot be read", "001.png")
    assert contains_words(found, "1 of 4 label files of the source cannot be read", "002.png")
    assert contains_words(found, "1 of 4 images of the test cannot be read", "203.png (not an image)")
    assert len(found) == 3


def test_missing_partners_on_both_sides_are_reported_and_the_rest_is_checked(root: Path) -> None:
    (root / "source/labels/000.png").unlink()
    (root / "source/images/001.png").unlink()
    (root / "source/labels/002.png").write_bytes(b"")
    (root / "test/labels/200.png").unlink()
    found = error_messages(make_config(root))
    assert contains_words(found, "1 of 3 images", "source/images have no label file", "000.png")
    assert contains_words(found, "1 of 3 label files", "source/labels have no image", "001.png")
    assert contains_words(found, "1 of 4 images", "test/images have no label file", "200.png")
    assert contains_words(found, "1 of 2 label files of the source cannot be read", "002.png")


def test_missing_folders_and_class_lists(root: Path) -> None:
    assert contains_words(
        error_messages(make_config(root, target=str(root / "none"))), "target folder", "does not exist"
    )
    assert contains_words(
        error_messages(make_config(root, test=str(root / "test/images"))),
        "there is no folder",
        "test/images/images",
    )
    assert contains_words(
        error_messages(make_config(root, classes=str(root / "none.txt"))), "class list", "cannot be read"
    )
    assert contains_words(
        error_messages(make_config(root, target=str(root / "source"))),
        "source and target are the same folder",
    )


def test_sizes_that_differ(root: Path) -> None:
    with Image.open(root / "target/labels/101.png") as opened:
        opened.resize((15, 10), Image.Resampling.NEAREST).save(root / "target/labels/101.png")
    found = error_messages(make_config(root))
    assert contains_words(
        found, "1 of 4 label files of the target differ in size", "101.png is 10 x 15", "is 20 x 30"
    )


def test_lossy_label_files(root: Path) -> None:
    with Image.open(root / "source/labels/000.png") as opened:
        opened.convert("RGB").save(root / "source/labels/000.jpg")
    (root / "source/labels/000.png").unlink()
    assert contains_words(error_messages(make_config(root)), "lossy format, such as 000.jpg", "use PNG")


def test_copies_across_roles(root: Path) -> None:
    (root / "test/images/200.png").write_bytes((root / "target/images/101.png").read_bytes())
    assert contains_words(
        error_messages(make_config(root)), "1 image of the test is also in the target", "101.png", "200.png"
    )


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
        found,
        "the source has no pixels of 'tram', 'bicycle'",
        "labelled target pixels",
        "data.params.keep_classes",
    )
    assert contains_words(found, "the test has no pixels of 'tram', 'bicycle'", "cannot be evaluated")
    assert warning_messages(make_config(root, keep_classes=["road", "car", "sky"])) == []


def test_a_source_of_one_class_or_none(root: Path) -> None:
    for path in (root / "source/labels").iterdir():
        Image.fromarray(np.full(tiny_segmentation_data.SIZE, 7, np.uint8)).save(path)
    assert contains_words(error_messages(make_config(root)), "the source has only one class, 'sky'")
    for path in (root / "source/labels").iterdir():
        Image.fromarray(np.full(tiny_segmentation_data.SIZE, 255, np.uint8)).save(path)
    findings = diagnose(make_config(root))
    assert contains_words(messages(findings, "error"), "the source has only void pixels")
    assert contains_words(
        messages(findings, "note"), "source: 4 images with label maps, 100.0 % of their pixels void"
    )


def test_large_sets_are_sampled_and_this_is_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps_module, "FULL_CHECK_LIMIT", 3)
    monkeypatch.setattr(maps_module, "N_SAMPLED_FILES", 2)
    (root / "classes.txt").write_text(tiny_segmentation_data.CLASS_LIST + "8 tram\n")
    for role, number in (("source", 1), ("target", 102)):  # of four, the first and the third are read
        (root / role / f"labels/{number:03d}.png").write_bytes(b"")
    (root / "test/images/201.png").write_bytes(b"")
    findings = diagnose(make_config(root))
    assert not contains_words(messages(findings, "error"), "label files of the source")
    assert contains_words(
        messages(findings, "error"), "1 of 4 label files of the target (2 of 4 checked", "102.png"
    )
    # Every header is still read.
    assert contains_words(messages(findings, "error"), "1 of 4 images of the test (2 of 4 checked", "201.png")
    assert contains_words(
        messages(findings, "note"), "source: 4 images with label maps (2 of 4 checked, evenly spaced)"
    )
    # A rare class may be in the other files.
    assert contains_words(
        messages(findings, "note"), "the source has no pixels of 'tram' in the 2 label maps that were checked"
    )
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
    own = load_config(["segmentation"], [*SETTINGS, "data={name: 'own_maps:build_data'}"])
    findings = diagnose(own)
    assert messages(findings, "error") == []
    assert contains_words(messages(findings, "note"), "source: 3 images with label maps, 0.0 %")
    assert contains_words(messages(findings, "note"), "evaluated on", "without the labelled ones")
    wrong = load_config(
        ["segmentation"], [*SETTINGS, "data={name: 'own_maps:build_data', params: {invalid_index: 7}}"]
    )
    assert contains_words(
        error_messages(wrong),
        "label maps of the source contain 7, which is not a class index",
        "0 to 1, or -2",
    )


# ---- settings and plan


def test_parameters_of_a_wrong_type(root: Path) -> None:
    assert contains_words(error_messages(make_config(root, size="big")), "[height, width], not 'big'")
    assert contains_words(error_messages(make_config(root, size=[1, 2, 3])), "[height, width]")
    assert contains_words(
        error_messages(make_config(root, memory_gb="much")), "data.params.memory_gb is 'much'"
    )
    assert contains_words(error_messages(make_config(root, void_pixels="perhaps")), "excluded or queried")
    assert contains_words(error_messages(make_config(root, sizes=3)), "has no parameter 'sizes'")
    assert contains_words(error_messages(make_config(root, source=5)), "cannot be listed", "TypeError")


@pytest.mark.parametrize(
    ("resolution", "words"),
    [
        ("network", "76 pixels"),
        ("original", "240 pixels (10 %) of 4 images of the target: 60 per image, 30 per image and round"),
    ],
)
def test_the_resolution_in_which_pixels_count(root: Path, resolution: str, words: str) -> None:
    assert contains_words(
        note_messages(make_config(root, f"task.resolution={resolution}")),
        words,
        f"task.resolution={resolution}",
    )


def test_images_of_several_sizes_have_different_budgets(root: Path) -> None:
    tiny_segmentation_data.write_image(root / "target", 104, size=(40, 60))
    notes = note_messages(make_config(root, "task.resolution=original"))
    assert contains_words(notes, "480 pixels (10 %)", "60 to 240 per image, 30 to 120 per image and round")


@pytest.mark.parametrize(
    ("budget", "word"),
    [
        ("200/image", "200 pixels of image 0, which has 192"),
        ("5 %%", "must be a count"),
        ("0%", "rounds without pixels"),
    ],
)
def test_impossible_budgets(root: Path, budget: str, word: str) -> None:
    assert contains_words(error_messages(make_config(root, f"acquisition.budget={budget!r}")), word)


def test_a_round_without_pixels(root: Path) -> None:
    # One pixel of half the images in each round.
    assert error_messages(make_config(root, "acquisition.budget=1/image")) == []
    assert contains_words(
        error_messages(make_config(root, "acquisition.budget=1")), "at least one of 2 rounds without pixels"
    )


def test_whole_images_are_counted_as_images(root: Path) -> None:
    notes = note_messages(make_config(root, "task.unit=image", "acquisition.budget=50%"))
    assert contains_words(notes, "2 whole images from 4 images of the target: 1 per round")


def test_held_out_images_are_not_queried(root: Path) -> None:
    config = make_config(root, "evaluation={split: held_out, test_fraction: 0.25}", test=None)
    assert contains_words(note_messages(config), "57 pixels", "of 3 images of the target")


def test_views_must_show_whole_images(root: Path) -> None:
    found = error_messages(
        make_config(root, "views.test={crop: center, size: 8}", "views.scoring={crop: none, size: [6, 8]}")
    )
    assert contains_words(found, "views.test must show whole images", "views.test={crop: none}")
    assert contains_words(found, "views.scoring must show whole images")
    assert error_messages(make_config(root, "views.source={crop: random, size: [12, 8], flip: 0.5}")) == []
    assert warning_messages(make_config(root, "views.source={crop: random, size: [12, 8]}")) == []
    found = error_messages(make_config(root, "views.source={crop: random, size: [13, 8]}"))
    assert contains_words(found, "views.source takes a random crop of 8 x 13 pixels", "stored as 16 x 12")


def test_source_and_target_of_different_sizes_are_fine(root: Path) -> None:
    assert {finding.severity for finding in diagnose(make_config(root, source_size=[16, 20]))} == {"note"}


def test_superpixels_need_scikit_image(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert error_messages(make_config(root, "task.unit=superpixel", "task.n_superpixels=4")) == []
    monkeypatch.setattr("ducats.doctor.segmentation_plan.find_spec", lambda name: None)
    assert contains_words(
        error_messages(make_config(root, "task.unit=superpixel")), "needs scikit-image", "ducats[superpixels]"
    )


def test_classes_excluded_from_miou_star_must_exist(root: Path) -> None:
    assert contains_words(
        error_messages(make_config(root, "evaluation.miou_star_exclude=[horse]")), "'horse'", "road, car, sky"
    )
    assert error_messages(make_config(root, "evaluation.miou_star_exclude=[car]")) == []


def test_task_data_and_model_that_do_not_fit(root: Path) -> None:
    found = error_messages(make_config(root, "task={name: classification, unit: image}"))
    assert contains_words(found, "'segmentation_folders' has one label per pixel", "-c segmentation")
    assert contains_words(
        error_messages(make_config(root, "model={name: small_cnn}")),
        "'small_cnn' outputs one class per image",
    )
    found = error_messages(
        load_config(["data/digits"], ["task.name=segmentation", "data.params.n_source=50"])
    )
    assert contains_words(found, "'digits' has one label per image")
    found = error_messages(
        load_config(["data/digits"], ["model={name: small_fcn}", "data.params.n_source=50"])
    )
    assert contains_words(found, "'small_fcn' outputs one class per pixel", "model.name=timm")
    for setting in ("evaluation.average_flipped=true", "evaluation.miou_star_exclude=[road]"):
        assert contains_words(
            error_messages(load_config(["data/digits"], [setting])),
            "evaluation.average_flipped",
            "only to segmentation",
        )
        assert not contains_words(error_messages(make_config(root, setting)), "only to segmentation")


def test_specs_say_whether_labels_and_logits_are_per_pixel() -> None:
    for name, spec in DATASETS.items():
        assert spec.per_pixel is (isinstance(spec.load, SegmentationReader) or name == "streets")
    with torch.no_grad():
        for name, model in MODELS.items():
            params = {} if name.startswith("small") else {"backbone": "resnet10t", "pretrained": False}
            output: Any = model.build(classes=2, channels=3, **params).eval()(torch.zeros(1, 3, 32, 32))
            logits = output[0] if isinstance(output, tuple | Output) else output
            assert model.per_pixel is (logits.ndim == 4)


@pytest.mark.parametrize("query", ["duc", "random", "entropy", "margin", "ripu"])
def test_queries_and_units_are_accepted(root: Path, query: str) -> None:
    unit = "region" if query == "ripu" else "pixel"
    assert error_messages(make_config(root, f"query={{name: {query}}}", f"task.unit={unit}")) == []


@pytest.mark.parametrize("query", ["spread", "clue", "las"])
def test_more_clusters_than_k_means_can_make(root: Path, query: str) -> None:
    settings = f"query={{name: {query}}}", "acquisition={budget: 24%, rounds: 2}"
    stored = {"size": [300, 300]}  # 24 % of 90000 in two rounds: 10800
    found = error_messages(make_config(root, *settings, **stored))
    assert contains_words(found, f"{query!r} would need 10800 clusters", "maximum is 8192", "task.unit=image")
    for unit in ("region", "superpixel"):
        assert error_messages(make_config(root, *settings, f"task.unit={unit}", **stored)) == []
    assert (
        error_messages(make_config(root, settings[0], "acquisition={budget: 18%, rounds: 2}", **stored)) == []
    )
    assert error_messages(make_config(root, settings[1], **stored)) == []


def test_a_query_that_is_undefined_for_pixels(root: Path) -> None:
    assert contains_words(
        error_messages(make_config(root, "query={name: ripu}")), "undefined for single pixels"
    )


def test_memory_counts_images_and_label_maps(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert contains_words(
        note_messages(make_config(root)), "decoded images and label maps take less than 0.01 GB"
    )
    monkeypatch.setattr(plan_module, "free_memory_gb", lambda: 8.0)
    # 12 images of 3 + 1 bytes per pixel.
    notes = note_messages(make_config(root, size=[8192, 8192], memory_gb=100))
    assert contains_words(notes, "decoded images and label maps take 3.00 GB; 100 GB may be kept")
    # The source takes 0.75 + 0.25 GB; no other array fits into the remaining 0.1 GB.
    notes = note_messages(make_config(root, size=[8192, 8192], memory_gb=1.1, cache=str(root / "cache")))
    assert contains_words(notes, f"so 2.00 GB go to {root / 'cache'}")
    assert contains_words(
        note_messages(make_config(root, size=[8192, 8192], memory_gb=100, ground_truth=False)), "take 2.75 GB"
    )


def test_the_download_of_weights_is_reported(root: Path) -> None:
    config = make_config(root, "model={name: deeplab_v3plus, params: {backbone: resnet18}}")
    assert contains_words(note_messages(config), "the weights of timm's resnet18 are downloaded")
    found = error_messages(make_config(root, "model={name: deeplab_v2, params: {weights: none.pth}}"))
    assert contains_words(found, "the weights file", "none.pth")
