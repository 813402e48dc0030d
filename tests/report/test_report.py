"""Reports of synthetic run folders: numbers computed by hand, sentences, hostile names, broken files."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from minimal_runs import stage_record, write_run, write_runs
from page_parser import ParsedPage
from page_parser import no_rendering as no_rendering

from ducats.report import find_runs, read_run, report
from ducats.report.figures import draw_svg
from ducats.report.figures.style import assign_line_styles
from ducats.report.figures.summary_stats import MeanStd, pool_reliability_bins
from ducats.report.headline import make_headline
from ducats.report.method_results import (
    aggregate_methods,
    mean_curve,
    method_table,
    method_table_csv,
    summarise_runs,
)
from ducats.report.page import write_page
from ducats.report.provenance import collect_cautions
from ducats.report.table import to_markdown
from ducats.report.write import Report
from ducats.utils.errors import UserError

FILES = ("report.html", "table.md", "table.csv", "summary.json")


# -- reading ---------------------------------------------------------------------------------------------


def test_read_run_returns_identity_and_records(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", "clue", 3))
    assert (run.name, run.method, run.seed, run.finished) == ("a", "clue", 3, True)
    assert [s["labels"] for s in run.stages] == [0, 10]
    assert len(run.epochs) == 4
    assert run.environment["versions"] == {"torch": "2.6.0"}


def test_runs_are_found_down_to_three_folders_each_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "b" / "c", seed=1)
    write_run(tmp_path / "d", seed=2)
    write_run(tmp_path / "1" / "2" / "3" / "4", seed=9)
    found = find_runs([tmp_path, tmp_path / "d", tmp_path / "a"])
    assert [run.seed for run in found] == [1, 2]


def test_a_path_without_a_run_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no run"):
        find_runs([tmp_path])
    with pytest.raises(UserError, match="is not a folder"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="no paths given"):
        find_runs([])
    with pytest.raises(UserError, match="is not a run folder"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.jsonl", '{"kind": "stage", "sta', "line 1 is not a JSON record"),
        ("metrics.jsonl", "[1, 2]", "line 1 is not a JSON record"),
        ("metrics.jsonl", b"\xff\xfe", "JSON record"),
        ("metrics.jsonl", '{"kind": "stage", "stage": 0, "epoch": 1, "seconds": 1}', "'labels'"),
        ("metrics.jsonl", '{"kind": "epoch", "epoch": 1, "losses": 3}', "losses"),
        ("metrics.jsonl", json.dumps(stage_record(0, 0, 0.5) | {"accuracy": "0.5"}), "'accuracy'"),
        (
            "metrics.jsonl",
            json.dumps(stage_record(0, 0, 0.5) | {"reliability": {"upper": [1]}}),
            "reliability",
        ),
        ("config.yaml", "method: [", "is corrupt"),
        ("config.yaml", "- 3", "must contain a mapping"),
        ("config.yaml", "method: duc", "has no method or seed"),
        ("environment.json", "{", "is corrupt"),
    ],
)
def test_a_broken_file_is_an_error_that_names_it(
    tmp_path: Path, name: str, text: str | bytes, message: str
) -> None:
    folder = write_run(tmp_path / "a")
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        read_run(folder)
    assert str(folder / name) in str(caught.value)


@pytest.mark.usefixtures("no_rendering")
def test_a_broken_run_does_not_hide_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a")
    broken = write_run(tmp_path / "runs" / "b", seed=1)
    (broken / "metrics.jsonl").write_text("[1, 2]")
    result = report([tmp_path / "runs"], tmp_path / "out")
    assert [run.name for run in result.runs] == ["a"]
    assert [run.name for run in result.broken] == ["b"]
    text = result.page.read_text(encoding="utf-8")
    assert "<code>b</code>: metrics.jsonl line 1 is not a JSON record" in text
    assert "1 run folder could not be read" in text
    assert str(tmp_path) not in text
    alone = report([broken], tmp_path / "out")
    assert (alone.runs, alone.summary) == ((), ())
    assert "No run could be read." in alone.page.read_text(encoding="utf-8")


# -- numbers ---------------------------------------------------------------------------------------------


def test_summary_has_one_row_per_run_with_exactly_these_keys(tmp_path: Path) -> None:
    write_run(tmp_path / "z", "random", 10, [0.4, 0.1234567891])
    write_run(tmp_path / "y", "random", 2, [0.4, 0.6])
    write_run(tmp_path / "x", "duc", 0, [0.4, 0.8], finished=False)
    rows = summarise_runs(find_runs([tmp_path / "z", tmp_path / "x", tmp_path / "y"]))
    shared = {"ece": 0.1, "labels": 10, "seconds": 11.0}
    assert rows == [
        {"method": "random", "seed": 2, "accuracy": 0.6, **shared},
        {"method": "random", "seed": 10, "accuracy": 0.123457, **shared},
        {"method": "duc", "seed": 0, "accuracy": 0.8, **shared},
    ]


def test_several_seeds_give_mean_and_sample_deviation(tmp_path: Path) -> None:
    row = aggregate_methods(write_runs(tmp_path, {"duc": [0.7, 0.8, 0.9]}))[0]
    assert row.seeds == (0, 1, 2)
    assert row.accuracy.mean == pytest.approx(0.8)
    assert row.accuracy.std == pytest.approx(0.1)  # sqrt((0.01 + 0 + 0.01) / 2)
    assert row.values["labels"] == MeanStd(10, 0)
    assert "| duc | 80.00 ± 10.00 | 10 | 10.00 ± 0.00 | 79.00 ± 10.00 |" in to_markdown(method_table([row]))


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    rows = aggregate_methods([read_run(write_run(tmp_path / "a"))])
    assert rows[0].accuracy == MeanStd(0.7, None)
    assert "±" not in to_markdown(method_table(rows))
    assert "duc,1,true,,0.7,,10.0,,0.1,," in method_table_csv(rows)


def test_an_unfinished_run_does_not_count_in_the_mean_of_finished_ones(tmp_path: Path) -> None:
    runs = write_runs(tmp_path, {"duc": [0.7, 0.9]})
    half = read_run(write_run(tmp_path / "half", "duc", 2, [0.1], finished=False))
    row = aggregate_methods([*runs, half])[0]
    assert row.accuracy.mean == pytest.approx(0.8)
    assert (row.seeds, row.n_left_out) == ((0, 1), 1)
    unfinished = aggregate_methods([half])[0]
    assert (unfinished.accuracy.mean, unfinished.finished, unfinished.n_left_out) == (0.1, False, 0)
    assert "duc (unfinished)" in to_markdown(method_table([unfinished]))
    assert any("half" in caution for caution in collect_cautions([*runs, half]))


def test_a_curve_has_only_stages_that_all_seeds_reached(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / "a", "duc", 0, [0.2, 0.4, 0.9], finished=False))]
    runs.append(read_run(write_run(tmp_path / "b", "duc", 1, [0.4, 0.6], finished=False)))
    points = mean_curve(runs, "duc", "accuracy")
    assert [point.n_spent for point in points] == [0, 10]
    assert [point.value.mean for point in points] == [pytest.approx(0.3), pytest.approx(0.5)]
    assert points[0].value.std == pytest.approx(math.sqrt(0.02))


def test_reliability_pools_seeds_by_their_counts() -> None:
    tables = [
        {"upper": [0.5, 1.0], "count": [0, 1], "confidence": [None, 0.6], "accuracy": [None, 1.0]},
        {"upper": [0.5, 1.0], "count": [2, 3], "confidence": [0.4, 1.0], "accuracy": [0.5, 0.0]},
    ]
    low, high = pool_reliability_bins([{"reliability": table} for table in tables])
    assert (low.confidence, low.accuracy, low.count) == (0.4, 0.5, 2)
    assert high.confidence == pytest.approx(0.9)
    assert (high.accuracy, high.count) == (0.25, 4)


@pytest.mark.usefixtures("no_rendering")
def test_a_measure_that_diverged_is_missing_and_not_nan(tmp_path: Path) -> None:
    result = report([write_run(tmp_path / "a", ece=math.nan)], tmp_path / "out")
    assert json.loads(result.summary_json.read_text())[0]["ece"] is None
    assert "| – |" in result.table_markdown.read_text()


# -- sentences -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accuracies", "sentence", "remark"),
    [
        (
            {"duc": [0.9, 0.91], "random": [0.7, 0.71], "source-only": [0.5, 0.51]},
            r"duc has the highest mean accuracy, 90\.5% \(± 0\.7 over 2 seeds\) with 10 labels, "
            r"20\.0 points above random and 40\.0 points above source-only\.$",
            "^((?!one seed).)*$",
        ),
        # A lead within the deviation is not clear.
        (
            {"duc": [0.8, 0.9], "random": [0.82, 0.86]},
            "^((?!above random).)*but not clearly: random is within the deviation over seeds((?!above).)*$",
            "",
        ),
        (
            {"ducats": [0.7], "random": [0.9], "duc": [0.8]},
            r"^random has the highest accuracy, 90\.0%",
            r"ducats ranks 3 of 3, 20\.0 points behind random.*Every method has only one seed",
        ),
        (
            {"duc": [0.8], "ducats": [0.8], "clue": [0.8]},
            "ducats and clue are level with it",
            "ducats has the same mean accuracy as duc",
        ),
        ({"duc": [0.8]}, r"^duc has an accuracy of 80\.0% with 10 labels\.$", "duc has only one seed"),
        ({}, "cannot be compared", ""),
    ],
)
def test_headline(
    tmp_path: Path, accuracies: Mapping[str, Sequence[float]], sentence: str, remark: str
) -> None:
    found = make_headline(aggregate_methods(write_runs(tmp_path, accuracies)))
    assert re.search(sentence, found.sentence)
    assert re.search(remark, " ".join(found.remarks))


def test_different_budgets_are_stated(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / "a", "duc", 0, [0.5, 0.8]))]
    runs.append(read_run(write_run(tmp_path / "b", "random", 0, [0.5, 0.6, 0.7])))
    found = make_headline(aggregate_methods(runs))
    assert "10.0 points above random (20 labels)" in found.sentence
    assert any("duc 10 labels and random 20 labels" in remark for remark in found.remarks)


# -- the page --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Write the report of three runs."""
    root = tmp_path_factory.mktemp("three")
    write_runs(root / "runs", {"duc": [0.7, 0.8], "random": [0.6]})
    return report([root / "runs"], root / "out")


def test_the_files_of_a_report(three: Report) -> None:
    assert sorted(path.name for path in three.folder.iterdir()) == sorted(FILES)
    assert json.loads(three.summary_json.read_text()) == list(three.summary)
    assert [run.method for run in three.runs] == ["duc", "duc", "random"]
    text = three.page.read_text(encoding="utf-8")
    tags = ParsedPage(text)
    assert len(tags.ids) == len(set(tags.ids))
    references = {link[1:] for link in tags.links} | set(re.findall(r"url\(#([^)]*)\)", text))
    assert references
    assert references <= set(tags.ids)
    assert "75.00 ± 7.07" in text
    overview, run_sections = text.split("Individual runs</h2>")
    assert overview.count('role="img"') == 2 + 2 + 2
    assert run_sections.count('<details class="run-section"') == 3
    assert "<code>random-0</code>" in text
    assert "prefers-color-scheme: dark" in text


def test_a_second_report_has_the_same_bytes(three: Report, tmp_path: Path) -> None:
    again = report([run.folder for run in three.runs], tmp_path / "elsewhere")
    for name in FILES:
        assert (three.folder / name).read_bytes() == (again.folder / name).read_bytes()


HOSTILE = ("<script>alert(1)</script>", '" onload="x', "$x_1$ | 'a' & b", "方法", "_x")


def test_a_hostile_name_stays_text_in_a_figure(tmp_path: Path) -> None:
    for index, name in enumerate(HOSTILE):
        write_run(tmp_path / str(index), name)
    element = ElementTree.fromstring(draw_svg("calibration", find_runs([tmp_path])))
    assert not {"script", "img", "image", "a"} & {str(each.tag) for each in element.iter()}
    texts = " ".join(element.itertext())
    assert all(name in texts for name in HOSTILE)


@pytest.mark.usefixtures("no_rendering")
def test_a_hostile_name_stays_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ducats.report.run_section.section.MAX_RUN_SECTIONS", len(HOSTILE)
    )  # one section each
    for index, name in enumerate(HOSTILE):
        for method, root in ((name, "runs"), (f"plain-{index}", "others")):
            write_run(tmp_path / root / str(index), method)
    result = report([tmp_path / "runs"], tmp_path / "out", title=" ".join(HOSTILE))
    clean = report([tmp_path / "others"], tmp_path / "clean")
    tags, clean_tags = (ParsedPage(r.page.read_text(encoding="utf-8")) for r in (result, clean))
    assert tags.tags == clean_tags.tags
    assert tags.tags.count("details") > len(HOSTILE)
    assert "script" not in tags.tags
    assert "<script" not in result.table_markdown.read_text(encoding="utf-8")
    rows = json.loads(result.summary_json.read_text(encoding="utf-8"))
    assert [row["method"] for row in rows] == list(HOSTILE)


@pytest.mark.usefixtures("no_rendering")
def test_runs_without_a_test_set_give_a_page_without_claims(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", accuracies=[None, None])
    started = write_run(tmp_path / "runs" / "b", seed=1, accuracies=[], finished=False)
    (started / "metrics.jsonl").unlink()
    result = report([tmp_path / "runs"], tmp_path / "out")
    text = result.page.read_text(encoding="utf-8")
    assert result.summary == ()
    assert json.loads(result.summary_json.read_text()) == []
    assert "No run was evaluated on a test set" in text
    assert "<h2>Results</h2>" not in text
    assert "not in tables and curves: a, b" in text
    assert "Training losses" in text


@pytest.mark.usefixtures("no_rendering")
def test_a_single_run_needs_no_test_set(tmp_path: Path) -> None:
    result = report([write_run(tmp_path / "a", accuracies=[None, None])], tmp_path / "out")
    assert not result.cautions


def test_losses_that_diverged_or_are_negative_are_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    lines = [
        {"kind": "epoch", "epoch": e, "losses": {"x": v}} for e, v in ((1, -1.0), (2, math.nan), (3, 2.0))
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = write_page([read_run(folder)], tmp_path / "new" / "page.html", title="One")
    assert "<title>One</title>" in page.read_text(encoding="utf-8")


def test_every_method_has_its_own_line_style() -> None:
    found = assign_line_styles([str(index) for index in range(42)])
    assert len({(style.colour, style.marker) for style in found.values()}) == 42


def test_reporting_needs_neither_torch_nor_pyplot(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    code = (
        "import sys; from pathlib import Path; from ducats.report import report; "
        f"report([Path({str(tmp_path / 'a')!r})], Path({str(tmp_path / 'out')!r})); "
        "sys.exit(bool({'torch', 'matplotlib.pyplot'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
