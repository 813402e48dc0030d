"""Tables of methods by tasks, with published results and paired tests. Does not need torch."""

from ducats.report.across.choosing import cautions_by_task
from ducats.report.across.lines import Head, Line, chance, compared, heads, numbers
from ducats.report.across.making import CEILING, Row, Table, make_tables, tables_of
from ducats.report.across.paired import Paired, paired
from ducats.report.across.published import Published, published
from ducats.report.across.writing import FORMATS, HOW, csv, format_of, latex, markdown
from ducats.report.tasks import column_of

__all__ = [
    "CEILING",
    "FORMATS",
    "HOW",
    "Head",
    "Line",
    "Paired",
    "Published",
    "Row",
    "Table",
    "cautions_by_task",
    "chance",
    "column_of",
    "compared",
    "csv",
    "format_of",
    "heads",
    "latex",
    "make_tables",
    "markdown",
    "numbers",
    "paired",
    "published",
    "tables_of",
]
