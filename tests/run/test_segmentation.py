"""Whole segmentation runs on tiny synthetic streets and on files: selection, ledger and metrics."""

import csv
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import ducats
from conftest import Runner, make_runner, quick_pixels
from ducats.acquisition.queries import QUERIES
from ducats.data.domain import UNLABELLED, VOID, AdaptationData, original_map
from ducats.data.segmentation.folders import segmentation_folders
from ducats.data.streets import streets
from ducats.data.toy import toy
from ducats.ledger import TargetMaps, load_ledger, load_request
from ducats.models import small_fcn
from ducats.objectives import Batch, duc
from ducats.run.factory import check_config
from ducats.runfolder.run_folder import RunFolder
from ducats.settings import EvaluationOptions, TaskOptions
from ducats.utils.errors import AwaitingLabels, UserError
from ducats.utils.progress import Event
from ducats.utils.randomness import global_seed
from present import present
from ranks import outcome
from tiny_segmentation_data import CLASS_LIST, IDS, write_image

HEIGHT, WIDTH, POOL = 16, 32, 5
PIXELS_PER_IMAGE_AND_ROUND = 13  # 5 % of 512 pixels are 25.6: 26 in two rounds
STREETS = streets(n_source=6, n_pool=POOL, n_test=3, height=HEIGHT, width=WIDTH)  # as in ``run_pixels``
STREET_LABELS = present(STREETS.ground_truth)[:]
STREET_VOID = present(STREETS.pool.void_masks)[:] != 0


def check_ledger(run_folder: RunFolder, data: AdaptationData) -> None:
    """Check the ledger: no duplicates, no known void, true labels, counts and clicks as recorded."""
    ledger, truth, void = load_ledger(run_folder), present(data.ground_truth), data.pool.void_masks
    label_of: dict[tuple[str, int], int] = {}
    for number in range(1, ledger.n_rounds + 1):
        request = present(load_request(run_folder, number))
        assert request.round == number
        for image, position, _ in request.blocks():
            true = original_map(truth, image)
            assert list(true.shape) == present(ledger.sizes)[image].tolist()
            assert void is None or not original_map(void, image).flatten()[position].any()
            labels = true.flatten()[position]
            locations = [(ledger.keys[image], one) for one in position.tolist()]
            requested = dict(zip(locations, labels.tolist(), strict=True))
            assert len(requested) == len(position)  # no duplicates in a round
            assert not requested.keys() & label_of.keys()  # nor across rounds
            label_of |= requested
        stage = run_folder.stages()[number]
        spent = (ledger.spent(number), ledger.clicks(number))
        assert (stage["stage"], stage["labels"], stage["clicks"]) == (number, *spent)
        assert spent[0] == len(label_of)
    assert {(entry.key, entry.position): entry.label for entry in ledger.entries()} == label_of
    assert len(ledger) == len(label_of)


FIELDS = {
    *("kind", "stage", "epoch", "labels", "clicks", "evaluated_on", "images", "pixels", "resolution"),
    *("headline_metric", "mean_iou", "class_iou", "accuracy", "class_accuracy", "mean_class_accuracy"),
    *("ece", "ece_10", "classwise_ece", "nll", "brier", "aurc", "reliability"),
    *("peak_memory_bytes", "seconds"),
}


def check_stages(run_folder: RunFolder, pixels: int, excluded: Sequence[str] = ()) -> None:
    """Check every field, and its agreement with the confusion matrix."""
    stages, entries = run_folder.stages(), list(load_ledger(run_folder).entries())
    assert [(r["stage"], r["epoch"]) for r in stages] == [(0, 1), (1, 2), (2, 4)]
    assert (stages[0]["labels"], stages[0]["clicks"]) == (0, 0)
    for record in stages:
        known_classes = {entry.label for entry in entries if entry.round <= record["stage"]}
        optional = {"temperature_scaled": len(known_classes) > 1, "mean_iou_star": excluded}
        assert record.keys() == FIELDS | {name for name, expected in optional.items() if expected}
        assert (record["images"], record["pixels"], record["headline_metric"]) == (3, pixels, "mean_iou")
        path = run_folder.path / "confusion" / f"epoch-{record['epoch']:03d}.csv"
        head, *rows = csv.reader(path.read_text().splitlines())
        classes, counts = head[1:], np.array([row[1:] for row in rows], np.int64)
        assert [row[0] for row in rows] == classes
        assert counts.sum() == pixels
        shared = np.diag(counts)
        either = counts.sum(0) + counts.sum(1) - shared
        iou = [s / e if e else None for s, e in zip(shared.tolist(), either.tolist(), strict=True)]
        assert record["class_iou"] == iou
        assert record["mean_iou"] == pytest.approx(np.mean([v for v in iou if v is not None]))
        assert record["accuracy"] == pytest.approx(shared.sum() / pixels)
        rest = [v for name, v in zip(classes, iou, strict=True) if v is not None and name not in excluded]
        assert record.get("mean_iou_star", np.mean(rest)) == pytest.approx(np.mean(rest))


# ---- selection


@pytest.mark.parametrize(
    ("unit", "query"),
    [
        *(("pixel", query) for query in ("random", "coverage", "ripu_points, params: {radius: 3}")),
        *(("region", query) for query in ("margin", "ripu")),
        *(("superpixel", query) for query in ("entropy", "duc")),
    ],
)
def test_the_budget_is_spent_exactly(run_pixels: Runner, unit: str, query: str) -> None:
    if unit == "superpixel":
        pytest.importorskip("skimage")
    run_folder = run_pixels(f"task={{unit: {unit}, n_superpixels: 60}}", f"query={{name: {query}}}")
    ledger = load_ledger(run_folder)
    check_ledger(run_folder, STREETS)
    check_stages(run_folder, int((present(STREETS.test).labels[:] >= 0).sum()))
    for number in (1, 2):
        assert ledger.labels_per_image(number).tolist() == [PIXELS_PER_IMAGE_AND_ROUND * number] * POOL
        request = present(load_request(run_folder, number))
        assert (request.unit_sizes is None) == (unit == "pixel")
        if unit == "region":
            assert int(present(request.unit_sizes).max()) <= 9
            assert request.n_units < len(request)
    if unit == "pixel":
        assert ledger.clicks() == len(ledger)
    elif unit == "region":
        assert POOL * 2 < ledger.clicks() < len(ledger)


def test_points_keep_apart_over_all_rounds(run_pixels: Runner) -> None:
    """Picks without a class, whose labels are void, keep others away, too."""
    data = replace(STREETS, pool=replace(STREETS.pool, void_masks=None))
    run_folder = run_pixels(
        "acquisition={budget: 8/image, rounds: 4, after_epochs: null}",
        "query.params.radius=2",
        method="ripu-points",
        data=data,
    )
    labels = [entry.label for entry in load_ledger(run_folder).entries()]
    assert VOID in labels
    requests = [present(load_request(run_folder, number)) for number in (1, 2, 3, 4)]
    for image in range(POOL):
        position = torch.cat([request.position[request.image == image] for request in requests])
        y, x = position // WIDTH, position % WIDTH
        distance = torch.maximum((y - y[:, None]).abs(), (x - x[:, None]).abs())
        assert len(position) == 8
        assert int(distance.fill_diagonal_(99).min()) > 2


@pytest.mark.parametrize("query", ["random", "duc", "coverage"])
def test_whole_images(run_pixels: Runner, query: str) -> None:
    run_folder = run_pixels("task.unit=image", "acquisition.budget=60%", f"query={{name: {query}}}")
    ledger = load_ledger(run_folder)
    check_ledger(run_folder, STREETS)
    everything = int((~STREET_VOID[0]).sum())
    assert sorted(ledger.labels_per_image(1).tolist()) == [0] * 4 + [everything]
    assert sorted(ledger.labels_per_image(2).tolist()) == [0] * 2 + [everything] * 3
    assert len(present(present(load_request(run_folder, 2)).unit_sizes)) == 2  # one unit each


def test_the_whole_target_can_be_labelled_at_once(run_pixels: Runner) -> None:
    run_folder = run_pixels(
        "acquisition={budget: 100%, rounds: 1, after_epochs: [0]}",
        "train.epochs=1",
        method="fully-supervised",
        data=replace(STREETS, test=None),
    )
    before, after = run_folder.stages()
    assert (before["labels"], after["labels"]) == (0, int((~STREET_VOID).sum()))
    maps = TargetMaps(load_ledger(run_folder), (HEIGHT, WIDTH), void=STREETS.pool.void_masks)
    assert torch.equal(maps[:], STREET_LABELS)
    assert after["pixels"] == 0  # nothing is left to evaluate
    assert "mean_iou" not in after


# ---- annotators


def test_annotators_answer_between_two_calls(run_pixels: Runner, tmp_path: Path) -> None:
    blind, index_of = replace(STREETS, ground_truth=None), {key: n for n, key in enumerate(STREETS.pool.keys)}
    per_round = PIXELS_PER_IMAGE_AND_ROUND * POOL
    for number in (1, 2):
        with pytest.raises(AwaitingLabels, match=f"round {number} waits for {per_round} of {per_round} pix"):
            run_pixels("task.unit=region", data=blind)
        folder = tmp_path / "run" / "questions" / f"round-0{number}"
        rows = list(csv.DictReader((folder / "questions.csv").read_text().splitlines()))
        assert sum(int(row["pixels"]) for row in rows) == per_round
        for row in rows:
            true = STREET_LABELS[index_of[row["key"]]].numpy()
            mask = np.array(Image.open(folder / row["mask"]))
            assert (mask > 0).sum() == int(row["pixels"])
            # 254 is "not yet": only selected pixels need an answer.
            path = folder / row["answer"]
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.where(mask > 0, true, 254).astype(np.uint8)).save(path)
    with_annotators = outcome(run_pixels("task.unit=region", data=blind).path)
    without_hints = {**with_annotators, "requests": with_annotators["requests"][1::2]}
    assert without_hints == outcome(run_pixels("task.unit=region", folder="ground truth").path)


# ---- files of several sizes, labelled at their original resolution

SIZES = [(20, 36), (24, 30), (20, 36)]
AREAS = [height * width for height, width in SIZES]
ORIGINAL = ("task.resolution=original", "train.lr=0.05")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source, target and test folders with images of two sizes, each with two void rows at the bottom."""
    root = tmp_path_factory.mktemp("files")
    for start, role, count in ((0, "source", 4), (100, "target", 3), (200, "test", 3)):
        for number in range(count):
            write_image(root / role, start + number, size=SIZES[number % len(SIZES)])
    (root / "classes.txt").write_text(CLASS_LIST)
    return root


def load_tree(root: Path, **params: Any) -> AdaptationData:
    return segmentation_folders(
        root=root,
        size=(12, 20),
        source_size=(14, 24),
        source="source",
        target="target",
        test="test",
        classes="classes.txt",
        ground_truth=True,
        **params,
    )


@pytest.fixture(scope="module")
def files(tree: Path) -> AdaptationData:
    return load_tree(tree)


@pytest.fixture(scope="module")
def original_run(files: AdaptationData, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_runner(tmp_path_factory.mktemp("original"), quick_pixels)(*ORIGINAL, data=files)


def original_pixels(labels: Any) -> list[int]:
    """Count the labelled pixels of each of three images at their original sizes."""
    return [int((original_map(labels, image) >= 0).sum()) for image in range(3)]


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
    run_pixels: Runner, files: AdaptationData, fill: str, unit: str, resolution: str
) -> None:
    run_folder = run_pixels(
        *ORIGINAL,
        f"task.label_downsampling={fill}",
        f"task.unit={unit}",
        f"evaluation={{resolution: {resolution}, average_flipped: true, miou_star_exclude: [road]}}",
        data=files,
        method="ripu" if unit == "region" else "duc",
    )
    assert load_ledger(run_folder).labels_per_image().tolist() == [
        math.floor(0.05 * area + 0.5) for area in AREAS
    ]
    check_ledger(run_folder, files)
    test_labels = present(files.test).labels
    if resolution == "original":
        counted, described = sum(original_pixels(test_labels)), "original"
        assert counted == sum((height - 2) * width for height, width in SIZES)
    else:
        counted, described = int((test_labels[:] >= 0).sum()), "12x20 (network)"
    check_stages(run_folder, counted, excluded=["road"])
    assert {r["resolution"] for r in run_folder.stages()} == {described}


@pytest.mark.parametrize(
    ("setting", "affects_selection"),
    [("task.label_downsampling=nearest", False), ("task.two_step_upsampling=true", True)],
)
def test_settings_of_the_original_resolution(
    run_pixels: Runner, files: AdaptationData, original_run: RunFolder, setting: str, affects_selection: bool
) -> None:
    run_folder = run_pixels(*ORIGINAL, setting, data=files)
    check_ledger(run_folder, files)
    one, two = outcome(original_run.path), outcome(run_folder.path)
    # The first request was selected before the first label.
    assert (one["requests"][0] != two["requests"][0]) == affects_selection
    assert one["model"] != two["model"]


@pytest.mark.parametrize("is_synthetic", [True, False])
def test_unknown_void_costs_budget(run_pixels: Runner, tree: Path, is_synthetic: bool) -> None:
    data = replace(STREETS, pool=replace(STREETS.pool, void_masks=None))
    settings: tuple[str, ...] = ()
    areas = [HEIGHT * WIDTH] * POOL
    if not is_synthetic:
        data, settings, areas = load_tree(tree, void_pixels="queried"), ORIGINAL, AREAS
    assert data.pool.void_masks is None
    run_folder = run_pixels(*settings, "acquisition.budget=90%", "query={name: random}", data=data)
    check_ledger(run_folder, data)
    ledger = load_ledger(run_folder)
    assert ledger.labels_per_image().tolist() == [round(0.9 * area) for area in areas]
    assert VOID in {entry.label for entry in ledger.entries()}


@pytest.mark.parametrize(
    ("method", "void_pixels"),
    [
        *(("duc", "queried"), ("duc", "excluded"), ("aada-seg", "queried")),
        *(("mrkld", "queried"), ("mrkld", "excluded")),
    ],
)
def test_only_excluded_void_depends_on_the_label_files_of_the_target(
    tmp_path: Path, tree: Path, method: str, void_pixels: str
) -> None:
    """Up to the first label, or to the end of a method that acquires none."""
    changed = tmp_path / "changed"
    shutil.copytree(tree, changed)
    for path in (changed / "target/labels").iterdir():
        ids = np.array(Image.open(path))
        ids[:, :9], ids[-2:] = IDS["void"], IDS["road"]
        Image.fromarray(ids).save(path)
    rounds = 0 if method == "mrkld" else 1
    found = []
    for root in (tree, changed):
        data = load_tree(root, void_pixels=void_pixels)
        run_folder = make_runner(tmp_path / f"from-{root.name}", quick_pixels)(
            *(*ORIGINAL, "train.epochs=2"),
            f"acquisition={{budget: 40%, rounds: {rounds}, after_epochs: {[1] * rounds}}}",
            data=data,
            method=method,
        )
        results, masks = outcome(run_folder.path), data.pool.void_masks
        assert len(results["requests"]) == rounds
        chosen = results["requests"] or results["model"]
        found.append((data.pool.keys, data.pool.pixels[:].tolist(), masks and masks[:].tolist(), chosen))
    assert [one == other for one, other in zip(*found, strict=True)] == [
        *(True, True),
        *[void_pixels == "queried"] * 2,
    ]


@pytest.mark.parametrize(
    ("is_synthetic", "resolution"), [(True, "network"), (False, "network"), (False, "original")]
)
def test_labelled_pixels_are_not_evaluated(
    run_pixels: Runner, files: AdaptationData, is_synthetic: bool, resolution: str
) -> None:
    data, settings, size = (STREETS, (), (16, 32)) if is_synthetic else (files, ORIGINAL, (12, 20))
    run_folder = run_pixels(*settings, f"evaluation.resolution={resolution}", data=replace(data, test=None))
    ledger, truth, stages = load_ledger(run_folder), present(data.ground_truth), run_folder.stages()
    if resolution == "original":
        every, lost = sum(original_pixels(truth)), [ledger.spent(number) for number in range(3)]
    else:
        # A cell holds the pixel of a nearest-neighbour resize, and counts until that pixel is labelled.
        every = int((truth[:] >= 0).sum())
        maps = [TargetMaps(ledger, size, number, fill="nearest") for number in range(3)]
        lost = [int((one[:] >= 0).sum()) for one in maps]
        assert {r["resolution"] for r in stages} == {f"{size[0]}x{size[1]} (network)"}
    assert lost[2] > lost[1] > lost[0] == 0
    assert [(r["evaluated_on"], r["images"], r["pixels"]) for r in stages] == [
        ("unlabelled", len(data.pool), every - some) for some in lost
    ]


@pytest.mark.parametrize("is_synthetic", [True, False])
def test_held_out_images_are_never_selected(
    run_pixels: Runner, files: AdaptationData, is_synthetic: bool
) -> None:
    data, settings = (STREETS, ()) if is_synthetic else (files, (*ORIGINAL, "task.unit=region"))
    evaluation = f"evaluation={{split: held_out, test_fraction: {0.4 if is_synthetic else 0.34}}}"
    run_folder = run_pixels(*settings, evaluation, data=replace(data, test=None))
    ledger, truth = load_ledger(run_folder), present(data.ground_truth)
    maps = {key: original_map(truth, number) for number, key in enumerate(data.pool.keys)}
    for entry in ledger.entries():
        assert entry.label == int(maps[entry.key].flatten()[entry.position])
    held_out = maps.keys() - ledger.keys
    n_held_out = 2 if is_synthetic else 1
    assert len(held_out) == n_held_out
    assert run_folder.data_summary["pool"]["images"] == len(ledger.keys) == len(maps) - n_held_out
    assert (ledger.labels_per_image() > 0).all()
    pixels = sum(int((maps[key] >= 0).sum()) for key in held_out)
    assert [(r["evaluated_on"], r["images"], r["pixels"]) for r in run_folder.stages()] == [
        ("held_out", n_held_out, pixels)
    ] * 3


def test_whole_images_of_several_sizes(run_pixels: Runner, files: AdaptationData) -> None:
    run_folder = run_pixels(*ORIGINAL, "task.unit=image", "acquisition.budget=2", data=files)
    check_ledger(run_folder, files)
    whole, counts = original_pixels(files.ground_truth), load_ledger(run_folder).labels_per_image().tolist()
    assert sorted(count == pixels for count, pixels in zip(counts, whole, strict=True)) == [False, True, True]
    assert min(counts) == 0


# ---- the Python API


def make_components(**changes: Any) -> ducats.Components:
    with global_seed(0, "model"):
        net = small_fcn(classes=10, channels=3, width=8)
    oracle = ducats.GroundTruthOracle(STREETS.ground_truth)
    components = ducats.Components(net, STREETS.source, STREETS.pool, oracle, test=STREETS.test)
    return replace(components, **changes)


PLAN = ducats.RunPlan(
    epochs=2, query_epochs=(1,), pixel_budget="2%", batch_size=2, steps_per_epoch=2, scoring_batch_size=4
)


def test_api_with_a_network_and_a_percentage(tmp_path: Path) -> None:
    run_folder = ducats.adapt(make_components(), PLAN, tmp_path / "r")
    assert [r["labels"] for r in run_folder.stages()] == [0, 10 * POOL]
    assert load_ledger(run_folder).labels_per_image().tolist() == [10] * POOL
    check_ledger(run_folder, STREETS)
    losses = run_folder.read_records("epoch")[1]["losses"]
    assert losses.keys() == {"source/nll", "source/kl", "labelled/nll", "labelled/kl"}  # the default method
    changes: list[dict[str, Any]] = [
        {"task": TaskOptions(unit="region")},
        {"evaluation": EvaluationOptions(average_flipped=True)},
    ]
    for change in changes:
        with pytest.raises(UserError, match=rf"created with another config \({next(iter(change))}\."):
            ducats.adapt(make_components(**change), PLAN, tmp_path / "r")


def test_the_objective_gets_labels_void_and_unlabelled(tmp_path: Path) -> None:
    index_of = {image.numpy().tobytes(): n for n, image in enumerate(STREETS.pool.pixels[:])}
    seen: list[dict[int, Tensor]] = [{}]

    def spy(model: Any, batch: Batch) -> dict[str, Tensor]:
        assert (batch.labelled, batch.unlabelled) == (None, None)
        target = present(batch.target)
        for image, labels in zip(target.images, target.labels, strict=True):
            number = index_of[(image * 255).round().to(torch.uint8).numpy().tobytes()]
            seen[-1][number] = labels.clone()
        return dict(duc(model, batch))

    def on_event(event: Event) -> None:
        if event.phase == "query":
            seen.append({})

    plan = replace(PLAN, epochs=3, query_epochs=(1, 2), pixel_budget="5%", steps_per_epoch=3)
    ledger = load_ledger(
        ducats.adapt(make_components(objective=spy), plan, tmp_path / "r", on_event=on_event)
    )
    for rounds, maps in enumerate(seen):
        assert len(maps) >= 3
        for image, labels in maps.items():
            acquired = ledger.image_labels(image, rounds)
            expected = torch.where(STREET_VOID[image], VOID, UNLABELLED).to(torch.int8).flatten()
            expected[acquired.position] = acquired.label.to(torch.int8)
            assert torch.equal(labels.flatten(), expected)
            assert int((labels >= 0).sum()) == PIXELS_PER_IMAGE_AND_ROUND * rounds


def test_whole_labelled_images_are_a_separate_stream(tmp_path: Path) -> None:
    seen: list[tuple[set[bool], set[bool]]] = []

    def spy(model: Any, batch: Batch) -> dict[str, Tensor]:
        whole, rest = (
            {bool((labels >= 0).any()) for labels in part.labels} if part is not None else set()
            for part in (batch.labelled, batch.target)
        )
        seen.append((whole, rest))
        return dict(duc(model, batch))

    task, plan = TaskOptions(unit="image"), replace(PLAN, pixel_budget=None, budget=(2,))
    run_folder = ducats.adapt(make_components(objective=spy, task=task), plan, tmp_path / "r")
    assert (load_ledger(run_folder).labels_per_image() > 0).sum() == 2
    # Before the round no label is known; after it, all labels of an image or none.
    assert seen == [(set(), {False})] * 2 + [({True}, {False})] * 2


def test_a_plain_query_gets_all_columns_of_the_model(tmp_path: Path) -> None:
    seen: list[tuple[set[str], torch.Size, torch.Size]] = []

    def recording_query(context: ducats.QueryContext) -> Tensor:
        candidates = context.candidates
        seen.append((set(candidates.columns), candidates.z.shape, candidates.features.shape))
        return torch.arange(context.budget)

    ledger = load_ledger(ducats.adapt(make_components(query=recording_query), PLAN, tmp_path / "r"))
    open_pixels = [(~void).flatten().nonzero().squeeze(1) for void in STREET_VOID]
    assert seen == [({"z", "features"}, (len(one), 10), (len(one), 16)) for one in open_pixels]
    for image, positions in enumerate(open_pixels):
        assert ledger.image_labels(image).position.tolist() == positions[:10].tolist()


@pytest.mark.parametrize("unit", ["pixel", "region", "superpixel"])
def test_a_round_with_nothing_left_to_select(tmp_path: Path, unit: Any) -> None:
    """Also with an image that is all void."""
    if unit == "superpixel":
        pytest.importorskip("skimage")
    mostly = torch.ones(POOL, HEIGHT, WIDTH, dtype=torch.uint8)
    mostly[[0, 1, 3, 4], 4:8, 4:8] = 0
    components = make_components(pool=replace(STREETS.pool, void_masks=mostly), task=TaskOptions(unit=unit))
    plan = replace(PLAN, epochs=3, query_epochs=(1, 2), pixel_budget="10%")
    run_folder = ducats.adapt(components, plan, tmp_path / "r")
    ledger = load_ledger(run_folder)
    assert (run_folder.finished, ledger.n_rounds) == (True, 2)
    assert [ledger.labels_per_image(number).tolist() for number in (1, 2)] == [[16, 16, 0, 16, 16]] * 2


@pytest.mark.parametrize(
    ("changes", "plan", "words"),
    [
        ({}, {"pixel_budget": None, "budget": (3,)}, "set how many per image"),
        ({}, {"pixel_budget": "600/image"}, "600 pixels of image 0, which has 512"),
        ({}, {"budget": (3,)}, r"but budget is \[3\]"),
        ({}, {"pixel_budget": 1, "query_epochs": (0, 1)}, "at least one of 2 rounds without pixels"),
        ({"query": QUERIES["ripu"]}, {}, "units of several pixels"),
        ({"task": TaskOptions(unit="image")}, {"pixel_budget": None}, "1 rounds but 0 budgets"),
        ({"test": toy().test}, {}, "same classes"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(3 * 512, 10))}, {}, "per-image logits"),
        (
            {"oracle": ducats.GroundTruthOracle(STREET_LABELS, "original")},
            {},
            "at the network resolution, but the ground truth has the original",
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


def test_unknown_source_sampling_is_refused() -> None:
    with pytest.raises(ValueError, match="rare_classes"):
        replace(PLAN, source_sampling="rare-classes")  # type: ignore[arg-type]


def test_int8_labels_with_many_classes(tmp_path: Path) -> None:
    """int8 >= 200 is true for every value in torch, so labels are compared in a wider type."""
    many = tuple(f"class {n}" for n in range(200))
    components = make_components(
        model=small_fcn(classes=200, channels=3, width=8),
        source=replace(STREETS.source, classes=many),
        test=None,
    )
    assert len(load_ledger(ducats.adapt(components, PLAN, tmp_path / "run"))) == POOL * 10


def test_invalid_query_parameters_are_refused_before_reading_images() -> None:
    with pytest.raises(UserError, match="kappa"):
        check_config(quick_pixels("task.unit=image", "query={name: duc, params: {kappa: 0.5}}"))
