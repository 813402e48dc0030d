"""Findings of the doctor about copies of benchmarks."""

import importlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import PLAIN_VIEWS
from doctor_findings import assert_findings, assert_run_raises_first_error, write_noise
from ducats.config import Config, load_config
from ducats.data.benchmarks import tasks as tasks_module
from ducats.data.benchmarks.benchmark import DomainInfo
from ducats.data.registry import DATASETS
from ducats.doctor import diagnose

BENCHMARKS = {name: spec.benchmark for name, spec in DATASETS.items() if spec.benchmark is not None}
SMALL_RUN = (
    "model.name=small_cnn",
    "train={epochs: 10, batch_size: 4}",
    PLAIN_VIEWS,
    "acquisition={budget: 4, rounds: 2, after_epochs: null}",
    "data.params.size=16",
)


def write_domain(root: Path, domain: str, images: Mapping[str, int]) -> None:
    for name, count in images.items():
        for number in range(count):
            write_noise(root / domain / name / f"{number}.png", side=4)


def write_lists(root: Path, domain: str, train: str, test: str) -> None:
    """Write a domain of DomainNet: four images of each class a, b, c, and lists of classes per split."""
    write_domain(root, domain, dict.fromkeys("abc", 4))
    for split, classes, numbers in (("train", train, (0, 1)), ("test", test, (2, 3))):
        lines = [f"{domain}/{name}/{i}.png {'abc'.index(name)}" for name in classes for i in numbers]
        (root / f"{domain}_{split}.txt").write_text("\n".join(lines))


def make_config(root: Path, name: str, task: str, *more: str) -> Config:
    params: dict[str, Any] = {"root": str(root), "task": task}
    return load_config([f"data/{name}"], [*SMALL_RUN, *more], {"data": {"params": params}})


@pytest.fixture(scope="module")
def complete_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Webcam and dslr with the published numbers of images."""
    root = tmp_path_factory.mktemp("office31")
    office31 = BENCHMARKS["office31"]
    for domain in office31.domains[1:]:
        write_domain(root, domain.name, office31.counts[domain.short_name, "all"].per_class)
    return root


def test_a_complete_copy_is_as_published_and_not_loaded(
    complete_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(tasks_module, "decode_image_sets")  # the doctor reads files one by one
    assert_findings(
        make_config(complete_copy, "office31", "W2D"),
        "note: webcam: 795 images in 31 classes, as published",
        "note: dslr: 498 images in 31 classes, as published",
        "note: source: 795 images in 31 classes, from 11 ('ruler')",
        "note: 4 labels from 498 images of the target",
    )


def test_classes_whose_counts_differ_are_named_up_to_five(complete_copy: Path, tmp_path: Path) -> None:
    shutil.copytree(complete_copy, tmp_path / "copy")
    (tmp_path / "copy/dslr/mug/0.png").unlink()
    write_noise(tmp_path / "copy/webcam/pen/more.png")
    for name in ("bike", "mug", "mouse", "phone", "printer", "ruler"):
        (tmp_path / f"copy/webcam/{name}/3.png").unlink()
    assert_findings(
        make_config(tmp_path / "copy", "office31", "W-D"),
        "warning: webcam: 790 images in 31 classes, but 795 in 31 classes are published ('bike' has 20 "
        "instead of 21, 'mouse' has 29 instead of 30, 'mug' has 26 instead of 27, 'pen' has 33 instead of "
        "32, 'phone' has 15 instead of 16 and 2 more)",
        "warning: dslr: 497 images in 31 classes, but 498 in 31 classes are published ('mug' has 7",
    )


def test_where_only_totals_are_published(tmp_path: Path) -> None:
    write_domain(tmp_path, "Art", {"TV": 3, "Table": 3})
    write_domain(tmp_path, "Product", {"TV": 3, "Table": 3})
    assert_findings(
        make_config(tmp_path, "office-home", "Ar-Pr"),
        "warning: Art: 6 images in 2 classes, but 2427 in 65 classes are published, so",
        "warning: Product: 6 images in 2 classes, but 4439 in 65 classes are published, so",
    )


def test_unreadable_copied_and_missing_images_of_lists(tmp_path: Path) -> None:
    for domain in ("clipart", "real"):
        write_lists(tmp_path, domain, "ab", "ab")
    (tmp_path / "real/a/0.png").unlink()
    (tmp_path / "real/b/0.png").write_bytes(b"")
    shutil.copy(tmp_path / "real/a/1.png", tmp_path / "real/a/3.png")
    assert_findings(
        make_config(tmp_path, "domainnet", "clp-rel"),
        "error: 2 of 4 images of the target … real/a/0.png (no such file) … real/b/0.png (empty file)",
        "warning: 1 image of the test is also in the target … keep them if they are in the published",
        "warning: clipart (train): 4 images in 2 classes, but ",
        "warning: real (train): 4 images in 2 classes, but ",
        "warning: real (test): 4 images in 2 classes, but 52041",
    )


def test_a_class_in_only_one_list_of_a_domain_is_not_an_error(tmp_path: Path) -> None:
    write_lists(tmp_path, "painting", "ab", "c")
    write_lists(tmp_path, "real", "abc", "abc")
    assert_findings(
        make_config(tmp_path, "domainnet", "pnt-rel"),
        "warning: painting (train): ",
        "warning: real (train): ",
        "warning: real (test): ",
    )


def test_a_run_raises_what_the_doctor_reports(tmp_path: Path) -> None:
    write_domain(tmp_path, "photo", {"dog": 3, "horse": 3})
    write_domain(tmp_path, "sketch", {"dog": 3, "house": 3})
    pacs = make_config(tmp_path, "pacs", "P-S")
    missing_class = "sketch lacks classes that the other domain has: horse"
    assert_run_raises_first_error(pacs, tmp_path / "run", missing_class)
    office31 = "its tasks are A-W, A-D, W-A, W-D, D-A, D-W"
    cases = [
        (load_config(["data/office31"], SMALL_RUN), office31),
        (make_config(tmp_path, "office31", "A-X"), office31),
    ]
    for name, benchmark in BENCHMARKS.items():
        config = make_config(tmp_path / "nowhere", name.replace("_", "-"), benchmark.tasks[0])
        cases.append((config, "get them from"))
    for config, words in cases:
        assert len(assert_run_raises_first_error(config, tmp_path / "run", words)) == 1


def test_parameters_of_a_wrong_type(tmp_path: Path) -> None:
    for setting, words in (
        ("data.params.size=big", "data.params.size is 'big'"),
        ("data.params.task=3", "data.params.task is 3; give source and target"),
    ):
        config = load_config(
            ["data/office31"], [*SMALL_RUN, f"data.params={{root: {tmp_path}, task: A-W}}", setting]
        )
        assert any(words in finding.message for finding in diagnose(config))


def test_images_of_built_data_sets_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("ducats.data.benchmarks.digit_sets")

    def load_split(root: Path, domain: DomainInfo, split: str) -> tuple[str, Any, Any]:
        count = 7291 if domain.name == "USPS" and split == "train" else 20
        pixels = np.random.default_rng(len(domain.name + split)).integers(0, 256, (count, 4, 4), np.uint8)
        return f"{domain.name}/{split}", pixels, np.arange(count) % (10 if split == "train" else 1)

    monkeypatch.setattr(module, "_load_split", load_split)
    assert_findings(
        make_config(tmp_path, "digit-sets", "M-U"),
        "note: USPS (train): 7291 images in 10 classes, as published",
        "warning: USPS (test): 20 images in 1 class, but 2007 in 10 classes",
        "warning: MNIST (train): 20 images in 10 classes",
        "warning: the test has no images of the classes",
    )


def test_copies_within_a_published_set_are_only_a_note(complete_copy: Path, tmp_path: Path) -> None:
    shutil.copytree(complete_copy, tmp_path / "copy")
    shutil.copy(tmp_path / "copy/dslr/mug/0.png", tmp_path / "copy/dslr/mug/1.png")
    shutil.copy(tmp_path / "copy/dslr/pen/0.png", tmp_path / "copy/dslr/mug/2.png")
    assert_findings(
        make_config(tmp_path / "copy", "office31", "W-D"),
        "note: 2 images of the target are copies of another … keep them",
        "note: 1 image of the target has more than one class",
    )
