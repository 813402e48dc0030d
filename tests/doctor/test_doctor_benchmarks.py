"""Findings of the doctor about copies of benchmarks."""

import importlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from doctor_findings import error_messages, messages, run_error, write_noise
from ducats.config import Config, load_config
from ducats.data.benchmarks import tasks as tasks_module
from ducats.data.benchmarks.benchmark import DomainInfo
from ducats.data.registry import DATASETS
from ducats.doctor import diagnose

BENCHMARKS = {name: spec.benchmark for name, spec in DATASETS.items() if spec.benchmark is not None}
SMALL_RUN = (
    "model.name=small_cnn",
    "train={epochs: 10, batch_size: 4}",
    "views={source: {crop: none}, unlabelled: {crop: none}, scoring: {crop: none}, test: {crop: none}}",
    "acquisition={budget: 4, rounds: 2, after_epochs: null}",
    "data.params.size=16",
)


def write_domain(root: Path, domain: str, images: Mapping[str, int]) -> None:
    for name, count in images.items():
        for number in range(count):
            write_noise(root / domain / name / f"{number}.png", side=4)


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
    findings = diagnose(make_config(complete_copy, "office31", "W2D"))
    assert {finding.severity for finding in findings} == {"note"}
    notes = messages(findings, "note")
    assert "webcam: 795 images in 31 classes, as published" in notes
    assert "dslr: 498 images in 31 classes, as published" in notes
    assert any("source: 795 images in 31 classes, from 11 ('ruler')" in note for note in notes)
    assert any("4 labels from 498 images of the target" in note for note in notes)


def test_classes_whose_counts_differ_are_named_up_to_five(complete_copy: Path, tmp_path: Path) -> None:
    shutil.copytree(complete_copy, tmp_path / "copy")
    (tmp_path / "copy/dslr/mug/0.png").unlink()
    write_noise(tmp_path / "copy/webcam/pen/more.png")
    for name in ("bike", "mug", "mouse", "phone", "printer", "ruler"):
        (tmp_path / f"copy/webcam/{name}/3.png").unlink()
    findings = diagnose(make_config(tmp_path / "copy", "office31", "W-D"))
    assert messages(findings, "error") == []
    source, target = messages(findings, "warning")
    assert source.startswith(
        "webcam: 790 images in 31 classes, but 795 in 31 classes are published ('bike' has 20 instead of 21, "
        "'mouse' has 29 instead of 30, 'mug' has 26 instead of 27, 'pen' has 33 instead of 32, "
        "'phone' has 15 instead of 16 and 2 more)"
    )
    assert target.startswith(
        "dslr: 497 images in 31 classes, but 498 in 31 classes are published ('mug' has 7"
    )


def test_where_only_totals_are_published(tmp_path: Path) -> None:
    write_domain(tmp_path, "Art", {"TV": 3, "Table": 3})
    write_domain(tmp_path, "Product", {"TV": 3, "Table": 3})
    warnings = messages(diagnose(make_config(tmp_path, "office-home", "Ar-Pr")), "warning")
    assert [warning.partition(", so")[0] for warning in warnings] == [
        "Art: 6 images in 2 classes, but 2427 in 65 classes are published",
        "Product: 6 images in 2 classes, but 4439 in 65 classes are published",
    ]


def test_unreadable_copied_and_missing_images_of_lists(tmp_path: Path) -> None:
    for domain in ("clipart", "real"):
        write_domain(tmp_path, domain, {"ant": 4, "bee": 4})
        for split, numbers in (("train", (0, 1, 2)), ("test", (3,))):
            lines = [f"{domain}/{n}/{i}.png {k}" for k, n in enumerate(("ant", "bee")) for i in numbers]
            (tmp_path / f"{domain}_{split}.txt").write_text("\n".join(lines))
    (tmp_path / "real/ant/0.png").unlink()
    (tmp_path / "real/bee/0.png").write_bytes(b"")
    shutil.copy(tmp_path / "real/ant/1.png", tmp_path / "real/ant/3.png")
    findings = diagnose(make_config(tmp_path, "domainnet", "clp-rel"))
    (unreadable,) = messages(findings, "error")
    assert "2 of 6 images of the target cannot be read" in unreadable
    assert "real/ant/0.png (no such file)" in unreadable
    assert "real/bee/0.png (empty file)" in unreadable
    (leak,) = (w for w in messages(findings, "warning") if "1 image of the test is also in the target" in w)
    assert "keep them if they are in the published data set" in leak
    assert any(
        w.startswith("real (test): 2 images in 2 classes, but 52041") for w in messages(findings, "warning")
    )


def test_a_class_in_only_one_list_of_a_domain_is_not_an_error(tmp_path: Path) -> None:
    for domain, splits in (
        ("painting", {"train": "ab", "test": "c"}),
        ("real", {"train": "abc", "test": "abc"}),
    ):
        write_domain(tmp_path, domain, dict.fromkeys("abc", 4))
        for split, names in splits.items():
            numbers = (0, 1) if split == "train" else (2, 3)
            lines = [f"{domain}/{n}/{i}.png {'abc'.index(n)}" for n in names for i in numbers]
            (tmp_path / f"{domain}_{split}.txt").write_text("\n".join(lines))
    findings = diagnose(make_config(tmp_path, "domainnet", "pnt-rel"))
    assert messages(findings, "error") == []


def test_a_run_raises_what_the_doctor_reports(tmp_path: Path) -> None:
    write_domain(tmp_path, "photo", {"dog": 3, "horse": 3})
    write_domain(tmp_path, "sketch", {"dog": 3, "house": 3})
    office31 = "its tasks are A-W, A-D, W-A, W-D, D-A, D-W"
    cases = [
        (make_config(tmp_path, "pacs", "P-S"), "sketch lacks classes that the other domain has: horse"),
        (load_config(["data/office31"], SMALL_RUN), office31),
        (make_config(tmp_path, "office31", "A-X"), office31),
    ]
    for name, benchmark in BENCHMARKS.items():
        config = make_config(tmp_path / "nowhere", name.replace("_", "-"), benchmark.tasks[0])
        cases.append((config, "get them from"))
    for config, words in cases:
        errors = error_messages(config)
        assert words in errors[0]
        assert len(errors) == 1 or config.data.name == "pacs"
        assert run_error(config, tmp_path / "run") == errors[0]


def test_parameters_of_a_wrong_type(tmp_path: Path) -> None:
    errors = error_messages(make_config(tmp_path, "office31", "A-W", "data.params.size=big"))
    assert any("data.params.size is 'big'" in error for error in errors)
    params = {"root": str(tmp_path), "task": 3}
    errors = error_messages(load_config(["data/office31"], SMALL_RUN, {"data": {"params": params}}))
    assert any("data.params.task is 3; give source and target" in error for error in errors)


def test_images_of_built_data_sets_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("ducats.data.benchmarks.digit_sets")

    def load_split(root: Path, domain: DomainInfo, split: str) -> tuple[str, Any, Any]:
        count = 7291 if domain.name == "USPS" and split == "train" else 20
        pixels = np.random.default_rng(len(domain.name + split)).integers(0, 256, (count, 4, 4), np.uint8)
        return f"{domain.name}/{split}", pixels, np.arange(count) % (10 if split == "train" else 1)

    monkeypatch.setattr(module, "_load_split", load_split)
    findings = diagnose(make_config(tmp_path, "digit-sets", "M-U"))
    assert "USPS (train): 7291 images in 10 classes, as published" in messages(findings, "note")
    warnings = messages(findings, "warning")
    assert any(w.startswith("USPS (test): 20 images in 1 class, but 2007 in 10 classes") for w in warnings)


def test_copies_within_a_published_set_are_only_a_note(complete_copy: Path, tmp_path: Path) -> None:
    shutil.copytree(complete_copy, tmp_path / "copy")
    shutil.copy(tmp_path / "copy/dslr/mug/0.png", tmp_path / "copy/dslr/mug/1.png")
    shutil.copy(tmp_path / "copy/dslr/pen/0.png", tmp_path / "copy/dslr/mug/2.png")
    findings = diagnose(make_config(tmp_path / "copy", "office31", "W-D"))
    assert {finding.severity for finding in findings} == {"note"}
    notes = messages(findings, "note")
    assert any("2 images of the target are copies of another" in n and "keep them" in n for n in notes)
    assert any("1 image of the target has more than one class" in n for n in notes)
