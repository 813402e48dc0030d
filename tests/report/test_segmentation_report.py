"""Report on segmentation runs: ranked by mIoU, shown by class, never averaged with classification."""

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import minimal_runs
import pytest
import yaml
from minimal_runs import write_run_folder
from page_parser import ParsedPage, present
from page_parser import no_rendering as no_rendering

from ducats.report import find_runs, read_run, report
from ducats.report.class_iou import build_class_table
from ducats.report.figures.curves import draw_learning_curve
from ducats.report.figures.style import assign_line_styles
from ducats.report.figures.summary_stats import MeanStd
from ducats.report.headline import make_headline
from ducats.report.method_results import (
    aggregate_methods,
    group_by_kind,
    mean_curve,
    method_table,
    method_table_csv,
    summarise_runs,
)
from ducats.report.provenance import collect_cautions
from ducats.report.table import to_markdown
from ducats.utils.errors import UserError
from synthetic_records import change_records

CLASSES = ("road", "car", "<sky>")


def stage_record(
    number: int, ious: Sequence[float | None], *, labels: int, clicks: int, star: bool
) -> dict[str, Any]:
    valid_ious = [iou for iou in ious if iou is not None]
    record = minimal_runs.stage_record(number, labels, 0.9, ece=0.08)
    del record["class_accuracy"]
    record |= {"clicks": clicks, "evaluated_on": "held_out", "images": 7, "pixels": 917504}
    record |= {"headline_metric": "mean_iou", "mean_iou": sum(valid_ious) / len(valid_ious)}
    record |= {"class_iou": list(ious), "resolution": "256x512 (network)"}
    return record | ({"mean_iou_star": sum(valid_ious[:2]) / len(valid_ious[:2])} if star else {})


def write_run(
    folder: Path,
    method: str = "duc",
    seed: int = 0,
    ious: Sequence[Sequence[float | None]] = ((0.5, 0.2, None), (0.7, 0.4, 0.1)),
    *,
    per_round: int = 262144,
    per_click: int = 1,
    star: bool = False,
    classes: Sequence[str] = CLASSES,
    finished: bool = True,
) -> Path:
    """Write a segmentation run with the given IoUs by stage and class."""
    task = {"name": "segmentation", "unit": "pixel" if per_click == 1 else "region", "resolution": "network"}
    stages = [
        stage_record(n, values, labels=n * per_round, clicks=n * per_round // per_click, star=star)
        for n, values in enumerate(ious)
    ]
    config = {"method": method, "seed": seed, "task": task}
    write_run_folder(folder, config, stages, n_epochs=2 * len(ious), finished=finished)
    (folder / "data.yaml").write_text(yaml.safe_dump({"classes": list(classes)}))
    return folder


# -- numbers ---------------------------------------------------------------------------------------------


def test_several_seeds_give_mean_and_deviation_of_miou(tmp_path: Path) -> None:
    for seed, iou in enumerate((0.3, 0.4, 0.5)):
        write_run(tmp_path / str(seed), seed=seed, ious=[(0.2,), (iou,)], classes=["road"])
    rows = aggregate_methods(find_runs([tmp_path]))
    assert "| duc | 40.00 ± 10.00 | 262,144 | 90.00 ± 0.00 |" in to_markdown(method_table(rows))
    table = list(csv.DictReader(method_table_csv(rows).splitlines()))
    assert table[0]["headline_metric"] == "mean_iou"
    assert float(table[0]["mean_iou_mean"]) == pytest.approx(0.4)
    assert float(table[0]["brier_mean"]) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("more", "title"), [({"star": True}, "mIoU* %"), ({"per_click": 9}, "Clicks"), ({}, None)]
)
def test_columns_without_information_are_left_out(
    tmp_path: Path, more: Mapping[str, Any], title: str
) -> None:
    titles = method_table(aggregate_methods([read_run(write_run(tmp_path / "a", **more))])).titles
    assert [name for name in ("mIoU* %", "Clicks") if name in titles] == ([title] if title else [])


def test_summary_of_a_segmentation_run(tmp_path: Path) -> None:
    row = summarise_runs([read_run(write_run(tmp_path / "a", per_click=4, star=True))])[0]
    assert row == {
        "method": "duc",
        "seed": 0,
        "accuracy": 0.9,
        "ece": 0.08,
        "labels": 262144,
        "seconds": 11.0,
        "headline_metric": "mean_iou",
        "mean_iou": 0.4,
        "mean_iou_star": 0.55,
        "clicks": 65536,
        "classes": list(CLASSES),
        "class_iou": [0.7, 0.4, 0.1],
    }


def test_a_curve_over_clicks_uses_clicks(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / "a", per_round=900, per_click=9))]
    assert [point.n_spent for point in mean_curve(runs, "duc", "mean_iou")] == [0, 900]
    assert [point.n_spent for point in mean_curve(runs, "duc", "mean_iou", "clicks")] == [0, 100]


def test_class_table_before_and_after(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=0, ious=[(0.2, None, None), (0.5, 0.3, None)])
    write_run(tmp_path / "b", seed=1, ious=[(0.4, None, 0.1), (0.7, 0.1, None)])
    write_run(tmp_path / "c", "source-only", ious=[(0.9, 0.1, 0.1)])
    table = present(build_class_table(find_runs([tmp_path])))
    assert (table.class_names, table.methods) == (CLASSES, ("duc", "source-only"))
    road, *others = present(table.before["duc"])
    assert (present(road).mean, present(road).std) == pytest.approx((0.3, 0.2 / 2**0.5))
    assert others == [None, MeanStd(0.1, None)]
    assert [value and round(value.mean, 6) for value in table.after["duc"]] == [0.6, 0.2, None]
    assert table.before["source-only"] is None
    on_page = table.page_table()
    assert on_page.titles == ("Class", "before", "after", "after")
    assert on_page.groups == (("duc", 2), ("source-only", 1))
    assert on_page.rows == (
        ("road", "30.0", "60.0", "90.0"),
        ("car", "–", "20.0", "10.0"),
        ("<sky>", "10.0", "–", "10.0"),
    )
    assert on_page.best == {(0, 3), (1, 2)}


def test_classes_of_other_data_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "random", ious=[(0.2, 0.3)], classes=["x", "y"])
    assert build_class_table(find_runs([tmp_path])) is None


def test_classes_without_names_are_numbered(tmp_path: Path) -> None:
    table = present(build_class_table([read_run(write_run(tmp_path / "a", classes=["too", "few"]))]))
    assert table.class_names == ("class 0", "class 1", "class 2")


# -- words -----------------------------------------------------------------------------------------------


def test_headline_states_miou_and_labelled_pixels(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"duc-{seed}", "duc", seed, [(0.2,), (0.6 + seed / 100,)])
        write_run(tmp_path / f"random-{seed}", "random", seed, [(0.2,), (0.5 + seed / 100,)])
    found = make_headline(aggregate_methods(find_runs([tmp_path])))
    assert found.sentence == (
        "duc has the highest mIoU, 60.5% (± 0.7 over 2 seeds) with 262,144 labelled pixels, "
        "10.0 points above random."
    )
    alone = make_headline(
        aggregate_methods([read_run(write_run(tmp_path / "x", "ripu", per_round=900, per_click=9))])
    )
    assert alone.sentence == "ripu has an mIoU of 40.0% with 900 labelled pixels in 100 clicks."


def test_headline_without_an_evaluation(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", ious=[], finished=False)
    result = report([folder], tmp_path / "out")
    assert result.headline.sentence == "No run was evaluated on a test set, so mIoU cannot be compared."
    assert result.classes_csv is None


# -- images and pixels in one report -----------------------------------------------------------------------


def test_kinds_are_never_averaged_together(tmp_path: Path) -> None:
    minimal_runs.write_run(tmp_path / "a", accuracies=[0.5, 0.75])
    write_run(tmp_path / "b")
    runs = find_runs([tmp_path])
    assert [[run.name for run in group] for group in group_by_kind(runs)] == [["a"], ["b"]]
    rows = aggregate_methods(runs)
    assert [(row.method, row.kind.headline_metric, row.score.mean) for row in rows] == [
        ("duc", "accuracy", 0.75),
        ("duc", "mean_iou", pytest.approx(0.4)),
    ]
    with pytest.raises(ValueError, match="cannot be ranked"):
        make_headline(rows)
    assert any("different metrics (accuracy and mIoU)" in caution for caution in collect_cautions(runs))


@pytest.mark.usefixtures("no_rendering")
def test_a_page_of_both_kinds_has_a_part_for_each_kind(tmp_path: Path) -> None:
    for seed in (0, 1):
        minimal_runs.write_run(tmp_path / "runs" / f"image-{seed}", seed=seed)
        write_run(tmp_path / "runs" / f"pixel-{seed}", seed=seed, per_click=9)
    result = report([tmp_path / "runs"], tmp_path / "out")
    page = result.page.read_text(encoding="utf-8")
    found = ParsedPage(page).ids
    assert len(found) == len(set(found)) > 0
    assert page.count("<h1>") == 2
    assert page.count("each kind is reported separately") == 1
    assert "duc has an accuracy of 70.0%" in result.headline.sentence
    assert "duc has an mIoU of 40.0%" in result.headline.sentence
    assert result.table_markdown.read_text().count("| Method |") == 2
    lines = list(csv.DictReader(result.table_csv.read_text().splitlines()))
    assert [(line["headline_metric"], line["mean_iou_mean"] != "") for line in lines] == [
        ("accuracy", False),
        ("mean_iou", True),
    ]


# -- the page --------------------------------------------------------------------------------------------


def test_the_page_of_segmentation_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", star=True)
    write_run(tmp_path / "runs" / "b", "random", per_click=9)
    result = report([tmp_path / "runs"], tmp_path / "out")
    page = result.page.read_text(encoding="utf-8")
    for text in (
        "mIoU over labelled pixels",
        "mIoU over clicks",
        "Pixel accuracy %",
        "&lt;sky&gt;",
        "262,144",
        "never selected for labelling: 917,504 pixels at 256x512 (network).",
    ):
        assert text in page
    assert "<sky>" not in page
    assert "accuracy over" not in page.lower()
    assert "| road | 50.0 → 70.0 | 50.0 → 70.0 |" in result.table_markdown.read_text()
    lines = list(csv.DictReader(present(result.classes_csv).read_text().splitlines()))
    assert [(line["method"], line["class"], line["after_mean"]) for line in lines[:2]] == [
        ("duc", "road", "0.7"),
        ("duc", "car", "0.4"),
    ]


@pytest.mark.parametrize(("budgets", "scale"), [((10**6, 10**6), "400k"), ((2 * 10**4, 10**7), "100k")])
def test_an_axis_of_pixel_counts_is_readable(tmp_path: Path, budgets: tuple[int, int], scale: str) -> None:
    for name, budget in zip("ab", budgets, strict=True):
        write_run(tmp_path / name, name, per_round=budget)
    figure = draw_learning_curve(
        find_runs([tmp_path]), "mean_iou", "mIoU", "labels", assign_line_styles("ab"), ""
    )
    ticks = re.findall(r">([0-9.]+[kM]?)</text>", figure)
    assert "labelled pixels" in figure
    assert "mIoU, %" in figure
    assert {"0", scale} <= set(ticks)
    assert not any(len(tick) > 5 for tick in ticks)


def test_different_resolutions_give_a_warning(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    other = write_run(tmp_path / "b", "random") / "metrics.jsonl"
    assert not any("resolution" in caution for caution in collect_cautions(find_runs([tmp_path])))
    other.write_text(other.read_text().replace("256x512 (network)", "720x960 (original)"))
    assert any("different resolutions" in caution for caution in collect_cautions(find_runs([tmp_path])))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"class_iou": [0.5, "much"]}, "class_iou"),
        ({"class_iou": 0.5}, "class_iou"),
        ({"headline_metric": "beauty"}, "'beauty'"),
        ({"mean_iou": "0.5"}, "'mean_iou'"),
        ({"pixels": "many"}, "'pixels'"),
    ],
)
def test_errors_about_corrupt_records_name_the_line(
    tmp_path: Path, broken: dict[str, Any], message: str
) -> None:
    folder = change_records(write_run(tmp_path / "a", ious=[(0.5,)]), lambda record: record | broken)
    with pytest.raises(UserError, match=message) as caught:
        read_run(folder)
    assert f"{folder / 'metrics.jsonl'} line 3" in str(caught.value)
