"""A report over finished and unfinished runs: one page, one table, one list of numbers. Needs no torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ducats.files import write_text_atomically
from ducats.report import classes
from ducats.report.page import TITLE, write_page
from ducats.report.provenance import cautions, measured_on
from ducats.report.read import Run, find_runs, read_run
from ducats.report.tables import MethodRow, Spread, by_kind, by_method, csv, markdown, summary
from ducats.report.words import Headline, headline

__all__ = [
    "Headline",
    "MethodRow",
    "Report",
    "Run",
    "Spread",
    "by_method",
    "csv",
    "find_runs",
    "headline",
    "markdown",
    "read_run",
    "report",
    "summary",
    "write_page",
]


@dataclass(frozen=True)
class Report:
    """What a report found and where it was written.

    Args:
        folder: holds everything below.
        page: the page for people.
        table_markdown: the table of methods, for a README.
        table_csv: the same with full numbers, for a spreadsheet.
        summary_json: one row per run, for programs.
        classes_csv: the IoU of every class, for a spreadsheet; none if the runs are not about pixels.
        runs: the runs that were found.
        summary: the rows of ``summary_json``.
        headline: what came out, in words.
        cautions: what a reader should know before believing a mean.
    """

    folder: Path
    page: Path
    table_markdown: Path
    table_csv: Path
    summary_json: Path
    runs: tuple[Run, ...]
    summary: tuple[dict[str, Any], ...]
    headline: Headline
    cautions: tuple[str, ...]
    classes_csv: Path | None = None


def report(paths: Sequence[Path], out: Path, title: str = TITLE) -> Report:
    """Write page, tables and summary over all runs at or below the paths; the same runs give the same bytes.

    Args:
        paths: run folders, or folders of run folders.
        out: made if it is not there; files of an older report in it are replaced.
        title: stands above the page.
    """
    runs = find_runs(paths)
    rows = by_method(runs)
    groups = by_kind(runs)
    said = [headline(by_method(group), group[0].kind) for group in groups]
    tables = [table for group in groups if (table := classes.class_table(group))]
    result = Report(
        folder=out,
        page=out / "index.html",
        table_markdown=out / "table.md",
        table_csv=out / "table.csv",
        summary_json=out / "summary.json",
        runs=tuple(runs),
        summary=tuple(summary(runs)),
        headline=Headline(" ".join(h.sentence for h in said), tuple(r for h in said for r in h.remarks)),
        cautions=tuple(cautions(runs)),
        classes_csv=out / "classes.csv" if tables else None,
    )
    below = [f"{caution}\n" for caution in result.cautions]
    write_text_atomically(result.table_markdown, "\n".join([*map(_markdown, groups), *below]))
    write_text_atomically(result.table_csv, csv(rows))
    write_text_atomically(
        result.summary_json, json.dumps(result.summary, indent=1, ensure_ascii=False) + "\n"
    )
    if result.classes_csv is not None:
        write_text_atomically(result.classes_csv, "".join(map(classes.csv, tables)))
    write_page(runs, result.page, title=title)
    return result


def _markdown(runs: Sequence[Run]) -> str:
    """Tables of runs of one kind, and on what they were measured."""
    of_classes = classes.class_table(runs)
    on = measured_on(runs)
    parts = [
        markdown(by_method(runs)),
        classes.markdown(of_classes) if of_classes else "",
        f"{on}\n" if on else "",
    ]
    return "\n".join(part for part in parts if part)
