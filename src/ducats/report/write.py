"""Write reports: an HTML page, or a folder of page, tables and summary."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ducats.report import class_iou
from ducats.report.comparison.build import DEFAULT_BASELINES, covers_several_tasks, overall_headline
from ducats.report.headline import Headline
from ducats.report.method_results import (
    aggregate_methods,
    group_by_kind,
    method_table,
    method_table_csv,
    summarise_runs,
)
from ducats.report.method_tables.build import build_tables, collect_cautions_by_task
from ducats.report.method_tables.text import task_tables_csv, task_tables_markdown
from ducats.report.page import DEFAULT_TITLE, write_page
from ducats.report.provenance import describe_evaluation
from ducats.report.run_reader import BrokenRun, Run, scan_runs
from ducats.report.table import to_markdown
from ducats.utils.files import write_text_atomically

PAGE_FILE_NAME = "report.html"  # file name of the page in a report folder
PAGE_SUFFIXES = (".html", ".htm")  # an output path with one of these is a single page


@dataclass(frozen=True)
class PageResult:
    """A report page and its contents."""

    page: Path
    runs: tuple[Run, ...]
    broken: tuple[BrokenRun, ...]  # run folders that could not be read
    headline: Headline  # the result in words
    cautions: tuple[str, ...]  # warnings about means that are not comparable or not reliable


@dataclass(frozen=True)
class Report(PageResult):
    """A report folder: its files and its contents."""

    folder: Path  # contains all files
    table_markdown: Path  # the table of methods; one column per task if there are several
    table_csv: Path  # the same table with unrounded numbers
    summary_json: Path  # one row per run
    summary: tuple[dict[str, Any], ...]  # the rows of `summary_json`
    classes_csv: Path | None  # the IoU of every class; None if there are no segmentation runs


def report_page(
    paths: Sequence[Path], out: Path, title: str = DEFAULT_TITLE, figures: Sequence[str] = ()
) -> PageResult:
    """Write one HTML page about all runs at or below the paths. The output is deterministic.

    Runs that cannot be read are listed on the page and in the result; the others are reported as usual.

    Args:
        paths: run folders, or folders of run folders.
        out: the file to write. Its folder is created if needed.
        title: heading of the page and title of the document.
        figures: more figures for the page, by the names of `ducats figure`.
    """
    found = scan_runs(paths)
    headlines = [overall_headline(group) for group in group_by_kind(found.runs)]
    return PageResult(
        page=write_page(found.runs, out, title=title, broken=found.broken, figures=figures),
        runs=found.runs,
        broken=found.broken,
        headline=Headline(
            " ".join(h.sentence for h in headlines), tuple(r for h in headlines for r in h.remarks)
        ),
        cautions=tuple(collect_cautions_by_task(found.runs)),
    )


def report(
    paths: Sequence[Path], out: Path, title: str = DEFAULT_TITLE, figures: Sequence[str] = ()
) -> Report:
    """Write page, tables and summary of all runs at or below the paths, with the options of `report_page`.

    Args:
        out: the folder to write to. It is created if needed; files of an earlier report in it are replaced.
    """
    page_result = report_page(paths, out / PAGE_FILE_NAME, title, figures)
    groups = group_by_kind(page_result.runs)
    class_tables = [table for group in groups if (table := class_iou.build_class_table(group))]
    result = Report(
        folder=out,
        table_markdown=out / "table.md",
        table_csv=out / "table.csv",
        summary_json=out / "summary.json",
        summary=tuple(summarise_runs(page_result.runs)),
        classes_csv=out / "classes.csv" if class_tables else None,
        **vars(page_result),
    )
    if any(map(covers_several_tasks, groups)):
        tables_by_task = build_tables(result.runs, DEFAULT_BASELINES)
        write_text_atomically(result.table_markdown, task_tables_markdown(tables_by_task))
        write_text_atomically(result.table_csv, task_tables_csv(tables_by_task))
    else:
        caution_lines = [f"{caution}\n" for caution in result.cautions]
        write_text_atomically(
            result.table_markdown, "\n".join([*map(_kind_markdown, groups), *caution_lines])
        )
        write_text_atomically(result.table_csv, method_table_csv(aggregate_methods(result.runs)))
    write_text_atomically(
        result.summary_json, json.dumps(result.summary, indent=1, ensure_ascii=False) + "\n"
    )
    if result.classes_csv is not None:
        write_text_atomically(result.classes_csv, "".join(map(class_iou.class_table_csv, class_tables)))
    return result


def _kind_markdown(runs: Sequence[Run]) -> str:
    """Return the Markdown tables of runs of one kind, and the data they were evaluated on."""
    class_table = class_iou.build_class_table(runs)
    evaluation_note = describe_evaluation(runs)
    blocks = [
        to_markdown(method_table(aggregate_methods(runs))),
        to_markdown(class_table.change_table()) if class_table else "",
        f"{evaluation_note}\n" if evaluation_note else "",
    ]
    return "\n".join(block for block in blocks if block)
