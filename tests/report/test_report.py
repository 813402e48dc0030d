"""The report from synthetic run folders: numbers by hand, honest words, hostile names, broken files."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from read_pages import blank as blank

from ducats.errors import UserError
from ducats.report import (
    Report,
    Run,
    by_method,
    csv,
    find_runs,
    headline,
    markdown,
    read_run,
    report,
    summary,
)
from ducats.report import write_page as page_of
from ducats.report.curves import looks
from ducats.report.provenance import cautions, environments, settings
from ducats.report.tables import Spread, curve, reliability

FILES = ("report.html", "table.md", "table.csv", "summary.json")


def stage(number: int, labels: int, accuracy: float | None, ece: float = 0.1) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": "stage", "stage": number, "epoch": 2 * (number + 1), "labels": labels}
    if accuracy is not None:
        record |= {"accuracy": accuracy, "mean_class_accuracy": accuracy - 0.01, "ece": ece}
        record |= {"nll": 0.5, "brier": 0.2, "aurc": 0.05, "class_accuracy": [accuracy, None]}
        record["reliability"] = {
            "upper": [0.5, 1.0],
            "count": [0, 10],
            "confidence": [None, 0.9],
            "accuracy": [None, accuracy],
        }
    return record | {"seconds": 10.0 + number}


def write_run(
    folder: Path,
    method: str = "duc",
    seed: int = 0,
    accuracies: Sequence[float | None] = (0.5, 0.7),
    *,
    ece: float = 0.1,
    finished: bool = True,
    config: Mapping[str, Any] | None = None,
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"method": method, "seed": seed, **(config or {})}))
    losses = [{"kind": "epoch", "epoch": e, "losses": {"source/nll": 1 / e}} for e in range(1, 5)]
    stages = [stage(place, 10 * place, accuracy, ece) for place, accuracy in enumerate(accuracies)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*losses, *stages]))
    (folder / "environment.json").write_text(json.dumps({"python": "3.11.7", "versions": {"torch": "2.6.0"}}))
    if finished:
        (folder / "model.safetensors").touch()
    return folder


def runs_of(root: Path, accuracies: Mapping[str, Sequence[float]]) -> list[Run]:
    """One run per accuracy at the last stage; its place is the seed."""
    for method, values in accuracies.items():
        for seed, accuracy in enumerate(values):
            write_run(root / f"{method}-{seed}", method, seed, [0.4, accuracy])
    return [run for method in accuracies for run in find_runs(sorted(root.glob(f"{method}-[0-9]*")))]


# -- reading ---------------------------------------------------------------------------------------------


def test_a_run_says_who_it_is_and_what_it_measured(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", "spread", 3))
    assert (run.name, run.method, run.seed, run.finished) == ("a", "spread", 3, True)
    assert [s["labels"] for s in run.stages] == [0, 10]
    assert len(run.epochs) == 4
    assert run.environment["versions"] == {"torch": "2.6.0"}


def test_runs_are_found_down_to_three_folders_each_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "b" / "c", seed=1)
    write_run(tmp_path / "d", seed=2)
    write_run(tmp_path / "1" / "2" / "3" / "4", seed=9)
    found = find_runs([tmp_path, tmp_path / "d", tmp_path / "a"])
    assert [run.seed for run in found] == [1, 2]


def test_what_holds_no_run_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        find_runs([tmp_path])
    with pytest.raises(UserError, match="is not a folder"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="nothing to report"):
        find_runs([])
    with pytest.raises(UserError, match="is not a run"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.jsonl", '{"kind": "stage", "sta', "line 1 is no JSON record"),
        ("metrics.jsonl", "[1, 2]", "line 1 is no JSON record"),
        ("metrics.jsonl", '{"kind": "stage", "stage": 0, "epoch": 1, "seconds": 1}', "'labels'"),
        ("metrics.jsonl", '{"kind": "epoch", "epoch": 1, "losses": 3}', "losses"),
        ("metrics.jsonl", json.dumps(stage(0, 0, 0.5) | {"accuracy": "0.5"}), "'accuracy'"),
        ("metrics.jsonl", json.dumps(stage(0, 0, 0.5) | {"reliability": {"upper": [1]}}), "reliability"),
        ("config.yaml", "method: [", "cannot be read"),
        ("config.yaml", "- 3", "key: value"),
        ("config.yaml", "method: duc", "names no method and seed"),
        ("environment.json", "{", "cannot be read"),
    ],
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, name: str, text: str, message: str) -> None:
    folder = write_run(tmp_path / "a")
    (folder / name).write_text(text)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        read_run(folder)
    assert str(folder / name) in str(caught.value)


@pytest.mark.usefixtures("blank")
def test_a_broken_run_does_not_hide_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a")
    broken = write_run(tmp_path / "runs" / "b", seed=1)
    (broken / "metrics.jsonl").write_text("[1, 2]")
    result = report([tmp_path / "runs"], tmp_path / "out")
    assert [run.name for run in result.runs] == ["a"]
    assert [one.name for one in result.broken] == ["b"]
    text = result.page.read_text(encoding="utf-8")
    assert "<code>b</code>: metrics.jsonl line 1 is no JSON record" in text
    assert "1 run folder could not be read" in text
    assert str(tmp_path) not in text


@pytest.mark.usefixtures("blank")
def test_a_single_broken_run_gives_a_page_that_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    (folder / "config.yaml").write_text("method: [")
    result = report([folder], tmp_path / "out")
    text = result.page.read_text(encoding="utf-8")
    assert (result.runs, result.summary) == ((), ())
    assert "No run could be read." in text
    assert "config.yaml cannot be read" in text


def test_metrics_that_are_not_text_are_an_error(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    (folder / "metrics.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="no JSON record"):
        read_run(folder)


# -- numbers ---------------------------------------------------------------------------------------------


def test_summary_has_one_row_per_run_with_exactly_these_keys(tmp_path: Path) -> None:
    write_run(tmp_path / "z", "random", 10, [0.4, 0.1234567891])
    write_run(tmp_path / "y", "random", 2, [0.4, 0.6])
    write_run(tmp_path / "x", "duc", 0, [0.4, 0.8], finished=False)
    rows = summary(find_runs([tmp_path / "z", tmp_path / "x", tmp_path / "y"]))
    expected = {
        "method": "random",
        "seed": 10,
        "accuracy": 0.123457,
        "ece": 0.1,
        "labels": 10,
        "seconds": 11.0,
    }
    assert [list(row) for row in rows] == [["method", "seed", "accuracy", "ece", "labels", "seconds"]] * 3
    assert [(row["method"], row["seed"]) for row in rows] == [("random", 2), ("random", 10), ("duc", 0)]
    assert rows[1] == expected


def test_several_seeds_give_mean_and_sample_deviation(tmp_path: Path) -> None:
    row = by_method(runs_of(tmp_path, {"duc": [0.7, 0.8, 0.9]}))[0]
    assert row.seeds == (0, 1, 2)
    assert row.accuracy.mean == pytest.approx(0.8)
    assert row.accuracy.deviation == pytest.approx(0.1)  # sqrt((0.01 + 0 + 0.01) / 2)
    assert row.values["labels"] == Spread(10, 0)
    assert "| duc | 80.00 ± 10.00 | 10 | 10.00 ± 0.00 | 79.00 ± 10.00 |" in markdown([row])


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    rows = by_method([read_run(write_run(tmp_path / "a"))])
    assert rows[0].accuracy == Spread(0.7, None)
    assert "±" not in markdown(rows)
    assert "duc,1,true,,0.7,,10.0,,0.1,," in csv(rows)


def test_a_run_under_way_does_not_pull_the_mean_of_finished_ones(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, {"duc": [0.7, 0.9]})
    half = read_run(write_run(tmp_path / "half", "duc", 2, [0.1], finished=False))
    row = by_method([*runs, half])[0]
    assert row.accuracy.mean == pytest.approx(0.8)
    assert (row.seeds, row.left_out) == ((0, 1), 1)
    alone = by_method([half])[0]
    assert (alone.accuracy.mean, alone.finished, alone.left_out) == (0.1, False, 0)
    assert "duc (under way)" in markdown([alone])
    assert any("half" in caution for caution in cautions([*runs, half]))


def test_a_curve_has_only_stages_that_all_seeds_reached(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / "a", "duc", 0, [0.2, 0.4, 0.9], finished=False))]
    runs.append(read_run(write_run(tmp_path / "b", "duc", 1, [0.4, 0.6], finished=False)))
    points = curve(runs, "duc", "accuracy")
    assert [point.labels for point in points] == [0, 10]
    assert [point.value.mean for point in points] == [pytest.approx(0.3), pytest.approx(0.5)]
    assert points[0].value.deviation == pytest.approx(math.sqrt(0.02))


def test_reliability_pools_seeds_by_their_counts() -> None:
    tables = [
        {"upper": [0.5, 1.0], "count": [0, 1], "confidence": [None, 0.6], "accuracy": [None, 1.0]},
        {"upper": [0.5, 1.0], "count": [2, 3], "confidence": [0.4, 1.0], "accuracy": [0.5, 0.0]},
    ]
    low, high = reliability([{"reliability": table} for table in tables])
    assert (low.confidence, low.accuracy, low.count) == (0.4, 0.5, 2)
    assert high.confidence == pytest.approx(0.9)
    assert (high.accuracy, high.count) == (0.25, 4)


@pytest.mark.usefixtures("blank")
def test_a_measure_that_diverged_is_missing_and_not_nan(tmp_path: Path) -> None:
    result = report([write_run(tmp_path / "a", ece=math.nan)], tmp_path / "out")
    assert json.loads(result.summary_json.read_text())[0]["ece"] is None
    assert "| – |" in result.table_markdown.read_text()


# -- words -----------------------------------------------------------------------------------------------


def said(root: Path, accuracies: Mapping[str, Sequence[float]]) -> tuple[str, str]:
    found = headline(by_method(runs_of(root, accuracies)))
    return found.sentence, " ".join(found.remarks)


def test_a_clear_winner_is_set_against_the_baselines(tmp_path: Path) -> None:
    sentence, remarks = said(
        tmp_path, {"duc": [0.9, 0.91], "random": [0.7, 0.71], "source-only": [0.5, 0.51]}
    )
    assert sentence == (
        "duc has the highest mean accuracy, 90.5% (± 0.7 over 2 seeds) with 10 labels, "
        "20.0 points above random and 40.0 points above source-only."
    )
    assert "one seed" not in remarks


def test_a_lead_within_the_deviation_is_not_called_clear(tmp_path: Path) -> None:
    sentence, _ = said(tmp_path, {"duc": [0.8, 0.9], "random": [0.82, 0.86]})
    assert "but not clearly: random is within the deviation over seeds" in sentence
    assert "above random" not in sentence


def test_ours_is_named_when_it_is_not_first(tmp_path: Path) -> None:
    sentence, remarks = said(tmp_path, {"duc": [0.7], "random": [0.9], "spread": [0.8]})
    assert sentence.startswith("random has the highest accuracy, 90.0%")
    assert "duc is number 3 of 3, 20.0 points behind random" in remarks
    assert "Every method here has one seed only" in remarks


def test_equals_are_level(tmp_path: Path) -> None:
    sentence, remarks = said(tmp_path, {"spread": [0.8], "duc": [0.8], "clue": [0.8]})
    assert "duc and clue are level with it" in sentence
    assert "duc has the same mean accuracy as spread" in remarks


def test_one_method_is_not_compared(tmp_path: Path) -> None:
    sentence, remarks = said(tmp_path, {"duc": [0.8]})
    assert sentence == "duc has an accuracy of 80.0% with 10 labels."
    assert "duc has one seed only" in remarks


def test_unlike_budgets_are_said(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / "a", "duc", 0, [0.5, 0.8]))]
    runs.append(read_run(write_run(tmp_path / "b", "random", 0, [0.5, 0.6, 0.7])))
    found = headline(by_method(runs))
    assert "10.0 points above random (20 labels)" in found.sentence
    assert any("duc 10 labels and random 20 labels" in remark for remark in found.remarks)


def test_without_any_test_result_nothing_is_claimed() -> None:
    assert "cannot be compared" in headline([]).sentence


# -- where it came from ----------------------------------------------------------------------------------


def test_settings_show_what_methods_do_not_share(tmp_path: Path) -> None:
    shared = {"train": {"lr": 0.1, "epochs": 3}}
    write_run(tmp_path / "a", "duc", config=shared | {"query": {"name": "duc", "knobs": {"kappa": 10}}})
    write_run(tmp_path / "b", "random", config=shared | {"query": {"name": "random", "knobs": {}}})
    found = {setting.key: setting.values for setting in settings(find_runs([tmp_path]))}
    assert found == {"query.name": ("duc", "random"), "query.knobs.kappa": ("10", "–")}


def of_folders(folder: Path, method: str, source: str, target: str, kappa: int = 10) -> Path:
    data = {"name": "folders", "knobs": {"source": source, "target": target}}
    return write_run(folder, method, config={"data": data, "query": {"knobs": {"kappa": kappa}}})


def test_settings_of_several_tasks_are_compared_on_one_of_them(tmp_path: Path) -> None:
    of_folders(tmp_path / "a", "duc", "/home/ann/photos", "/home/ann/web")
    of_folders(tmp_path / "b", "duc", "/home/ann/photos", "/home/ann/sketch")
    of_folders(tmp_path / "c", "random", "/home/ann/photos", "/home/ann/sketch", kappa=1)
    found = {setting.key: setting.values for setting in settings(find_runs([tmp_path]))}
    assert found == {"query.knobs.kappa": ("10", "1")}
    of_folders(tmp_path / "d", "clue", "/home/ann/photos", "/home/ann/film")  # has no task with the others
    found = {setting.key: setting.values for setting in settings(find_runs([tmp_path]))}
    assert found == {"query.knobs.kappa": ("10", "1", "10")}


def test_of_a_folder_its_own_name_is_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "duc", config={"model": {"knobs": {"weights": "/home/ann/one.npz"}}})
    write_run(tmp_path / "b", "random", config={"model": {"knobs": {"weights": "/mnt/two.npz"}}})
    (setting,) = settings(find_runs([tmp_path]))
    assert setting.values == ("one.npz", "two.npz")
    write_run(tmp_path / "c", "clue", config={"model": {"knobs": {"weights": "/mnt/other/one.npz"}}})
    assert settings(find_runs([tmp_path]))[0].values == ("one.npz", "two.npz", "one.npz")


@pytest.mark.usefixtures("blank")
def test_a_page_that_is_passed_on_names_no_folder_of_the_machine(tmp_path: Path) -> None:
    of_folders(tmp_path / "a", "duc", "/home/ann/photos", "C:\\ann\\web")
    of_folders(tmp_path / "b", "random", "/home/ann/photos", "~/ann/sketch")
    for paths in ([tmp_path], [tmp_path / "a"]):
        text = page_of(find_runs(paths), tmp_path / "page.html").read_text(encoding="utf-8")
        assert "photos" in text
        assert not any(folder in text for folder in ("/ann/", "home/ann", "ann\\\\web"))


@pytest.mark.usefixtures("blank")
def test_runs_of_several_tasks_name_theirs(tmp_path: Path) -> None:
    of_folders(tmp_path / "a", "duc", "/x/photos", "/x/web-shop")
    of_folders(tmp_path / "b", "random", "/x/photos", "/x/sketch")
    text = page_of(find_runs([tmp_path]), tmp_path / "page.html").read_text(encoding="utf-8")
    assert "duc on photos-web-shop, seed 0</h2>" in text
    assert ">random on photos→sketch, seed 0</a>" in text  # in the contents
    _, head, *lines = text[text.index('class="every-run"') :].split("<tr>")[:4]
    assert "Task" in head
    assert [re.findall(r"<td>(.*?)</td>", line)[1] for line in lines] == ["photos-web-shop", "photos→sketch"]
    alone = page_of(find_runs([tmp_path / "a", tmp_path / "a"]), tmp_path / "page.html").read_text("utf-8")
    assert ">duc, seed 0</h2>" in re.sub(r"<svg.*?</svg>\s*", "", alone, flags=re.S)


def test_cautions_name_mixed_settings_repeated_seeds_and_other_data(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", "duc", 0, config={"train": {"lr": 0.1}, "objective": {"name": "duc"}})
    b = write_run(tmp_path / "b", "duc", 0, config={"train": {"lr": 0.2}, "objective": {"name": "duc"}})
    c = write_run(tmp_path / "c", "random", 0, config={"objective": {"name": "softmax"}})
    (a / "data.yaml").write_text("test: {images: 5}")
    (b / "data.yaml").write_text("test: {images: 6}")
    (c / "data.yaml").write_text("test: {images: 6}")
    text = " ".join(cautions(find_runs([tmp_path])))
    assert "train.lr" in text
    assert "several runs of one seed (0)" in text
    assert "2 different test sets" in text
    assert "duc with duc; random with softmax" in text


def test_clean_runs_need_no_caution(tmp_path: Path) -> None:
    assert cautions(runs_of(tmp_path, {"duc": [0.7, 0.8], "random": [0.6, 0.7]})) == []


def test_environments_are_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    other = write_run(tmp_path / "b", seed=1)
    (other / "environment.json").unlink()
    first, second = environments(find_runs([tmp_path]))
    assert first.facts == (("python", "3.11.7"), ("torch", "2.6.0"))
    assert (second.facts, second.runs) == ((), ("b",))


# -- the page --------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        for key, value in attrs:
            if key == "id":
                self.ids.append(value or "")
            if key in ("href", "src", "xlink:href"):
                self.links.append(value or "")


def written(root: Path, accuracies: Mapping[str, Sequence[float]]) -> tuple[Report, str]:
    runs_of(root / "runs", accuracies)
    result = report([root / "runs"], root / "out")
    return result, result.page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, str]:
    """The report of three runs, and its page."""
    return written(tmp_path_factory.mktemp("three"), {"duc": [0.7, 0.8], "random": [0.6]})


def test_report_writes_its_four_files(three: tuple[Report, str]) -> None:
    result, _ = three
    assert sorted(path.name for path in result.folder.iterdir()) == sorted(FILES)
    assert json.loads(result.summary_json.read_text()) == list(result.summary)
    assert [run.method for run in result.runs] == ["duc", "duc", "random"]


def test_the_page_needs_nothing_from_outside(three: tuple[Report, str]) -> None:
    result, text = three
    tags = Tags(text)
    assert not {"script", "link", "iframe", "img"} & set(tags.names)
    assert all(link.startswith("#") for link in tags.links)
    assert "http" not in text
    assert "@import" not in text
    assert str(result.folder.parent) not in text


def test_ids_are_unique_and_references_meet_them(three: tuple[Report, str]) -> None:
    _, text = three
    tags = Tags(text)
    assert len(tags.ids) == len(set(tags.ids))
    references = {link[1:] for link in tags.links} | set(re.findall(r"url\(#([^)]*)\)", text))
    assert references
    assert references <= set(tags.ids)


def test_the_page_shows_table_figures_and_runs(three: tuple[Report, str]) -> None:
    _, text = three
    assert "75.00 ± 7.07" in text
    overview, chapters = text.split("Run by run</h2>")
    assert overview.count('role="img"') == 2 + 2 + 2
    assert chapters.count('<details class="chapter"') == 3
    assert "<code>random-0</code>" in text
    assert "prefers-color-scheme: dark" in text


def test_a_second_report_has_the_same_bytes(three: tuple[Report, str], tmp_path: Path) -> None:
    result, _ = three
    again = report([run.folder for run in result.runs], tmp_path / "elsewhere")
    for name in FILES:
        assert (result.folder / name).read_bytes() == (again.folder / name).read_bytes()


HOSTILE = ("<script>alert(1)</script>", '" onload="x', "$x_1$ | 'a' & b", "方法", "_x")


def test_a_hostile_name_stays_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ducats.report.chapter.MOST", len(HOSTILE))  # a chapter of each
    for place, name in enumerate(HOSTILE):
        for method, root in ((name, "runs"), (f"plain-{place}", "others")):
            write_run(tmp_path / root / str(place), method)
    result = report([tmp_path / "runs"], tmp_path / "out", title=" ".join(HOSTILE))
    clean = report([tmp_path / "others"], tmp_path / "clean")
    tags, clean_tags = (Tags(r.page.read_text(encoding="utf-8")) for r in (result, clean))
    assert tags.names == clean_tags.names
    assert tags.names.count("details") > len(HOSTILE)
    assert "script" not in tags.names
    assert "<script" not in result.table_markdown.read_text(encoding="utf-8")
    told = json.loads(result.summary_json.read_text(encoding="utf-8"))
    assert [row["method"] for row in told] == list(HOSTILE)


@pytest.mark.usefixtures("blank")
def test_runs_without_a_test_set_give_a_page_without_claims(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", accuracies=[None, None])
    begun = write_run(tmp_path / "runs" / "b", seed=1, accuracies=[], finished=False)
    (begun / "metrics.jsonl").unlink()
    result = report([tmp_path / "runs"], tmp_path / "out")
    text = result.page.read_text(encoding="utf-8")
    assert result.summary == ()
    assert json.loads(result.summary_json.read_text()) == []
    assert "No run was measured on a test set" in text
    assert "<h2>Results</h2>" not in text
    assert "not in table and curves: a, b" in text
    assert "Training losses" in text


def test_losses_that_diverged_or_are_negative_are_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    lines = [
        {"kind": "epoch", "epoch": e, "losses": {"x": v}} for e, v in ((1, -1.0), (2, math.nan), (3, 2.0))
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = page_of([read_run(folder)], tmp_path / "new" / "page.html", title="One")
    assert "<title>One</title>" in page.read_text(encoding="utf-8")


def test_every_method_has_a_look_of_its_own() -> None:
    found = looks([str(place) for place in range(42)])
    assert len({(look.colour, look.marker) for look in found.values()}) == 42


def test_a_report_leaves_matplotlib_as_it_was(tmp_path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"font.size": 17.0}):
        result, _ = written(tmp_path, {"duc": [0.7]})
        assert matplotlib.rcParams["font.size"] == 17.0
    again = report([tmp_path / "runs"], tmp_path / "again")
    assert result.page.read_bytes() == again.page.read_bytes()


def test_reporting_needs_neither_torch_nor_pyplot(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    code = (
        "import sys; from pathlib import Path; from ducats.report import report; "
        f"report([Path({str(tmp_path / 'a')!r})], Path({str(tmp_path / 'out')!r})); "
        "sys.exit(bool({'torch', 'matplotlib.pyplot'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- what was measured -------------------------------------------------------------------------------------


def measured(folder: Path, kind: str, images: int, **more: Any) -> Path:
    """A run whose stages say on which images they were measured."""
    write_run(folder, **more)
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    said = {"measured_on": kind, "images": images}
    path.write_text("".join(json.dumps(r | (said if r["kind"] == "stage" else {})) + "\n" for r in lines))
    return folder


@pytest.mark.usefixtures("blank")
def test_table_and_page_say_on_which_images_they_were_measured(tmp_path: Path) -> None:
    made = [measured(tmp_path / str(n), "unlabelled", 60 + n, seed=n) for n in (0, 1)]
    sentence = "Measured on 60 to 61 target images without those bought so far."
    result = report(made, tmp_path / "out")
    assert sentence in result.table_markdown.read_text()
    assert sentence in result.page.read_text()
    assert "different kinds of images" not in result.page.read_text()


@pytest.mark.usefixtures("blank")
def test_methods_that_left_different_images_are_not_quite_comparable(tmp_path: Path) -> None:
    one = measured(tmp_path / "a", "unlabelled", 60, method="duc")
    two = measured(tmp_path / "b", "unlabelled", 60, method="random")
    page = report([one, two], tmp_path / "out").page.read_text()
    assert "is left with the easy ones" in page
    assert ",unlabelled," in (tmp_path / "out" / "table.csv").read_text()
    assert "easy ones" not in report([one], tmp_path / "alone").page.read_text()


@pytest.mark.usefixtures("blank")
def test_runs_measured_on_different_images_are_not_comparable(tmp_path: Path) -> None:
    one = measured(tmp_path / "a", "target", 80, method="duc")
    two = measured(tmp_path / "b", "held_out", 20, method="random")
    result = report([one, two], tmp_path / "out")
    assert "measured on different kinds of images" in result.page.read_text()
    assert (
        "Measured on 80 target images: all of them, bought ones included; or on 20 held-out target images, "
        "never asked about."
    ) in result.table_markdown.read_text()
