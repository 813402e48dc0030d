"""Tests of the stage table for classification and segmentation."""

import io
from typing import Any

import pytest
from rich.console import Console

from ducats.report.stage_table import terminal_stage_table


def printed(*stages: dict[str, Any]) -> str:
    text = io.StringIO()
    Console(width=140, file=text).print(terminal_stage_table(stages))
    return text.getvalue()


def images(labels: int, **more: Any) -> dict[str, Any]:
    record = {"stage": 0, "epoch": 2, "labels": labels, "seconds": 1.25, "accuracy": 0.5, "ece": 0.1}
    return record | {"nll": 0.25, "evaluated_on": "held_out", "images": 40} | more


def pixels(labels: int, **more: Any) -> dict[str, Any]:
    record = images(labels, headline_metric="mean_iou", mean_iou=0.4321, clicks=labels, pixels=5242880)
    return record | {"resolution": "256x512 (network)"} | more


def columns(text: str) -> list[str]:
    header = next(line for line in text.splitlines() if "stage" in line)
    return [part.strip() for part in header.split("┃") if part.strip()]


def test_classification_columns() -> None:
    text = printed(images(0), images(1200, accuracy=0.75))
    assert columns(text) == ["stage", "epoch", "labels", "acc %", "ECE %", "NLL", "s"]
    assert "1200" in text
    assert "evaluated on 40 held-out target images, never selected" in text
    assert "pixels" not in text


def test_segmentation_columns_and_caption() -> None:
    text = printed(pixels(0), pixels(1310720, mean_iou=0.5))
    assert columns(text) == ["stage", "epoch", "labels", "mIoU %", "pixel acc %", "ECE %", "NLL", "s"]
    assert "43.2" in text
    assert "1,310,720" in text
    flat = " ".join(text.split())
    assert "never selected for labelling; 5,242,880 pixels at 256x512 (network)" in flat


@pytest.mark.parametrize(
    ("extras", "expected"),
    [({"mean_iou_star": 0.61}, "mIoU* %"), ({"clicks": 145636}, "clicks"), ({"clicks": 1310720}, None)],
)
def test_optional_columns(extras: dict[str, Any], expected: str | None) -> None:
    found = columns(printed(pixels(0), pixels(1310720, **extras)))
    plain = columns(printed(pixels(0), pixels(1310720)))
    assert [name for name in found if name not in plain] == ([expected] if expected else [])


def test_stage_without_a_test_set_has_dashes() -> None:
    bare = {"stage": 1, "epoch": 4, "labels": 9, "clicks": 9, "seconds": 2.0, "headline_metric": "mean_iou"}
    assert "–" in printed(pixels(0), bare)
