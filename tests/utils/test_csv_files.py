"""CSV files: safe in spreadsheets, and read back exactly."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import read_csv
from ducats.utils.csv_files import escape_cell, unescape_cell
from ducats.utils.files import write_csv_atomically

FORMULAS = ["=HYPERLINK(1)", "+1+2", "-cmd", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'=1", "''@x"]
HARMLESS = ["", "cat", "a=b", "-1.5", "+3e-4", "'tis", "a\rb", "a\nb", 'a"b', "é, ü"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_begins_like_a_formula(tmp_path: Path, text: str) -> None:
    write_csv_atomically(tmp_path / "a.csv", ["key", text], [[text, 1]])
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows == [["key", f"'{text}"], [f"'{text}", "1"]]


def test_other_cells_and_numbers_stay_as_they_are(tmp_path: Path) -> None:
    rows = [[text, str(number)] for number, text in enumerate(HARMLESS)]
    write_csv_atomically(tmp_path / "a.csv", ["key", "number"], [[text, -int(n)] for text, n in rows])
    read = read_csv(tmp_path / "a.csv")  # a carriage return does not split a row
    assert [(row["key"], int(row["number"])) for row in read] == [(text, -int(n)) for text, n in rows]
    assert (tmp_path / "a.csv").read_bytes().startswith(b"key,number\n,0\ncat,-1\n")


@given(st.text(alphabet="'=+-@\t\r\n1.ea\"", max_size=6))
def test_escaping_can_be_undone(text: str) -> None:
    assert unescape_cell(escape_cell(text)) == text
