"""Findings of the doctor about segmentation data and plans."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import tiny_segmentation_data
from doctor_findings import (
    Change,
    assert_findings,
    assert_run_raises_first_error,
    changed_config,
    check_case,
    write_bytes,
)
from ducats.config import Config, load_config
from ducats.data.domain import AdaptationData, Domain, Images
from ducats.data.registry import DATASETS
from ducats.data.segmentation.reader import SegmentationReader
from ducats.data.store import ReadFailure, try_files
from ducats.doctor import diagnose, memory
from ducats.doctor import label_maps as maps_module
from ducats.models import MODELS
from ducats.models.output import Output

SETTINGS = (
    "model={name: small_fcn, params: {width: 4, dilations: [1]}, evidence: exp_at_most_10}",
    "train.epochs=10",
    "acquisition={budget: 10%, rounds: 2}",
    "engine.device=cpu",
)
DATA = (
    "data.params={source: @source, target: @target, test: @test, classes: @classes.txt}",
    "data.params={size: [12, 16], ground_truth: true}",
)
SIZE = tiny_segmentation_data.SIZE


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tiny_segmentation_data.write_tree(tmp_path / "data")


def make_config(root: Path, *changes: Change) -> Config:
    return changed_config(root, ["segmentation"], (*SETTINGS, *DATA, *changes))


def benchmark_config(root: Path, name: str, *settings: str) -> Config:
    return changed_config(root, [f"data/{name}"], (*SETTINGS, *settings))


def save(array: NDArray[Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def unlink(name: str) -> Change:
    return lambda root: (root / name).unlink()


def add_classes(*lines: str) -> Change:
    text = "".join(f"{line}\n" for line in (tiny_segmentation_data.CLASS_LIST.rstrip(), *lines))
    return lambda root: (root / "classes.txt").write_text(text)


def fill_source_labels(root: Path, label: int) -> None:
    for path in (root / "source/labels").iterdir():
        save(np.full(SIZE, label, np.uint8), path)


def mask_target(root: Path) -> None:
    """Mask 5 of 20 rows of each target image."""
    for number in range(4):
        mask = np.where(np.arange(SIZE[0]) < 5, 255, 0).astype(np.uint8)
        save(mask[:, None].repeat(SIZE[1], 1), root / f"target/masks/{100 + number}.png")


def write_unknown_ids(root: Path) -> None:
    """Write five pixels of id 9 and one of id 13 into two label files of the source."""
    for number in (0, 2):
        path = root / f"source/labels/{number:03d}.png"
        ids = np.array(Image.open(path))
        ids[0, :5], ids[1, 0] = 9, 13
        save(ids, path)


# ---- errors that a run raises, too


@pytest.mark.parametrize(
    "case",
    [
        ("does not exist", "data.params.target=@none"),
        ("there is no folder", "data.params.test=@test/images"),
        ("cannot be read", "data.params.classes=@none.txt"),
        ("source and target are the same folder", "data.params.target=@source"),
        ("has no parameter 'sizes'", "data.params.sizes=3"),
        ("[height, width], not 'big'", "data.params.size=big"),
        ("[height, width]", "data.params.size=[1, 2, 3]"),
        ("excluded or queried", "data.params.void_pixels=perhaps"),
        ("have no label file", unlink("source/labels/000.png")),
        ("have no image", unlink("source/images/001.png")),
        (
            "lossy format, such as 000.jpg",
            lambda root: (root / "source/labels/000.png").rename(root / "source/labels/000.jpg"),
        ),
        ("200 pixels of image 0, which has 192", "acquisition.budget=200/image"),
        ("must be a count", "acquisition.budget='5 %%'"),
        ("rounds without pixels", "acquisition.budget=0%"),
        ("at least one of 2 rounds without pixels", "acquisition.budget=1"),
        ("views.test must show whole images", "views.test={crop: center, size: 8}"),
        ("views.scoring must show whole", "views.scoring={crop: none, size: [6, 8]}"),
        ("evaluation.average_flipped", "views.test.flip=0.5"),
        ("not their label maps", "views.source.randaugment=[2, 10]"),
        (
            "views.source takes a random crop of 8 x 13 pixels from images stored as 16 x 12",
            "views.source={crop: random, size: [13, 8]}",
        ),
        ("'horse', but the classes are road, car", "evaluation.miou_star_exclude=[horse]"),
        ("leave at least one", "evaluation.miou_star_exclude=[road, car, sky]"),
        (
            "'segmentation_folders' has one label per pixel",
            "task={name: classification, unit: image}",
        ),
        ("'small_cnn' outputs one class per image", "model={name: small_cnn}"),
        ("undefined for single pixels", "query={name: ripu}"),
    ],
)
def test_a_run_raises_what_the_doctor_reports(root: Path, case: tuple[str, *tuple[Change, ...]]) -> None:
    words, *changes = case
    assert_run_raises_first_error(make_config(root, *changes), root / "run", words)


@pytest.mark.parametrize("name", ["gtav-cityscapes", "synthia-cityscapes", "carla-camvid"])
def test_benchmarks_with_missing_files(name: str, tmp_path: Path) -> None:
    config = benchmark_config(tmp_path, name, "data.params={source: @none, target: @.}")
    assert_run_raises_first_error(config, tmp_path / "run", f"{tmp_path / 'none'} does not contain")


def test_superpixels_need_scikit_image(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(root, "task.unit=superpixel", "task.n_superpixels=4", "query={name: random}")
    assert_findings(config)
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    assert_run_raises_first_error(config, root / "run", "needs scikit-image")


# ---- findings about data and plan


@pytest.mark.parametrize(
    "case",
    [
        (
            *(
                f"note: {role}: 4 images with label maps, 10.0 % of their pixels void"
                for role in ("source", "target", "test")
            ),
            "note: 76 pixels … of 4 images of the target … 19 per image, 9 to 10 per image and round",
            "note: 38 + 38 in total after epoch 2, 4 of 10 … task.resolution=network",
            "note: decoded images and label maps take less than 0.01 GB",
        ),
        ("data.params.source_size=[16, 20]",),
        (
            "note: target: 4 images without labels; masks exclude 25.0 % of the pixels",
            "note: 80 pixels … 20 per image, 10 per image and round; 40 + 40 in total",
            "note: human annotators label 40 pixels in each of 2 rounds … ducats label RUN … label PNGs",
            mask_target,
            "acquisition.budget=20/image",
            "data.params.ground_truth=false",
        ),
        (
            "error: 1 of 3 images … source/images have no label file … 000.png",
            "error: 1 of 3 label files … source/labels have no image … 001.png",
            "warning: 1 of 2 label files of the source cannot be read … 002.png",
            "warning: 1 of 4 images of the target cannot be read … 101.png",
            "error: 1 of 4 label files of the target differ in size … is 10 x 15 … is 20 x 30",
            "warning: 1 of 4 images of the test cannot be read … 203.png (not an image)",
            lambda root: os.truncate(root / "target/images/101.png", 500),
            unlink("source/labels/000.png"),
            unlink("source/images/001.png"),
            write_bytes("source/labels/002.png"),
            write_bytes("test/images/203.png", b"<html>"),
            lambda root: save(np.zeros((10, 15), np.uint8), root / "target/labels/102.png"),
        ),
        (
            "error: 1 image of the test is also in the target … 101.png … 200.png",
            lambda root: shutil.copy(root / "target/images/101.png", root / "test/images/200.png"),
        ),
        ("error: memory_gb is 'much'", "data.params.memory_gb=much"),
        ("error: cannot be listed … TypeError", "data.params.source=5"),
        (
            "error: id 9 (10 pixels in 2 files, first … 000.png) … id 13 (2 pixels in … data.params.classes",
            write_unknown_ids,
        ),
        (
            "warning: the source has no pixels of 'tram', 'bicycle' … data.params.keep_classes",
            "warning: the test has no pixels of 'tram', 'bicycle' … cannot be evaluated",
            add_classes("8 tram", "9 bicycle"),
        ),
        (add_classes("8 tram"), "data.params.keep_classes=[road, car, sky]"),
        ("error: the source has only one class, 'sky'", partial(fill_source_labels, label=7)),
        ("error: the source has only void pixels", partial(fill_source_labels, label=255)),
        (
            "note: 240 pixels (10 %) of 4 images of the target: 60 per image, 30 per image and round",
            "task.resolution=original",
        ),
        (
            "note: 2 whole images from 4 images of the target: 1 per round",
            "task.unit=image",
            "acquisition.budget=50%",
        ),
        (
            "note: 20 of them are for the audit: single pixels … mIoU and pixel accuracy",
            "acquisition={budget: 20/image, audit: 20}",
        ),
        (
            "note: nothing will be measured … another task.unit than image",
            "task.unit=image",
            "acquisition.budget=50%",
            "data.params={ground_truth: false, test: null}",
        ),
        ("note: 4 pixels", "acquisition.budget=1/image"),  # of half the images in each round
        (
            "note: 57 pixels … of 3 images of the target",
            "evaluation={split: held_out, test_fraction: 0.25}",
            "data.params.test=null",
        ),
        (
            "note: 480 pixels (10 %) … 60 to 240 per image, 30 to 120 per image and round",
            lambda root: tiny_segmentation_data.write_image(root / "target", 104, size=(40, 60)),
            "task.resolution=original",
        ),
        (
            "warning: source 20 x 30 … target … test … enlarged up to 4.0 times to 80 x 120 … "
            "data.params.size=[20,30]",
            "data.params.size=[80, 120]",
        ),
        ("views.source={crop: random, size: [12, 8], flip: 0.5}",),
        ("evaluation={miou_star_exclude: [car], average_flipped: true}",),
        *((f"query.name={query}",) for query in ("duc", "random", "entropy", "margin")),
        ("query.name=ripu", "task.unit=region"),
        (
            "note: the weights of timm's resnet18 … must download them",
            "model={name: deeplab_v3plus, params: {backbone: resnet18}}",
        ),
        ("error: the weights file … none.pth", "model={name: deeplab_v2, params: {weights: none.pth}}"),
    ],
)
def test_findings(root: Path, case: Sequence[Change], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ducats.models.hub._check_reachable", lambda address: None)
    check_case(partial(make_config, root), case)


def test_synthetic_streets_are_valid(tmp_path: Path) -> None:
    small = "data.params={n_source: 30, n_pool: 4, n_test: 20}"
    assert_findings(
        changed_config(tmp_path, ["data/streets"], [small]),
        "note: source: 30 images with label maps, 0.0 %",
        "note: target: 4 images with label maps, ",
    )


def test_a_benchmark_with_and_without_target_labels(tmp_path: Path) -> None:
    carla, camvid = tmp_path / "carla", tmp_path / "camvid"
    tags = np.resize(np.arange(29), SIZE).astype(np.uint8)
    for number in range(3):
        for folder in (carla / "images", camvid / "train", camvid / "test"):
            image, _ = tiny_segmentation_data.scene(10 * number + len(folder.parts[-1]))
            save(image, folder / f"{number}.png")
        save(np.stack([tags, tags, 0 * tags], -1), carla / f"labels/{number}.png")
    params = "data.params={source: @carla, target: @camvid, size: [12, 16]}"
    config = benchmark_config(tmp_path, "carla-camvid", params)
    assert_findings(config, "note: target: 3 images without labels", "note: human annotators label")
    for number in range(3):
        for split, n_ids in (("train", 12), ("test", 14)):
            save(np.resize(np.arange(n_ids), SIZE).astype(np.uint8), camvid / f"{split}annot/{number}.png")
    assert_findings(
        config,
        "note: source: 3 images with label maps",
        "note: target: 3 images with label maps, 8.3 %",
        "error: label files of the test … id 12 … id 13 … data.params.extra_ids",
    )


def test_large_sets_are_sampled_and_this_is_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps_module, "FULL_CHECK_LIMIT", 3)
    monkeypatch.setattr(maps_module, "N_SAMPLED_FILES", 2)  # of four, the first and the third are read
    config = make_config(
        root,
        add_classes("8 tram"),
        write_bytes("source/labels/001.png"),
        write_bytes("target/labels/102.png"),
        write_bytes("test/images/201.png"),
    )
    assert_findings(
        config,
        "warning: 1 of 4 label files of the target (2 of 4 checked … 102.png",
        # Every header is still read.
        "warning: 1 of 4 images of the test (2 of 4 checked … 201.png",
        "note: source: 4 images with label maps (2 of 4 checked, evenly spaced)",
        # A rare class may be in the other files.
        "note: the source has no pixels of 'tram' in the 2 label maps that were checked",
    )


def test_label_files_are_read_one_by_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[Any] = []

    def recorded(fn: Callable[[Path], Any], paths: Sequence[Path], *more: Any) -> Any:
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


@pytest.mark.parametrize(
    "case",
    [
        (
            "note: source: 3 images with label maps, 0.0 %",
            "note: evaluated on … without the labelled ones",
        ),
        (
            "error: source contain 7, which is not a class index … 0 to 1, or -2",
            "error: target contain 7",
            "data.params.invalid_index=7",
        ),
        (
            "error: outputs one class per pixel",
            "error: has one label per pixel",
            "task={name: classification, unit: image}",
            "acquisition.budget=2",
        ),
    ],
)
def test_built_label_maps_are_checked(monkeypatch: pytest.MonkeyPatch, case: Sequence[Change]) -> None:
    monkeypatch.setitem(sys.modules, "own_maps", sys.modules[__name__])
    own = ("data={name: 'own_maps:build_data'}", "train.batch_size=2")
    check_case(lambda *changes: load_config(["segmentation"], [*SETTINGS, *own, *changes]), case)


def test_specs_say_whether_labels_and_logits_are_per_pixel() -> None:
    for name, spec in DATASETS.items():
        assert spec.per_pixel is (isinstance(spec.load, SegmentationReader) or name == "streets")
    with torch.no_grad():
        for name, model in MODELS.items():
            params = {} if name.startswith("small") else {"backbone": "resnet10t", "pretrained": False}
            output: Any = model.build(classes=2, channels=3, **params).eval()(torch.zeros(1, 3, 32, 32))
            logits = output[0] if isinstance(output, tuple | Output) else output
            assert model.per_pixel is (logits.ndim == 4)


@pytest.mark.parametrize("query", ["clue", "las"])
def test_more_clusters_than_k_means_can_make(root: Path, query: str) -> None:
    large = "data.params.size=[300, 300]"
    name = f"query={{name: {query}}}"
    budget = "acquisition={budget: 24%, rounds: 2}"  # of 90000 in two rounds: 10800
    error = f"error: {query!r} needs 10800 clusters … maximum is 8192 … task.unit=image"
    enlarged = "warning: enlarged"
    assert_findings(make_config(root, large, name, budget), error, enlarged)
    for valid in (
        (name, budget, "task.unit=region"),
        (name, budget, "task.unit=superpixel"),
        (name, "acquisition={budget: 18%, rounds: 2}"),
        (budget,),
    ):
        assert_findings(make_config(root, large, *valid), enlarged)


def test_memory_counts_images_and_label_maps(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory_gb", lambda: 8.0)
    large = "data.params.size=[8192, 8192]"  # 12 images of 3 + 1 bytes per pixel
    bilinear = "views.scoring.interpolation=bilinear"  # stores 4 images twice
    for params, words, *settings in (
        ("memory_gb: 100", "decoded images and label maps take 3.00 GB; 100 GB may be kept"),
        # The source takes 0.75 + 0.25 GB; no other array fits into the remaining 0.1 GB.
        ("memory_gb: 1.1, cache: @cache", f"so 2.00 GB go to {root / 'cache'}"),
        ("memory_gb: 100, ground_truth: false", "take 2.75 GB"),
        ("memory_gb: 100, ground_truth: false", "take 3.50 GB", bilinear),
    ):
        config = make_config(root, large, f"data.params={{{params}}}", *settings)
        assert_findings(config, f"note: {words}", "warning: enlarged up to 334.4 times")
