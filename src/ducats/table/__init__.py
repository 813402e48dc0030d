"""Tables over many runs: methods by tasks, published numbers beside ours, significance. Needs no torch."""

from ducats.table.choosing import column_of
from ducats.table.making import Row, Table, make_tables
from ducats.table.paired import Paired, paired
from ducats.table.published import Published, published
from ducats.table.writing import FORMATS, csv, format_of, latex, markdown

__all__ = [
    "FORMATS",
    "Paired",
    "Published",
    "Row",
    "Table",
    "column_of",
    "csv",
    "format_of",
    "latex",
    "make_tables",
    "markdown",
    "paired",
    "published",
]
