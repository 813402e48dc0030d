"""Records of a run: one per step, and messages for lines that reports cannot use."""

import json
from pathlib import Path
from typing import Any

import pytest

from ducats.runfolder import records
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError


def test_a_repeated_step_replaces_its_record(tmp_path: Path) -> None:
    run_folder = RunFolder(tmp_path)
    assert run_folder.stages() == []
    steps = [("epoch", 1, 0), ("stage", 1, 1), ("epoch", 2, 2), ("epoch", 1, 3), ("stage", 3, 4)]
    for kind, epoch, value in steps:
        run_folder.save_record({"kind": kind, "epoch": epoch, "value": value})
    found = [record["value"] for record in records.read_records(run_folder.metrics_path)]
    assert found == [1, 2, 3, 4]
    assert [record["value"] for record in run_folder.read_records("epoch")] == [2, 3]
    before = run_folder.metrics_path.stat().st_mtime_ns
    run_folder.discard_after(3)
    assert run_folder.metrics_path.stat().st_mtime_ns == before  # nothing to delete
    run_folder.discard_after(1)
    assert [record["value"] for record in records.read_records(run_folder.metrics_path)] == [1, 3]


@pytest.mark.parametrize("line", ["{", "3", "[1]"])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"kind": "epoch", "epoch": 1}}\n{line}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl line 2 is not a JSON record"):
        records.read_records(path)
    valid, errors = records.read_valid_records(path)
    assert ([record["epoch"] for record in valid], list(errors)) == ([1], [2])
    assert "is not a JSON record" in errors[2]


RELIABILITY = {name: [0.5, 1.0] for name in ("upper", "count", "confidence", "accuracy")}
STAGE: dict[str, Any] = {
    "kind": "stage",
    **{"stage": 1, "epoch": 1, "labels": 10, "seconds": 2.5, "accuracy": 0.5, "ece": None},
    **{"losses": {}, "headline_metric": "mean_iou", "class_iou": [0.5, None], "reliability": RELIABILITY},
    "temperature_scaled": {"temperature": 2.0, "labels": 10, "reliability": RELIABILITY},
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"kind": 3}, "a string for 'kind'"),
        *(
            ({name: value}, f"no number for {name!r}")
            for name in ("stage", "epoch", "labels", "seconds")
            for value in (None, True, float("nan"))
        ),
        ({"kind": "interim", "seconds": None}, "no number for 'seconds'"),
        ({"kind": "epoch", "epoch": "1"}, "no number for 'epoch'"),
        *(({name: "0.5"}, f"{name!r} that is not a number") for name in ("accuracy", "ece", "pixels")),
        ({"losses": [1]}, "'losses' that is not a mapping"),
        ({"headline_metric": "f1"}, "unknown headline metric 'f1' (known: accuracy, mean_iou)"),
        ({"class_iou": 0.5}, "'class_iou' that is not a list of numbers"),
        ({"class_accuracy": [0.5, True]}, "'class_accuracy' that is not a list of numbers"),
        ({"reliability": [1]}, "'reliability' that is not lists"),
        ({"reliability": {**RELIABILITY, "count": [1]}}, "'reliability' that is not lists"),
        ({"reliability": {**RELIABILITY, "accuracy": 1}}, "'reliability' that is not lists"),
        ({"temperature_scaled": 2.0}, "'temperature_scaled' without"),
        ({"temperature_scaled": {"labels": 10, "reliability": RELIABILITY}}, "'temperature_scaled' without"),
        ({"temperature_scaled": {"temperature": 2.0, "labels": 10}}, "'temperature_scaled' without"),
    ],
)
def test_records_that_reports_cannot_use_are_named(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({**STAGE, **changed}) + "\n")
    found, errors = records.read_valid_records(path)
    assert (len(found), list(errors)) == ((0, [1]) if words else (1, []))
    assert words in errors.get(1, "")


def test_evaluated_pixels_are_described() -> None:
    small, large = (
        {"pixels": 900, "resolution": "original"},
        {"pixels": 12_000, "resolution": "8x8 (network)"},
    )
    assert records.describe_pixels([{"accuracy": 0.5}]) == ""
    assert records.describe_pixels([small, {}, small]) == "900 pixels at their own size"
    assert (
        records.describe_pixels([large, small]) == "900 to 12,000 pixels at 8x8 (network) or their own size"
    )
    assert records.describe_pixels([{"pixels": 900}]) == "900 pixels"
