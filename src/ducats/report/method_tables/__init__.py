"""Tables of methods by tasks, with published results and paired tests. Does not need torch."""

from ducats.report.method_tables.build import FULLY_SUPERVISED as FULLY_SUPERVISED
from ducats.report.method_tables.build import TaskTable as TaskTable
from ducats.report.method_tables.build import TaskTableRow as TaskTableRow
from ducats.report.method_tables.build import build_tables as build_tables
from ducats.report.method_tables.build import make_tables as make_tables
from ducats.report.method_tables.paired_test import paired_t_test as paired_t_test
from ducats.report.method_tables.run_filter import collect_cautions_by_task as collect_cautions_by_task
from ducats.report.method_tables.text import TABLE_NOTE as TABLE_NOTE
from ducats.report.method_tables.text import TABLE_WRITERS as TABLE_WRITERS
from ducats.report.method_tables.text import difference_table as difference_table
from ducats.report.method_tables.text import format_from_path as format_from_path
from ducats.report.method_tables.text import format_p_value as format_p_value
from ducats.report.method_tables.text import result_table as result_table
from ducats.report.method_tables.text import task_tables_csv as task_tables_csv
from ducats.report.method_tables.text import task_tables_markdown as task_tables_markdown
