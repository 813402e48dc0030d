import csv
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from doctor_findings import contains_words, error_messages, messages, note_messages, warning_messages
from ducats import doctor
from ducats.config import Config, load_config
from ducats.data.domain import AdaptationData, Domain, Images
from ducats.doctor import Finding, diagnose, verdict
from ducats.doctor import machine as machine_module
from ducats.doctor import plan as plan_module

SMALL_RUN: dict[str, Any] = {
    "model": {"name": "small_cnn"},
    "train": {"epochs": 10, "batch_size": 4},
    "views": {name: {"crop": "none"} for name in ("source", "unlabelled", "scoring", "test")},
    "acquisition": {"budget": 4, "rounds": 2},
}


def write_image(path: Path) -> None:
    """Write a unique image that depends only on its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = random.Random("/".join(path.parts[-3:])).randbytes(144)
    Image.frombytes("L", (12, 12), pixels).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Valid data: two classes, three images of each in source, target and test."""
    for role in ("source", "target", "test"):
        for name in ("cat", "dog"):
            for number in range(3):
                write_image(tmp_path / role / name / f"{number}.png")
    return tmp_path


def make_config(root: Path, *, params: dict[str, Any] | None = None, **layer: Any) -> Config:
    given = {role: str(root / role) for role in ("source", "target", "test")}
    data = {"name": "folders", "params": {**given, "size": 16, "ground_truth": True, **(params or {})}}
    return Config.model_validate({**SMALL_RUN, "data": data, **layer})


# -- valid data -----------------------------------------------------------------------------------


def test_valid_data_has_notes_only(root: Path) -> None:
    findings = diagnose(make_config(root))
    assert {finding.severity for finding in findings} == {"note"}
    notes = messages(findings, "note")
    assert contains_words(notes, "source: 6 images in 2 classes, 3 each")
    assert contains_words(notes, "4 labels", "2 per round", "after epoch 2, 4 of 10")
    assert contains_words(notes, "torch " + torch.__version__, "device", "CPU threads")
    assert contains_words(notes, "decoded", "GB", "memory_gb")
    assert verdict(findings) == ("No errors and no warnings: ready to run.", 0)


def test_hidden_files_are_ignored(root: Path) -> None:
    (root / "source/cat/.broken.png").write_bytes(b"no image")
    (root / "source/.hidden").mkdir()
    (root / "source/.hidden/x.png").write_bytes(b"")
    (root / "source/cat/notes.txt").write_text("no image either")
    (root / "target/.DS_Store").write_bytes(b"\0")
    shutil.copy(root / "source/cat/0.png", root / "test/dog/.copy.png")
    assert {finding.severity for finding in diagnose(make_config(root))} == {"note"}


def test_the_bundled_digits_are_valid() -> None:
    findings = diagnose(load_config(["data/digits", "methods/duc"], ["data.params.n_source=200"]))
    assert {finding.severity for finding in findings} == {"note"}
    assert contains_words(messages(findings, "note"), "source: 200 images in 10 classes, 20 each")


def test_an_unlabelled_target_needs_human_annotators(root: Path) -> None:
    findings = diagnose(make_config(root, params={"ground_truth": False}))
    assert {finding.severity for finding in findings} == {"note"}
    assert contains_words(messages(findings, "note"), "target: 6 images without labels")
    assert contains_words(messages(findings, "note"), "human annotators provide 2 labels per round")


def test_target_as_test_is_not_a_leak(root: Path) -> None:
    findings = diagnose(make_config(root, params={"test": str(root / "target")}))
    assert {finding.severity for finding in findings} == {"note"}
    assert contains_words(messages(findings, "note"), "target and test are the same folder")


# -- files -------------------------------------------------------------------------------------------


def test_broken_files_are_all_named(root: Path) -> None:
    whole = (root / "source/cat/0.png").read_bytes()
    (root / "source/cat/truncated.png").write_bytes(whole[: len(whole) // 2])
    (root / "source/dog/empty.jpg").write_bytes(b"")
    (root / "target/dog/page.jpg").write_text("<html>404</html>")
    found = error_messages(make_config(root))
    assert len(found) == 2
    assert contains_words(
        found, "2 of 8 images of the source", "truncated.png", "empty.jpg (empty file)", "remove"
    )
    assert contains_words(found, "1 of 7 images of the target", "page.jpg (not an image)")


def test_many_broken_files_are_counted(root: Path) -> None:
    for number in range(23):
        (root / f"test/cat/bad{number:02d}.png").write_bytes(b"")
    findings = diagnose(make_config(root))
    (message,) = messages(findings, "error")
    assert message.count("empty file") == 20
    assert "23 of 29" in message
    assert "and 3 more" in message
    assert messages(findings, "warning") == []  # unreadable files are not reported as copies


@pytest.mark.parametrize(
    ("one", "two", "severity"),
    [("source", "test", "error"), ("target", "test", "error"), ("source", "target", "warning")],
)
def test_copies_across_roles(root: Path, one: str, two: str, severity: str) -> None:
    shutil.copy(root / one / "cat/1.png", root / two / "cat/copy.png")
    findings = diagnose(make_config(root))
    assert [f.severity for f in findings if f.severity != "note"] == [severity]
    assert contains_words(
        messages(findings, severity), f"1 image of the {two}", f"also in the {one}", "copy.png", "1.png"
    )


def test_copies_in_one_role(root: Path) -> None:
    shutil.copy(root / "target/cat/1.png", root / "target/cat/copy.png")
    shutil.copy(root / "target/cat/2.png", root / "target/cat/again.png")
    findings = diagnose(make_config(root))
    assert messages(findings, "error") == []
    (message,) = messages(findings, "warning")
    assert "2 images of the target are copies" in message
    assert "1.png" in message
    assert "copy.png" in message


def test_one_image_in_two_classes(root: Path) -> None:
    shutil.copy(root / "source/cat/1.png", root / "source/dog/1b.png")
    found = warning_messages(make_config(root))
    assert contains_words(found, "more than one class", "cat/1.png ('cat')", "dog/1b.png ('dog')")


def test_links_to_one_file_are_copies(root: Path) -> None:
    (root / "test/cat/link.png").symlink_to(root / "source/cat/0.png")
    assert contains_words(error_messages(make_config(root)), "link.png", "also in the source")


# -- classes -----------------------------------------------------------------------------------------


def test_empty_class_folder(root: Path) -> None:
    (root / "source/cow").mkdir()
    assert contains_words(error_messages(make_config(root)), "source", "without images", "'cow'")


def test_images_outside_of_class_folders(root: Path) -> None:
    write_image(root / "source/loose.png")
    (message,) = error_messages(make_config(root))
    assert "loose.png" in message
    assert "outside class folders" in message


def test_classes_that_differ(root: Path) -> None:
    (root / "test/dog").rename(root / "test/Dog")
    write_image(root / "target/cow/1.png")
    findings = diagnose(make_config(root))
    assert contains_words(messages(findings, "error"), "test", "not in the source", "'Dog'")
    assert contains_words(messages(findings, "error"), "target", "not in the source", "'cow'")
    assert contains_words(messages(findings, "warning"), "test", "no images of the source classes 'dog'")
    # Without ground truth, the names of the target's folders are ignored.
    assert not contains_words(error_messages(make_config(root, params={"ground_truth": False})), "'cow'")


def test_one_class_only(root: Path) -> None:
    for role in ("source", "target", "test"):
        shutil.rmtree(root / role / "dog")
    assert contains_words(error_messages(make_config(root)), "source", "only one class, 'cat'")


def test_a_class_of_one_image(root: Path) -> None:
    for number in (1, 2):
        (root / f"source/dog/{number}.png").unlink()
    (message,) = (line for line in warning_messages(make_config(root)) if "only one image" in line)
    assert "'dog'" in message


def test_imbalance(root: Path) -> None:
    for number in range(110):
        write_image(root / f"source/cat/more{number}.png")
    (root / "source/dog/2.png").unlink()
    assert contains_words(note_messages(make_config(root)), "'cat' is 56 times as large as 'dog'")
    assert contains_words(
        note_messages(make_config(root)), "115 images in 2 classes, from 2 ('dog') to 113 ('cat')"
    )


# -- folders and manifests ---------------------------------------------------------------------------


def test_missing_options() -> None:
    found = error_messages(Config.model_validate({**SMALL_RUN, "data": {"name": "folders"}}))
    assert found == ["the data set 'folders' needs --source and --target (or data.params.source in a config)"]
    assert contains_words(
        error_messages(Config.model_validate({**SMALL_RUN, "data": {"name": "manifest"}})), "needs --path"
    )


def test_missing_and_empty_folders(root: Path) -> None:
    shutil.rmtree(root / "test")
    shutil.rmtree(root / "target")
    (root / "target").mkdir()
    found = error_messages(make_config(root))
    assert contains_words(found, "test folder", "does not exist")
    assert contains_words(found, "target folder", "contains no images")


def test_folders_within_folders(root: Path) -> None:
    assert contains_words(
        error_messages(make_config(root, params={"target": str(root / "source/cat"), "ground_truth": False})),
        "inside",
    )


def test_parameters_of_a_wrong_type(root: Path) -> None:
    found = error_messages(
        make_config(root, params={"size": "big", "source": 5, "ground_truth": "perhaps", "memory_gb": True})
    )
    for name in ("size", "source", "ground_truth", "memory_gb"):
        assert contains_words(found, f"data.params.{name} is ")


def write_manifest(root: Path, rows: Sequence[tuple[str, str, str, str]]) -> Config:
    with (root / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "domain", "label", "split"), *rows])
    data = {"name": "manifest", "params": {"path": str(root / "table.csv"), "size": 16}}
    return Config.model_validate({**SMALL_RUN, "data": data})


def valid_rows(root: Path) -> list[tuple[str, str, str, str]]:
    return [
        (f"{role}/{name}/{i}.png", "source" if role == "source" else "target", name, split)
        for role, split in (("source", "train"), ("target", "train"), ("test", "test"))
        for name in ("cat", "dog")
        for i in range(3)
    ]


def test_a_valid_manifest_has_notes_only(root: Path) -> None:
    findings = diagnose(write_manifest(root, valid_rows(root)))
    assert {finding.severity for finding in findings} == {"note"}
    assert contains_words(messages(findings, "note"), "test: 6 images in 2 classes")


def test_every_bad_row_of_a_manifest_is_reported(root: Path) -> None:
    rows = valid_rows(root)
    rows[1] = ("source/cat/gone.png", *rows[1][1:])
    rows[7] = (rows[7][0], "neither", *rows[7][2:])
    rows[8] = (*rows[8][:2], "", "train")
    rows.append(rows[0])
    (root / "test/dog/2.png").write_bytes(b"")
    found = error_messages(write_manifest(root, rows))
    assert contains_words(found, "line 3", "gone.png")
    assert contains_words(found, "line 9", "neither")
    assert contains_words(found, "1 of 5 target rows lack a label", "line 10")
    assert contains_words(found, "line 20", "the key 'source/cat/0.png' is already used on line 2")
    assert contains_words(found, "test", "2.png (empty file)")


def test_a_path_on_two_rows_is_a_copy(root: Path) -> None:
    rows = [*valid_rows(root), ("./source/cat/0.png", "target", "cat", "test")]
    assert contains_words(
        error_messages(write_manifest(root, rows)), "1 image of the test", "also in the source"
    )


def test_very_many_bad_rows_are_counted(root: Path) -> None:
    rows = [*valid_rows(root), *((f"gone/{i}.png", "source", "cat", "") for i in range(25))]
    found = error_messages(write_manifest(root, rows))
    assert len(found) == 21
    assert contains_words(found, "5 more bad rows")


def test_a_missing_manifest(tmp_path: Path) -> None:
    (tmp_path / "table.txt").write_text("path")
    for name, word in (("gone.csv", "does not exist"), ("table.txt", ".parquet")):
        data = {"name": "manifest", "params": {"path": str(tmp_path / name)}}
        assert contains_words(error_messages(Config.model_validate({**SMALL_RUN, "data": data})), word)


# -- data sets that are built ------------------------------------------------------------------------


def leaky() -> AdaptationData:
    pixels = torch.arange(12, dtype=torch.uint8).view(6, 1, 1, 2).repeat(1, 1, 8, 4)
    source = Domain(Images(("a", "b", "c", "d"), pixels[:4]), torch.tensor([0, 0, 1, 1]), ("x", "y"))
    test = Domain(Images(("t",), pixels[2:3]), torch.tensor([7]), ("x", "y"))
    return AdaptationData(
        source, Images(("p", "q"), pixels[4:]), ground_truth=torch.tensor([0, -2]), test=test
    )


def failing() -> AdaptationData:
    raise KeyError("column")


def nothing() -> None: ...


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "own_data", sys.modules[__name__])


@pytest.mark.usefixtures("own_module")
def test_a_user_defined_data_set_is_built_and_checked() -> None:
    layer = {**SMALL_RUN, "data": {"name": "own_data:leaky"}, "acquisition": {"budget": 1, "rounds": 1}}
    findings = diagnose(Config.model_validate(layer))
    assert contains_words(messages(findings, "error"), "1 image of the test", "such as c and t")
    assert contains_words(messages(findings, "error"), "the test has classes that are not in the source: '7'")
    assert contains_words(messages(findings, "warning"), "larger than the target (2 images)")
    assert contains_words(messages(findings, "note"), "target: 2 images in 1 class")


@pytest.mark.usefixtures("own_module")
def test_a_set_that_cannot_be_built() -> None:
    found = error_messages(Config.model_validate({**SMALL_RUN, "data": {"name": "own_data:failing"}}))
    assert contains_words(found, "own_data:failing", "KeyError")
    found = error_messages(Config.model_validate({**SMALL_RUN, "data": {"name": "own_data:nothing"}}))
    assert contains_words(found, "own_data:nothing", "not AdaptationData")
    found = error_messages(
        Config.model_validate({**SMALL_RUN, "data": {"name": "toy", "params": {"n_classes": 1}}})
    )
    assert contains_words(found, "n_classes must be at least 2")


# -- settings and plan -------------------------------------------------------------------------------


def test_every_misspelt_name_and_parameter_is_reported(root: Path) -> None:
    layer: dict[str, Any] = {
        "query": {"name": "dcu"},
        "objective": {"name": "duc", "params": {"betta": 1}},
        "model": {"name": "own:net"},
        "oracle": {"name": "wizard"},
        "train": {**SMALL_RUN["train"], "schedule": {"name": "constant", "params": {"speed": 1}}},
    }
    found = error_messages(make_config(root, params={"sizes": 3}, **layer))
    for word in ("'dcu'", "'betta'", "'own:net'", "'wizard'", "'speed'", "'sizes'"):
        assert sum(word in message for message in found) == 1, word


@pytest.mark.usefixtures("own_module")
def test_a_component_that_is_not_callable(root: Path) -> None:
    assert contains_words(
        error_messages(make_config(root, objective={"name": "own_data:SMALL_RUN"})), "objective", "callable"
    )


def test_a_data_set_that_does_not_exist_is_reported_once() -> None:
    (message,) = error_messages(Config.model_validate({**SMALL_RUN, "data": {"name": "folder"}}))
    assert "no data set 'folder'" in message


@pytest.mark.parametrize(
    ("budget", "word"), [(7, "pool has 6 images"), ("1%", "too few"), ("5 %%", "must be a count")]
)
def test_budget(root: Path, budget: int | str, word: str) -> None:
    assert contains_words(
        error_messages(make_config(root, acquisition={"budget": budget, "rounds": 2})), word
    )


def test_uneven_rounds_and_none(root: Path) -> None:
    assert contains_words(
        note_messages(make_config(root, acquisition={"budget": 5, "rounds": 2})), "5 labels", "2 + 3"
    )
    assert contains_words(
        note_messages(make_config(root, acquisition={"rounds": 0})), "no labels are queried"
    )


def test_batches(root: Path) -> None:
    found = warning_messages(make_config(root, train={"epochs": 10, "batch_size": 8}))
    assert contains_words(found, "train.batch_size=8", "source (6 images)")
    assert contains_words(found, "train.batch_size=8", "target (6 images)")
    found = error_messages(make_config(root, engine={"device": "cpu", "processes": 3}))
    assert len(found) == 1
    assert contains_words(found, "train.batch_size=4 must be a multiple of engine.processes=3")


def test_crops(root: Path) -> None:
    views = {
        "source": {"crop": "random_resized", "size": 224},
        "labelled": {"crop": "random", "size": 18, "pad": 1},
        "unlabelled": {"crop": "random", "size": 17},
        "scoring": {"crop": "center", "size": 16},
        "test": {"crop": "center", "size": 20},
    }
    found = error_messages(make_config(root, views=views))
    assert len(found) == 2
    assert contains_words(found, "views.unlabelled", "crop of 17", "16 x 16")
    assert contains_words(found, "views.test", "crop of 20", "raise data.params.size")


def test_oracles(root: Path) -> None:
    found = error_messages(make_config(root, params={"ground_truth": False}, oracle={"name": "ground_truth"}))
    assert contains_words(found, "'ground_truth'", "--oracle human")
    assert contains_words(
        note_messages(make_config(root, oracle={"name": "human"})), "human annotators provide"
    )
    assert contains_words(
        error_messages(make_config(root, oracle={"name": "human", "params": {"patience": 3}})), "patience"
    )


def test_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "free_memory_gb", lambda: 1e-6)
    assert contains_words(warning_messages(make_config(root)), "kept in memory", "memory_gb")
    findings = diagnose(make_config(root, params={"memory_gb": 0, "cache": str(root / "new/cache")}))
    assert messages(findings, "warning") == []
    assert contains_words(messages(findings, "note"), f"go to {root / 'new/cache'}")
    monkeypatch.setattr(plan_module, "free_disk_gb", lambda folder: 0.0)
    assert contains_words(
        warning_messages(make_config(root, params={"memory_gb": 0})),
        "0.0 GB are free",
        "every batch",
        "cache",
    )


# -- the machine -------------------------------------------------------------------------------------


def test_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "free_disk_gb", lambda folder: 0.5)
    assert contains_words(warning_messages(make_config(root)), "0.5 GB", str(Path.cwd()))


def test_device(root: Path) -> None:
    assert contains_words(error_messages(make_config(root, engine={"device": "abacus"})), "device 'abacus'")
    assert contains_words(
        error_messages(make_config(root, engine={"device": "cpu", "precision": "16-mixed"})),
        "16-mixed needs a GPU",
    )


def test_torchvision_that_does_not_fit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    (root / "source/cow").mkdir()
    found = error_messages(make_config(root))
    assert contains_words(found, "torchvision", "from the same index")
    assert contains_words(found, "'cow'")  # the rest is still checked


# -- all together ------------------------------------------------------------------------------------


def test_several_defects_are_all_reported(root: Path) -> None:
    (root / "source/cow").mkdir()
    (root / "source/cat/bad.png").write_bytes(b"")
    shutil.copy(root / "target/dog/1.png", root / "test/dog/copy.png")
    shutil.copy(root / "source/dog/1.png", root / "source/cat/copy.png")
    (root / "test/cat").rename(root / "test/cats")
    layer: dict[str, Any] = {
        "query": {"name": "oracle"},
        "acquisition": {"budget": 100},
        "train": {"epochs": 10, "batch_size": 16},
    }
    findings = diagnose(make_config(root, **layer))
    for words in (
        ("'cow'",),
        ("bad.png",),
        ("1 image of the test", "also in the target"),
        ("'cats'",),
        ("no query 'oracle'",),
        ("100 labels",),
    ):
        assert contains_words(messages(findings, "error"), *words), words
    for words in (
        ("more than one class",),
        ("is a copy",),
        ("no images of", "'cat'"),
        ("larger than the source",),
    ):
        assert contains_words(messages(findings, "warning"), *words), words
    message, code = verdict(findings)
    assert code == 1
    assert message.startswith(f"{len(messages(findings, 'error'))} errors and ")


def test_verdict() -> None:
    assert verdict([]) == ("No errors and no warnings: ready to run.", 0)
    message, code = verdict([Finding("warning", "w"), Finding("note", "n")])
    assert (code, "1 warning:" in message) == (0, True)
    assert verdict([Finding("error", "e")]) == (
        "1 error and no warnings: fix the errors before training.",
        1,
    )


def test_public_names() -> None:
    assert doctor.__all__ == ["Finding", "diagnose", "verdict"]


def test_views_of_different_sizes_are_reported(root: Path) -> None:
    crop = {"crop": "random_resized", "size": 6}
    found = warning_messages(make_config(root, views={**SMALL_RUN["views"], "source": crop}))
    assert contains_words(found, "different sizes", "views.source 6")


# ---- evaluation


def test_the_evaluation_images_are_reported(root: Path) -> None:
    notes = messages(diagnose(make_config(root)), "note")
    assert contains_words(notes, "evaluated on held-out target images")
    for split, words in (("unlabelled", "without the labelled"), ("target", "including the labelled")):
        assert contains_words(
            messages(diagnose(make_config(root, evaluation={"split": split})), "note"),
            "evaluated on",
            words,
        )


def test_held_out_images_are_not_queried(root: Path) -> None:
    shutil.rmtree(root / "test")
    config = make_config(root, params={"test": None}, evaluation={"split": "held_out", "test_fraction": 0.4})
    notes = messages(diagnose(config), "note")
    assert contains_words(notes, "from 4 images of the target")  # one of three of each class is held out


def test_an_impossible_evaluation_is_an_error(root: Path) -> None:
    config = make_config(root, params={"ground_truth": False, "test": None}, evaluation={"split": "target"})
    assert contains_words(
        error_messages(config), "evaluation.split=target needs the target's labels", "--ground-truth"
    )


def test_performance_options_unavailable_on_the_device(root: Path) -> None:
    assert contains_words(
        error_messages(make_config(root, engine={"device": "cpu", "cuda_graphs": True})),
        "needs one CUDA device",
    )


def test_short_side_needs_files() -> None:
    view = {"resize": "short_side", "crop": "random", "size": 4}
    config = Config.model_validate(
        {**SMALL_RUN, "data": {"name": "toy"}, "views": {**SMALL_RUN["views"], "unlabelled": view}}
    )
    assert contains_words(
        error_messages(config), "views.unlabelled.resize=short_side needs images from files"
    )


def test_missing_weights_and_backbones(root: Path, tmp_path: Path) -> None:
    def timm(**params: Any) -> Config:
        return make_config(root, model={"name": "timm", "params": {"backbone": "resnet18", **params}})

    assert contains_words(
        error_messages(timm(weights=str(root / "none.pth"))), "the weights file", "none.pth"
    )
    assert contains_words(
        error_messages(timm(backbone="resnet5O")), "timm has no model 'resnet5O'", "similar: resnet50"
    )
    torch.save({"conv1.weight": torch.zeros(64, 3, 7, 7)}, tmp_path / "other.pth")
    assert contains_words(
        error_messages(timm(weights=str(tmp_path / "other.pth"))), "does not fit the backbone 'resnet18'"
    )
