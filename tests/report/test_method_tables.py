"""Tables from synthetic run folders: means, averages, bold, published results, significance, formats."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from minimal_runs import write_run_folder
from page_parser import present
from scipy import stats

from commands import Capture, ducats, error_of, output_of
from ducats.report.method_tables.build import _sort_key, make_tables, paired_t_test
from ducats.report.method_tables.published import load_published_results
from ducats.report.method_tables.text import (
    format_from_path,
    task_tables_csv,
    task_tables_latex,
    task_tables_markdown,
)

OFFICE_CONFIG: Mapping[str, Any] = {
    "acquisition": {"budget": "5%"},
    "model": {"params": {"backbone": "resnet50"}},
    "evaluation": {"split": "published"},
}


def write_run(
    root: Path,
    method: str,
    seed: int,
    value: float,
    *,
    data: str = "office_home",
    params: Mapping[str, Any] | None = None,
    finished: bool = True,
    mean_iou_star: float | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a run whose first stage is better than its last; only the last may count."""
    params = {"task": "Ar-Cl"} if params is None else params
    folder = root / f"{data}-{'-'.join(map(str, params.values()))}-{method}-{seed}".replace("/", "_")
    task, key = (
        ("segmentation", "mean_iou") if data.endswith("cityscapes") else ("classification", "accuracy")
    )
    settings = {"method": method, "seed": seed, "data": {"name": data, "params": dict(params)}}
    settings |= {"task": {"name": task}, **(config or OFFICE_CONFIG)}
    shared = {"kind": "stage", "headline_metric": key, "evaluated_on": "target", "images": 10}
    shared |= {} if mean_iou_star is None else {"mean_iou_star": mean_iou_star}
    stages = [
        {**shared, "stage": n, "epoch": n + 1, "labels": 100 * n, "seconds": 30.0 * n, key: score}
        for n, score in enumerate((value + 0.05, value))
    ]
    return write_run_folder(folder, settings, stages, finished=finished)


SCORES = {  # by method and task, for seeds 0, 1, 2
    "duc": {"Ar-Cl": (0.64, 0.66, 0.65), "Cl-Ar": (0.72, 0.73, 0.77)},
    "random": {"Ar-Cl": (0.52, 0.53, 0.54), "Cl-Ar": (0.56, 0.57, 0.55)},
    "fully-supervised": {"Ar-Cl": (0.95, 0.95, 0.95), "Cl-Ar": (0.99, 0.99, 0.99)},
}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for method, tasks in SCORES.items():
        for task, values in tasks.items():
            for seed, value in enumerate(values):
                write_run(tmp_path / "runs", method, seed, value, params={"task": task, "root": "/data"})
    return tmp_path / "runs"


def test_a_method_without_all_tasks_has_no_average(runs: Path) -> None:
    write_run(runs, "entropy", 0, 0.6)
    (table,) = make_tables([runs])
    entropy = next(row for row in table.rows if row.method == "entropy")
    assert entropy.averages == {}
    assert entropy.values["Ar-Cl", "accuracy"].std is None
    assert "| entropy | 60.0 | – | – | 1 |" in task_tables_markdown([table])


def test_markdown_marks_the_best_and_shows_published_results(runs: Path) -> None:
    lines = task_tables_markdown(make_tables([runs])).splitlines()
    assert lines[0] == "## office_home: 3 methods, 2 tasks"
    assert lines[2] == "| Method | Ar→Cl | Cl→Ar | Average | Seeds | Labels | Seconds |"
    assert lines[4:10] == [
        "| random | 53.0 ± 1.0 | 56.0 ± 1.0 | 54.5 ± 0.5 | 3 | 100 | 30 |",
        "| published | 52.5 | 56.3 | 54.4 |  |  |  |",
        "| duc | **65.0 ± 1.0** | **74.0 ± 2.6** | **69.5 ± 1.5** | 3 | 100 | 30 |",
        "| published | 65.5 ± 0.3 | 73.0 ± 0.4 | 69.2 |  |  |  |",
        "| fully-supervised | 95.0 ± 0.0 | 99.0 ± 0.0 | 97.0 ± 0.0 | 3 | 100 | 30 |",
        "| published | 95.6 | 99.3 | 97.4 |  |  |  |",
    ]
    assert "- Published: Xie et al., ICLR 2023, tables 2 and 5 and appendix D." in lines


def test_published_averages_cover_the_same_tasks_as_ours() -> None:
    known = load_published_results()["office_home", "accuracy", "duc"]
    assert known.average_over(known.all_tasks) == known.average
    some = present(known.average_over(["Ar-Cl", "Cl-Ar"]))
    assert some.mean == pytest.approx((0.655 + 0.730) / 2)
    assert known.average_over(["Ar-Cl", "nowhere"]) is None
    average_only = load_published_results()["office_home", "accuracy", "duc-a"]
    assert average_only.average_over(["Ar-Cl", "Cl-Ar"]) is None
    assert average_only.average_over(average_only.all_tasks) == average_only.average


def test_differences_are_paired_by_task_and_seed(runs: Path) -> None:
    (table,) = make_tables([runs])
    found = present(table.rows[1].paired_tests["random"])
    ours, theirs = (
        [value for values in SCORES[name].values() for value in values] for name in ("duc", "random")
    )
    assert found.n_pairs == 6
    assert found.difference == pytest.approx(0.15)
    assert found.p == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    assert "| duc | +15.0 | < 0.001 | 6 |  |  |  |" in task_tables_markdown([table])
    assert "| random |  |  |  | -15.0 | < 0.001 | 6 |" in task_tables_markdown([table])


@pytest.mark.parametrize("n", [2, 3, 7, 36])
def test_the_t_test_equals_scipy(n: int) -> None:
    a = {seed: 0.7 + 0.01 * ((7 * seed) % 5) for seed in range(n)}
    b = {seed: 0.69 + 0.013 * ((3 * seed) % 4) for seed in range(n)}
    found = present(paired_t_test(a, b))
    assert found.p == pytest.approx(stats.ttest_rel(list(a.values()), list(b.values())).pvalue)


def test_too_few_pairs_or_no_spread_have_no_p() -> None:
    assert paired_t_test({0: 0.5}, {0: 0.4}) is None
    assert paired_t_test({0: 0.5, 1: 0.6}, {2: 0.4, 3: 0.5}) is None
    equal = present(paired_t_test({0: 0.5, 1: 0.6, 2: 0.7}, {0: 0.4, 1: 0.5, 2: 0.6}))
    assert (equal.p, equal.n_pairs) == (None, 3)
    assert equal.difference == pytest.approx(0.1)


def test_methods_to_compare_with_can_be_chosen(runs: Path) -> None:
    (table,) = make_tables([runs], ["fully-supervised", "nobody"])
    assert table.baselines == ("fully-supervised",)
    assert set(table.rows[0].paired_tests) == {"fully-supervised"}


def test_unfinished_runs_are_left_out_with_a_note(runs: Path) -> None:
    write_run(runs, "duc", 3, 0.1, finished=False)
    (table,) = make_tables([runs])
    assert table.rows[1].seeds == (0, 1, 2)
    assert "Left out because unfinished: office_home-Ar-Cl-duc-3." in table.notes


def test_without_finished_runs_there_is_a_note_and_no_table(tmp_path: Path) -> None:
    write_run(tmp_path, "duc", 0, 0.5, finished=False)
    text = task_tables_markdown(make_tables([tmp_path]))
    assert "Left out because unfinished: office_home-Ar-Cl-duc-0" in text
    assert "|" not in text
    assert task_tables_latex(make_tables([tmp_path])).startswith("% office_home: 0 methods")
    assert task_tables_csv(make_tables([tmp_path])).count("\n") == 1


def test_runs_with_the_same_seed_are_averaged_with_a_warning(runs: Path) -> None:
    write_run(runs / "again", "duc", 0, 0.66)  # averaged with 0.64 of another config: 0.65
    (table,) = make_tables([runs])
    duc = table.rows[1]
    assert duc.values["Ar-Cl", "accuracy"].mean == pytest.approx((0.65 + 0.66 + 0.65) / 3)
    assert duc.averages["accuracy"].mean == pytest.approx((0.65 + 0.66 + 0.65 + 0.72 + 0.73 + 0.77) / 6)
    assert present(duc.paired_tests["random"]).n_pairs == 6
    assert "duc has several runs with the same seed (0): their mean counts as one seed." in table.notes


def test_a_copied_run_counts_once(runs: Path) -> None:
    params = {"task": "Ar-Cl", "root": "/data"}
    copy = write_run(runs / "copy", "duc", 0, 0.64, params=params)
    other = write_run(runs / "other", "duc", 1, 0.7, params=params)  # on other images, so not the same run
    (other / "data.yaml").write_text("pool: {images: 3}\n")
    (table,) = make_tables([runs])
    assert table.rows[1].values["Ar-Cl", "accuracy"].mean == pytest.approx((0.64 + 0.68 + 0.65) / 3)
    assert f"Counted once, the same run (config and data) in several folders: {copy.name}." in table.notes
    assert "duc has several runs with the same seed (1): their mean counts as one seed." in table.notes


def test_tuning_trials_count_only_if_their_folder_is_given(runs: Path) -> None:
    search = runs / "tune-office"
    trial = write_run(search, "duc", 0, 0.9)
    (search / "tune.json").write_text("{}")
    (table,) = make_tables([runs])
    assert table.rows[1].values["Ar-Cl", "accuracy"].mean == pytest.approx(0.65)
    assert (
        "Left out: 1 trial of `ducats tune` in tune-office; give that folder to include them." in table.notes
    )
    for given in (search, trial):
        (table,) = make_tables([given])
        assert table.rows[0].values["Ar-Cl", "accuracy"].mean == pytest.approx(0.9)
        assert not any("Left out" in note for note in table.notes)


def test_runs_with_unpublished_settings_are_marked(tmp_path: Path) -> None:
    other = {**OFFICE_CONFIG, "acquisition": {"budget": "10%"}, "evaluation": {"split": "auto"}}
    write_run(tmp_path, "duc", 0, 0.7, config=other)
    text = task_tables_markdown(make_tables([tmp_path]))
    assert "| published† | 65.5 ± 0.3 |" in text
    assert "unlike the published ones (†) in our runs of duc: acquisition.budget, evaluation.split." in text


def test_each_data_set_has_its_own_table(tmp_path: Path) -> None:
    write_run(tmp_path, "duc", 0, 0.65)
    write_run(tmp_path, "duc", 0, 0.89, data="visda2017", params={"task": "S-R"})
    write_run(tmp_path, "duc", 0, 0.9, data="folders", params={"source": "/a/lab", "target": "/a/field"})
    write_run(tmp_path, "duc", 0, 0.8, data="folders", params={"source": "/a/lab", "target": "/a/sea"})
    write_run(tmp_path, "duc", 0, 0.9, data="digits", params={})
    tables = {table.data_name: table.tasks for table in make_tables([tmp_path])}
    assert tables == {
        "office_home": ("Ar-Cl",),
        "visda2017": ("S-R",),
        "folders": ("lab-field", "lab-sea"),
        "digits": ("",),
    }
    assert "| Method | Accuracy | Seeds | Labels | Seconds |" in task_tables_markdown(make_tables([tmp_path]))


STREETS_CONFIG: Mapping[str, Any] = {
    "acquisition": {"budget": "40960/image"},
    "model": {"name": "deeplab_v2", "params": {"backbone": "resnet101.tv_in1k"}},
    "evaluation": {"resolution": "original", "average_flipped": True},
}


STREETS_PARAMS: Mapping[str, Any] = {"void_pixels": "queried"}


@pytest.mark.parametrize("data", ["gtav_cityscapes", "synthia_cityscapes"])
def test_segmentation_runs_with_unpublished_settings_are_marked(tmp_path: Path, data: str) -> None:
    other: Mapping[str, Any] = {
        "acquisition": {"budget": "2%"},
        "model": {"name": "deeplab_v2", "params": {"backbone": "resnet50"}},
        "evaluation": {"resolution": "network", "average_flipped": False},
    }
    for folder, config, params in (
        ("same", STREETS_CONFIG, STREETS_PARAMS),
        ("different", other, {}),  # by default, void pixels are excluded
    ):
        for method in ("duc", "source-only"):
            write_run(tmp_path / folder, method, 0, 0.6, data=data, params=params, config=config)
    same, different = (make_tables([tmp_path / folder])[0].rows for folder in ("same", "different"))
    assert [row.unpublished_settings for row in same] == [(), ()]
    common = {
        *("data.params.void_pixels", "model.params.backbone"),
        *("evaluation.resolution", "evaluation.average_flipped"),
    }
    assert {row.method: set(row.unpublished_settings) for row in different} == {
        "source-only": common,  # it has no budget
        "duc": {*common, "acquisition.budget"},
    }


def test_runs_that_know_void_pixels_are_not_comparable_with_others(tmp_path: Path) -> None:
    for method, params in (("duc", STREETS_PARAMS), ("entropy", STREETS_PARAMS), ("random", {})):
        write_run(tmp_path, method, 0, 0.6, data="carla_camvid", params=params)
    warning = "differ in data.params.void_pixels"
    assert any(warning in note for note in make_tables([tmp_path])[0].notes)
    rmtree(next(tmp_path.glob("*random*")))
    assert not any(warning in note for note in make_tables([tmp_path])[0].notes)


def test_sdm_is_comparable_with_40_epochs(tmp_path: Path) -> None:
    for method, epochs in (("sdm", 20), ("sdm", 40)):
        config = {**OFFICE_CONFIG, "train": {"epochs": epochs}}
        folder = tmp_path / str(epochs)
        write_run(folder, method, 0, 0.9, data="office31", params={"task": "A-W"}, config=config)
    found = {
        epochs: make_tables([tmp_path / str(epochs)])[0].rows[0].unpublished_settings for epochs in (20, 40)
    }
    assert found == {20: ("train.epochs",), 40: ()}


def test_segmentation_is_ranked_by_miou_and_shows_both_means(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "data": "synthia_cityscapes",
        "params": STREETS_PARAMS,
        "config": STREETS_CONFIG,
    }
    for method, seed, value, star in (
        ("duc", 0, 0.66, 0.72),
        ("duc", 1, 0.68, 0.74),
        ("random", 0, 0.6, 0.7),
    ):
        write_run(tmp_path, method, seed, value, mean_iou_star=star, **settings)
    lines = task_tables_markdown(make_tables([tmp_path])).splitlines()
    assert lines[2] == "| Method | mIoU | mIoU* | Seeds | Labelled pixels | Seconds |"
    assert lines[5] == "| duc | **67.0 ± 1.4** | **73.0 ± 1.4** | 2 | 100 | 30 |"
    assert lines[6] == "| published | 66.9 | 72.8 |  |  |  |"


def test_names_with_numbers_are_sorted_by_number() -> None:
    names = ["fully-supervised", "duc-kappa-100", "duc-kappa-5", "duc-kappa-10", "random"]
    ordered = ["random", "duc-kappa-5", "duc-kappa-10", "duc-kappa-100", "fully-supervised"]
    assert sorted(names, key=_sort_key) == ordered


def test_csv_has_unrounded_numbers(runs: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(task_tables_csv(make_tables([runs])))))
    assert len(rows) == 3 * 3
    duc = {row["task"]: row for row in rows if row["method"] == "duc"}
    assert float(duc["Ar-Cl"]["mean"]) == pytest.approx(0.65)
    assert float(duc["Ar-Cl"]["published"]) == pytest.approx(0.655)
    assert float(duc["Ar-Cl"]["published_deviation"]) == pytest.approx(0.003)
    assert duc["Ar-Cl"]["p_against_random"] == ""
    assert float(duc["average"]["minus_random"]) == pytest.approx(0.15)
    assert (duc["average"]["pairs_with_random"], duc["average"]["minus_duc"]) == ("6", "")
    assert (duc["average"]["labels"], duc["average"]["seconds"]) == ("100.0", "30.0")


def test_latex_is_escaped_and_well_formed(tmp_path: Path) -> None:
    for method, value in (("duc-budget-5%", 0.7), ("a_b & \\c{d}", 0.6)):
        write_run(tmp_path, method, 0, value, params={"task": "Ar-Cl"})
    text = task_tables_latex(make_tables([tmp_path]))
    assert r"duc-budget-5\% & \textbf{70.0}" in text
    assert r"a\_b \& \textbackslash{}c\{d\}" in text
    assert r"Ar$\to$Cl" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.replace(r"\&", "").count("&") for line in body} == {4}


def test_published_averages_equal_the_mean_of_their_tasks() -> None:
    """Detect typos: each published average must equal the mean of its row up to rounding."""
    checked = 0
    for (data, _, method), entry in load_published_results().items():
        if entry.average is not None and len(entry.tasks) > 1:
            mean = sum(value.mean for value in entry.tasks.values()) / len(entry.tasks)
            assert mean == pytest.approx(entry.average.mean, abs=0.00051), (data, method)
            checked += 1
    assert checked >= 28


def test_published_results_by_hand() -> None:
    known = load_published_results()
    assert known["office_home", "accuracy", "duc"].average is not None
    assert known["visda2017", "accuracy", "duc"].tasks["S-R"].mean == pytest.approx(0.889)
    assert known["visda2017", "accuracy", "duc"].average == known["visda2017", "accuracy", "duc"].tasks["S-R"]
    assert known["mini_domainnet", "accuracy", "tqs"].tasks["pnt-rel"].mean == pytest.approx(0.848)
    assert known["gtav_cityscapes", "mean_iou", "duc-v3plus"].tasks[""].mean == pytest.approx(0.698)
    assert known["office_home", "accuracy", "duc-budget-20%"].tasks == {}


def test_the_format_follows_the_file_name() -> None:
    paths = (None, Path("a.md"), Path("a.csv"), Path("a.tex"))
    assert [format_from_path(path) for path in paths] == ["md", "md", "csv", "latex"]


def test_the_command_prints_or_writes_tables(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    assert output_of(capsys, "table", runs) == task_tables_markdown(make_tables([runs]))
    assert ducats("table", runs, "--out", tmp_path / "t.tex") == 0
    assert (tmp_path / "t.tex").read_text() == task_tables_latex(make_tables([runs]))
    options = ("--format", "csv", "--out", tmp_path / "t.txt", "--baselines", "random")
    assert ducats("table", runs, *options) == 0
    assert (tmp_path / "t.txt").read_text() == task_tables_csv(make_tables([runs], ["random"]))
    assert "at least one folder" in error_of(capsys, "table")
    assert "format of t.html" in error_of(capsys, "table", runs, "--out", tmp_path / "t.html")
