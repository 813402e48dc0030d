import csv
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from doctor_findings import (
    contains_words,
    error_messages,
    messages,
    note_messages,
    run_error,
    warning_messages,
    write_noise,
)
from ducats.config import Config, load_config
from ducats.data.domain import AdaptationData, Domain, Images
from ducats.doctor import Finding, diagnose, verdict
from ducats.doctor import machine as machine_module
from ducats.doctor import plan as plan_module

VIEWS = {name: {"crop": "none"} for name in ("source", "unlabelled", "scoring", "test")}
SMALL_RUN: dict[str, Any] = {
    "model": {"name": "small_cnn"},
    "train": {"epochs": 10, "batch_size": 4},
    "views": VIEWS,
    "acquisition": {"budget": 4, "rounds": 2},
    "engine": {"device": "cpu"},
}
Edit = Callable[[Path], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Valid data: two classes, three images of each in source, target and test."""
    for role in ("source", "target", "test"):
        for name in ("cat", "dog"):
            for number in range(3):
                write_noise(tmp_path / role / name / f"{number}.png")
    return tmp_path


def make_config(root: Path, *, params: dict[str, Any] | None = None, **layer: Any) -> Config:
    given: dict[str, Any] = {role: str(root / role) for role in ("source", "target", "test")}
    given |= {"size": 16, "ground_truth": True, **(params or {})}
    relative = {name: str(root / value[1:]) for name, value in given.items() if str(value).startswith("@")}
    data = {"name": "folders", "params": {**given, **relative}}
    return Config.model_validate({**SMALL_RUN, "data": data, **layer})


def config_of(data: str, /, **layer: Any) -> Config:
    params = layer.pop("params", {})
    return Config.model_validate({**SMALL_RUN, "data": {"name": data, "params": params}, **layer})


def write_manifest(root: Path, rows: Sequence[tuple[str, str, str, str]]) -> Config:
    with (root / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "domain", "label", "split"), *rows])
    return config_of("manifest", params={"path": str(root / "table.csv"), "size": 16})


def valid_rows() -> list[tuple[str, str, str, str]]:
    return [
        (f"{role}/{name}/{i}.png", "source" if role == "source" else "target", name, split)
        for role, split in (("source", "train"), ("target", "train"), ("test", "test"))
        for name in ("cat", "dog")
        for i in range(3)
    ]


def copy(one: str, two: str) -> Edit:
    return lambda root: shutil.copy(root / one, root / two)


def delete(*folders: str) -> Edit:
    def edit(root: Path) -> None:
        for folder in folders:
            shutil.rmtree(root / folder)

    return edit


def nothing(root: Path) -> None:
    pass


# ---- valid data


def test_valid_data_has_notes_only(root: Path) -> None:
    findings = diagnose(make_config(root))
    assert {finding.severity for finding in findings} == {"note"}
    notes = messages(findings, "note")
    assert contains_words(notes, "source: 6 images in 2 classes, 3 each")
    assert contains_words(notes, "4 labels", "2 per round", "after epoch 2, 4 of 10")
    assert contains_words(notes, "torch " + torch.__version__, "device", "CPU threads")
    assert contains_words(notes, "decoded", "GB", "memory_gb")
    assert contains_words(notes, "evaluated on held-out target images")
    assert verdict(findings) == ("No errors and no warnings: ready to run.", 0)


def test_hidden_files_are_ignored(root: Path) -> None:
    (root / "source/cat/.broken.png").write_bytes(b"no image")
    (root / "source/.hidden").mkdir()
    (root / "source/.hidden/x.png").write_bytes(b"")
    (root / "source/cat/notes.txt").write_text("no image either")
    shutil.copy(root / "source/cat/0.png", root / "test/dog/.copy.png")
    assert {finding.severity for finding in diagnose(make_config(root))} == {"note"}


def test_other_valid_data_has_notes_only(root: Path) -> None:
    digits = load_config(["data/digits", "methods/duc"], ["data.params.n_source=200"])
    for config, words in (
        (digits, "source: 200 images in 10 classes, 20 each"),
        (write_manifest(root, valid_rows()), "test: 6 images in 2 classes"),
        (make_config(root, params={"test": "@target"}), "target and test are the same folder"),
        (make_config(root, params={"ground_truth": False}), "target: 6 images without labels"),
    ):
        findings = diagnose(config)
        assert {finding.severity for finding in findings} == {"note"}
        assert contains_words(messages(findings, "note"), words)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"acquisition": {"budget": 5, "rounds": 2}}, "5 labels from 6 images of the target: 2 + 3"),
        ({"acquisition": {"rounds": 0}}, "no labels are queried"),
        ({"oracle": {"name": "human"}}, "human annotators provide 2 labels per round"),
        ({"params": {"ground_truth": False}}, "human annotators provide 2 labels per round"),
        ({"evaluation": {"split": "unlabelled"}}, "without the labelled"),
        ({"evaluation": {"split": "target"}}, "including the labelled"),
        # One of three of each class is held out.
        (
            {"params": {"test": None}, "evaluation": {"split": "held_out", "test_fraction": 0.4}},
            "from 4 images of the target",
        ),
    ],
)
def test_budget_and_evaluation_are_described(root: Path, layer: dict[str, Any], words: str) -> None:
    assert contains_words(note_messages(make_config(root, **layer)), words)


# ---- errors that a run raises, too


@pytest.mark.parametrize(
    ("edit", "layer", "words"),
    [
        (lambda root: (root / "source/cow").mkdir(), {}, "source has class folders without images: 'cow'"),
        (lambda root: write_noise(root / "source/loose.png"), {}, "1 images outside class folders"),
        (lambda root: write_noise(root / "target/cow/1.png"), {}, "not in the source: 'cow' (first: "),
        (lambda root: write_noise(root / "test/cow/1.png"), {}, "not in the source: 'cow' (first: "),
        (delete("source/dog", "target/dog", "test/dog"), {}, "has only one class, 'cat'"),
        (delete("test"), {}, "does not exist"),
        (delete("target/cat", "target/dog"), {}, "contains no images (."),
        (nothing, {"params": {"target": "@source/cat", "ground_truth": False}}, "inside the other"),
        (nothing, {"params": {"source": "@target"}}, "same folder"),
        (nothing, {"params": {"target": None}}, "needs --target"),
        (nothing, {"params": {"sizes": 3}}, "no parameter 'sizes'"),
        (nothing, {"query": {"name": "dcu"}}, "no query 'dcu'"),
        (nothing, {"query": {"name": "duc", "params": {"kappa": 0.5}}}, "kappa"),
        (nothing, {"objective": {"name": "duc", "params": {"betta": 1}}}, "no parameter 'betta'"),
        (nothing, {"objective": {"name": "doctor_findings:Image"}}, "must be callable"),
        (nothing, {"model": {"name": "own:net"}}, "no model 'own:net'"),
        (nothing, {"model": {"name": "small_fcn"}}, "outputs one class per pixel"),
        (nothing, {"oracle": {"name": "wizard"}}, "no oracle 'wizard'"),
        (nothing, {"oracle": {"name": "human", "params": {"patience": 3}}}, "patience"),
        (nothing, {"oracle": {"name": "auto", "params": {"min_annotators": 2}}}, "has no parameters"),
        (nothing, {"oracle": {"name": "ground_truth"}, "params": {"ground_truth": False}}, "--oracle human"),
        (
            nothing,
            {"train": {**SMALL_RUN["train"], "schedule": {"name": "constant", "params": {"speed": 1}}}},
            "no parameter 'speed'",
        ),
        (nothing, {"task": {"name": "segmentation"}}, "'folders' has one label per image"),
        (nothing, {"evaluation": {"average_flipped": True}}, "only to segmentation"),
        (nothing, {"evaluation": {"miou_star_exclude": ["road"]}}, "only to segmentation"),
        (
            nothing,
            {"params": {"ground_truth": False, "test": None}, "evaluation": {"split": "target"}},
            "evaluation.split=target needs the target's labels",
        ),
        (nothing, {"acquisition": {"budget": 7, "rounds": 2}}, "pool has 6 images"),
        (nothing, {"acquisition": {"budget": "1%", "rounds": 2}}, "too few"),
        (nothing, {"acquisition": {"budget": "5 %%", "rounds": 2}}, "must be a count"),
        (nothing, {"views": {**VIEWS, "test": {"crop": "center", "size": 20}}}, "raise data.params.size"),
        (
            nothing,
            {"views": {**VIEWS, "unlabelled": {"crop": "random", "size": 19, "pad": 1}}},
            "views.unlabelled takes a random crop of 19 x 19 pixels from images stored as 16 x 16 with 1",
        ),
    ],
)
def test_a_run_raises_what_the_doctor_reports(
    root: Path, edit: Edit, layer: dict[str, Any], words: str
) -> None:
    edit(root)
    config = make_config(root, **layer)
    errors = error_messages(config)
    assert words in errors[0]
    assert run_error(config, root / "run") == errors[0]


def test_a_run_raises_what_the_doctor_reports_about_other_data(root: Path) -> None:
    short_side = {"resize": "short_side", "crop": "random", "size": 4}
    rows, unlabelled, unknown = (valid_rows() for _ in range(3))
    rows[1] = ("source/cat/gone.png", *rows[1][1:])
    unlabelled[8] = (*unlabelled[8][:2], "", "train")
    unknown[8] = (*unknown[8][:2], "cow", "train")
    for config, words in (
        (config_of("folder"), "no data set 'folder'"),
        (config_of("folders"), "needs --source and --target"),
        (config_of("manifest"), "needs --path"),
        (config_of("manifest", params={"path": str(root / "gone.csv")}), "does not exist"),
        (config_of("toy", params={"n_classes": 1}), "n_classes must be at least 2"),
        (config_of("toy", views={**VIEWS, "unlabelled": short_side}), "resize=short_side needs images from"),
        (write_manifest(root, rows), "line 3"),
    ):
        errors = error_messages(config)
        assert words in errors[0]
        assert run_error(config, root / "run") == errors[0]
    for table, words in ((unlabelled, "1 of 6 target rows"), (unknown, "'cow' (first: ")):
        config = write_manifest(root, table)
        assert words in run_error(config, root / "run")
        assert run_error(config, root / "run") in error_messages(config)


# ---- files


def test_broken_files_are_all_named(root: Path) -> None:
    whole = (root / "source/cat/0.png").read_bytes()
    (root / "source/cat/truncated.png").write_bytes(whole[: len(whole) // 2])
    (root / "source/dog/empty.jpg").write_bytes(b"")
    (root / "target/dog/page.jpg").write_text("<html>404</html>")
    for number in range(23):
        (root / f"test/cat/bad{number:02d}.png").write_bytes(b"")
    findings = diagnose(make_config(root))
    source, target, test = messages(findings, "error")
    assert contains_words([source], "2 of 8 images of the source", "truncated.png", "empty.jpg (empty file)")
    assert contains_words([target], "1 of 7 images of the target", "page.jpg (not an image)")
    assert test.count("empty file") == 20
    assert contains_words([test], "23 of 29", "and 3 more")
    assert messages(findings, "warning") == []  # unreadable files are not reported as copies


@pytest.mark.parametrize(
    ("edit", "severity", "words"),
    [
        (copy("source/cat/1.png", "test/cat/copy.png"), "error", "1 image of the test is also in the source"),
        (copy("target/cat/1.png", "test/cat/copy.png"), "error", "1 image of the test is also in the target"),
        (copy("source/cat/1.png", "target/cat/copy.png"), "warning", "of the target is also in the source"),
        (copy("target/cat/1.png", "target/cat/copy.png"), "warning", "1 image of the target is a copy"),
        (
            lambda root: (root / "test/cat/copy.png").symlink_to(root / "source/cat/1.png"),
            "error",
            "1 image of the test is also in the source",
        ),
    ],
)
def test_copies(root: Path, edit: Edit, severity: str, words: str) -> None:
    edit(root)
    findings = diagnose(make_config(root))
    assert [f.severity for f in findings if f.severity != "note"] == [severity]
    assert contains_words(messages(findings, severity), words, "cat/1.png", "copy.png")


def test_one_image_in_two_classes(root: Path) -> None:
    shutil.copy(root / "source/cat/1.png", root / "source/dog/1b.png")
    found = warning_messages(make_config(root))
    assert contains_words(found, "more than one class", "cat/1.png ('cat')", "dog/1b.png ('dog')")


def test_class_sizes(root: Path) -> None:
    for number in range(110):
        write_noise(root / f"source/cat/more{number}.png")
    (root / "source/dog/2.png").unlink()
    notes = note_messages(make_config(root))
    assert contains_words(notes, "'cat' is 56 times as large as 'dog'")
    assert contains_words(notes, "115 images in 2 classes, from 2 ('dog') to 113 ('cat')")
    (root / "source/dog/1.png").unlink()
    assert contains_words(warning_messages(make_config(root)), "only one image of 'dog'")


def test_missing_classes_and_ignored_folders(root: Path) -> None:
    (root / "target/dog").rename(root / "target/Dog")
    findings = diagnose(make_config(root))
    assert contains_words(messages(findings, "warning"), "target", "no images of the source classes 'dog'")
    # Without ground truth, the names of the target's folders are ignored.
    assert error_messages(make_config(root, params={"ground_truth": False})) == []


def test_parameters_of_a_wrong_type(root: Path) -> None:
    wrong = {"size": "big", "source": 5, "ground_truth": "perhaps", "memory_gb": True}
    found = error_messages(make_config(root, params=wrong))
    for name in wrong:
        assert contains_words(found, f"data.params.{name} is ")


def test_every_bad_row_of_a_manifest_is_reported(root: Path) -> None:
    rows = valid_rows()
    rows[1] = ("source/cat/gone.png", *rows[1][1:])
    rows[7] = (rows[7][0], "neither", *rows[7][2:])
    rows[8] = (*rows[8][:2], "", "train")
    rows += [rows[0], ("./source/cat/0.png", "target", "cat", "test")]
    (root / "test/dog/2.png").write_bytes(b"")
    found = error_messages(write_manifest(root, rows))
    for words in (
        ("line 3", "gone.png"),
        ("line 9", "neither"),
        ("1 of 5 target rows", "lack a label", "line 10"),
        ("line 20", "the key 'source/cat/0.png' is already used on line 2"),
        ("test", "2.png (empty file)"),
        ("1 image of the test", "also in the source", "(line 2)", "(line 21)"),
    ):
        assert contains_words(found, *words), words
    many = [*valid_rows(), *((f"gone/{i}.png", "source", "cat", "") for i in range(25))]
    found = error_messages(write_manifest(root, many))
    assert sum("gone" in message for message in found) == 20
    assert contains_words(found, "5 more bad rows")


# ---- data sets that are built


def leaky() -> AdaptationData:
    pixels = torch.arange(12, dtype=torch.uint8).view(6, 1, 1, 2).repeat(1, 1, 8, 4)
    source = Domain(Images(("a", "b", "c", "d"), pixels[:4]), torch.tensor([0, 0, 1, 1]), ("x", "y"))
    test = Domain(Images(("t",), pixels[2:3]), torch.tensor([7]), ("x", "y"))
    return AdaptationData(
        source, Images(("p", "q"), pixels[4:]), ground_truth=torch.tensor([0, -2]), test=test
    )


def failing() -> AdaptationData:
    raise KeyError("column")


def empty_data() -> None: ...


def test_user_defined_data_sets_are_built_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "own_data", sys.modules[__name__])
    findings = diagnose(config_of("own_data:leaky", acquisition={"budget": 1, "rounds": 1}))
    assert contains_words(messages(findings, "error"), "1 image of the test", "such as c and t")
    assert contains_words(messages(findings, "error"), "the test has classes", "not in the source: '7'")
    assert contains_words(messages(findings, "warning"), "larger than the target (2 images)")
    assert contains_words(messages(findings, "note"), "target: 2 images in 1 class")
    segmentation = {"task": {"name": "segmentation"}, "model": {"name": "small_fcn"}}
    found = error_messages(config_of("own_data:leaky", **segmentation))
    assert contains_words(found, "'own_data:leaky' has one label per image")
    assert contains_words(error_messages(config_of("own_data:failing")), "own_data:failing", "KeyError")
    assert contains_words(error_messages(config_of("own_data:empty_data")), "not AdaptationData")


# ---- plan and machine


def test_batches(root: Path) -> None:
    found = warning_messages(make_config(root, train={"epochs": 10, "batch_size": 8}))
    assert contains_words(found, "train.batch_size=8", "source (6 images)")
    assert contains_words(found, "train.batch_size=8", "target (6 images)")
    (message,) = error_messages(make_config(root, engine={"device": "cpu", "processes": 3}))
    assert "train.batch_size=4 must be a multiple of 3 processes" in message


def test_crops_that_fit(root: Path) -> None:
    views = {
        "source": {"crop": "random_resized", "size": 224},
        "labelled": {"crop": "random", "size": 18, "pad": 1},
        "unlabelled": {"crop": "none"},
        "scoring": {"crop": "center", "size": 16},
        "test": {"crop": "center", "size": 16},
    }
    findings = diagnose(make_config(root, views=views))
    assert messages(findings, "error") == []
    assert contains_words(messages(findings, "warning"), "different sizes", "views.source 224")


def test_memory_and_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "free_memory_gb", lambda: 1e-6)
    assert contains_words(warning_messages(make_config(root)), "kept in memory", "memory_gb")
    findings = diagnose(make_config(root, params={"memory_gb": 0, "cache": str(root / "new/cache")}))
    assert messages(findings, "warning") == []
    assert contains_words(messages(findings, "note"), f"go to {root / 'new/cache'}")
    monkeypatch.setattr(plan_module, "free_disk_gb", lambda folder: 0.0)
    monkeypatch.setattr(machine_module, "free_disk_gb", lambda folder: 0.5)
    found = warning_messages(make_config(root, params={"memory_gb": 0}))
    assert contains_words(found, "0.0 GB are free", "every batch", "cache")
    assert contains_words(found, "0.5 GB", str(Path.cwd()))


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"device": "abacus"}, "device 'abacus'"),
        ({"device": "cpu", "precision": "16-mixed"}, "16-mixed needs a GPU"),
        ({"device": "cpu", "cuda_graphs": True}, "needs one CUDA device"),
        ({"device": "cpu", "cuda_graphs": True}, "uses random numbers in each step"),
    ],
)
def test_device(root: Path, engine: dict[str, Any], words: str) -> None:
    query = {"name": "tqs"}  # its committee draws random numbers
    assert contains_words(error_messages(make_config(root, engine=engine, query=query)), words)


def test_torchvision_that_does_not_fit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    (root / "source/cow").mkdir()
    found = error_messages(make_config(root))
    assert contains_words(found, "torchvision", "from the same index")
    assert contains_words(found, "'cow'")  # files are still checked


def test_missing_weights_and_backbones(root: Path) -> None:
    torch.save({"conv1.weight": torch.zeros(64, 3, 7, 7)}, root / "other.pth")
    for params, words in (
        ({"weights": str(root / "none.pth")}, ("the weights file", "none.pth")),
        ({"backbone": "resnet5O"}, ("timm has no model 'resnet5O'", "similar: resnet50")),
        ({"weights": str(root / "other.pth")}, ("does not fit the backbone 'resnet18'",)),
    ):
        model = {"name": "timm", "params": {"backbone": "resnet18", **params}}
        assert contains_words(error_messages(make_config(root, model=model)), *words)


# ---- all together


def test_several_defects_are_all_reported_once(root: Path) -> None:
    (root / "source/cow").mkdir()
    (root / "source/cat/bad.png").write_bytes(b"")
    shutil.copy(root / "target/dog/1.png", root / "test/dog/copy.png")
    shutil.copy(root / "source/dog/1.png", root / "source/cat/copy.png")
    (root / "test/cat").rename(root / "test/cats")
    layer: dict[str, Any] = {
        "query": {"name": "oracle"},
        "objective": {"name": "duc", "params": {"betta": 1}},
        "model": {"name": "own:net"},
        "oracle": {"name": "wizard"},
        "acquisition": {"budget": 100},
        "train": {"epochs": 10, "batch_size": 16, "schedule": {"name": "constant", "params": {"speed": 1}}},
        "views": {**VIEWS, "test": {"crop": "center", "size": 20}},
    }
    findings = diagnose(make_config(root, params={"sizes": 3}, **layer))
    errors = messages(findings, "error")
    for word in ("'cow'", "bad.png", "also in the target", "'cats'", "100 labels", "crop of 20"):
        assert contains_words(errors, word), word
    for word in ("query 'oracle'", "'betta'", "'own:net'", "'wizard'", "'speed'", "'sizes'"):
        assert sum(word in message for message in errors) == 1, word
    for words in (
        ("more than one class",),
        ("is a copy",),
        ("no images of", "'cat'"),
        ("larger than the source",),
    ):
        assert contains_words(messages(findings, "warning"), *words), words
    message, code = verdict(findings)
    assert code == 1
    assert message.startswith(f"{len(errors)} errors and ")


def test_verdict() -> None:
    assert verdict([]) == ("No errors and no warnings: ready to run.", 0)
    message, code = verdict([Finding("warning", "w"), Finding("note", "n")])
    assert (code, "1 warning:" in message) == (0, True)
    message, code = verdict([Finding("error", "e")])
    assert (code, "1 error and no warnings" in message) == (1, True)
