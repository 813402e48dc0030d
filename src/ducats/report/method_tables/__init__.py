"""Tables of methods by tasks, with published results and paired tests. Does not need torch."""

from ducats.report.method_tables.build import (
    FULLY_SUPERVISED,
    TaskTable,
    TaskTableRow,
    build_tables,
    make_tables,
)
from ducats.report.method_tables.formats import (
    TABLE_NOTE,
    TABLE_WRITERS,
    format_from_path,
    task_tables_csv,
    task_tables_latex,
    task_tables_markdown,
)
from ducats.report.method_tables.lines import (
    TableHeader,
    TableLine,
    difference_lines,
    format_p_value,
    result_lines,
    table_headers,
)
from ducats.report.method_tables.paired_test import PairedTest, paired_t_test
from ducats.report.method_tables.published import PublishedResult, load_published_results
from ducats.report.method_tables.run_filter import collect_cautions_by_task
from ducats.report.tasks import data_and_task

__all__ = [
    "FULLY_SUPERVISED",
    "TABLE_NOTE",
    "TABLE_WRITERS",
    "PairedTest",
    "PublishedResult",
    "TableHeader",
    "TableLine",
    "TaskTable",
    "TaskTableRow",
    "build_tables",
    "collect_cautions_by_task",
    "data_and_task",
    "difference_lines",
    "format_from_path",
    "format_p_value",
    "load_published_results",
    "make_tables",
    "paired_t_test",
    "result_lines",
    "table_headers",
    "task_tables_csv",
    "task_tables_latex",
    "task_tables_markdown",
]
