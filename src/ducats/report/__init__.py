"""A report over finished and unfinished runs: one page, one table, one list of numbers. Needs no torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ducats.files import write_text_atomically
from ducats.report import across, classes
from ducats.report.across import cautions_by_task
from ducats.report.comparison import OTHERS, of_several_tasks, outcome
from ducats.report.page import TITLE, write_page
from ducats.report.provenance import measured_on
from ducats.report.read import Broken, Run, find_runs, look, read_run
from ducats.report.tables import MethodRow, Spread, by_kind, by_method, csv, markdown, summary
from ducats.report.words import Headline, headline

__all__ = [
    "PAGE",
    "SUFFIXES",
    "Broken",
    "Headline",
    "MethodRow",
    "Page",
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
    "report_page",
    "summary",
    "write_page",
]


PAGE = "report.html"  # its name in a folder
SUFFIXES = (".html", ".htm")  # what is written there is one page


@dataclass(frozen=True)
class Page:
    """What one page found.

    Args:
        page: the page for people.
        runs: the runs that were found.
        broken: folders that could not be read.
        headline: what came out, in words.
        cautions: what a reader should know before believing a mean.
    """

    page: Path
    runs: tuple[Run, ...]
    broken: tuple[Broken, ...]
    headline: Headline
    cautions: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """What a report found and where it was written.

    Args:
        folder: holds everything below.
        page: the page for people.
        table_markdown: the table of methods, for a README; by tasks where there are several.
        table_csv: the same with full numbers, for a spreadsheet.
        summary_json: one row per run, for programs.
        classes_csv: the IoU of every class, for a spreadsheet; none if the runs are not about pixels.
        runs: the runs that were found.
        broken: folders that could not be read.
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
    broken: tuple[Broken, ...]
    summary: tuple[dict[str, Any], ...]
    headline: Headline
    cautions: tuple[str, ...]
    classes_csv: Path | None = None


def report_page(paths: Sequence[Path], out: Path, title: str = TITLE) -> Page:
    """Write one page over all runs at or below the paths; the same runs give the same bytes.

    Runs that cannot be read are named in the page and in the answer; they do not hide the others.

    Args:
        paths: run folders, or folders of run folders.
        out: the file to write; its folder is made if it is not there.
        title: stands above the page.
    """
    found = look(paths)
    said = [outcome(group) for group in by_kind(found.runs)]
    return Page(
        page=write_page(found.runs, out, title=title, broken=found.broken),
        runs=found.runs,
        broken=found.broken,
        headline=Headline(" ".join(h.sentence for h in said), tuple(r for h in said for r in h.remarks)),
        cautions=tuple(cautions_by_task(found.runs)),
    )


def report(paths: Sequence[Path], out: Path, title: str = TITLE) -> Report:
    """Write page, tables and summary over all runs at or below the paths; the same runs give the same bytes.

    Args:
        paths: run folders, or folders of run folders.
        out: made if it is not there; files of an older report in it are replaced.
        title: stands above the page.
    """
    told = report_page(paths, out / PAGE, title)
    groups = by_kind(told.runs)
    tables = [table for group in groups if (table := classes.class_table(group))]
    result = Report(
        folder=out,
        table_markdown=out / "table.md",
        table_csv=out / "table.csv",
        summary_json=out / "summary.json",
        summary=tuple(summary(told.runs)),
        classes_csv=out / "classes.csv" if tables else None,
        **vars(told),
    )
    if any(map(of_several_tasks, groups)):
        by_task = across.tables_of(result.runs, OTHERS)
        write_text_atomically(result.table_markdown, across.markdown(by_task))
        write_text_atomically(result.table_csv, across.csv(by_task))
    else:
        below = [f"{caution}\n" for caution in result.cautions]
        write_text_atomically(result.table_markdown, "\n".join([*map(_markdown, groups), *below]))
        write_text_atomically(result.table_csv, csv(by_method(result.runs)))
    write_text_atomically(
        result.summary_json, json.dumps(result.summary, indent=1, ensure_ascii=False) + "\n"
    )
    if result.classes_csv is not None:
        write_text_atomically(result.classes_csv, "".join(map(classes.csv, tables)))
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
