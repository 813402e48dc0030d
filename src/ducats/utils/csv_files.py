"""CSV files that are safe to open in a spreadsheet, and can be read back exactly."""

import csv
import re
from collections.abc import Iterable, Sequence
from typing import IO, Any

# A spreadsheet runs a cell that begins with = + - or @ as a formula, also after a tab or a line break.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_ESCAPED_FORMULA = re.compile(r"'+[=+\-@\t\r\n]")


def write_csv(file: IO[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows; text that a spreadsheet would run as a formula is escaped, see ``escape_cell``."""
    writer = csv.writer(_LineFeeds(file), lineterminator="\r\n")  # so that cells with \r are quoted, too
    writer.writerows([escape_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)


def escape_cell(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would run as a formula. Numbers stay as they are.

    >>> escape_cell("=1+2"), escape_cell("-1.5"), escape_cell("a=b"), escape_cell("'=1+2")
    ("'=1+2", '-1.5', 'a=b', "''=1+2")
    """
    return f"'{text}" if _FORMULA.match(text) and not _is_number(text) else text


def unescape_cell(text: str) -> str:
    """Undo ``escape_cell``.

    >>> unescape_cell("'=1+2"), unescape_cell("=1+2"), unescape_cell("'tis")
    ('=1+2', '=1+2', "'tis")
    """
    return text[1:] if _ESCAPED_FORMULA.match(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip()


class _LineFeeds:
    """Ends the lines that a ``csv.writer`` writes with a line feed only."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, line: str) -> object:
        """Write a line."""
        return self._file.write(line.removesuffix("\r\n") + "\n")
