"""Images that a table lists: CSV, or Parquet with ``pip install ducats[parquet]``."""

import csv
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ducats.data.decode import decode_each
from ducats.domain import Domain, Shift
from ducats.errors import UserError

COLUMNS = ("key", "path", "domain", "label", "split")
REQUIRED = ("path", "domain", "label")
DOMAINS = ("source", "target")
SPLITS = ("train", "test")


@dataclass(frozen=True)
class Row:
    """One image of a manifest."""

    place: str  # for errors: "line 7", "row 7"
    key: str
    path: Path
    domain: str
    label: str  # "" if none is given
    split: str


def manifest(
    *, path: str | Path, size: int = 256, cache: str | Path | None = None, memory_gb: float | None = None
) -> Shift:
    """Read a shift from a table with the columns ``path``, ``domain``, ``label``, ``key``, ``split``.

    ``path`` is absolute or relative to the table's folder; ``domain`` is ``source`` or ``target``;
    ``split`` is ``train`` or ``test``, and ``train`` where empty or absent; ``key`` is the path where
    absent, and unique in the table. Source rows are for training and need a label. Target rows of the
    train split are the pool: either all have a label, for a simulated oracle, or none has. Target rows of
    the test split need a label. Classes are the source's labels, sorted as ASCII. Other columns are
    ignored, unless they look like one of these, misspelt.

    Args:
        path: A ``.csv`` (UTF-8, commas) or ``.parquet`` file.
        size: Height and width that images are squashed to.
        cache: Where decoded images go that do not fit in memory; see ``decode``.
        memory_gb: Gigabytes of decoded images to hold in memory, all rows together; None: see ``decode``.

    Raises:
        UserError: The table, or an image that it lists, is not as described.
    """
    table = Path(path).expanduser()
    rows = read_rows(table)
    source = [row for row in rows if row.domain == "source"]
    pool = [row for row in rows if row.domain == "target" and row.split == "train"]
    test = [row for row in rows if row.domain == "target" and row.split == "test"]
    classes = _classes(table, source)
    if not pool:
        raise UserError(
            f"{table} has no row with domain target and split train; add the images to be labelled"
        )
    truth = _truth(table, pool, classes)
    held_out = _labels(table, test, classes)
    parts = [[(row.key, row.path) for row in part] for part in (source, pool, test)]
    images = decode_each(parts, size, cache=cache, memory_gb=memory_gb)
    return Shift(
        source=Domain(images[0], _labels(table, source, classes), classes),
        pool=images[1],
        truth=truth,
        test=Domain(images[2], held_out, classes) if test else None,
    )


def read_rows(table: Path) -> list[Row]:
    """The rows of a manifest, if nothing is wrong with any of them."""
    rows, problems = scan_rows(table)
    if problems:
        raise UserError(problems[0])
    return rows


def scan_rows(table: Path) -> tuple[list[Row], list[str]]:
    """The good rows of a manifest, and one sentence for all that is wrong with each other row."""
    if not table.is_file():
        raise UserError(f"there is no manifest at {table}; check the path")
    readers = {".csv": _read_csv, ".parquet": _read_parquet}
    if table.suffix.lower() not in readers:
        raise UserError(f"the manifest {table} must be a .csv or .parquet file; convert or rename it")
    lines = readers[table.suffix.lower()](table)
    if not lines:
        raise UserError(f"the manifest {table} has no rows; add one per image")
    rows: dict[str, Row] = {}
    problems = []
    for place, cells in lines:
        try:
            row = _row(table, place, cells)
        except UserError as error:
            problems.append(str(error))
            continue
        if row.key in rows:
            problems.append(
                f"{table}, {row.place}: the key {row.key!r} is that of {rows[row.key].place} already;"
                " keys must be unique: correct it, or add a column `key`"
            )
            continue
        rows[row.key] = row
    return list(rows.values()), problems


def _read_csv(table: Path) -> list[tuple[str, dict[str, str]]]:
    """Place and cells of each row of a CSV file."""
    try:
        # utf-8-sig: spreadsheets put a mark in front that would become part of the first column's name.
        with table.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey="", restval="", strict=True)
            _check_columns(table, reader.fieldnames or ())
            return [(f"line {reader.line_num}", _cells(table, reader.line_num, row)) for row in reader]
    except UnicodeDecodeError as error:
        raise UserError(f"the manifest {table} is not UTF-8 ({error.reason}); save it as UTF-8") from None
    except csv.Error as error:
        start = reader.line_num + 1  # the reader counts the lines of rows that it could read
        raise UserError(f"{table}, line {start}: {error}; correct the line") from None


def _cells(table: Path, line: int, row: Mapping[str, str | list[str]]) -> dict[str, str]:
    """A CSV row without surplus cells."""
    if "" in row and isinstance(row[""], list):
        raise UserError(
            f"{table}, line {line}: more cells than the header has columns;"
            " put quotes around cells that contain a comma"
        )
    return {column: cell for column, cell in row.items() if isinstance(cell, str)}


def _read_parquet(table: Path) -> list[tuple[str, dict[str, str]]]:
    """Place and cells of each row of a Parquet file."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"reading {table} needs pyarrow; run pip install 'ducats[parquet]' or save the manifest as CSV"
        ) from None
    try:
        file = pyarrow.parquet.ParquetFile(table)
        _check_columns(table, file.schema_arrow.names)
        rows = file.read(columns=[name for name in file.schema_arrow.names if name in COLUMNS]).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(
            f"the manifest {table} is not readable as Parquet ({error}); write it again"
        ) from None
    return [
        (f"row {number}", {column: _text(value) for column, value in row.items()})
        for number, row in enumerate(rows, start=1)
    ]


def _text(value: object) -> str:
    """A Parquet value as a CSV cell would hold it; nothing and not-a-number are empty."""
    return "" if value is None or value != value else str(value)


def _check_columns(table: Path, columns: Iterable[str]) -> None:
    """Refuse a header that lacks a column, has one twice, or has one misspelt."""
    columns = list(columns)
    doubled = sorted({name for name in columns if name in COLUMNS and columns.count(name) > 1})
    if doubled:
        raise UserError(f"{table}, header: the column {doubled[0]!r} occurs twice; remove one")
    absent = [name for name in COLUMNS if name not in columns]
    for name in columns:
        near = difflib.get_close_matches(name.strip().lower(), absent, n=1, cutoff=0.8)
        if name not in COLUMNS and near:
            raise UserError(f"{table}, header: is the column {name!r} meant to be {near[0]!r}? rename it")
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise UserError(
            f"{table}, header: there is no column {', '.join(map(repr, missing))}, only"
            f" {', '.join(map(repr, columns)) or 'an empty line'}; columns are separated by commas"
            f" and named {', '.join(COLUMNS)}"
        )


def _row(table: Path, place: str, cells: Mapping[str, str]) -> Row:
    """One row, if each cell holds what it may."""
    cell = {column: cells.get(column, "").strip() for column in COLUMNS}
    split = cell["split"] or "train"
    where = f"{table}, {place}:"
    if not cell["path"]:
        raise UserError(f"{where} the path is empty; give the image's file")
    for column, value, known in (("domain", cell["domain"], DOMAINS), ("split", split, SPLITS)):
        if value not in known:
            raise UserError(f"{where} the {column} is {value!r}; write {known[0]} or {known[1]}")
    if (cell["domain"], split) == ("source", "test"):
        raise UserError(
            f"{where} a source image cannot be in the test split; make it train or remove the row"
        )
    if not cell["label"] and (cell["domain"] == "source" or split == "test"):
        kind = "a source image" if cell["domain"] == "source" else "a test image"
        raise UserError(f"{where} {kind} needs a label; fill it in or remove the row")
    file = table.parent / Path(cell["path"]).expanduser()  # an absolute path replaces the folder
    if not file.is_file():
        raise UserError(f"{where} there is no file {file}; paths start at the manifest's folder")
    return Row(place, cell["key"] or cell["path"], file, cell["domain"], cell["label"], split)


def _classes(table: Path, source: Sequence[Row]) -> tuple[str, ...]:
    """The source's labels, at least two."""
    classes = tuple(sorted({row.label for row in source}))
    if not source:
        raise UserError(f"{table} has no row with domain source; add the labelled images")
    if len(classes) < 2:
        raise UserError(
            f"{table}: all {len(source)} source rows have the label {classes[0]!r};"
            " add source images of two classes or more"
        )
    return classes


def _truth(table: Path, pool: Sequence[Row], classes: Sequence[str]) -> Tensor | None:
    """The labels of the pool if it has them; all or none."""
    bare = [row for row in pool if not row.label]
    if len(bare) == len(pool):
        return None
    if bare:
        raise UserError(
            f"{table}: {len(bare)} of {len(pool)} target rows of the train split lack a label, the"
            f" first on {bare[0].place}; give all of them one (a simulated oracle answers with"
            " these) or none (people will be asked)"
        )
    return _labels(table, pool, classes)


def _labels(table: Path, rows: Sequence[Row], classes: Sequence[str]) -> Tensor:
    """The class of each row: int64 (N,)."""
    index = {name: i for i, name in enumerate(classes)}
    for row in rows:
        if row.label not in index:
            raise UserError(
                f"{table}, {row.place}: no source row has the label {row.label!r}, only"
                f" {', '.join(map(repr, classes))}; correct it or remove the row"
            )
    return torch.tensor([index[row.label] for row in rows], dtype=torch.int64)
