"""Commands on segmentation runs: answers, labels, picks, predict and evaluate."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray
from PIL import Image

import tiny_segmentation_data
from commands import Capture, ducats, error_of, output_of, read_csv, set_options
from ducats.data.domain import VOID
from ducats.deploy import EvaluationResult, load_trained_model, segmentation
from ducats.evaluation.metrics import Tally
from ducats.ledger import Request, open_ledger
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.palette import class_colours

_Array = NDArray[Any]
CLASS_NAMES = ("road", "car", "sky")


def run_segmentation(root: Path, out: Path, *options: object, test: bool = False) -> int:
    """Run on the folders; return the exit code."""
    return ducats("run", *tiny_segmentation_data.folder_options(root, test=test), "--out", out, *options)


def evaluate(run: Path, capsys: Capture, *options: object) -> Any:
    return json.loads(output_of(capsys, "evaluate", run, *options, "--device", "cpu"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_segmentation_data.write_tree(tmp_path_factory.mktemp("streets"))


@pytest.fixture(scope="module")
def run(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with ground-truth labels."""
    out = tmp_path_factory.mktemp("runs") / "run"
    options = ("--ground-truth", "--budget", "30/image", "--set", "evaluation.miou_star_exclude=[car]")
    filter_ = ("--set", "views.test.interpolation=bilinear")  # the other commands must use it, too
    assert run_segmentation(root, out, *options, *filter_, test=True) == 0
    return out


def read_png(path: Path) -> _Array:
    with Image.open(path) as opened:
        return np.array(opened)


# ---- human annotators


def test_run_without_ground_truth_waits_for_annotators(tmp_path: Path, capsys: Capture) -> None:
    root = tiny_segmentation_data.write_tree(tmp_path / "data")
    for path in (root / "target/labels").iterdir():
        path.unlink()  # no ground truth
    out, budget = tmp_path / "run", ("--budget", "20/image", "--audit", 0)
    answers: dict[tuple[str, int, int], str] = {}
    for number in (1, 2):
        assert run_segmentation(root, out, *budget) == 3
        assert f"round {number} waits for 40 of 40 pixels in 4 of 4 images" in capsys.readouterr().err
        if number == 1:
            assert output_of(capsys, "labels", out) == "round,key,y,x,label\n"
            assert "no labels yet" in error_of(capsys, "picks", out)
        folder = out / "questions" / f"round-0{number}"
        ids = {line.split(" ", 1)[1]: int(line.split()[0]) for line in read_lines(folder / "classes.txt")}
        for i, row in enumerate(read_csv(folder / "questions.csv")):
            queried = read_png(folder / row["mask"]) > 0
            assert queried.shape == (12, 16)
            assert queried.sum() == int(row["pixels"]) == 10
            labels = np.full(queried.shape, ids["not answered yet"], np.uint8)
            for y, x in zip(*queried.nonzero(), strict=True):
                label = ("sky" if y < 6 else "road") if (x + y) % 5 else "void"
                answers[row["key"], int(y), int(x)] = label
                labels[y, x] = ids[label]
            (folder / row["answer"]).parent.mkdir(parents=True, exist_ok=True)
            if i == 0:  # an incomplete file first: labels are recorded only when all are there
                incomplete = labels.copy()
                incomplete[tuple(np.argwhere(queried)[0])] = ids["not answered yet"]
                Image.fromarray(incomplete).save(folder / row["answer"])
                assert run_segmentation(root, out, *budget) == 3
                assert f"waits for {1 + 30} of 40 pixels" in capsys.readouterr().err
            Image.fromarray(labels).save(folder / row["answer"])
    assert run_segmentation(root, out, *budget) == 0
    assert "80 pixels labelled (label PNGs: 80 pixels); model" in capsys.readouterr().out
    printed = csv.DictReader(io.StringIO(output_of(capsys, "labels", out)))
    labelled = {(row["key"], int(row["y"]), int(row["x"])): row["label"] for row in printed}
    assert len(labelled) == 80
    assert labelled == answers


def read_lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


# ---- labels and picks


def test_labels_match_the_label_files(root: Path, run: Path, capsys: Capture) -> None:
    printed = list(csv.DictReader(io.StringIO(output_of(capsys, "labels", run))))
    assert len(printed) == 120
    names = {value: name for name, value in tiny_segmentation_data.IDS.items()}
    for row in printed:
        ids = Image.open(root / "target/labels" / row["key"]).resize((16, 12), Image.Resampling.NEAREST)
        assert row["label"] == names[np.asarray(ids)[int(row["y"]), int(row["x"])]]
        assert row["label"] != "void"  # void pixels are known and never queried


def test_labels_into_a_closed_pipe(tmp_path: Path) -> None:
    run_folder = RunFolder(tmp_path)
    (tmp_path / "data.yaml").write_text(yaml.safe_dump({"classes": ["a", "b"]}))
    count = 100_000  # far more than a pipe holds
    ledger = open_ledger(run_folder, ["x.png"], torch.tensor([[1000, 1000]]))
    request = Request(1, torch.zeros(count, dtype=torch.long), torch.arange(count))
    ledger.append(request, torch.where(torch.arange(count) % 3 == 0, VOID, 1))
    command = [sys.executable, "-m", "ducats", "labels", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline() for _ in range(3)] == [
            "round,key,y,x,label\n",
            "1,x.png,0,0,void\n",
            "1,x.png,0,1,b\n",
        ]
        process.stdout.close()
        stderr = process.stderr.read()
        assert process.wait(60) == 0
    assert stderr == ""


def test_picks_are_drawn(run: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(run / "picks.png") in "".join(output_of(capsys, "picks", run, "--count", "2").split("\n"))
    shape = read_png(run / "picks.png").shape
    assert ducats("picks", run, "--images", "101.png", "--out", tmp_path / "one.png") == 0
    assert read_png(tmp_path / "one.png").shape[0] < shape[0]
    monkeypatch.setattr(
        "ducats.deploy.pool_images.load_images", lambda *_: pytest.fail("no image may be read")
    )
    assert "no image 'night.png'" in error_of(capsys, "picks", run, "--images", "night.png")


# ---- label maps


def predict_by_hand(run: Path, path: Path) -> tuple[_Array, dict[str, _Array]]:
    """Compute labels and values of each pixel in float64, averaged with the mirror image."""
    trained = load_trained_model(run)
    network = trained.model.network.eval()
    original = Image.open(path).convert("RGB")
    pixels = np.asarray(original.resize((16, 12), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    image = torch.tensor(pixels[None] / np.float32(255))
    outputs = []
    for view in (image, image.flip(-1)):
        with torch.no_grad():
            logits = network(view)[0].double()
        size = (original.height, original.width)
        fine = torch.nn.functional.interpolate(logits, size, mode="bilinear", align_corners=True)
        alpha = fine.clamp(max=10).exp()[0]
        p = alpha / alpha.sum(0)
        u_data = (p * (torch.digamma(alpha.sum(0) + 1) - torch.digamma(alpha + 1))).sum(0)
        entropy = -(p * p.log()).sum(0)
        outputs.append((p, entropy, u_data, entropy - u_data))
    p, *uncertainties = ((a + b.flip(-1)) / 2 for a, b in zip(*outputs, strict=True))
    values = dict(
        zip(("entropy", "u_data", "u_dis"), (value.numpy() for value in uncertainties), strict=True)
    )
    return p.argmax(0).numpy(), {"probability": p.amax(0).numpy(), **values}


def test_label_maps_and_uncertainties_match_the_formulas(root: Path, run: Path, tmp_path: Path) -> None:
    images = tmp_path / "new"
    tiny_segmentation_data.write_image(images, 7, "day/a", labelled=False)
    tiny_segmentation_data.write_image(images, 8, "b", (17, 41), labelled=False)
    options = ("--out", tmp_path / "out", "--uncertainty-maps", "--device", "cpu")
    assert ducats("predict", run, images / "images", *options) == 0
    rows = {row["key"]: row for row in read_csv(tmp_path / "out/predictions.csv")}
    assert set(rows) == {"day/a.png", "b.png"}
    for key, row in rows.items():
        label, values = predict_by_hand(run, images / "images" / key)
        written = tmp_path / "out" / row["file"]
        assert row["file"] == f"labels/{key}"
        assert (read_png(written) == label).mean() > 0.999  # a tie may fall the other way
        with Image.open(written) as opened:
            assert opened.mode == "P"
            colours = np.array(opened.getpalette()).reshape(-1, 3)
            assert [tuple(colour) for colour in colours[:3].tolist()] == class_colours(CLASS_NAMES)
        with np.load(tmp_path / "out/uncertainty" / f"{key.removesuffix('.png')}.npz") as saved:
            for name, expected in values.items():
                assert saved[name].dtype == np.float16
                np.testing.assert_allclose(saved[name], expected, rtol=2e-3, atol=1e-4)
                assert float(row[name]) == pytest.approx(expected.mean(), rel=1e-3)
        shares = [(label == i).mean() for i in range(3)]
        assert [float(row[f"share({name})"]) for name in CLASS_NAMES] == pytest.approx(shares, abs=2e-3)
    assert read_lines(tmp_path / "out/classes.txt") == ["0 road", "1 car", "2 sky"]


def iou_by_hand(root: Path, out: Path, images: Path) -> list[float]:
    """Compute the IoU of the PNGs of `ducats predict` and the label files at their own size."""
    intersection, union = np.zeros(3), np.zeros(3)
    for row in read_csv(out / "predictions.csv"):
        predicted, ids = read_png(out / row["file"]), read_png(images / "labels" / row["key"])
        for i, name in enumerate(CLASS_NAMES):
            true, positive = ids == tiny_segmentation_data.IDS[name], (predicted == i) & (ids != 255)
            intersection[i] += (true & positive).sum()
            union[i] += (true | positive).sum()
    return list(intersection / union)


def test_evaluate_matches_the_predicted_maps(root: Path, run: Path, tmp_path: Path, capsys: Capture) -> None:
    own = evaluate(run, capsys)
    assert (own["evaluated_on"], own["images"], own["resolution"]) == ("held_out", 4, "original")
    assert own["pixels"] == 4 * 18 * 30  # two rows of twenty are void
    assert ducats("predict", run, root / "test/images", "--out", tmp_path / "p", "--device", "cpu") == 0
    by_hand = iou_by_hand(root, tmp_path / "p", root / "test")
    assert list(own["class_iou"]) == list(CLASS_NAMES)
    assert list(own["class_iou"].values()) == pytest.approx(by_hand)
    assert own["mean_iou"] == pytest.approx(np.mean(by_hand))
    assert own["mean_iou_star"] == pytest.approx((by_hand[0] + by_hand[2]) / 2)
    last = json.loads(read_lines(run / "metrics.jsonl")[-1])
    for name in ("mean_iou", "mean_iou_star", "accuracy", "ece", "nll"):
        assert own[name] == last[name]
    # The same images from a folder, read with the class list of the run.
    from_folder = evaluate(run, capsys, "--data", root / "test")
    assert from_folder.pop("evaluated_on") == f"the folder {root / 'test'}"
    assert from_folder == {name: value for name, value in own.items() if name != "evaluated_on"}


def test_labelled_pixels_are_excluded_from_the_evaluation_on_the_target(
    root: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "run"
    options = ("--ground-truth", "--budget", "30/image", "--set", "evaluation.resolution=network")
    assert run_segmentation(root, out, *options) == 0
    own = evaluate(out, capsys)
    assert (own["evaluated_on"], own["resolution"]) == ("unlabelled", "12x16 (network)")
    void = sum(
        int((np.asarray(Image.open(path).resize((16, 12), Image.Resampling.NEAREST)) == 255).sum())
        for path in (root / "target/labels").iterdir()
    )
    assert own["pixels"] == 4 * 12 * 16 - void - 120
    assert own["mean_iou"] == json.loads(read_lines(out / "metrics.jsonl")[-1])["mean_iou"]


def test_names_that_differ_in_their_suffix_get_separate_maps(run: Path, tmp_path: Path) -> None:
    pixels, _ = tiny_segmentation_data.scene(1)
    images = tmp_path / "images"
    images.mkdir()
    for name in ("a.png", "a.jpg", "A.bmp", "b.png"):
        Image.fromarray(pixels).save(images / name)
    assert ducats("predict", run, images, "--out", tmp_path / "out", "--device", "cpu") == 0
    files = [row["file"] for row in read_csv(tmp_path / "out/predictions.csv")]
    assert len({file.lower() for file in files}) == 4
    assert all((tmp_path / "out" / file).is_file() for file in files)
    assert "labels/b.png" in files
    assert not (tmp_path / "out/uncertainty").exists()


@pytest.mark.parametrize(("count", "mode"), [(256, "P"), (257, "I;16"), (400, "I;16")])
def test_class_indices_fit_the_png(tmp_path: Path, count: int, mode: str) -> None:
    label = torch.arange(count)[None].expand(2, count)
    segmentation._write_labels(tmp_path / "x.png", label, tuple(f"class {number}" for number in range(count)))
    with Image.open(tmp_path / "x.png") as opened:
        assert opened.mode == mode
        assert np.array_equal(np.array(opened), label.numpy())


def test_invalid_options_for_a_segmentation_run(
    root: Path, run: Path, tmp_path: Path, capsys: Capture
) -> None:
    images, file = root / "test/images", tmp_path / "p.csv"
    file.touch()
    for message, command in {
        "is a file, not a folder": ("predict", run, images, "--out", file),
        "--class-probabilities is for classification": ("predict", run, images, "--class-probabilities"),
        "there is no folder": ("evaluate", run, "--data", images),
        "no image": ("predict", run, tmp_path),
    }.items():
        assert message in error_of(capsys, *command, "--device", "cpu")


def test_changed_class_list(root: Path, run: Path, capsys: Capture) -> None:
    (root / "classes.txt").write_text(tiny_segmentation_data.CLASS_LIST.replace("car", "bus"))
    try:
        error = error_of(capsys, "evaluate", run, "--data", root / "test", "--device", "cpu")
    finally:
        (root / "classes.txt").write_text(tiny_segmentation_data.CLASS_LIST)
    assert "has changed since training (now road, bus, sky; then road, car, sky)" in error


def test_run_on_synthetic_streets_has_no_class_list_for_folders(
    root: Path, tmp_path: Path, capsys: Capture
) -> None:
    size = "data.params={n_source: 4, n_pool: 2, n_test: 1, height: 16, width: 24}"
    small = set_options(size, "train.steps_per_epoch=1", "train.batch_size=2")
    options = ("--epochs", "1", "--rounds", "0", "--device", "cpu", "--out", tmp_path / "run")
    network = tiny_segmentation_data.SMALL_RUN_OPTIONS[:2]
    assert ducats("run", "-c", "data/streets", *small, *network, *options) == 0
    error = error_of(capsys, "evaluate", tmp_path / "run", "--data", root / "test", "--device", "cpu")
    assert "this run has data.name=streets; omit --data" in error
    assert evaluate(tmp_path / "run", capsys)["images"] == 1


def test_evaluation_without_pixels_has_no_metrics() -> None:
    empty = EvaluationResult(Tally.empty(3), "unlabelled", 4, "original").metrics(CLASS_NAMES)
    assert empty == {"evaluated_on": "unlabelled", "images": 4, "pixels": 0, "resolution": "original"}
