"""Whole runs that buy pixels, on tiny drawn streets and on files: what is bought, and what is said of it."""

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
from conftest import Runner, quick_pixels
from ducats import records
from ducats.assemble import assemble, check_names
from ducats.data import toy
from ducats.data.streets import streets
from ducats.domain import UNLABELLED, VOID, Shift, original_map
from ducats.engine.processes import make_fabric
from ducats.engine.task import Task
from ducats.errors import AwaitingLabels, UserError
from ducats.ledger import Request, TargetMaps
from ducats.models import small_fcn
from ducats.objectives import Batch, duc
from ducats.progress import Event
from ducats.queries import QUERIES
from ducats.randomness import global_seed
from ducats.run import run
from ducats.rundir import RunDir
from ducats.units import Unit

HEIGHT, WIDTH, POOL = 16, 32, 5
EACH = 13  # 5 % of 512 pixels are 25.6: 26 in two rounds


def tiny_streets() -> Shift:
    """The problem that ``run_pixels`` runs on."""
    return streets(source=6, pool=POOL, test=3, height=HEIGHT, width=WIDTH)


def outcome(home: RunDir) -> dict[str, Any]:
    """All that must be the same when a run is the same."""
    lines = records.read(home.metrics)
    return {
        "records": [{k: v for k, v in r.items() if k not in ("seconds", "memory")} for r in lines],
        "ledger": list(home.bought().entries()),
        "model": {name: tensor.tolist() for name, tensor in home.model().items()},
    }


def asked_in(home: RunDir, number: int) -> Request:
    request = home.request(number)
    assert request is not None
    return request


def clicks_of(position: Tensor, label: Tensor, unit: Tensor, width: int) -> int:
    """Connected pieces of one label within each unit, by painting each unit by itself."""
    found, start = 0, 0
    for size in unit.tolist():
        where, what = position[start : start + size].numpy(), label[start : start + size].numpy()
        start += size
        for c in np.unique(what):
            canvas = np.zeros((int(position.max()) // width + 1, width), bool)
            canvas.flat[where[what == c]] = True
            found += ndimage.label(canvas)[1]
    return int(found)


def check_ledger(home: RunDir, truth: Any, void: Any, *, original: bool = False) -> None:
    """Nothing twice, nothing void beforehand, every label the true one, counts and clicks as in the files."""
    ledger = home.bought()
    assert ledger.sizes is not None
    total = clicks = 0
    seen: set[tuple[int, int]] = set()
    for number in range(1, ledger.rounds + 1):
        request = asked_in(home, number)
        assert request.round == number
        for image, position, unit in request.blocks():
            height, width = ledger.sizes[image].tolist()
            true = original_map(truth, image) if original else truth[image]
            assert true.shape == (height, width)
            addresses = {(image, place) for place in position.tolist()}
            assert len(addresses) == len(position)  # none twice in a round
            assert not addresses & seen  # nor in another
            seen |= addresses
            if void is not None:
                beforehand = original_map(void, image) if original else void[image]
                assert not beforehand.flatten()[position].any()
            labels = true.flatten()[position]
            clicks += clicks_of(position, labels, unit, width)
        total += len(request)
        stage = next(r for r in home.stages() if r["stage"] == number)
        assert (stage["labels"], stage["clicks"]) == (total, clicks)
        assert (ledger.spent(number), ledger.clicks(number)) == (total, clicks)
    for entry in ledger.entries():
        image = ledger.keys.index(entry.key)
        true = original_map(truth, image) if original else truth[image]
        assert entry.label == int(true.flatten()[entry.position])
        assert (image, entry.position) in seen
    assert len(ledger) == len(seen) == total


FIELDS = {
    *("kind", "stage", "epoch", "labels", "clicks", "measured_on", "images", "pixels", "resolution"),
    *("headline", "mean_iou", "class_iou", "accuracy", "class_accuracy", "mean_class_accuracy"),
    *("ece", "ece_10", "classwise_ece", "nll", "brier", "aurc", "reliability", "memory", "seconds"),
}


def check_stages(home: RunDir, pixels: int, images: int = 3) -> None:
    """Every field, and the confusion matrix beside it says the same."""
    assert [(r["stage"], r["epoch"]) for r in home.stages()] == [(0, 1), (1, 2), (2, 4)]
    assert (home.stages()[0]["labels"], home.stages()[0]["clicks"]) == (0, 0)
    for record in home.stages():
        assert record.keys() == FIELDS | ({"tempered"} if record["stage"] else set())
        assert (record["images"], record["pixels"], record["headline"]) == (images, pixels, "mean_iou")
        counts, classes = confusion(home, record["epoch"])
        assert counts.sum() == pixels
        assert len(classes) == len(record["class_iou"]) == len(counts)
        shared = np.diag(counts)
        either = counts.sum(0) + counts.sum(1) - shared
        iou = [s / e if e else None for s, e in zip(shared.tolist(), either.tolist(), strict=True)]
        assert record["class_iou"] == iou
        assert record["mean_iou"] == pytest.approx(np.mean([v for v in iou if v is not None]))
        assert record["accuracy"] == pytest.approx(shared.sum() / pixels)


def confusion(home: RunDir, epoch: int) -> tuple[Any, list[str]]:
    with (home.folder / "confusion" / f"epoch-{epoch:03d}.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert [row[0] for row in rows] == head[1:]
    return np.array([row[1:] for row in rows], np.int64), head[1:]


# ---- what is bought


@pytest.mark.parametrize(
    ("unit", "query"),
    [
        *(("pixel", query) for query in ("random", "entropy", "margin", "duc", "spread")),
        ("pixel", "ripu_points, knobs: {radius: 3}"),
        *(("region", query) for query in ("random", "margin", "duc", "ripu")),
    ],
)
def test_pixels_and_regions_spend_the_budget_to_the_pixel(run_pixels: Runner, unit: str, query: str) -> None:
    home, shift = run_pixels(f"task.unit={unit}", f"query={{name: {query}}}"), tiny_streets()
    check_ledger(home, shift.truth, shift.pool.void)
    ledger = home.bought()
    for number in (1, 2):
        assert ledger.counts(number).tolist() == [EACH * number] * POOL
        request = asked_in(home, number)
        if unit == "pixel":
            assert request.unit is None
        else:
            assert request.unit is not None
            assert int(request.unit.max()) <= 9
            assert len(request.unit) < len(request)
    if unit == "pixel":
        assert ledger.clicks() == len(ledger)
    else:
        assert POOL * 2 < ledger.clicks() < len(ledger)
    assert shift.test is not None
    check_stages(home, int((shift.test.labels[:] >= 0).sum()))


@pytest.mark.parametrize("query", ["random", "entropy", "duc", "ripu"])
def test_superpixels_spend_the_budget_to_the_pixel(run_pixels: Runner, query: str) -> None:
    pytest.importorskip("skimage")
    home = run_pixels("task={unit: superpixel, superpixels: 60}", f"query={{name: {query}}}")
    shift = tiny_streets()
    check_ledger(home, shift.truth, shift.pool.void)
    for number in (1, 2):
        spent = home.bought().counts(number) - home.bought().counts(number - 1)
        assert spent.unique().tolist() == [EACH]
        request = asked_in(home, number)
        assert request.unit is not None
    assert shift.test is not None
    check_stages(home, int((shift.test.labels[:] >= 0).sum()))


@pytest.mark.parametrize("query", ["random", "entropy", "margin", "duc", "spread", "ripu"])
def test_images_are_bought_whole(run_pixels: Runner, query: str) -> None:
    home = run_pixels("task.unit=image", "ask.budget=60%", f"query={{name: {query}}}")
    shift = tiny_streets()
    check_ledger(home, shift.truth, shift.pool.void)
    assert shift.pool.void is not None
    everything = int((shift.pool.void[0] == 0).sum())
    assert sorted(home.bought().counts(1).tolist()) == [0] * 4 + [everything]
    assert sorted(home.bought().counts(2).tolist()) == [0] * 2 + [everything] * 3
    unit = asked_in(home, 2).unit
    assert unit is not None
    assert len(unit) == 2  # one unit each


def test_the_whole_target_can_be_bought_at_once(run_pixels: Runner) -> None:
    home = run_pixels("ask={budget: 100%, rounds: 1, after: [0]}", method="fully-supervised")
    shift = tiny_streets()
    assert shift.truth is not None
    assert shift.pool.void is not None
    assert [r["labels"] for r in home.stages()] == [0, int((shift.pool.void[:] == 0).sum())]
    maps = TargetMaps(home.bought(), (HEIGHT, WIDTH), void=shift.pool.void)
    assert torch.equal(maps[:], shift.truth[:])


def test_a_count_for_each_image_and_one_for_all(run_pixels: Runner) -> None:
    each = run_pixels("ask.budget=7/image", folder="each").bought()
    assert each.counts(1).tolist() == [3, 4, 3, 4, 3]
    assert each.counts(2).tolist() == [7] * POOL
    every = run_pixels("ask.budget=23", folder="all").bought()
    assert int(every.counts().sum()) == 23
    assert sorted(every.counts().tolist()) == [4, 4, 5, 5, 5]


def test_what_is_void_costs_only_if_it_is_not_known_beforehand(run_pixels: Runner) -> None:
    shift = tiny_streets()
    blind = replace(shift, pool=replace(shift.pool, void=None))
    home = run_pixels("ask.budget=90%", "query={name: random}", shift=blind)
    check_ledger(home, shift.truth, None)
    labels = [entry.label for entry in home.bought().entries()]
    assert len(labels) == round(0.9 * HEIGHT * WIDTH) * POOL
    assert VOID in labels
    # Known beforehand: what can be asked is less than the budget, and all of it is bought.
    home = run_pixels("ask.budget=90%", "query={name: random}", folder="known")
    assert shift.pool.void is not None
    assert len(home.bought()) == int((shift.pool.void[:] == 0).sum()) < len(labels)
    assert VOID not in [entry.label for entry in home.bought().entries()]


# ---- the same run, and another


def test_the_seed_fixes_the_run(run_pixels: Runner) -> None:
    one, two, other = (run_pixels(f"seed={seed}", folder=f) for seed, f in ((1, "a"), (1, "b"), (2, "c")))
    assert outcome(one) == outcome(two)
    assert outcome(one)["ledger"] != outcome(other)["ledger"]


def test_labels_that_nobody_bought_change_nothing(run_pixels: Runner) -> None:
    clean = tiny_streets()
    assert clean.truth is not None
    first = run_pixels(folder="clean")
    maps = TargetMaps(first.bought(), (HEIGHT, WIDTH))[:]
    wrong = ((clean.truth[:] + 3) % 10).to(torch.int8)  # also where it is void
    elsewhere = torch.where(maps == UNLABELLED, wrong, clean.truth[:])
    assert outcome(run_pixels(folder="b", shift=replace(clean, truth=elsewhere))) == outcome(first)
    # At the bought pixels the poison is real: all is the same until they are bought, and then it is not.
    bought = torch.where(maps == UNLABELLED, clean.truth[:], wrong)
    other, was = outcome(run_pixels(folder="c", shift=replace(clean, truth=bought))), outcome(first)
    assert other["records"][:2] == was["records"][:2]
    picks = [[(e.key, e.position) for e in some["ledger"][: EACH * POOL]] for some in (was, other)]
    assert picks[0] == picks[1]
    assert other["model"] != was["model"]


def test_test_labels_choose_nothing(run_pixels: Runner) -> None:
    clean = tiny_streets()
    assert clean.test is not None
    poisoned = replace(
        clean, test=replace(clean.test, labels=((clean.test.labels[:] + 1) % 10).to(torch.int8))
    )
    one, two = (outcome(run_pixels(folder=f, shift=s)) for f, s in (("a", clean), ("b", poisoned)))
    assert (one["model"], one["ledger"]) == (two["model"], two["ledger"])
    assert one["records"] != two["records"]


def test_another_grid_in_the_same_folder_is_refused(run_pixels: Runner) -> None:
    run_pixels()
    with pytest.raises(UserError, match=r"another config \(task.unit: 'pixel' -> 'region'\)"):
        run_pixels("task.unit=region")


# ---- what is measured


def test_classes_can_be_left_out_of_a_second_mean(run_pixels: Runner) -> None:
    home = run_pixels("evaluation.star_without=[road, sky]")
    for record in home.stages():
        names = confusion(home, record["epoch"])[1]
        rest = [
            v
            for n, v in zip(names, record["class_iou"], strict=True)
            if n not in ("road", "sky") and v is not None
        ]
        assert record["mean_iou_star"] == pytest.approx(np.mean(rest))
    with pytest.raises(UserError, match=r"evaluation\.star_without names 'moon', but the classes are road"):
        run_pixels("evaluation.star_without=[moon]", folder="b")


def test_what_was_bought_is_not_measured(run_pixels: Runner) -> None:
    shift = tiny_streets()
    assert shift.truth is not None
    home = run_pixels("evaluation.resolution=network", shift=replace(shift, test=None))
    all_of_it = int((shift.truth[:] >= 0).sum())
    assert [(r["measured_on"], r["images"], r["pixels"]) for r in home.stages()] == [
        ("unlabelled", POOL, all_of_it),
        ("unlabelled", POOL, all_of_it - EACH * POOL),
        ("unlabelled", POOL, all_of_it - 2 * EACH * POOL),
    ]
    assert {r["resolution"] for r in home.stages()} == {"16x32 (network)"}


def test_all_target_pixels_can_be_measured(run_pixels: Runner) -> None:
    shift = tiny_streets()
    assert shift.truth is not None
    home = run_pixels("evaluation.images=target")
    counted = int((shift.truth[:] >= 0).sum())
    assert [(r["measured_on"], r["pixels"]) for r in home.stages()] == [("target", counted)] * 3


def test_a_held_out_share_is_never_asked(run_pixels: Runner) -> None:
    shift = tiny_streets()
    settings = ("evaluation.images=held_out", "evaluation.share=0.4")
    home = run_pixels(*settings, shift=replace(shift, test=None))
    assert [(r["measured_on"], r["images"]) for r in home.stages()] == [("held_out", 2)] * 3
    assert (home.data["pool"]["images"], len(home.bought())) == (3, 2 * EACH * 3)
    assert shift.truth is not None
    place = {key: number for number, key in enumerate(shift.pool.keys)}
    for entry in home.bought().entries():
        assert entry.label == int(shift.truth[place[entry.key]].flatten()[entry.position])


def test_nothing_is_measured_once_everything_was_bought(run_pixels: Runner) -> None:
    home = run_pixels("ask.budget=100%", "query={name: random}", shift=replace(tiny_streets(), test=None))
    assert home.finished
    assert home.stages()[-1]["pixels"] == 0
    assert "mean_iou" not in home.stages()[-1]


def test_measuring_in_between_changes_nothing(run_pixels: Runner) -> None:
    often, seldom = outcome(run_pixels("evaluation.every=1", folder="a")), outcome(run_pixels(folder="b"))
    assert (often["model"], often["ledger"]) == (seldom["model"], seldom["ledger"])
    assert [r["epoch"] for r in often["records"] if r["kind"] == "check"] == [3]


# ---- people


@pytest.mark.parametrize("unit", ["pixel", "region"])
def test_people_answer_between_two_calls(run_pixels: Runner, tmp_path: Path, unit: str) -> None:
    shift = tiny_streets()
    assert shift.truth is not None
    blind, place = replace(shift, truth=None), {key: n for n, key in enumerate(shift.pool.keys)}
    for number in (1, 2):
        with pytest.raises(
            AwaitingLabels, match=f"round {number} waits for {EACH * POOL} of {EACH * POOL} pix"
        ):
            run_pixels(f"task.unit={unit}", shift=blind)
        folder = tmp_path / "run" / "questions" / f"round-0{number}"
        with (folder / "questions.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert sum(int(row["pixels"]) for row in rows) == EACH * POOL
        for row in rows:
            true = shift.truth[place[row["key"]]].numpy()
            mask = np.array(Image.open(folder / row["mask"]))
            assert (mask > 0).sum() == int(row["pixels"])
            # 254 is "not yet": whatever was not asked need not be answered.
            path = folder / row["answer"]
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.where(mask > 0, true, 254).astype(np.uint8)).save(path)
    with_people = run_pixels(f"task.unit={unit}", shift=blind)
    assert outcome(with_people) == outcome(run_pixels(f"task.unit={unit}", folder="truth"))


# ---- files of several sizes, bought at their own resolution

SIZES = [(20, 36), (24, 30), (20, 36)]
CLASSES = "0 road\n1 kerb\n2 sky\n255 void\n"


def write_tree(root: Path) -> None:
    """Source, target and test folders with images of two sizes: bands of classes, and a void corner."""
    luck = np.random.default_rng(0)
    for name, count in (("source", 4), ("target", 3), ("test", 3)):
        for number in range(count):
            height, width = SIZES[number % len(SIZES)]
            edge = np.sort(luck.integers(2, height - 2, (2, width)), 0)
            row = np.arange(height)[:, None]
            ids = np.where(row < edge[0], 2, np.where(row < edge[1], 1, 0)).astype(np.uint8)
            ids[: 3 + number, :5] = 255
            colours = (
                ids[..., None] * np.array([60, 90, 20]) + luck.integers(0, 60, (height, width, 3))
            ) % 256
            for kind, picture in (("images", colours.astype(np.uint8)), ("labels", ids)):
                path = root / name / kind / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture).save(path)
    (root / "classes.txt").write_text(CLASSES)


def tree(root: Path, **knobs: Any) -> Shift:
    given = {"source": "source", "target": "target", "test": "test", "classes": "classes.txt", "truth": True}
    return ducats.data.maps.map_folders(root=root, size=(12, 20), source_size=(14, 24), **{**given, **knobs})


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write_tree(tmp_path / "data")
    return tmp_path / "data"


ORIGINAL = ("task.resolution=original", "train.lr=0.05")


@pytest.mark.parametrize("fill", ["cell", "nearest"])
@pytest.mark.parametrize("unit", ["pixel", "region"])
@pytest.mark.parametrize("measured", ["network", "original"])
def test_pixels_are_bought_and_counted_at_their_own_resolution(
    run_pixels: Runner, files: Path, fill: str, unit: str, measured: str
) -> None:
    shift = tree(files)
    home = run_pixels(
        *ORIGINAL,
        f"task.fill={fill}",
        f"task.unit={unit}",
        f"evaluation.resolution={measured}",
        "evaluation.flip=true",
        shift=shift,
        method="ripu" if unit == "region" else "duc",
    )
    areas = [height * width for height, width in SIZES]
    assert home.bought().counts().tolist() == [math.floor(0.05 * area + 0.5) for area in areas]
    check_ledger(home, shift.truth, shift.pool.void, original=True)
    assert shift.test is not None
    if measured == "original":
        counted = sum(int((original_map(shift.test.labels, n) >= 0).sum()) for n in range(3))
        assert counted == sum(areas) - 5 * (3 + 4 + 5)
    else:
        counted = int((shift.test.labels[:] >= 0).sum())
    check_stages(home, counted)
    at = {"network": "12x20 (network)", "original": "original"}
    assert {r["resolution"] for r in home.stages()} == {at[measured]}


def test_how_original_labels_reach_the_network_matters(run_pixels: Runner, files: Path) -> None:
    ends = []
    for fill in ("cell", "nearest"):
        home = run_pixels(*ORIGINAL, f"task.fill={fill}", shift=tree(files), folder=fill)
        # All labels that are bought are trained on with `cell`, as far as they are in cells of their own.
        maps = TargetMaps(home.bought(), (12, 20), fill=fill)[:]
        ends.append((home.model(), int((maps >= 0).sum()), [e[:3] for e in home.bought().entries()]))
    (cell, some, picks), (nearest, fewer, others) = ends
    assert some > fewer > 0
    first = [e for e in picks if e[0] == 1]
    assert first == [e for e in others if e[0] == 1]  # chosen before there was any label
    assert any(not torch.equal(cell[name], nearest[name]) for name in cell)


def test_evidence_in_between_picks_otherwise(run_pixels: Runner, files: Path) -> None:
    found = []
    for twice in ("true", "false"):
        home = run_pixels(*ORIGINAL, f"task.twice={twice}", shift=tree(files), folder=twice)
        check_ledger(home, tree(files).truth, tree(files).pool.void, original=True)
        found.append([(e.key, e.position) for e in home.bought().entries() if e.round == 1])
    assert len(found[0]) == len(found[1])
    assert set(found[0]) != set(found[1])


def test_void_pixels_are_asked_if_the_data_says_so(run_pixels: Runner, files: Path) -> None:
    shift = tree(files, void="asked")
    settings = (*ORIGINAL, "ask.budget=80%", "query={name: random}")
    home = run_pixels(*settings, shift=shift)
    check_ledger(home, shift.truth, None, original=True)
    assert VOID in {entry.label for entry in home.bought().entries()}


@pytest.mark.parametrize("measured", ["network", "original"])
def test_bought_original_pixels_are_not_measured(run_pixels: Runner, files: Path, measured: str) -> None:
    shift = replace(tree(files), test=None)
    assert shift.truth is not None
    home = run_pixels(*ORIGINAL, f"evaluation.resolution={measured}", shift=shift)
    pixels = [r["pixels"] for r in home.stages()]
    if measured == "original":
        every = sum(int((original_map(shift.truth, n) >= 0).sum()) for n in range(3))
        assert pixels == [every - home.bought().spent(number) for number in range(3)]
    else:
        # A cell shows the pixel that a resize without interpolation takes, and counts until it is bought.
        every = int((shift.truth[:] >= 0).sum())
        lost = [
            int((TargetMaps(home.bought(), (12, 20), number, fill="nearest")[:] >= 0).sum())
            for number in range(3)
        ]
        assert pixels == [every - some for some in lost]
        assert lost[2] > 0


@pytest.mark.parametrize("unit", ["region", "image"])
def test_a_held_out_share_of_files(run_pixels: Runner, files: Path, unit: str) -> None:
    shift = replace(tree(files), test=None)
    home = run_pixels(
        *ORIGINAL,
        f"task.unit={unit}",
        "evaluation={images: held_out, share: 0.34}",
        "ask={budget: 100%, after: [1, 2]}" if unit == "image" else "ask.budget=5%",
        shift=shift,
    )
    assert [r["images"] for r in home.stages()] == [1] * 3
    ledger = home.bought()
    assert len(ledger.keys) == 2
    assert shift.truth is not None
    place = {key: number for number, key in enumerate(shift.pool.keys)}
    for entry in ledger.entries():
        assert entry.label == int(original_map(shift.truth, place[entry.key]).flatten()[entry.position])
    (held,) = set(range(3)) - {place[key] for key in ledger.keys}
    assert home.stages()[0]["pixels"] == int((original_map(shift.truth, held) >= 0).sum())


def test_images_of_several_sizes_are_bought_whole(run_pixels: Runner, files: Path) -> None:
    shift = tree(files)
    settings = (*ORIGINAL, "task.unit=image", "ask.budget=2")
    home = run_pixels(*settings, shift=shift)
    check_ledger(home, shift.truth, shift.pool.void, original=True)
    assert shift.truth is not None
    each = [int((original_map(shift.truth, n) >= 0).sum()) for n in range(3)]
    counts = home.bought().counts().tolist()
    assert sum(count > 0 for count in counts) == 2
    assert all(count in (0, whole) for count, whole in zip(counts, each, strict=True))


# ---- what is refused


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("task.unit=pixel", "query={name: ripu}"), r"a single pixel has none: task.unit=region"),
        (("views.scoring={crop: center, size: 8}",), r"views.scoring must show whole images"),
        (("views.test.flip=0.5",), r"views.test must show whole images.*evaluation.flip"),
        (("model={name: small_cnn, knobs: {}}",), r"speaks of images, but the data has labels of pixels"),
        (("ask.budget=600/image",), r"asks for 600 pixels of image 0, which has 512"),
        (("ask.budget=0%",), r"buys no pixel"),
        (("task={name: classification, unit: null}",), r"task.name is classification: begin with -c segment"),
    ],
)
def test_what_cannot_be_is_refused_before_training(
    run_pixels: Runner, tmp_path: Path, settings: tuple[str, ...], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        run_pixels(*settings)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_images_and_settings_for_pixels_do_not_mix(run_quickly: Runner) -> None:
    with pytest.raises(UserError, match=r"has labels of images, but task\.name is segmentation"):
        run_quickly("task={name: segmentation}")


def test_an_oracle_that_answers_no_class_is_not_entered(tmp_path: Path) -> None:
    settled = quick_pixels()
    parts, plan = assemble(settled, RunDir(tmp_path / "r"))

    def wrong(request: Request) -> Tensor:
        return torch.full((len(request),), 10, dtype=torch.int8)

    with pytest.raises(UserError, match=r"answered 10 in round 1, but a label is 0 to 9"):
        run(replace(parts, oracle=wrong), plan, tmp_path / "r", fabric=make_fabric("cpu"))
    assert not (tmp_path / "r" / "labels").exists()


# ---- the Python API


def parts(**changes: Any) -> ducats.Parts:
    shift = tiny_streets()
    with global_seed(0, "model"):
        net = small_fcn(classes=10, channels=3, width=8)
    made = ducats.Parts(net, shift.source, shift.pool, ducats.Truth(shift.truth), test=shift.test)
    return replace(made, **changes)


PLAN = ducats.Plan(epochs=2, ask_after=(1,), pixels="2%", batch_size=2, steps_per_epoch=2, scoring_batch=4)


def test_the_api_needs_a_network_and_a_share(tmp_path: Path) -> None:
    home = ducats.adapt(parts(), PLAN, tmp_path / "r")
    shift = tiny_streets()
    assert [r["labels"] for r in home.stages()] == [0, 10 * POOL]
    ledger = home.bought()
    assert ledger.counts().tolist() == [10] * POOL
    assert shift.truth is not None
    for entry in ledger.entries():
        true = shift.truth[shift.pool.keys.index(entry.key)]
        assert entry.label == int(true.flatten()[entry.position])
    (epoch, *_) = [r for r in records.read(home.metrics) if r["kind"] == "epoch" and r["epoch"] == 2]
    assert {"source/nll", "labelled/nll", "unlabelled/u_dis", "unlabelled/u_data"} <= epoch["losses"].keys()


def test_the_objective_sees_labels_void_and_unlabelled_as_they_are(tmp_path: Path) -> None:
    shift = tiny_streets()
    place = {image.numpy().tobytes(): n for n, image in enumerate(shift.pool.pixels[:])}
    seen: list[dict[int, Tensor]] = [{}]

    def spy(model: Any, batch: Batch) -> dict[str, Tensor]:
        assert batch.target is not None
        assert batch.labelled is None
        assert batch.unlabelled is None
        for image, labels in zip(batch.target.images, batch.target.labels, strict=True):
            number = place[(image * 255).round().to(torch.uint8).numpy().tobytes()]
            seen[-1][number] = labels.clone()
        return dict(duc(model, batch))

    def listen(event: Event) -> None:
        if event.phase == "ask":
            seen.append({})

    plan = replace(PLAN, epochs=3, ask_after=(1, 2), pixels="5%", steps_per_epoch=3)
    home = ducats.adapt(parts(objective=spy), plan, tmp_path / "r", listen=listen)
    assert shift.pool.void is not None
    for rounds, maps in enumerate(seen):
        assert len(maps) >= 3
        for image, labels in maps.items():
            bought = home.bought().of(image, rounds)
            expected = torch.where(shift.pool.void[image] != 0, VOID, UNLABELLED).to(torch.int8).flatten()
            expected[bought.position] = bought.label.to(torch.int8)
            assert torch.equal(labels.flatten(), expected)
            assert int((labels >= 0).sum()) == EACH * rounds


def test_images_that_were_bought_whole_are_a_stream_of_their_own(tmp_path: Path) -> None:
    seen: list[tuple[bool, set[bool], set[bool]]] = []

    def spy(model: Any, batch: Batch) -> dict[str, Tensor]:
        assert batch.target is not None
        whole, rest = (
            {bool((labels >= 0).any()) for labels in part.labels} if part is not None else set()
            for part in (batch.labelled, batch.target)
        )
        seen.append((batch.labelled is not None, whole, rest))
        return dict(duc(model, batch))

    task, plan = Task(unit=Unit("image")), replace(PLAN, pixels=None, budget=(2,))
    home = ducats.adapt(parts(objective=spy, task=task), plan, tmp_path / "r")
    assert (home.bought().counts() > 0).sum() == 2
    # Before the question, nothing is known; after it, all of an image or nothing.
    assert seen == [(False, set(), {False})] * 2 + [(True, {True}, {False})] * 2


def test_a_plain_query_gets_what_the_model_has(tmp_path: Path) -> None:
    seen: list[tuple[set[str], torch.Size, torch.Size]] = []

    def note(slate: ducats.Slate) -> Tensor:
        rows = slate.candidates
        seen.append((set(rows.columns), rows.z.shape, rows.features.shape))
        return torch.arange(slate.budget)

    home = ducats.adapt(parts(query=note), PLAN, tmp_path / "r")
    void = tiny_streets().pool.void
    assert void is not None
    for image, (columns, z, features) in enumerate(seen):
        open_ = (void[image].flatten() == 0).nonzero().squeeze(1)
        assert columns == {"z", "features"}
        assert (z, features) == ((len(open_), 10), (len(open_), 16))
        assert home.bought().of(image).position.tolist() == open_[:10].tolist()
    assert len(seen) == POOL


@pytest.mark.parametrize("unit", ["pixel", "region", "superpixel"])
def test_a_round_in_which_nothing_is_left_to_ask(tmp_path: Path, unit: Any) -> None:
    if unit == "superpixel":
        pytest.importorskip("skimage")
    shift = tiny_streets()
    mostly = torch.ones(POOL, HEIGHT, WIDTH, dtype=torch.uint8)
    mostly[:, 4:8, 4:8] = 0
    few = replace(shift.pool, void=mostly)
    plan = replace(PLAN, epochs=3, ask_after=(1, 2), pixels="10%")
    home = ducats.adapt(parts(pool=few, task=Task(unit=Unit(unit))), plan, tmp_path / "r")
    assert home.finished
    assert home.bought().rounds == 2
    assert home.bought().counts(1).tolist() == home.bought().counts(2).tolist() == [16] * POOL


def test_an_image_that_is_all_void_is_left_alone(tmp_path: Path) -> None:
    shift = tiny_streets()
    void = torch.zeros(POOL, HEIGHT, WIDTH, dtype=torch.uint8)
    void[2] = 1
    plan = replace(PLAN, pixels="5%")
    home = ducats.adapt(parts(pool=replace(shift.pool, void=void)), plan, tmp_path / "r")
    assert home.bought().counts().tolist() == [26, 26, 0, 26, 26]


@pytest.mark.parametrize(
    ("changes", "plan", "words"),
    [
        ({}, {"pixels": None, "budget": (3,)}, r"say how many of each image, Plan\(pixels="),
        ({}, {"pixels": "600/image"}, "asks for 600 pixels of image 0, which has 512"),
        ({}, {"budget": (3,)}, r"buys \[50\] in the rounds, but budget is \[3\]: drop it"),
        ({}, {"pixels": 1, "ask_after": (0, 1)}, "buys no pixel of any image in one of 2 rounds"),
        ({"query": QUERIES["ripu"]}, {}, r"several pixels at once"),
        ({"task": Task(unit=Unit("image"))}, {"pixels": None}, "1 questions but 0 budgets"),
        ({"test": toy().test}, {}, "same classes"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(3 * 512, 10))}, {}, "speaks of images"),
        ({"model": small_fcn(classes=9, channels=3, width=8)}, {}, "tells 9 classes apart"),
        ({"oracle": ducats.Truth(torch.zeros(4, 16, 32, dtype=torch.int8))}, {}, "4 labels for a pool of 5"),
        ({"task": Task(star_without=("moon",))}, {}, "star_without names 'moon'"),
    ],
)
def test_parts_that_do_not_fit_are_refused_before_training(
    tmp_path: Path, changes: dict[str, Any], plan: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        ducats.adapt(parts(**changes), replace(PLAN, **plan), tmp_path / "r")
    assert not (tmp_path / "r" / "metrics.jsonl").exists()


def test_a_query_of_pixels_is_refused_among_images_before_training(tmp_path: Path) -> None:
    shift = toy()
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    mine = ducats.Parts(
        net, shift.source, shift.pool, ducats.Truth(shift.truth), query=QUERIES["ripu_points"]
    )
    with pytest.raises(UserError, match="looks at how pixels lie, but the data has labels of images"):
        ducats.adapt(mine, ducats.Plan(epochs=2, ask_after=(1,), budget=(5,)), tmp_path / "r")
    assert not (tmp_path / "r" / "metrics.jsonl").exists()


@pytest.mark.parametrize("change", [{"task": Task(unit=Unit("region"))}, {"task": Task(flip=True)}])
def test_another_task_in_the_same_folder_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    ducats.adapt(parts(), PLAN, tmp_path / "r")
    with pytest.raises(UserError, match=r"made by another config \(task\."):
        ducats.adapt(parts(**change), PLAN, tmp_path / "r")


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Task(fill="cells"), "cell or nearest"),  # type: ignore[arg-type]
        (lambda: Task(resolution="full"), "network or original"),  # type: ignore[arg-type]
        (lambda: Task(unit=Unit("regions")), "pixel, region, superpixel, image"),  # type: ignore[arg-type]
    ],
)
def test_a_task_that_is_none_is_refused_at_once(make: Any, word: str) -> None:
    with pytest.raises(UserError, match=word):
        make()


def test_a_truth_of_another_grid_is_refused_before_training(tmp_path: Path) -> None:
    shift = tiny_streets()
    wrong = parts(oracle=ducats.Truth(shift.truth, "original"))
    with pytest.raises(UserError, match="network"):
        ducats.adapt(wrong, ducats.Plan(epochs=2, ask_after=(1,), pixels="5%"), tmp_path / "run")


def test_all_classes_cannot_be_left_out(run_pixels: Runner) -> None:
    names = ", ".join(tiny_streets().classes)
    with pytest.raises(UserError, match="leave some"):
        run_pixels(f"evaluation.star_without=[{names}]")


def test_a_source_drawn_in_an_unknown_way_is_refused(tmp_path: Path) -> None:
    plan = ducats.Plan(epochs=2, ask_after=(1,), pixels="5%", source_sampling="rare-classes")
    with pytest.raises(UserError, match="shuffled or rare_classes"):
        ducats.adapt(parts(), plan, tmp_path / "run")


def test_many_classes_are_answered_in_narrow_numbers(tmp_path: Path) -> None:
    """int8 >= 200 is true for every number in torch: answers are compared in wider ones."""
    shift = tiny_streets()
    many = tuple(f"class {n}" for n in range(200))
    given = parts(
        model=small_fcn(classes=200, channels=3, width=8),
        source=replace(shift.source, classes=many),
        test=None,
    )
    home = ducats.adapt(
        given, ducats.Plan(epochs=2, ask_after=(1,), pixels="5%", batch_size=2), tmp_path / "run"
    )
    assert len(home.bought()) == POOL * 26


def test_what_a_query_cannot_take_is_said_before_any_image_is_read() -> None:
    with pytest.raises(UserError, match="kappa"):
        check_names(quick_pixels("task.unit=image", "query={name: duc, knobs: {kappa: 0.5}}"))
