"""Comparison: page and tables agree with `ducats table`, no averages mix tasks; ranks, missing runs."""

import csv
import io
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from page_parser import ParsedPage, present
from page_parser import no_rendering as no_rendering
from synthetic_sweeps import (
    FINAL_ACCURACIES,
    write_page_without_sections,
    write_sweep,
    write_sweep_run,
)

from commands import ducats
from ducats.report import report
from ducats.report.comparison.build import build_comparison
from ducats.report.comparison.missing import find_missing_runs
from ducats.report.comparison.ranks import (
    nemenyi_critical_difference,
    rank_methods,
    rank_scores,
    ranking_note,
    result_sentences,
)
from ducats.report.method_tables.build import make_tables
from ducats.report.method_tables.text import task_tables_csv, task_tables_markdown
from ducats.report.page import write_page
from ducats.report.run_reader import find_runs, scan_runs
from synthetic_records import change_records, without
from synthetic_runs import write_pixel_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="module")
def page(runs: Path) -> Path:
    return write_page_without_sections(find_runs([runs]), runs / "page.html")


def formatted(row: Mapping[str, str], column_prefix: str = "") -> str:
    """Format mean and deviation from the CSV as in a table."""
    mean, deviation = (
        (row[column_prefix], row[f"{column_prefix}_deviation"])
        if column_prefix
        else (row["mean"], row["deviation"])
    )
    if not mean:
        return "–"
    return f"{100 * float(mean):.1f}" + (f" ± {100 * float(deviation):.1f}" if deviation else "")


def csv_rows(runs: Path, out: Path) -> dict[tuple[str, str], dict[str, str]]:
    assert ducats("table", runs, "--out", out) == 0
    rows = csv.DictReader(io.StringIO(out.read_text()))
    return {(row["method"], row["task"]): row for row in rows}


def test_results_on_the_page_equal_the_csv_table(page: Path, runs: Path, tmp_path: Path) -> None:
    known = csv_rows(runs, tmp_path / "table.csv")
    head, *lines = ParsedPage(page.read_text()).tables["by-task"]
    tasks = ["Ar-Cl", "Cl-Ar", "Pr-Rw", "average"]
    assert head == ["Method", "Ar→Cl", "Cl→Ar", "Pr→Rw", "Average", "Seeds", "Labels", "Seconds"]
    ours, theirs = lines[::2], lines[1::2]
    assert [line[0] for line in ours] == list(FINAL_ACCURACIES)
    for line, published in zip(ours, theirs, strict=True):
        rows = [known[line[0], task] for task in tasks]
        assert [cell.strip("*") for cell in line[1:5]] == [formatted(row) for row in rows]
        first = rows[0]
        assert line[5:] == [first["seeds"], f"{float(first['labels']):.0f}", f"{float(first['seconds']):.0f}"]
        assert published == ["published†", *(formatted(row, "published") for row in rows), "", "", ""]
    assert [cell.startswith("*") for cell in ours[3][1:5]] == [True] * 4
    assert not any("*" in cell for line in ours[:3] for cell in line)


def test_differences_on_the_page_equal_the_csv_table(page: Path, runs: Path, tmp_path: Path) -> None:
    known = csv_rows(runs, tmp_path / "table.csv")
    head, *lines = ParsedPage(page.read_text()).tables["paired"]
    assert head == ["Method", "minus random", "p", "pairs", "minus duc", "p", "pairs"]
    for method, *cells in lines:
        row = known[method, "average"]
        for index, other in enumerate(("random", "duc")):
            difference, p, pairs = cells[3 * index : 3 * index + 3]
            if method == other:
                assert (difference, p, pairs) == ("", "", "")
                continue
            assert difference == f"{100 * float(row[f'minus_{other}']):+.1f}"
            value = float(row[f"p_against_{other}"])
            assert p == ("< 0.001" if value < 0.001 else f"{value:.3f}")
            assert pairs == row[f"pairs_with_{other}"] == "6"


def test_the_page_covers_all_tasks_without_mixing_them(page: Path) -> None:
    text = page.read_text()
    (first,) = re.findall(r"<h1>(.*?)</h1>", text)
    assert first.startswith(
        "duc has the highest average accuracy over 3 tasks: 72.3% ± 0.5, 5.7 points above clue"
    )
    assert "different test sets" not in text
    assert 'id="results"' not in text  # it would be a mean over tasks and seeds
    assert text.count('<figure data-of="') == 3
    assert "Ar→Cl: 4 methods, 8 runs" in text


@pytest.mark.usefixtures("no_rendering")
def test_the_whole_page_has_unique_anchors(tmp_path: Path) -> None:
    for method, task in (("duc", "Ar-Cl"), ("duc", "Cl-Ar"), ("random", "Ar-Cl"), ("random", "Cl-Ar")):
        write_sweep_run(tmp_path, method, task, 0, 0.6)
    text = write_page(find_runs([tmp_path]), tmp_path / "page.html").read_text()
    assert "Individual runs" in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert "comparison" in set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)


@pytest.mark.usefixtures("no_rendering")
def test_one_method_on_one_task_gives_no_comparison(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_sweep_run(tmp_path, "duc", "", seed, 0.8, data="digits")
    assert build_comparison(find_runs([tmp_path])) is None
    page = write_page_without_sections(find_runs([tmp_path]), tmp_path / "page.html")
    assert 'id="comparison"' not in page.read_text()


@pytest.mark.usefixtures("no_rendering")
def test_several_methods_on_one_task_need_pairs_or_published_results(tmp_path: Path) -> None:
    write_sweep_run(tmp_path, "duc", "", 0, 0.8, data="digits")
    write_sweep_run(tmp_path, "random", "", 0, 0.7, data="digits")
    assert build_comparison(find_runs([tmp_path])) is None
    write_sweep_run(tmp_path, "duc", "", 1, 0.82, data="digits")
    write_sweep_run(tmp_path, "random", "", 1, 0.71, data="digits")
    found = present(build_comparison(find_runs([tmp_path])))
    assert not found.multi_task
    (data_set,) = found.data_sets
    assert [row[1:4] for row in present(data_set.differences).rows] == [("", "", ""), ("+10.5", "0.030", "2")]
    # Tables and curves of the overview are not repeated.
    assert (data_set.results, data_set.curves) == (None, {})
    text = write_page_without_sections(find_runs([tmp_path]), tmp_path / "page.html").read_text()
    assert "by-task" not in ParsedPage(text).tables
    assert 'id="results"' in text
    assert "fieldset" not in text


@pytest.mark.usefixtures("no_rendering")
def test_one_task_of_a_benchmark_shows_published_results(tmp_path: Path) -> None:
    for method in ("duc", "random"):
        write_sweep_run(tmp_path, method, "Ar-Cl", 0, 0.6)
    found = present(build_comparison(find_runs([tmp_path])))
    results = present(found.data_sets[0].results)
    assert [row[:2] for row in results.rows[:2]] == [("random", "60.0"), ("published†", "52.5")]
    assert results.methods[:2] == ("random", "")


def test_each_data_set_and_kind_has_its_own_table(tmp_path: Path) -> None:
    for task in ("Ar-Cl", "Cl-Ar"):
        write_sweep_run(tmp_path, "duc", task, 0, 0.6)
    write_sweep_run(tmp_path, "duc", "", 0, 0.9, data="digits")
    for task in ("day-night", "day-fog"):
        settings = [f"data.params={{task: {task}}}"]
        write_pixel_run(tmp_path / task, ious=[0.3, 0.4, 0.5, 0.6], settings=settings, snapshots=False)
    text = write_page_without_sections(find_runs([tmp_path]), tmp_path / "page.html").read_text()
    heads = [line for line in ParsedPage(text).tables["by-task"] if line[0] == "Method"]
    assert [line[1:-3] for line in heads] == [  # in the order of the folder names
        ["day→fog", "day→night", "Average"],
        ["Accuracy"],
        ["Ar→Cl", "Cl→Ar", "Average"],
    ]
    assert "1 method on 3 tasks of 2 data sets." in text
    assert "duc has an average mIoU over 2 tasks: 60.0%." in text
    assert "duc has a mean accuracy: 90.0%." in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


@pytest.mark.usefixtures("no_rendering")
def test_runs_without_memory_have_no_memory_figure(tmp_path: Path, runs: Path) -> None:
    # The synthetic runs use 300, 301 and 302 MB at their three stages.
    assert [row.memory for row in make_tables([runs])[0].rows] == [302e6] * 4
    found = present(build_comparison(find_runs([runs])))
    captions = [figure.caption for figure in found.data_sets[0].costs.values()]
    assert captions == ["accuracy against seconds: 4 methods", "accuracy against memory: 4 methods"]
    for method in ("duc", "random"):
        for task in ("Ar-Cl", "Cl-Ar"):
            folder = write_sweep_run(tmp_path, method, task, 0, 0.6)
            change_records(folder, without("peak_memory_bytes") if method == "duc" else dict)
    found = present(build_comparison(find_runs([tmp_path])))
    assert set(found.data_sets[0].costs) == {"seconds"}


@pytest.mark.usefixtures("no_rendering")
def test_only_six_methods_have_distinct_colours(tmp_path: Path) -> None:
    names = [f"method-{index}" for index in range(9)]
    for index, name in enumerate([*names, "duc"]):
        for task in ("Ar-Cl", "Cl-Ar"):
            final_accuracy = 0.5 + 0.01 * index
            write_sweep_run(tmp_path, "random", task, 0, final_accuracy, name=name, folder=f"{task}-{name}")
    found = present(build_comparison(find_runs([tmp_path])))
    (data_set,) = found.data_sets
    assert list(data_set.coloured_styles) == ["duc", *(f"method-{index}" for index in (8, 7, 6, 5, 4))]
    assert len({style.colour for style in data_set.coloured_styles.values()}) == 6
    assert data_set.grey_methods == ("method-3", "method-2", "method-1", "method-0")


@pytest.mark.usefixtures("no_rendering")
def test_missing_tasks_are_noted(runs: Path, tmp_path: Path) -> None:
    for task, value in (("Ar-Cl", 0.5), ("Cl-Ar", 0.6)):
        write_sweep_run(tmp_path, "duc", task, 0, value)
    write_sweep_run(tmp_path, "random", "Ar-Cl", 0, 0.4)
    found = present(build_comparison(find_runs([tmp_path])))
    assert found.data_sets[0].notes[0] == (
        "1 of 4 combinations of method and task have no finished run: random on Cl→Ar."
    )


@pytest.mark.usefixtures("no_rendering")
def test_the_report_folder_has_tables_by_task(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ducats.report.page.select_section_runs", lambda runs: [])
    result = report([runs], tmp_path / "out")
    assert result.headline.sentence == result_sentences(make_tables([runs])[0])[0]
    assert not any("different test sets" in caution for caution in result.cautions)
    assert result.table_csv.read_text() == task_tables_csv(make_tables([runs]))
    assert result.table_markdown.read_text() == task_tables_markdown(make_tables([runs]))


# -- ranks and sentences ---------------------------------------------------------------------------------


def test_ranks_by_hand(runs: Path) -> None:
    (table,) = make_tables([runs])
    found = present(rank_methods(table))
    # Ar-Cl, seed 0: clue and entropy share the ranks 2 and 3. Pr-Rw, seed 0: random is before entropy.
    by_hand: dict[str, list[float]] = {"duc": [1] * 6, "clue": [2.5, 2, 2, 2, 2, 2]}
    by_hand["entropy"] = [2.5, 3, 3, 3, 4, 3]
    by_hand["random"] = [4, 4, 4, 4, 3, 4]
    assert [rank.method for rank in found.ranks] == list(by_hand)
    for rank in found.ranks:
        assert rank.mean == pytest.approx(sum(by_hand[rank.method]) / 6)
        assert rank.best_and_worst == (min(by_hand[rank.method]), max(by_hand[rank.method]))
    assert (found.n_comparisons, found.left_out) == (6, ())
    assert found.critical_difference is None  # six comparisons are too few for the test
    assert "needs at least 10 comparisons" in ranking_note(found)


def test_ties_share_a_rank() -> None:
    assert rank_scores({"a": 0.5, "b": 0.5, "c": 0.5}) == {"a": 2.0, "b": 2.0, "c": 2.0}
    assert rank_scores({"a": 0.1, "b": 0.3, "c": 0.2}) == {"a": 3.0, "b": 1.0, "c": 2.0}


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_the_critical_gap_equals_published_tables(methods: int, q: float) -> None:
    """Compare with two-tailed values at 5 % from statistics textbooks."""
    expected = q * math.sqrt(methods * (methods + 1) / (6 * 12))
    assert nemenyi_critical_difference(methods, 12) == pytest.approx(expected, rel=1e-3)


def test_ranks_with_enough_comparisons_state_significance(tmp_path: Path) -> None:
    # duc is always first; margin and entropy alternate: mean ranks 1, 2.5 and 2.5 over 12 comparisons.
    for seed in range(12):
        turn = 0.01 if seed % 2 else -0.01
        for method, value in (("duc", 0.8), ("margin", 0.7 + turn), ("entropy", 0.7 - turn)):
            write_sweep_run(tmp_path, method, "", seed, value, data="digits")
    write_sweep_run(tmp_path, "coreset", "", 0, 0.9, data="digits")
    (table,) = make_tables([tmp_path])
    found = present(rank_methods(table))
    assert {rank.method: rank.mean for rank in found.ranks} == {"duc": 1, "margin": 2.5, "entropy": 2.5}
    assert found.left_out == ("coreset",)
    assert found.critical_difference == pytest.approx(2.343 * math.sqrt(3 * 4 / (6 * 12)), rel=1e-3)
    assert "all other methods differ significantly from duc" in ranking_note(found)
    assert "Left out because of fewer runs: coreset." in ranking_note(found)


def test_two_methods_are_not_ranked(tmp_path: Path) -> None:
    for method in ("duc", "random"):
        for seed in (0, 1):
            write_sweep_run(tmp_path, method, "", seed, 0.7, data="digits")
    (table,) = make_tables([tmp_path])
    assert rank_methods(table) is None
    assert ranking_note(None).startswith("No ranking: it needs at least three methods")


def test_sentences_name_the_best_method_and_our_rank(runs: Path, tmp_path: Path) -> None:
    (table,) = make_tables([runs])
    sentences = result_sentences(table)
    assert sentences[0] == (
        "duc has the highest average accuracy over 3 tasks: 72.3% ± 0.5, 5.7 points above clue (p = 0.002, "
        "6 pairs), 12.3 points above random (p < 0.001, 6 pairs)."
    )
    assert sentences[1:] == ["duc is first on 3 of 3 tasks."]
    for seed, (ours, other) in enumerate(((0.70, 0.72), (0.71, 0.70), (0.69, 0.70))):
        write_sweep_run(tmp_path, "ducats", "", seed, ours, data="digits")
        write_sweep_run(tmp_path, "entropy", "", seed, other, data="digits")
    (table,) = make_tables([tmp_path])
    first, last = result_sentences(table)
    assert first.startswith(
        "entropy has the highest mean accuracy: 70.7% ± 1.2, 0.7 points above ducats (p = 0."
    )
    assert "not significant" in first
    assert last.startswith("ducats ranks 2 of 2, 0.7 points below entropy (p = 0.")


@pytest.fixture
def partial_sweep(tmp_path: Path) -> Path:
    """A sweep with finished runs, an unfinished one, an unreadable one, and one that failed at once."""
    root = tmp_path / "sweep"
    for seed in (0, 1):
        write_sweep_run(root, "duc", "Ar-Cl", seed, 0.6)
        write_sweep_run(root, "duc", "Cl-Ar", seed, 0.7)
    write_sweep_run(root, "random", "Ar-Cl", 0, 0.5, finished=False)
    broken = write_sweep_run(root, "random", "Cl-Ar", 0, 0.5)
    (broken / "metrics.jsonl").write_text('{"kind": "stage"}\n')
    (root / "configs").mkdir()
    (root / "logs").mkdir()
    config = {"method": "clue", "seed": 3, "data": {"name": "office_home", "params": {"task": "Ar-Cl"}}}
    (root / "configs" / "office_home-clue-1234.yaml").write_text(json.dumps(config))
    (root / "logs" / "office_home-clue-1234.txt").write_text(
        "begin\nducats: /data/Art does not exist: see https://example.org/data or --root\n\n"
    )
    (root / "logs" / "office_home-Ar-Cl-random-0.txt").write_text("epoch 9 of 20\n")
    return root


def test_runs_that_are_not_in_the_tables_are_listed(partial_sweep: Path) -> None:
    found = scan_runs([partial_sweep])
    listed = {run.run_name: run for run in find_missing_runs(found.runs, found.broken)}
    assert set(listed) == {
        "office_home-Ar-Cl-random-0",
        "office_home-Cl-Ar-random-0",
        "office_home-clue-1234",
    }
    failed = listed["office_home-clue-1234"]
    assert (failed.method, failed.task, failed.seed) == ("clue", "Ar-Cl", "3")
    assert failed.reason == "Started, but wrote nothing."
    # A page reveals no local paths and has no external URLs.
    assert failed.last_log_line == "ducats: Art does not exist: see … or --root"
    unfinished = listed["office_home-Ar-Cl-random-0"]
    assert "not finished" in unfinished.reason
    assert unfinished.last_log_line == "epoch 9 of 20"
    broken = listed["office_home-Cl-Ar-random-0"]
    assert "has no number for 'stage'" in broken.reason
    assert (broken.method, broken.task, broken.seed) == ("random", "Cl-Ar", "0")


def test_the_page_lists_missing_runs(partial_sweep: Path) -> None:
    found = scan_runs([partial_sweep])
    text = write_page_without_sections(
        found.runs, partial_sweep / "page.html", broken=found.broken
    ).read_text()
    tables = ParsedPage(text).tables
    assert [line[0] for line in tables["missing"]] == [
        "Run",
        "office_home-Ar-Cl-random-0",
        "office_home-Cl-Ar-random-0",
        "office_home-clue-1234",
    ]
    assert tables["missing"][3][1:4] == ["clue", "Ar→Cl", "3"]
    assert [line[0] for line in tables["by-task"]] == ["Method", "duc", "published†"]
    assert "https://" not in text
    assert "/home/somebody" not in text


def test_a_finished_run_without_a_test_set_is_listed(tmp_path: Path) -> None:
    folder = write_sweep_run(tmp_path, "duc", "", 0, 0.8, data="digits")
    change_records(folder, without("accuracy"))
    (missing_run,) = find_missing_runs(find_runs([tmp_path]), [])
    assert missing_run.reason == "Finished, but without a result on a test set."
