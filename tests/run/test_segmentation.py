"""Whole segmentation runs on tiny synthetic streets and on files: selection, ledger and metrics."""

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from torch import Tensor, nn

import ducats
from conftest import Runner, make_runner, quick_pixels
from ducats.acquisition.queries import QUERIES
from ducats.data.domain import UNLABELLED, VOID, AdaptationData, original_map
from ducats.data.segmentation.folders import segmentation_folders
from ducats.data.streets import streets
from ducats.data.toy import toy
from ducats.ledger import Request, TargetMaps, load_ledger
from ducats.models import small_fcn
from ducats.objectives import Batch, duc
from ducats.run import run
from ducats.run.factory import build_run, check_config
from ducats.runfolder import records
from ducats.runfolder.run_folder import RunFolder
from ducats.settings import EvaluationOptions, TaskOptions
from ducats.training.distributed import make_fabric
from ducats.utils.errors import AwaitingLabels, UserError
from ducats.utils.progress import Event
from ducats.utils.randomness import global_seed
from ranks import outcome

HEIGHT, WIDTH, POOL = 16, 32, 5
PIXELS_PER_IMAGE_AND_ROUND = 13  # 5 % of 512 pixels are 25.6: 26 in two rounds


def tiny_streets() -> AdaptationData:
    """Return the data that ``run_pixels`` uses."""
    return streets(n_source=6, n_pool=POOL, n_test=3, height=HEIGHT, width=WIDTH)


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of ``run_pixels`` without further settings."""
    return make_runner(tmp_path_factory.mktemp("plain"), quick_pixels)()


def load_request(run_folder: RunFolder, number: int) -> Request:
    request = ducats.ledger.load_request(run_folder, number)
    assert request is not None
    return request


def clicks_of(position: Tensor, label: Tensor, unit: Tensor, width: int) -> int:
    """Count the connected components of each label within each unit, one unit at a time."""
    found, start = 0, 0
    for size in unit.tolist():
        positions, labels = position[start : start + size].numpy(), label[start : start + size].numpy()
        start += size
        for c in np.unique(labels):
            canvas = np.zeros((int(position.max()) // width + 1, width), bool)
            canvas.flat[positions[labels == c]] = True
            found += ndimage.label(canvas)[1]
    return int(found)


def check_ledger(run_folder: RunFolder, ground_truth: Any, void: Any, *, original: bool = False) -> None:
    """Check the ledger: no duplicates, no known void, true labels, counts and clicks as recorded."""
    ledger = load_ledger(run_folder)
    assert ledger.sizes is not None
    total = clicks = 0
    seen: set[tuple[int, int]] = set()
    for number in range(1, ledger.n_rounds + 1):
        request = load_request(run_folder, number)
        assert request.round == number
        for image, position, unit in request.blocks():
            height, width = ledger.sizes[image].tolist()
            true = original_map(ground_truth, image) if original else ground_truth[image]
            assert true.shape == (height, width)
            locations = {(image, position) for position in position.tolist()}
            assert len(locations) == len(position)  # no duplicates in a round
            assert not locations & seen  # nor across rounds
            seen |= locations
            if void is not None:
                beforehand = original_map(void, image) if original else void[image]
                assert not beforehand.flatten()[position].any()
            labels = true.flatten()[position]
            clicks += clicks_of(position, labels, unit, width)
        total += len(request)
        stage = next(r for r in run_folder.stages() if r["stage"] == number)
        assert (stage["labels"], stage["clicks"]) == (total, clicks)
        assert (ledger.spent(number), ledger.clicks(number)) == (total, clicks)
    for entry in ledger.entries():
        image = ledger.keys.index(entry.key)
        true = original_map(ground_truth, image) if original else ground_truth[image]
        assert entry.label == int(true.flatten()[entry.position])
        assert (image, entry.position) in seen
    assert len(ledger) == len(seen) == total


FIELDS = {
    *("kind", "stage", "epoch", "labels", "clicks", "evaluated_on", "images", "pixels", "resolution"),
    *("headline_metric", "mean_iou", "class_iou", "accuracy", "class_accuracy", "mean_class_accuracy"),
    *(
        "ece",
        "ece_10",
        "classwise_ece",
        "nll",
        "brier",
        "aurc",
        "reliability",
        "peak_memory_bytes",
        "seconds",
    ),
}


def check_stages(run_folder: RunFolder, pixels: int, images: int = 3) -> None:
    """Check every field, and its agreement with the confusion matrix."""
    assert [(r["stage"], r["epoch"]) for r in run_folder.stages()] == [(0, 1), (1, 2), (2, 4)]
    assert (run_folder.stages()[0]["labels"], run_folder.stages()[0]["clicks"]) == (0, 0)
    for record in run_folder.stages():
        assert record.keys() == FIELDS | ({"temperature_scaled"} if record["stage"] else set())
        assert (record["images"], record["pixels"], record["headline_metric"]) == (images, pixels, "mean_iou")
        counts, classes = confusion(run_folder, record["epoch"])
        assert counts.sum() == pixels
        assert len(classes) == len(record["class_iou"]) == len(counts)
        shared = np.diag(counts)
        either = counts.sum(0) + counts.sum(1) - shared
        iou = [s / e if e else None for s, e in zip(shared.tolist(), either.tolist(), strict=True)]
        assert record["class_iou"] == iou
        assert record["mean_iou"] == pytest.approx(np.mean([v for v in iou if v is not None]))
        assert record["accuracy"] == pytest.approx(shared.sum() / pixels)


def confusion(run_folder: RunFolder, epoch: int) -> tuple[Any, list[str]]:
    with (run_folder.path / "confusion" / f"epoch-{epoch:03d}.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert [row[0] for row in rows] == head[1:]
    return np.array([row[1:] for row in rows], np.int64), head[1:]


# ---- selection


@pytest.mark.parametrize(
    ("unit", "query"),
    [
        *(("pixel", query) for query in ("random", "spread", "ripu_points, params: {radius: 3}")),
        *(("region", query) for query in ("margin", "ripu")),
        *(("superpixel", query) for query in ("entropy", "duc")),
    ],
)
def test_the_budget_is_spent_exactly(run_pixels: Runner, unit: str, query: str) -> None:
    if unit == "superpixel":
        pytest.importorskip("skimage")
    run_folder = run_pixels(f"task={{unit: {unit}, n_superpixels: 60}}", f"query={{name: {query}}}")
    data, ledger = tiny_streets(), load_ledger(run_folder)
    check_ledger(run_folder, data.ground_truth, data.pool.void_masks)
    for number in (1, 2):
        assert ledger.labels_per_image(number).tolist() == [PIXELS_PER_IMAGE_AND_ROUND * number] * POOL
        request = load_request(run_folder, number)
        assert (request.unit_sizes is None) == (unit == "pixel")
        if unit == "region":
            assert request.unit_sizes is not None
            assert int(request.unit_sizes.max()) <= 9
            assert len(request.unit_sizes) < len(request)
    if unit == "pixel":
        assert ledger.clicks() == len(ledger)
    elif unit == "region":
        assert POOL * 2 < ledger.clicks() < len(ledger)
    assert data.test is not None
    check_stages(run_folder, int((data.test.labels[:] >= 0).sum()))


@pytest.mark.parametrize("query", ["random", "duc", "spread"])
def test_whole_images(run_pixels: Runner, query: str) -> None:
    run_folder = run_pixels("task.unit=image", "acquisition.budget=60%", f"query={{name: {query}}}")
    data = tiny_streets()
    check_ledger(run_folder, data.ground_truth, data.pool.void_masks)
    assert data.pool.void_masks is not None
    everything = int((data.pool.void_masks[0] == 0).sum())
    assert sorted(load_ledger(run_folder).labels_per_image(1).tolist()) == [0] * 4 + [everything]
    assert sorted(load_ledger(run_folder).labels_per_image(2).tolist()) == [0] * 2 + [everything] * 3
    unit = load_request(run_folder, 2).unit_sizes
    assert unit is not None
    assert len(unit) == 2  # one unit each


def test_the_whole_target_can_be_labelled_at_once(run_pixels: Runner) -> None:
    data = tiny_streets()
    run_folder = run_pixels(
        "acquisition={budget: 100%, rounds: 1, after_epochs: [0]}",
        "train.epochs=1",
        method="fully-supervised",
        data=replace(data, test=None),
    )
    assert data.ground_truth is not None
    assert data.pool.void_masks is not None
    before, after = run_folder.stages()
    assert (before["labels"], after["labels"]) == (0, int((data.pool.void_masks[:] == 0).sum()))
    maps = TargetMaps(load_ledger(run_folder), (HEIGHT, WIDTH), void=data.pool.void_masks)
    assert torch.equal(maps[:], data.ground_truth[:])
    assert after["pixels"] == 0  # nothing is left to evaluate
    assert "mean_iou" not in after


def test_count_per_image_and_total_count(run_pixels: Runner) -> None:
    each = load_ledger(run_pixels("acquisition.budget=7/image", folder="each"))
    assert each.labels_per_image(1).tolist() == [3, 4, 3, 4, 3]
    assert each.labels_per_image(2).tolist() == [7] * POOL
    every = load_ledger(run_pixels("acquisition.budget=23", folder="all"))
    assert int(every.labels_per_image().sum()) == 23
    assert sorted(every.labels_per_image().tolist()) == [4, 4, 5, 5, 5]


def test_void_costs_budget_only_if_unknown(run_pixels: Runner) -> None:
    data = tiny_streets()
    blind = replace(data, pool=replace(data.pool, void_masks=None))
    run_folder = run_pixels("acquisition.budget=90%", "query={name: random}", data=blind)
    check_ledger(run_folder, data.ground_truth, None)
    labels = [entry.label for entry in load_ledger(run_folder).entries()]
    assert len(labels) == round(0.9 * HEIGHT * WIDTH) * POOL
    assert VOID in labels
    # Known void: fewer pixels can be selected than the budget allows, and all of them are labelled.
    run_folder = run_pixels("acquisition.budget=90%", "query={name: random}", folder="known")
    assert data.pool.void_masks is not None
    assert len(load_ledger(run_folder)) == int((data.pool.void_masks[:] == 0).sum()) < len(labels)
    assert VOID not in [entry.label for entry in load_ledger(run_folder).entries()]


# ---- reproducibility


def test_same_seed_same_run(run_pixels: Runner, plain_run: RunFolder) -> None:
    same, other = run_pixels(folder="a"), run_pixels("seed=2", folder="b")
    assert outcome(same.path) == outcome(plain_run.path)
    assert outcome(same.path)["labels"] != outcome(other.path)["labels"]


def test_unlabelled_ground_truth_changes_nothing(run_pixels: Runner, plain_run: RunFolder) -> None:
    data, plain = tiny_streets(), outcome(plain_run.path)
    assert data.ground_truth is not None
    truth = data.ground_truth[:]
    is_unlabelled = TargetMaps(load_ledger(plain_run), (HEIGHT, WIDTH))[:] == UNLABELLED
    wrong = ((truth + 3) % 10).to(torch.int8)  # also where the label is void
    elsewhere = replace(data, ground_truth=torch.where(is_unlabelled, wrong, truth))
    assert outcome(run_pixels(folder="a", data=elsewhere).path) == plain
    # Poisoned labels of selected pixels: everything is equal until they are acquired, and differs afterwards.
    poisoned = replace(data, ground_truth=torch.where(is_unlabelled, truth, wrong))
    other = outcome(run_pixels(folder="b", data=poisoned).path)
    assert other["lines"][:2] == plain["lines"][:2]
    assert other["requests"][0] == plain["requests"][0]
    assert other["model"] != plain["model"]


def test_test_labels_do_not_affect_training_or_selection(run_pixels: Runner, plain_run: RunFolder) -> None:
    clean = tiny_streets()
    assert clean.test is not None
    poisoned = replace(clean.test, labels=((clean.test.labels[:] + 1) % 10).to(torch.int8))
    one, two = outcome(plain_run.path), outcome(run_pixels(data=replace(clean, test=poisoned)).path)
    assert (one["model"], one["labels"]) == (two["model"], two["labels"])
    assert one["lines"] != two["lines"]


def test_another_unit_in_the_same_folder_is_refused(plain_run: RunFolder) -> None:
    with pytest.raises(UserError, match=r"another config \(task.unit: 'pixel' -> 'region'\)"):
        make_runner(plain_run.path.parent, quick_pixels)("task.unit=region")


# ---- evaluation


def test_evaluation_does_not_affect_training_or_selection(run_pixels: Runner, plain_run: RunFolder) -> None:
    run_folder = run_pixels("evaluation={every_epochs: 1, split: target, miou_star_exclude: [road, sky]}")
    one, two = outcome(run_folder.path), outcome(plain_run.path)
    assert (one["model"], one["labels"]) == (two["model"], two["labels"])
    assert [r["epoch"] for r in one["lines"] if r["kind"] == "interim"] == [3]
    ground_truth = tiny_streets().ground_truth
    assert ground_truth is not None
    for record in run_folder.stages():
        assert (record["evaluated_on"], record["pixels"]) == ("target", int((ground_truth[:] >= 0).sum()))
        names = confusion(run_folder, record["epoch"])[1]
        class_iou = dict(zip(names, record["class_iou"], strict=True))
        rest = [iou for name, iou in class_iou.items() if name not in ("road", "sky") and iou is not None]
        assert record["mean_iou_star"] == pytest.approx(np.mean(rest))


def test_labelled_pixels_are_not_evaluated(run_pixels: Runner) -> None:
    data = tiny_streets()
    assert data.ground_truth is not None
    run_folder = run_pixels("evaluation.resolution=network", data=replace(data, test=None))
    all_of_it = int((data.ground_truth[:] >= 0).sum())
    assert [(r["evaluated_on"], r["images"], r["pixels"]) for r in run_folder.stages()] == [
        ("unlabelled", POOL, all_of_it),
        ("unlabelled", POOL, all_of_it - PIXELS_PER_IMAGE_AND_ROUND * POOL),
        ("unlabelled", POOL, all_of_it - 2 * PIXELS_PER_IMAGE_AND_ROUND * POOL),
    ]
    assert {r["resolution"] for r in run_folder.stages()} == {"16x32 (network)"}


def test_held_out_images_are_never_selected(run_pixels: Runner) -> None:
    data = tiny_streets()
    settings = ("evaluation.split=held_out", "evaluation.test_fraction=0.4")
    run_folder = run_pixels(*settings, data=replace(data, test=None))
    assert [(r["evaluated_on"], r["images"]) for r in run_folder.stages()] == [("held_out", 2)] * 3
    assert (run_folder.data_summary["pool"]["images"], len(load_ledger(run_folder))) == (
        3,
        2 * PIXELS_PER_IMAGE_AND_ROUND * 3,
    )
    assert data.ground_truth is not None
    index_of = {key: number for number, key in enumerate(data.pool.keys)}
    for entry in load_ledger(run_folder).entries():
        assert entry.label == int(data.ground_truth[index_of[entry.key]].flatten()[entry.position])


# ---- annotators


@pytest.mark.parametrize("unit", ["pixel", "region"])
def test_annotators_answer_between_two_calls(
    run_pixels: Runner, tmp_path: Path, plain_run: RunFolder, unit: str
) -> None:
    data = tiny_streets()
    assert data.ground_truth is not None
    blind, index_of = replace(data, ground_truth=None), {key: n for n, key in enumerate(data.pool.keys)}
    per_round = PIXELS_PER_IMAGE_AND_ROUND * POOL
    for number in (1, 2):
        with pytest.raises(AwaitingLabels, match=f"round {number} waits for {per_round} of {per_round} pix"):
            run_pixels(f"task.unit={unit}", data=blind)
        folder = tmp_path / "run" / "questions" / f"round-0{number}"
        with (folder / "questions.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert sum(int(row["pixels"]) for row in rows) == per_round
        for row in rows:
            true = data.ground_truth[index_of[row["key"]]].numpy()
            mask = np.array(Image.open(folder / row["mask"]))
            assert (mask > 0).sum() == int(row["pixels"])
            # 254 is "not yet": only selected pixels need an answer.
            path = folder / row["answer"]
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.where(mask > 0, true, 254).astype(np.uint8)).save(path)
    with_annotators = outcome(run_pixels(f"task.unit={unit}", data=blind).path)
    expected = plain_run if unit == "pixel" else run_pixels(f"task.unit={unit}", folder="ground truth")
    without_hints = {**with_annotators, "requests": with_annotators["requests"][1::2]}
    assert without_hints == outcome(expected.path)


# ---- files of several sizes, labelled at their original resolution

SIZES = [(20, 36), (24, 30), (20, 36)]
CLASSES = "0 road\n1 kerb\n2 sky\n255 void\n"


def write_tree(root: Path) -> None:
    """Write source, target and test folders with images of two sizes: bands of classes and a void corner."""
    generator = np.random.default_rng(0)
    for name, count in (("source", 4), ("target", 3), ("test", 3)):
        for number in range(count):
            height, width = SIZES[number % len(SIZES)]
            edge = np.sort(generator.integers(2, height - 2, (2, width)), 0)
            row = np.arange(height)[:, None]
            ids = np.where(row < edge[0], 2, np.where(row < edge[1], 1, 0)).astype(np.uint8)
            ids[: 3 + number, :5] = 255
            colours = (
                ids[..., None] * np.array([60, 90, 20]) + generator.integers(0, 60, (height, width, 3))
            ) % 256
            for kind, array in (("images", colours.astype(np.uint8)), ("labels", ids)):
                path = root / name / kind / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(array).save(path)
    (root / "classes.txt").write_text(CLASSES)


def load_tree(root: Path, **params: Any) -> AdaptationData:
    given = {
        "source": "source",
        "target": "target",
        "test": "test",
        "classes": "classes.txt",
        "ground_truth": True,
    }
    return segmentation_folders(root=root, size=(12, 20), source_size=(14, 24), **{**given, **params})


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write_tree(tmp_path / "data")
    return tmp_path / "data"


ORIGINAL = ("task.resolution=original", "train.lr=0.05")


@pytest.mark.parametrize(
    ("fill", "unit", "resolution"),
    [
        ("cell", "pixel", "network"),
        ("nearest", "pixel", "original"),
        ("cell", "region", "original"),
        ("nearest", "region", "network"),
    ],
)
def test_pixels_are_labelled_and_counted_at_original_resolution(
    run_pixels: Runner, files: Path, fill: str, unit: str, resolution: str
) -> None:
    data = load_tree(files)
    run_folder = run_pixels(
        *ORIGINAL,
        f"task.label_downsampling={fill}",
        f"task.unit={unit}",
        f"evaluation.resolution={resolution}",
        "evaluation.average_flipped=true",
        data=data,
        method="ripu" if unit == "region" else "duc",
    )
    areas = [height * width for height, width in SIZES]
    assert load_ledger(run_folder).labels_per_image().tolist() == [
        math.floor(0.05 * area + 0.5) for area in areas
    ]
    check_ledger(run_folder, data.ground_truth, data.pool.void_masks, original=True)
    assert data.test is not None
    if resolution == "original":
        counted = sum(int((original_map(data.test.labels, n) >= 0).sum()) for n in range(3))
        assert counted == sum(areas) - 5 * (3 + 4 + 5)
    else:
        counted = int((data.test.labels[:] >= 0).sum())
    check_stages(run_folder, counted)
    at = {"network": "12x20 (network)", "original": "original"}
    assert {r["resolution"] for r in run_folder.stages()} == {at[resolution]}


@pytest.fixture(scope="module")
def original_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("original")
    write_tree(folder / "data")
    return make_runner(folder, quick_pixels)(*ORIGINAL, data=load_tree(folder / "data"))


def test_fill_mode_affects_training(run_pixels: Runner, files: Path, original_run: RunFolder) -> None:
    nearest_run = run_pixels(*ORIGINAL, "task.label_downsampling=nearest", data=load_tree(files))
    # With `cell`, all labels are trained on, except those that share a cell.
    cells = TargetMaps(load_ledger(original_run), (12, 20), fill="cell")[:]
    nearest = TargetMaps(load_ledger(nearest_run), (12, 20), fill="nearest")[:]
    assert (cells >= 0).sum() > (nearest >= 0).sum() > 0
    one, two = outcome(original_run.path), outcome(nearest_run.path)
    assert one["requests"][0] == two["requests"][0]  # selected before the first label
    assert one["model"] != two["model"]


def test_two_step_upsampling_affects_selection(
    run_pixels: Runner, files: Path, original_run: RunFolder
) -> None:
    data = load_tree(files)
    two_step = run_pixels(*ORIGINAL, "task.two_step_upsampling=true", data=data)
    found = []
    for run_folder in (original_run, two_step):
        check_ledger(run_folder, data.ground_truth, data.pool.void_masks, original=True)
        found.append([(e.key, e.position) for e in load_ledger(run_folder).entries() if e.round == 1])
    assert len(found[0]) == len(found[1])
    assert set(found[0]) != set(found[1])


def test_void_pixels_can_be_selected_if_configured(run_pixels: Runner, files: Path) -> None:
    data = load_tree(files, void_pixels="queried")
    settings = (*ORIGINAL, "acquisition.budget=80%", "query={name: random}")
    run_folder = run_pixels(*settings, data=data)
    check_ledger(run_folder, data.ground_truth, None, original=True)
    assert VOID in {entry.label for entry in load_ledger(run_folder).entries()}


@pytest.mark.parametrize("resolution", ["network", "original"])
def test_labelled_original_pixels_are_not_evaluated(run_pixels: Runner, files: Path, resolution: str) -> None:
    data = replace(load_tree(files), test=None)
    assert data.ground_truth is not None
    run_folder = run_pixels(*ORIGINAL, f"evaluation.resolution={resolution}", data=data)
    pixels = [r["pixels"] for r in run_folder.stages()]
    if resolution == "original":
        every = sum(int((original_map(data.ground_truth, n) >= 0).sum()) for n in range(3))
        assert pixels == [every - load_ledger(run_folder).spent(number) for number in range(3)]
    else:
        # A cell holds the pixel of a nearest-neighbour resize, and counts until that pixel is labelled.
        every = int((data.ground_truth[:] >= 0).sum())
        lost = [
            int((TargetMaps(load_ledger(run_folder), (12, 20), number, fill="nearest")[:] >= 0).sum())
            for number in range(3)
        ]
        assert pixels == [every - some for some in lost]
        assert lost[2] > 0


def test_held_out_files(run_pixels: Runner, files: Path) -> None:
    data = replace(load_tree(files), test=None)
    run_folder = run_pixels(
        *ORIGINAL, "task.unit=region", "evaluation={split: held_out, test_fraction: 0.34}", data=data
    )
    assert [r["images"] for r in run_folder.stages()] == [1] * 3
    ledger = load_ledger(run_folder)
    assert len(ledger.keys) == 2
    assert data.ground_truth is not None
    index_of = {key: number for number, key in enumerate(data.pool.keys)}
    for entry in ledger.entries():
        true = original_map(data.ground_truth, index_of[entry.key])
        assert entry.label == int(true.flatten()[entry.position])
    (held,) = set(range(3)) - {index_of[key] for key in ledger.keys}
    assert run_folder.stages()[0]["pixels"] == int((original_map(data.ground_truth, held) >= 0).sum())


def test_whole_images_of_several_sizes(run_pixels: Runner, files: Path) -> None:
    data = load_tree(files)
    settings = (*ORIGINAL, "task.unit=image", "acquisition.budget=2")
    run_folder = run_pixels(*settings, data=data)
    check_ledger(run_folder, data.ground_truth, data.pool.void_masks, original=True)
    assert data.ground_truth is not None
    each = [int((original_map(data.ground_truth, n) >= 0).sum()) for n in range(3)]
    counts = load_ledger(run_folder).labels_per_image().tolist()
    assert sum(count > 0 for count in counts) == 2
    assert all(count in (0, whole) for count, whole in zip(counts, each, strict=True))


# ---- refusals


def test_invalid_labels_are_not_recorded(tmp_path: Path) -> None:
    config = quick_pixels()
    components, plan = build_run(config, RunFolder(tmp_path / "r"))

    def wrong(request: Request) -> Tensor:
        return torch.full((len(request),), 10, dtype=torch.int8)

    with pytest.raises(UserError, match=r"returned 10 in round 1"):
        run(replace(components, oracle=wrong), plan, tmp_path / "r", fabric=make_fabric("cpu"))
    assert not (tmp_path / "r" / "labels").exists()


# ---- the Python API


def make_components(**changes: Any) -> ducats.Components:
    data = tiny_streets()
    with global_seed(0, "model"):
        net = small_fcn(classes=10, channels=3, width=8)
    components = ducats.Components(
        net, data.source, data.pool, ducats.GroundTruthOracle(data.ground_truth), test=data.test
    )
    return replace(components, **changes)


PLAN = ducats.RunPlan(
    epochs=2, query_epochs=(1,), pixel_budget="2%", batch_size=2, steps_per_epoch=2, scoring_batch_size=4
)


def test_api_with_a_network_and_a_percentage(tmp_path: Path) -> None:
    run_folder = ducats.adapt(make_components(), PLAN, tmp_path / "r")
    data = tiny_streets()
    assert [r["labels"] for r in run_folder.stages()] == [0, 10 * POOL]
    assert load_ledger(run_folder).labels_per_image().tolist() == [10] * POOL
    check_ledger(run_folder, data.ground_truth, data.pool.void_masks)
    epochs = [r for r in records.read_records(run_folder.metrics_path) if r["kind"] == "epoch"]
    assert {"source/nll", "labelled/nll", "unlabelled/u_dis", "unlabelled/u_data"} <= epochs[1][
        "losses"
    ].keys()
    changes: list[dict[str, Any]] = [
        {"task": TaskOptions(unit="region")},
        {"evaluation": EvaluationOptions(average_flipped=True)},
    ]
    for change in changes:
        with pytest.raises(UserError, match=rf"created with another config \({next(iter(change))}\."):
            ducats.adapt(make_components(**change), PLAN, tmp_path / "r")


def test_the_objective_gets_labels_void_and_unlabelled(tmp_path: Path) -> None:
    data = tiny_streets()
    index_of = {image.numpy().tobytes(): n for n, image in enumerate(data.pool.pixels[:])}
    seen: list[dict[int, Tensor]] = [{}]

    def spy(model: Any, batch: Batch) -> dict[str, Tensor]:
        assert batch.target is not None
        assert batch.labelled is None
        assert batch.unlabelled is None
        for image, labels in zip(batch.target.images, batch.target.labels, strict=True):
            number = index_of[(image * 255).round().to(torch.uint8).numpy().tobytes()]
            seen[-1][number] = labels.clone()
        return dict(duc(model, batch))

    def on_event(event: Event) -> None:
        if event.phase == "query":
            seen.append({})

    plan = replace(PLAN, epochs=3, query_epochs=(1, 2), pixel_budget="5%", steps_per_epoch=3)
    run_folder = ducats.adapt(make_components(objective=spy), plan, tmp_path / "r", on_event=on_event)
    assert data.pool.void_masks is not None
    for rounds, maps in enumerate(seen):
        assert len(maps) >= 3
        for image, labels in maps.items():
            labelled = load_ledger(run_folder).image_labels(image, rounds)
            expected = (
                torch.where(data.pool.void_masks[image] != 0, VOID, UNLABELLED).to(torch.int8).flatten()
            )
            expected[labelled.position] = labelled.label.to(torch.int8)
            assert torch.equal(labels.flatten(), expected)
            assert int((labels >= 0).sum()) == PIXELS_PER_IMAGE_AND_ROUND * rounds


def test_whole_labelled_images_are_a_separate_stream(tmp_path: Path) -> None:
    seen: list[tuple[bool, set[bool], set[bool]]] = []

    def spy(model: Any, batch: Batch) -> dict[str, Tensor]:
        assert batch.target is not None
        whole, rest = (
            {bool((labels >= 0).any()) for labels in part.labels} if part is not None else set()
            for part in (batch.labelled, batch.target)
        )
        seen.append((batch.labelled is not None, whole, rest))
        return dict(duc(model, batch))

    task, plan = TaskOptions(unit="image"), replace(PLAN, pixel_budget=None, budget=(2,))
    run_folder = ducats.adapt(make_components(objective=spy, task=task), plan, tmp_path / "r")
    assert (load_ledger(run_folder).labels_per_image() > 0).sum() == 2
    # Before the round no label is known; after it, all labels of an image or none.
    assert seen == [(False, set(), {False})] * 2 + [(True, {True}, {False})] * 2


def test_a_plain_query_gets_all_columns_of_the_model(tmp_path: Path) -> None:
    seen: list[tuple[set[str], torch.Size, torch.Size]] = []

    def recording_query(context: ducats.QueryContext) -> Tensor:
        candidates = context.candidates
        seen.append((set(candidates.columns), candidates.z.shape, candidates.features.shape))
        return torch.arange(context.budget)

    run_folder = ducats.adapt(make_components(query=recording_query), PLAN, tmp_path / "r")
    void = tiny_streets().pool.void_masks
    assert void is not None
    for image, (columns, z, features) in enumerate(seen):
        open_ = (void[image].flatten() == 0).nonzero().squeeze(1)
        assert columns == {"z", "features"}
        assert (z, features) == ((len(open_), 10), (len(open_), 16))
        assert load_ledger(run_folder).image_labels(image).position.tolist() == open_[:10].tolist()
    assert len(seen) == POOL


@pytest.mark.parametrize("unit", ["pixel", "region", "superpixel"])
def test_a_round_with_nothing_left_to_select(tmp_path: Path, unit: Any) -> None:
    if unit == "superpixel":
        pytest.importorskip("skimage")
    data = tiny_streets()
    mostly = torch.ones(POOL, HEIGHT, WIDTH, dtype=torch.uint8)
    mostly[:, 4:8, 4:8] = 0
    few = replace(data.pool, void_masks=mostly)
    plan = replace(PLAN, epochs=3, query_epochs=(1, 2), pixel_budget="10%")
    run_folder = ducats.adapt(make_components(pool=few, task=TaskOptions(unit=unit)), plan, tmp_path / "r")
    assert run_folder.finished
    assert load_ledger(run_folder).n_rounds == 2
    assert (
        load_ledger(run_folder).labels_per_image(1).tolist()
        == load_ledger(run_folder).labels_per_image(2).tolist()
        == [16] * POOL
    )


def test_an_all_void_image_is_skipped(tmp_path: Path) -> None:
    data = tiny_streets()
    void = torch.zeros(POOL, HEIGHT, WIDTH, dtype=torch.uint8)
    void[2] = 1
    plan = replace(PLAN, pixel_budget="5%")
    run_folder = ducats.adapt(make_components(pool=replace(data.pool, void_masks=void)), plan, tmp_path / "r")
    assert load_ledger(run_folder).labels_per_image().tolist() == [26, 26, 0, 26, 26]


@pytest.mark.parametrize(
    ("changes", "plan", "words"),
    [
        ({}, {"pixel_budget": None, "budget": (3,)}, r"set how many per image"),
        ({}, {"pixel_budget": "600/image"}, "600 pixels of image 0, which has 512"),
        ({}, {"budget": (3,)}, r"but budget is \[3\]"),
        ({}, {"pixel_budget": 1, "query_epochs": (0, 1)}, "at least one of 2 rounds without pixels"),
        ({"query": QUERIES["ripu"]}, {}, "units of several pixels"),
        ({"task": TaskOptions(unit="image")}, {"pixel_budget": None}, "1 rounds but 0 budgets"),
        ({"test": toy().test}, {}, "same classes"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(3 * 512, 10))}, {}, "per-image logits"),
        ({"model": small_fcn(classes=9, channels=3, width=8)}, {}, "outputs 9 classes"),
        (
            {"oracle": ducats.GroundTruthOracle(torch.zeros(4, 16, 32, dtype=torch.int8))},
            {},
            "4 labels for a pool of 5",
        ),
        (
            {"evaluation": EvaluationOptions(miou_star_exclude=("moon",))},
            {},
            "miou_star_exclude names 'moon'",
        ),
    ],
)
def test_inconsistent_components_are_refused_before_training(
    tmp_path: Path, changes: dict[str, Any], plan: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        ducats.adapt(make_components(**changes), replace(PLAN, **plan), tmp_path / "r")
    assert not (tmp_path / "r" / "metrics.jsonl").exists()


def test_pixel_queries_are_refused_for_classification(tmp_path: Path) -> None:
    data = toy()
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    components = ducats.Components(
        net, data.source, data.pool, ducats.GroundTruthOracle(data.ground_truth), query=QUERIES["ripu_points"]
    )
    with pytest.raises(UserError, match="needs per-pixel outputs"):
        ducats.adapt(components, ducats.RunPlan(epochs=2, query_epochs=(1,), budget=(5,)), tmp_path / "r")
    assert not (tmp_path / "r" / "metrics.jsonl").exists()


def test_ground_truth_at_another_resolution_is_refused(tmp_path: Path) -> None:
    data = tiny_streets()
    wrong = make_components(oracle=ducats.GroundTruthOracle(data.ground_truth, "original"))
    with pytest.raises(UserError, match="network"):
        ducats.adapt(wrong, ducats.RunPlan(epochs=2, query_epochs=(1,), pixel_budget="5%"), tmp_path / "run")


def test_unknown_source_sampling_is_refused() -> None:
    with pytest.raises(ValueError, match="rare_classes"):
        ducats.RunPlan(epochs=2, query_epochs=(1,), pixel_budget="5%", source_sampling="rare-classes")  # type: ignore[arg-type]


def test_int8_labels_with_many_classes(tmp_path: Path) -> None:
    """int8 >= 200 is true for every value in torch, so labels are compared in a wider type."""
    data = tiny_streets()
    many = tuple(f"class {n}" for n in range(200))
    given = make_components(
        model=small_fcn(classes=200, channels=3, width=8),
        source=replace(data.source, classes=many),
        test=None,
    )
    run_folder = ducats.adapt(
        given, ducats.RunPlan(epochs=2, query_epochs=(1,), pixel_budget="5%", batch_size=2), tmp_path / "run"
    )
    assert len(load_ledger(run_folder)) == POOL * 26


def test_invalid_query_parameters_are_refused_before_reading_images() -> None:
    with pytest.raises(UserError, match="kappa"):
        check_config(quick_pixels("task.unit=image", "query={name: duc, params: {kappa: 0.5}}"))
