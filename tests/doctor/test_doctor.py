"""Findings of the doctor about images, plans and machines."""

import csv
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import PLAIN_VIEWS
from doctor_findings import (
    Change,
    assert_findings,
    assert_run_raises_first_error,
    changed_config,
    check_case,
    write_bytes,
    write_noise,
)
from ducats.config import Config, load_config
from ducats.data.domain import AdaptationData, Domain, Images
from ducats.doctor import Finding, diagnose, memory, verdict
from ducats.doctor import machine as machine_module
from ducats.doctor.images import report_counts
from ducats.doctor.survey import SplitSurvey
from ducats.utils.findings import Severity
from image_kinds import png16_bytes, refused_kinds

SETTINGS = (
    "data={name: folders, params: {source: @source, target: @target, test: @test, size: 16}}",
    "data.params.ground_truth=true",
    "model.name=small_cnn",
    "train={epochs: 10, batch_size: 4}",
    PLAIN_VIEWS,
    "acquisition={budget: 4, rounds: 2}",
    "engine.device=cpu",
)
Row = tuple[str, str, str, str]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Valid data: two classes, three images of each in source, target and test."""
    for role in ("source", "target", "test"):
        for name in ("cat", "dog"):
            for number in range(3):
                write_noise(tmp_path / role / name / f"{number}.png")
    return tmp_path


def make_config(root: Path, *changes: Change) -> Config:
    return changed_config(root, (), (*SETTINGS, *changes))


def manifest(*bad_rows: tuple[int, Row], more: Sequence[Row] = ()) -> tuple[Change, Change]:
    """Return the changes for a manifest of the valid data with some rows replaced and some added."""
    rows = [
        (f"{role}/{name}/{i}.png", "source" if role == "source" else "target", name, split)
        for role, split in (("source", "train"), ("target", "train"), ("test", "test"))
        for name in ("cat", "dog")
        for i in range(3)
    ]
    for index, row in bad_rows:
        rows[index] = row

    def write(root: Path) -> None:
        with (root / "table.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("path", "domain", "label", "split"), *rows, *more])

    return write, "data={name: manifest, params: {path: @table.csv, size: 16}}"


def copy(one: str, two: str) -> Change:
    return lambda root: shutil.copy(root / one, root / two)


def rename(one: str, two: str) -> Change:
    return lambda root: (root / one).rename(root / two)


def make_folder(name: str) -> Change:
    return lambda root: (root / name).mkdir()


def delete(*names: str) -> Change:
    def edit(root: Path) -> None:
        for path in (root / name for name in names):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    return edit


def many_images(root: Path) -> None:
    for number in range(110):
        write_noise(root / f"source/cat/more{number}.png")


NO_GROUND_TRUTH = "data.params.ground_truth=false"


# ---- errors that a run raises, too


@pytest.mark.parametrize(
    "case",
    [
        ("source has class folders without images: 'cow'", make_folder("source/cow")),
        ("1 image outside class folders", lambda root: write_noise(root / "source/loose.png")),
        ("unknown classes: 'cow' (first: ", lambda root: write_noise(root / "target/cow/1.png")),
        ("unknown classes: 'cow' (first: ", lambda root: write_noise(root / "test/cow/1.png")),
        ("has only one class, 'cat'", delete("source/dog", "target/dog", "test/dog")),
        ("does not exist", delete("test")),
        ("contains no images (.", delete("target/cat", "target/dog")),
        ("inside the other", "data.params.target=@source/cat", NO_GROUND_TRUTH),
        ("same folder", "data.params.source=@target"),
        ("needs --target", "data.params.target=null"),
        ("no parameter 'sizes'", "data.params.sizes=3"),
        ("no query 'dcu' (did you mean 'duc'?); choose from: random", "query.name=dcu"),
        ("no query 'nowhere:q'", "query.name=nowhere:q"),
        ("commands has no 'duccats'; did you mean 'ducats'?", "query.name=commands:duccats"),
        ("kappa", "query={name: duc, params: {kappa: 0.5}}"),
        ("no parameter 'kapa'; it has: kappa, order", "query={name: duc, params: {kapa: 3}}"),
        ("'impurity', which is defined for pixels only", "query.name=ripu"),
        ("no parameter 'betta'", "objective={name: duc, params: {betta: 1}}"),
        ("'duc' does not accept the parameters", "objective={name: duc, params: {beta: high}}"),
        ("must be callable", "objective.name=doctor_findings:Image"),
        ("no model 'own:net'", "model.name=own:net"),
        ("outputs one class per pixel", "model.name=small_fcn"),
        ("'timm' does not accept the parameters", "model={name: timm, params: {backbone: 5}}"),
        ("'timm' does not accept the parameters", "model={name: timm, params: {weights: 5}}"),
        ("no oracle 'wizard'", "oracle.name=wizard"),
        ("has no parameter 'patience'", "oracle={name: human, params: {patience: 3}}"),
        ("has no parameters", "oracle={name: auto, params: {min_annotators: 2}}"),
        ("--oracle human", "oracle.name=ground_truth", NO_GROUND_TRUTH),
        ("no parameter 'speed'", "train.schedule={name: constant, params: {speed: 1}}"),
        ("schedule 'inverse_decay' does not accept", "train.schedule.params.gain=high"),
        ("'folders' has one label per image", "task.name=segmentation"),
        ("only to segmentation", "evaluation.average_flipped=true"),
        ("only to segmentation", "evaluation.miou_star_exclude=[road]"),
        (
            "evaluation.split=target needs the target's labels",
            "evaluation.split=target",
            "data.params.test=null",
            NO_GROUND_TRUTH,
        ),
        ("pool has 6 images", "acquisition.budget=7"),
        ("too few", "acquisition.budget=1%"),
        ("must be a count", "acquisition.budget='5 %%'"),
        ("raise data.params.size", "views.test={crop: center, size: 20}"),
        (
            "views.unlabelled takes a random crop of 19 x 19 pixels from images stored as 16 x 16 with 1",
            "views.unlabelled={crop: random, size: 19, pad: 1}",
        ),
        ("no data set 'folder'", "data={name: folder}"),
        ("needs --target", "data.params={source: null, target: null}"),
        ("needs --manifest", "data={name: manifest}"),
        ("does not exist", "data={name: manifest, params: {path: @gone.csv}}"),
        ("line 3", *manifest((1, ("source/cat/gone.png", "source", "cat", "train")))),
        ("n_classes must be at least 2", "data={name: toy, params: {n_classes: 1}}"),
        (
            "resize=short_side needs images from",
            "data={name: toy}",
            "views.unlabelled={resize: short_side, crop: random, size: 4}",
        ),
        (
            "interpolation=bilinear needs images from",
            "data={name: toy}",
            "views.scoring.interpolation=bilinear",
        ),
        ("1 of 6 target rows", *manifest((8, ("target/cat/2.png", "target", "", "train")))),
        ("'cow' (first: ", *manifest((8, ("target/cat/2.png", "target", "cow", "train")))),
    ],
)
def test_a_run_raises_what_the_doctor_reports(root: Path, case: tuple[str, *tuple[Change, ...]]) -> None:
    words, *changes = case
    assert_run_raises_first_error(make_config(root, *changes), root / "run", words)


# ---- findings about data and plan


@pytest.mark.parametrize(
    ("labels", "words"),
    [("a", "1 image in 1 class"), ("aa", "2 images in 1 class"), ("ab", "2 images in 2 classes, 1 each")],
)
def test_counts_of_classes(labels: str, words: str) -> None:
    split = SplitSurvey("source", "the source", names=[*labels], labels=[*labels])
    assert next(report_counts(split)).message == f"source: {words}"


@pytest.mark.parametrize(
    "case",
    [
        (
            "note: source: 6 images in 2 classes, 3 each",
            "note: 4 labels … 2 per round … after epoch 2, 4 of 10",
            f"note: torch {torch.__version__} … device … CPU threads",
            "note: decoded … GB … memory_gb",
            "note: evaluated on held-out target images",
        ),
        ("note: test: 6 images in 2 classes", *manifest()),
        ("note: target and test are the same folder", "data.params.test=@target"),
        ("note: target: 6 images without labels", NO_GROUND_TRUTH),
        (  # hidden files and files that are not images are ignored
            write_bytes("source/cat/.broken.png", b"no image"),
            make_folder("source/.hidden"),
            write_bytes("source/.hidden/x.png"),
            write_bytes("source/cat/notes.txt", b"no image either"),
            copy("source/cat/0.png", "test/dog/.copy.png"),
        ),
        ("note: 5 labels from 6 images of the target: 2 + 3", "acquisition.budget=5"),
        ("note: no labels are queried", "acquisition.rounds=0"),
        ("note: human annotators provide 2 labels per round", "oracle.name=human"),
        ("note: human annotators provide 2 labels per round", NO_GROUND_TRUTH),
        ("note: without the labelled", "evaluation.split=unlabelled"),
        ("note: including the labelled", "evaluation.split=target"),
        (  # one of three of each class is held out
            "note: from 4 images of the target",
            "data.params.test=null",
            "evaluation={split: held_out, test_fraction: 0.4}",
        ),
        (
            "error: 1 image of the test is also in the source … cat/1.png … copy.png",
            copy("source/cat/1.png", "test/cat/copy.png"),
        ),
        (
            "error: 1 image of the test is also in the target … cat/1.png … copy.png",
            lambda root: (root / "test/cat/copy.png").symlink_to(root / "target/cat/1.png"),
        ),
        (
            "warning: 1 image of the target is also in the source … cat/1.png … copy.png",
            copy("source/cat/1.png", "target/cat/copy.png"),
        ),
        (
            "warning: 1 image of the source is a copy … cat/1.png … 1b.png",
            "warning: more than one class … cat/1.png ('cat') … dog/1b.png ('dog')",
            copy("source/cat/1.png", "source/dog/1b.png"),
        ),
        (
            "note: 'cat' is 56 times as large as 'dog'",
            "note: 115 images in 2 classes, from 2 ('dog') to 113 ('cat')",
            many_images,
            delete("source/dog/2.png"),
        ),
        ("warning: only one image of 'dog'", delete("source/dog/1.png", "source/dog/2.png")),
        (
            "error: unknown classes: 'Dog'",
            "warning: target … no images of the classes 'dog'",
            rename("target/dog", "target/Dog"),
        ),
        # Without ground truth, the names of the target's folders are ignored.
        (rename("target/dog", "target/Dog"), NO_GROUND_TRUTH),
        (
            "warning: train.batch_size=8 … source (6 images)",
            "warning: train.batch_size=8 … target (6 images)",
            "train.batch_size=8",
        ),
        ("error: train.batch_size=4 must be a multiple of 3 processes", "engine.processes=3"),
        (
            "warning: different sizes … views.source 224",
            "views.source={crop: random_resized, size: 224}",
            "views.labelled={crop: random, size: 18, pad: 1}",
            "views.scoring={crop: center, size: 16}",
        ),
        ("error: device 'abacus'", "engine.device=abacus"),
        ("error: 16-mixed needs a GPU", "engine.precision=16-mixed"),
        ("error: needs one CUDA device", "engine.cuda_graphs=true", "query.name=tqs"),
        (
            "error: needs one CUDA device",
            "error: uses random numbers in each step",
            "engine.cuda_graphs=true",
            "objective.name=doctor_findings:SAMPLING_OBJECTIVE",
        ),
        ("error: the weights file … none.pth", "model={name: timm, params: {weights: @none.pth}}"),
        (
            "error: timm has no model 'resnet5O' … similar: resnet50",
            "model={name: timm, params: {backbone: resnet5O}}",
        ),
        (
            "error: does not fit the backbone 'resnet18'",
            lambda root: torch.save({"conv1.weight": torch.zeros(64, 3, 7, 7)}, root / "other.pth"),
            "model={name: timm, params: {backbone: resnet18, weights: @other.pth}}",
        ),
        ("error: data.params.size is ", "data.params.size=big"),
        (
            "warning: enlarged up to 5.0 times to 60 x 60 … --set data.params.size=12",
            "data.params.size=60",
        ),
        (
            "warning: enlarged up to 5.0 times to 60 x 60 … --set views.size=10",
            "data.params.size=60",
            *(f"views.{name}.size=50" for name in ("source", "unlabelled", "scoring", "test")),
            "views.source.crop=random",
        ),
        ("error: data.params.source is ", "data.params.source=5"),
        ("error: data.params.memory_gb is ", "data.params.memory_gb=true"),
        ("error: data.params.ground_truth is ", "data.params.ground_truth=perhaps"),
        ("error: data.params.range is ", "data.params.range=[4095, 0]"),
    ],
)
def test_findings(root: Path, case: Sequence[Change]) -> None:
    check_case(partial(make_config, root), case)


def test_digits_are_valid() -> None:
    config = load_config(["data/digits", "methods/duc"], ["data.params.n_source=200"])
    assert_findings(config, "note: source: 200 images in 10 classes, 20 each")


def test_broken_files_are_all_named(root: Path) -> None:
    whole = (root / "source/cat/0.png").read_bytes()
    (root / "source/cat/truncated.png").write_bytes(whole[: len(whole) // 2])
    (root / "source/dog/empty.jpg").write_bytes(b"")
    (root / "target/dog/page.jpg").write_text("<html>404</html>")
    for number in range(23):
        (root / f"test/cat/bad{number:02d}.png").write_bytes(b"")
    for setting, severity in (("data.strict=false", "warning"), ("data.strict=true", "error")):
        assert_findings(  # unreadable files are not reported as copies
            make_config(root, setting),
            f"{severity}: 2 of 8 images of the source … truncated.png … empty.jpg (empty file)",
            f"{severity}: 1 of 7 images of the target … page.jpg (not an image)",
            f"{severity}: 23 of 29 images of the test … bad19.png (empty file) and 3 more",
        )


def test_depth_and_bands_are_reported(root: Path) -> None:
    for name, largest in (("source/cat/a.png", 900), ("source/dog/b.png", 4000)):
        (root / name).write_bytes(png16_bytes(np.linspace(0, largest, 64).reshape(8, 8).astype(np.uint16)))
    (root / "target/dog/six.tif").write_bytes(refused_kinds()["six-pages.tif"][0])
    bands = "warning: 1 of 7 images of the target … six.tif (8 bits, 6 bands, which is neither grey nor RGB"
    assert_findings(
        make_config(root),
        "note: source: 6 images with 8 bits, 1 band; 2 images with 16 bits, 1 band",
        "error: 2 of 8 images of the source … 16 bits, 1 band; values from 0 to 4000 … a.png … [0,4095]",
        bands,
    )
    assert_findings(make_config(root, "data.params.range=[0, 4095]"), bands)


def test_every_bad_row_of_a_manifest_is_reported(root: Path) -> None:
    (root / "test/dog/2.png").write_bytes(b"")
    bad_rows = manifest(
        (1, ("source/cat/gone.png", "source", "cat", "train")),
        (7, ("target/cat/1.png", "neither", "cat", "train")),
        (8, ("target/cat/2.png", "target", "", "train")),
        more=[
            ("source/cat/0.png", "source", "cat", "train"),
            ("./source/cat/0.png", "target", "cat", "test"),
        ],
    )
    assert_findings(
        make_config(root, *bad_rows),
        "error: line 3 … gone.png",
        "error: line 9 … neither",
        "error: 1 of 5 target rows … lack a label … line 10",
        "error: line 20 … the key 'source/cat/0.png' is already used on line 2",
        "warning: test … 2.png (empty file)",
        "error: 1 image of the test … also in the source … (line 2) … (line 21)",
    )
    many = manifest(more=[(f"gone/{i}.png", "source", "cat", "") for i in range(25)])
    errors = [finding.message for finding in diagnose(make_config(root, *many))]
    assert sum("gone" in message for message in errors) == 20
    assert any("5 more bad rows" in message for message in errors)


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


def test_user_defined_data_sets_are_built_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "own_data", sys.modules[__name__])
    leaks = (
        "error: 1 image of the test … such as c and t",
        "error: the test has unknown classes: '7'",
        "warning: larger than the target (2 images)",
        "warning: the test has only one image of '7'",
        "warning: the target has no images of the classes 'y'",
        "warning: the test has no images of the classes 'x', 'y'",
    )
    one_label = ("data={name: 'own_data:leaky'}", "acquisition={budget: 1, rounds: 1}")
    assert_findings(make_config(tmp_path, *one_label), *leaks, "note: target: 2 images in 1 class")
    segmentation = (*one_label, "task={name: segmentation}", "model={name: small_fcn}")
    assert_findings(
        make_config(tmp_path, *segmentation), *leaks, "error: 'own_data:leaky' has one label per image"
    )
    for name, words in (("failing", "KeyError"), ("empty_data", "not AdaptationData")):
        assert_findings(
            make_config(tmp_path, f"data={{name: 'own_data:{name}'}}"), f"error: own_data:{name} … {words}"
        )


# ---- machine


def test_memory_and_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory_gb", lambda: 1e-6)
    assert_findings(make_config(root), "warning: kept in memory … memory_gb")
    on_disk = ("data.params.memory_gb=0", "data.params.cache=@new/cache")
    assert_findings(make_config(root, *on_disk), f"note: go to {root / 'new/cache'}")
    monkeypatch.setattr(memory, "free_disk_gb", lambda folder: 0.0)
    monkeypatch.setattr(machine_module, "free_disk_gb", lambda folder: 0.5)
    assert_findings(
        make_config(root, on_disk[0]),
        "warning: 0.0 GB are free … every batch … cache",
        f"warning: 0.5 GB … {Path.cwd()}",
    )


def test_torchvision_that_does_not_fit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert_findings(
        make_config(root, make_folder("source/cow")),
        "error: torchvision … from the same index",
        "error: 'cow'",  # files are still checked
    )


# ---- all together


def test_several_defects_are_all_reported_once(root: Path) -> None:
    config = make_config(
        root,
        make_folder("source/cow"),
        write_bytes("source/cat/bad.png"),
        copy("target/dog/1.png", "test/dog/copy.png"),
        copy("source/dog/1.png", "source/cat/copy.png"),
        rename("test/cat", "test/cats"),
        "query.name=oracle",
        "objective={name: duc, params: {betta: 1}}",
        "model.name=own:net",
        "oracle.name=wizard",
        "acquisition.budget=100",
        "train={batch_size: 16, schedule: {name: constant, params: {speed: 1}}}",
        "views.test={crop: center, size: 20}",
        "data.params.sizes=3",
    )
    data = ("'cow'", "also in the target", "'cats'", "100 labels", "crop of 20")
    settings = ("query 'oracle'", "'betta'", "'own:net'", "'wizard'", "'speed'", "'sizes'")
    assert_findings(
        config,
        *(f"error: {words}" for words in (*data, *settings)),
        "warning: more than one class",
        "warning: is a copy",
        "warning: bad.png",
        "warning: no images of … 'cat'",
        "warning: larger than the source",
        "warning: larger than the target",
        "warning: different sizes",
    )


@pytest.mark.parametrize(
    ("severities", "text", "code"),
    [
        ((), "No errors and no warnings: ready to run.", 0),
        (("warning", "note"), "No errors and 1 warning: ready to run, but read the warnings first.", 0),
        (("error",), "1 error and no warnings: fix the errors before training.", 1),
    ],
)
def test_verdict(severities: Sequence[Severity], text: str, code: int) -> None:
    assert verdict([Finding(severity, "x") for severity in severities]) == (text, code)
