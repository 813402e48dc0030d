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
    "TABLE_WRITERS",
    "TABLE_NOTE",
    "TableHeader",
    "TableLine",
    "PairedTest",
    "PublishedResult",
    "TaskTableRow",
    "TaskTable",
    "collect_cautions_by_task",
    "format_p_value",
    "data_and_task",
    "difference_lines",
    "task_tables_csv",
    "format_from_path",
    "table_headers",
    "task_tables_latex",
    "make_tables",
    "task_tables_markdown",
    "result_lines",
    "paired_t_test",
    "load_published_results",
    "build_tables",
]
