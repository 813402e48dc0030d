"""The table of a run's stages."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table as TerminalTable

from ducats.report.table import EMPTY_CELL, Table, make_table, to_terminal
from ducats.runfolder.records import EVALUATED_ON_DESCRIPTIONS, describe_pixels, headline_metric

METRIC_TITLES = {
    "accuracy": "acc %",
    "mean_class_accuracy": "class %",
    "ece": "ECE %",
    "nll": "NLL",
    "aurc": "AURC",
}
SEGMENTATION_METRIC_TITLES = {
    "mean_iou": "mIoU %",
    "mean_iou_star": "mIoU* %",
    "accuracy": "pixel acc %",
    "ece": "ECE %",
    "nll": "NLL",
}


def stage_table(stages: Sequence[Mapping[str, Any]]) -> Table:
    """Return the stages of one run as a table."""
    per_pixel = headline_metric(stages[-1]) == "mean_iou"
    titles = SEGMENTATION_METRIC_TITLES if per_pixel else METRIC_TITLES
    metrics = [name for name in titles if any(name in record for record in stages)]
    # A pixel is one click: the number of clicks differs from that of labels only for larger units.
    has_clicks = any(record.get("clicks", record["labels"]) != record["labels"] for record in stages)
    cost_columns = ("labels", "clicks") if has_clicks else ("labels",)
    rows = [
        [
            *(record["stage"], record["epoch"]),
            *(f"{record[name]:,}" if per_pixel else record[name] for name in cost_columns),
            *(_cell(record.get(name), titles[name]) for name in metrics),
            f"{record['seconds']:.1f}",
        ]
        for record in stages
    ]
    columns = ("stage", "epoch", *cost_columns, *(titles[name] for name in metrics), "s")
    return make_table(columns, rows, n_text_columns=0)


def terminal_stage_table(stages: Sequence[Mapping[str, Any]]) -> TerminalTable:
    """Return the stages of one run for a terminal, captioned with the evaluation images."""
    return to_terminal(stage_table(stages), evaluation_caption(stages), no_wrap=True)


def _cell(value: float | None, title: str) -> str:
    if value is None:
        return EMPTY_CELL
    return f"{100 * value:.1f}" if "%" in title else f"{value:.4f}"


def evaluation_caption(stages: Sequence[Mapping[str, Any]]) -> str | None:
    """Name the evaluation images; None if there are none."""
    evaluated_on = stages[-1].get("evaluated_on")
    if not evaluated_on:
        return None
    counts = {record["images"] for record in stages if "images" in record}
    last = f"{stages[-1].get('images')}{'' if len(counts) == 1 else ' (at the end)'}"
    pixels = describe_pixels(stages[-1:])
    return f"evaluated on {last} {EVALUATED_ON_DESCRIPTIONS[evaluated_on]}" + (
        f"; {pixels}" if pixels else ""
    )
