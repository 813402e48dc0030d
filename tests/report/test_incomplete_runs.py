"""Reports of incomplete runs, which state the missing data, and the `ducats report` command."""

from pathlib import Path

import pytest
from page_parser import ParsedPage, parse_report_page, write_confusion
from page_parser import no_rendering as no_rendering

from commands import Capture, ducats
from synthetic_records import change_records, without
from synthetic_runs import write_run

pytestmark = pytest.mark.usefixtures("no_rendering")


def test_a_run_states_its_missing_data(tmp_path: Path) -> None:
    folder = change_records(write_run(tmp_path / "run", snapshots=False), without("temperature_scaled"))
    found = parse_report_page(folder, out=tmp_path / "report.html")
    assert "this run has no snapshots" in found.words
    assert "Temperature scaling is not shown" in found.words
    assert "confusion/epoch-020.csv is missing" in found.words
    assert "run-1-rounds" not in found.tables


def test_an_unfinished_run_states_how_to_resume(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "half", finished=False, rounds=2)
    found = parse_report_page(folder, out=tmp_path / "report.html")
    assert "This run is not finished" in found.words
    assert "Run the same `ducats run` command again to resume." in found.words
    assert "Warnings" not in found.words  # they would repeat this


def test_a_run_that_has_just_started_lacks_nothing(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "started", finished=False, rounds=1, snapshots=False)
    (folder / "metrics.jsonl").write_text("")
    found = parse_report_page(folder, out=tmp_path / "report.html")
    (folder / "metrics.jsonl").unlink()
    assert parse_report_page(folder, out=tmp_path / "report.html").words == found.words
    for sentence in (
        "No stage was evaluated yet",
        "duc has not been evaluated yet.",
        "0 of 20 epochs are done. Run the same `ducats run` command again to resume.",
        "Verdict No evaluation yet.",
        "Selected samples This run has not selected any samples yet.",
        "Cost No epoch is finished yet.",
    ):
        assert sentence in found.words
    assert "no snapshots" not in found.words
    assert "test set, so" not in found.words


def test_a_run_waiting_for_labels_states_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "waiting", finished=False, rounds=2)
    (folder / "labels" / "round-02.npz").unlink()
    (folder / "questions").mkdir()
    found = parse_report_page(folder, out=tmp_path / "report.html")
    assert "round 2 is not answered yet" in found.words
    row = found.table("run-1-rounds")[1]
    assert (row["Labels"], row["Predicted correctly"], row["Correct %"]) == ("pending", "0", "–")
    assert "– no label yet" in found.words


def test_a_corrupt_snapshot_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", rounds=2, pool=60, source=30)
    (folder / "snapshots" / "round-01.npz").write_bytes(b"nothing")
    found = parse_report_page(folder, out=tmp_path / "report.html")
    assert "Not shown: snapshots/round-01.npz" in found.words
    assert "restore it" in found.words
    assert "Not drawn" not in found.words  # figures use the readable snapshots
    assert [row["Round"] for row in found.table("run-1-rounds")] == ["2"]
    assert str(tmp_path) not in found.words


def test_a_run_without_a_test_set_still_shows_selected_images(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", rounds=2)
    change_records(folder, lambda r: {key: r[key] for key in ("kind", "stage", "epoch", "labels", "seconds")})
    found = parse_report_page(folder, out=tmp_path / "report.html")
    assert "No stage was evaluated on a test set" in found.words
    assert "not evaluated on a test set, so the gain from 20 labels is unknown" in found.words
    assert len(found.images) >= 20


def test_a_corrupt_confusion_matrix_hides_only_the_counts(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", rounds=1, snapshots=False)
    write_confusion(folder, 20, 3)
    found = parse_report_page(folder, out=tmp_path / "report.html")
    assert "confusion/epoch-020.csv cannot be read (its classes do not match" in found.words
    assert "Evaluated" not in found.table("run-1-classes")[0]
    assert len(found.table("run-1-classes")) == 10


# -- the command -----------------------------------------------------------------------------------------


def test_the_command_writes_one_page_or_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    folder = write_run(tmp_path / "run", rounds=1, snapshots=False)
    monkeypatch.chdir(tmp_path)
    assert ducats("report", folder) == 0
    assert (folder / "report.html").is_file()
    assert f"report in {folder / 'report.html'}" in capsys.readouterr().out
    assert ducats("report", folder, "--out", "here") == 0
    files = ["report.html", "summary.json", "table.csv", "table.md"]
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == files
    assert (tmp_path / "here" / "report.html").read_bytes() == (folder / "report.html").read_bytes()
    assert ducats("report", folder, folder) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "report.html", "run"]


def test_a_run_that_cannot_be_read_is_warned_about_and_alone_it_fails(
    tmp_path: Path, capsys: Capture
) -> None:
    good = write_run(tmp_path / "runs" / "good", rounds=1, snapshots=False)
    bad = write_run(tmp_path / "runs" / "bad", seed=1, rounds=1, snapshots=False)
    (bad / "metrics.jsonl").write_text("{")
    assert ducats("report", good.parent, "--out", tmp_path / "both.html") == 0
    assert "bad cannot be read: metrics.jsonl line 1" in " ".join(capsys.readouterr().out.split())
    assert ducats("report", bad, "--out", tmp_path / "bad.html") == 1
    assert "No run could be read." in ParsedPage((tmp_path / "bad.html").read_text(encoding="utf-8")).words
