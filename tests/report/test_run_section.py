"""Section of one run: numbers equal the records, images are embedded, missing data is stated."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_parser import ParsedPage, parse_report_page, present, write_confusion
from page_parser import no_rendering as no_rendering
from PIL import Image

from ducats.report import report_page
from ducats.report.figures import histogram
from ducats.report.figures.panels import FigurePanel
from ducats.report.page import format_uncertainty
from ducats.report.page_budget import GALLERY_SIZES, fitting_gallery_size, image_data_url, text_bytes
from ducats.report.run_reader import Run, find_runs, read_run
from ducats.report.run_section.class_results import read_class_results
from ducats.report.run_section.section import select_section_runs
from ducats.report.run_section.selections import (
    NearDuplicatePair,
    distinct_pairs,
    find_near_duplicates,
    neighbour_share,
)
from ducats.runfolder import snapshot_files
from ducats.runfolder.class_changes import ClassList
from ducats.runfolder.label_files import RoundLabels
from ducats.runfolder.run_folder import RunFolder
from synthetic_runs import DIGITS, write_pixel_run, write_run

MEGABYTE = 1_000_000


def stage_records(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "stage"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(
        tmp_path_factory.mktemp("runs") / "duc-0", seconds_per_label=3.0, rounds=3, pool=80, source=30
    )
    write_confusion(folder, 20, 10)
    return folder


@pytest.fixture(scope="module")
def text(run: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "report.html"
    return report_page([run], out).page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> ParsedPage:
    return ParsedPage(text)


# -- numbers ---------------------------------------------------------------------------------------------


def test_numbers_of_each_stage_equal_the_records(run: Path, page: ParsedPage) -> None:
    stages = stage_records(run)
    rows = page.table("run-1-metrics")
    assert len(rows) == len(stages) == 4
    for row, record in zip(rows, stages, strict=True):
        assert row == {
            "Stage": str(record["stage"]),
            "Epoch": str(record["epoch"]),
            "Accuracy %": f"{100 * record['accuracy']:.2f}",
            "Labels": str(record["labels"]),
            "Calibration error %": f"{100 * record['ece']:.2f}",
            "Class mean %": f"{100 * record['mean_class_accuracy']:.2f}",
            "NLL": f"{record['nll']:.3f}",
            "Brier": f"{record['brier']:.3f}",
            "AURC": f"{record['aurc']:.4f}",
        }


def test_calibration_and_temperature_scaling_equal_the_records(run: Path, page: ParsedPage) -> None:
    rows = page.table("run-1-calibration")
    assert rows[0]["Temperature"] == rows[0]["Scaled: NLL"] == "–"
    for row, record in zip(rows[1:], stage_records(run)[1:], strict=True):
        scaled = record["temperature_scaled"]
        assert row["Calibration error %"] == f"{100 * record['ece']:.2f}"
        assert row["Temperature"] == f"{scaled['temperature']:.3f}"
        assert row["Fitted on labels"] == str(scaled["labels"])
        assert row["Scaled: Calibration error %"] == f"{100 * scaled['ece']:.2f}"
        assert row["Scaled: NLL"] == f"{scaled['nll']:.3f}"
        assert row["Scaled: Brier"] == f"{scaled['brier']:.3f}"
    assert "not a random sample of the target" in page.words


def test_costs_equal_the_records(run: Path, page: ParsedPage) -> None:
    seconds_before = 0.0
    for row, record in zip(page.table("run-1-costs"), stage_records(run), strict=True):
        assert row["Seconds so far"] == f"{record['seconds']:.1f}"
        assert row["Seconds in this stage"] == f"{record['seconds'] - seconds_before:.1f}"
        assert row["Peak memory MB"] == f"{record['peak_memory_bytes'] / MEGABYTE:,.0f}"
        assert row["Annotation minutes so far"] == (
            f"{record['annotation_seconds'] / 60:.1f}" if "annotation_seconds" in record else "–"
        )
        assert row["Timed answers so far"] == (
            f"{record['timed_units']:,} of {record['annotation_units']:,}" if "timed_units" in record else "–"
        )
        seconds_before = record["seconds"]


def test_classes_have_counts_and_confusions(run: Path, page: ParsedPage) -> None:
    first, *_, last = stage_records(run)
    rows = page.table("run-1-classes")
    changes = [b - a for a, b in zip(first["class_accuracy"], last["class_accuracy"], strict=True)]
    assert [row["Class"] for row in rows] == [str(k) for k in np.argsort(-np.array(changes), kind="stable")]
    for row in rows:
        class_index = int(row["Class"])
        assert row["Accuracy before %"] == f"{100 * first['class_accuracy'][class_index]:.1f}"
        assert row["Accuracy after %"] == f"{100 * last['class_accuracy'][class_index]:.1f}"
        assert row["Change"] == f"{100 * changes[class_index]:+.1f}".replace("-", "−")
        assert row["Evaluated"] == "10"
        assert row["Most often confused with"] == ("0 (3)" if class_index == 2 else "–")


def test_merged_classes_are_one_row(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "merged"
    shutil.copytree(run, folder)
    (folder / "confusion").mkdir(exist_ok=True)
    counts = np.diag([8] * 10) + np.eye(10, k=1, dtype=int) * 2  # some 0 are taken for 1, and so on
    epochs = [record["epoch"] for record in stage_records(folder)]
    for epoch in (epochs[0], epochs[-1]):
        RunFolder(folder).save_confusion(epoch, [str(n) for n in range(10)], counts.tolist())
    RunFolder(folder).save_class_changes(ClassList(DIGITS).with_merged("1", "0").changes)
    found = {row.name: row for row in present(read_class_results(read_run(folder))).shown}
    assert found.keys() == set(DIGITS) - {"1"}
    assert (found["0"].count, found["0"].before, found["0"].after) == (20, 0.9, 0.9)
    assert (found["0"].confused_with, found["0"].confusion_count) == ("2", 2)
    assert histogram.count_labels(read_run(folder)).classes == (0, *range(2, 10))


@pytest.mark.parametrize(("classes", "shown"), [(30, 30), (33, 33), (34, 30)])
def test_many_classes_are_collapsed_and_few_are_not(tmp_path: Path, classes: int, shown: int) -> None:
    rising = [[0.5] * classes, [0.5 + k / 100 for k in range(classes)]]
    stages = tuple({"epoch": n, "class_accuracy": values} for n, values in enumerate(rising))
    found = present(read_class_results(Run(tmp_path, "duc", 0, {}, stages)))
    assert (len(found.shown), len(found.collapsed)) == (shown, classes - shown)
    names = [row.name for row in (*found.shown[:15], *found.collapsed, *found.shown[15:])]
    assert names == [f"class {k}" for k in reversed(range(classes))]


def test_rounds_have_labels_and_correct_predictions(run: Path, page: ParsedPage) -> None:
    rows = page.table("run-1-rounds")
    assert len(rows) == 3
    for row, found in zip(rows, snapshot_files.load_snapshots(run), strict=False):
        round_labels = present(RunFolder(run).load_round_labels(found.round))
        labels = dict(zip(round_labels.image.tolist(), round_labels.label.tolist(), strict=True))
        picked = np.flatnonzero(found.picked)
        right = sum(labels[int(found.image[k])] == int(found.predicted[k]) for k in picked)
        assert row["Round"] == str(found.round)
        assert row["After epoch"] == str(found.epoch)
        assert row["Labels"] == "10"
        assert row["Predicted correctly"] == str(right)
        assert row["Correct %"] == f"{10 * right}"


@pytest.mark.parametrize("truth", [True, False])
def test_pseudo_labels_equal_the_last_record_of_each_stage(
    run: Path, tmp_path: Path, page: ParsedPage, truth: bool
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    records = [(0, 10, 7, 0), (1, 12, 0, 0), (2, 15, 1300, 1001), (2, 14, 1200, 900)]
    for stage, epoch, count, correct in records:
        record = {"kind": "pseudo_labels", "stage": stage, "epoch": epoch, "count": count}
        RunFolder(folder).save_record(record | ({"correct": correct} if truth else {}))
    rows = ParsedPage(report_page([folder], tmp_path / "page.html").page.read_text()).table(
        "run-1-pseudo-labels"
    )
    expected = [["0", "10", "7"], ["1", "12", "0"], ["2", "15", "1,300"]]
    if truth:
        correct_cells = [["0", "0.0"], ["0", "–"], ["1,001", "77.0"]]
        expected = [row + more for row, more in zip(expected, correct_cells, strict=True)]
    assert [list(row.values()) for row in rows] == expected
    with pytest.raises(KeyError):
        page.table("run-1-pseudo-labels")  # a run without pseudo-labels


def test_main_sentence_uses_the_records(run: Path, page: ParsedPage) -> None:
    first, *_, last = stage_records(run)
    gain = 100 * (last["accuracy"] - first["accuracy"])
    assert (
        f"Accuracy rose by {gain:.1f} points, from {100 * first['accuracy']:.1f}% to "
        f"{100 * last['accuracy']:.1f}%, with 30 labels (95% CI "
    ) in page.words
    assert "Annotation minutes 1.5 (30 of 31 answers timed)" in page.words


@pytest.mark.usefixtures("no_rendering")
def test_numbers_of_a_segmentation_run_equal_the_records(tmp_path: Path) -> None:
    folder = write_pixel_run(tmp_path / "streets", rounds=2, pool=4)
    found = parse_report_page(folder, out=tmp_path / "report.html")
    for row, record in zip(found.table("pixels-run-1-metrics"), stage_records(folder), strict=True):
        assert row["mIoU %"] == f"{100 * record['mean_iou']:.2f}"
        assert row["Labelled pixels"] == f"{record['labels']:,}"
        assert row["Pixel accuracy %"] == f"{100 * record['accuracy']:.2f}"
    last = stage_records(folder)[-1]["class_iou"]
    names = read_run(folder).classes
    for row in found.table("pixels-run-1-classes"):
        assert row["IoU after %"] == f"{100 * last[names.index(row['Class'])]:.1f}"
    for row in found.table("pixels-run-1-rounds"):
        round_labels = present(RunFolder(folder).load_round_labels(int(row["Round"])))
        assert row["Labelled pixels"] == str(len(round_labels.image)) == "32"
        assert row["Near another %"] == f"{100 * neighbour_share_by_hand(round_labels, 40):.0f}"
    assert "Selected pixels" in found.words


def neighbour_share_by_hand(round_labels: RoundLabels, width: int) -> float:
    """Compare every pair of pixels."""
    near = 0
    locations = [
        (i, *divmod(p, width))
        for i, p in zip(round_labels.image.tolist(), round_labels.position.tolist(), strict=True)
    ]
    for k, (image, y, x) in enumerate(locations):
        others = [other for j, other in enumerate(locations) if j != k and other[0] == image]
        near += any((y - v) ** 2 + (x - u) ** 2 <= 9 for _, v, u in others)
    return near / len(locations)


# -- images, size, links ---------------------------------------------------------------------------------


def test_selected_images_have_prediction_label_and_both_uncertainties(run: Path, page: ParsedPage) -> None:
    found = snapshot_files.load_snapshots(run)[0]
    round_labels = present(RunFolder(run).load_round_labels(1))
    names = RunFolder(run).load_pool().keys
    for image, label in zip(round_labels.image.tolist(), round_labels.label.tolist(), strict=True):
        row = int(np.flatnonzero(found.picked & (found.image == image))[0])
        u_dis, u_data = format_uncertainty(found.u_dis[row]), format_uncertainty(found.u_data[row])
        mark = "✓ correct" if label == found.predicted[row] else "✗ wrong"
        assert (
            f"{mark} prediction {found.predicted[row]} ({100 * found.probability[row]:.0f}%) label {label} "
            f"U_dis {u_dis} U_data {u_data} {names[image]}"
        ) in page.words
        thumbnail = snapshot_files.find_thumbnail(run, image)
        assert image_data_url(thumbnail) in page.images
    assert all(url.startswith("data:image/png;base64,") for url in page.images)


def test_the_page_is_self_contained_and_has_no_script(run: Path, text: str) -> None:
    found = ParsedPage(text)
    assert not {"script", "link", "iframe"} & set(found.tags)
    assert "http" not in text
    assert "@import" not in text
    assert str(run.parent) not in text
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in found.links)
    assert len(found.ids) == len(set(found.ids))
    assert {link[1:] for link in found.links if link.startswith("#")} <= set(found.ids)


def test_contents_link_to_every_section(page: ParsedPage) -> None:
    sections = ("verdict", "curve", "classes", "calibration", "selections", "paper", "costs", "provenance")
    assert {f"#run-1-{name}" for name in sections} <= set(page.links)


@pytest.mark.usefixtures("no_rendering")
def test_five_rounds_of_a_hundred_large_images_stay_below_ten_megabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Larger than any real figure: those with thousands of points take 0.3 MB at most.
    heavy = [
        FigurePanel(name, name, "", f'<svg viewBox="0 0 9 9"><desc>{"x" * 300_000}</desc></svg>')
        for name in "abc"
    ]
    monkeypatch.setattr("ducats.report.run_section.section.draw_round_panels", lambda *_: tuple(heavy))
    monkeypatch.setattr("ducats.report.run_section.section.draw_paper_panels", lambda *_: tuple(heavy))
    folder = write_run(tmp_path / "big", rounds=5, per_round=100, pool=900, source=60, thumbnails=False)
    rng = np.random.default_rng(0)
    thumbnails = folder / "snapshots" / "thumbnails"
    thumbnails.mkdir()
    for number in range(1, 6):
        round_labels = present(RunFolder(folder).load_round_labels(number))
        for image in round_labels.image.tolist():
            noise = rng.integers(0, 255, (160, 160, 3), np.uint8)  # incompressible
            Image.fromarray(noise).save(thumbnails / f"{image:06d}.png")
    path = report_page([folder], tmp_path / "report.html").page
    assert path.stat().st_size < 10 * MEGABYTE
    found = ParsedPage(path.read_text(encoding="utf-8"))
    shown = max(size for size in GALLERY_SIZES if 5 * size * 77_000 * 4 / 3 < 8 * MEGABYTE - 6 * 300_000)
    assert f"… and {100 - shown} more; images are left out to keep the page small." in found.words


def test_fewer_images_of_each_round_are_shown_if_space_is_short(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(bytes(300))  # 400 bytes in base64 and 40 of markup
    galleries: list[list[Path | None]] = [[path] * 30, [path] * 30, [None] * 30]
    assert fitting_gallery_size(galleries, 24 * 2 * 440) == 24
    assert fitting_gallery_size(galleries, 24 * 2 * 440 - 1) == 16
    assert fitting_gallery_size(galleries, 2 * 440 * 2) == 2
    assert fitting_gallery_size(galleries, 100) == 0
    assert text_bytes(["xy", "ä"]) == 4


@pytest.mark.usefixtures("no_rendering")  # figures have their own test of this
def test_the_same_run_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(run, tmp_path / "elsewhere" / run.name)
    pages = [report_page([folder], tmp_path / f"{n}.html").page for n, folder in enumerate((run, moved))]
    assert pages[0].read_bytes() == pages[1].read_bytes()


# -- near-duplicates -------------------------------------------------------------------------------------


def test_near_duplicates_are_pairs_with_similar_features(run: Path) -> None:
    found = snapshot_files.load_snapshots(run)[0]
    rows = {int(row): index for index, row in enumerate(found.feature_rows)}
    picked = [row for row in np.flatnonzero(found.picked).tolist() if row in rows]
    expected = set()
    for k, first in enumerate(picked):
        for second in picked[k + 1 :]:
            a, b = (found.features[rows[row]].astype(float) for row in (first, second))
            if a @ b / np.sqrt((a @ a) * (b @ b)) >= 0.95:
                expected.add((first, second))
    answer = present(find_near_duplicates(found))
    assert {(pair.first, pair.second) for pair in answer.pairs} == expected
    assert answer.n_compared == len(picked)


def test_a_sample_is_shown_in_one_pair_only() -> None:
    rows_and_cosines = [(1, 2, 0.99), (2, 3, 0.98), (4, 5, 0.97), (6, 7, 0.96)]
    pairs = [NearDuplicatePair(*each) for each in rows_and_cosines]
    assert distinct_pairs(pairs, 2) == [pairs[0], pairs[2]]


def test_neighbouring_pixels_are_counted() -> None:
    round_labels = RoundLabels(1, np.array([0, 0, 0, 1]), np.array([0, 3, 50, 3]), np.zeros(4))
    # Positions 0 and 3 of image 0 are neighbours; its position 50 is 5 rows away.
    assert neighbour_share(round_labels, np.array([[10, 10], [10, 10]])) == 0.5


# -- several runs ----------------------------------------------------------------------------------------


def test_few_runs_have_a_section_each_and_many_one_per_method(tmp_path: Path) -> None:
    for method in ("random", "duc"):
        for seed in (1, 0):
            write_run(tmp_path / f"{method}-{seed}", method, seed, snapshots=False, rounds=1)
    runs = find_runs([tmp_path])
    assert [run.name for run in select_section_runs(runs[:2])] == ["duc-0", "duc-1"]
    assert [run.name for run in select_section_runs(runs)] == ["duc-0", "random-0"]
    assert select_section_runs(runs * 30) == []


@pytest.mark.usefixtures("no_rendering")
def test_a_run_is_compared_with_random_runs(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"duc-{seed}", "duc", seed, snapshots=False, rounds=1, accuracies=[0.5, 0.8])
        other = tmp_path / f"random-{seed}"
        write_run(other, "random", seed, snapshots=False, rounds=1, accuracies=[0.5, 0.70 + 0.02 * seed])
    found = parse_report_page(tmp_path, out=tmp_path / "report.html")
    # Differences 0.10 and 0.08: mean 0.09, interval of 12.706 standard errors of 0.01 on either side.
    assert "(95% CI −3.7 to 21.7, over 2 shared seeds). This difference is not significant." in found.words
    assert "Gain over random per label, points +0.90 95% CI −0.37 to +2.2" in found.words
