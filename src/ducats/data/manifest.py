"""Images listed in a table: CSV, or Parquet with ``pip install ducats[parquet]``."""

import csv
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ducats.data.class_labels import (
    ADD_CLASSES_REMEDY,
    check_not_empty,
    class_indices,
    source_classes,
    target_only,
)
from ducats.data.decoding import decode_image_sets, parse_value_range
from ducats.data.domain import AdaptationData, Domain, rows_of
from ducats.data.parquet import batch_rows, open_parquet, parquet_batches
from ducats.utils.errors import UserError
from ducats.utils.findings import join_names

MANIFEST_COLUMNS = ("key", "path", "domain", "label", "split")
REQUIRED_COLUMNS = ("path", "domain", "label")
DOMAINS = ("source", "target")
SPLITS = ("train", "test")


@dataclass(frozen=True)
class ManifestRow:
    """One image of a manifest."""

    line_label: str  # for error messages, such as "line 7" or "row 7"
    key: str
    path: Path
    domain: str
    label: str  # "" for none
    split: str

    @property
    def name(self) -> str:
        """Path and line, for messages."""
        return f"{self.path} ({self.line_label})"


def manifest(
    *,
    path: str | Path,
    size: int = 256,
    range: Sequence[float] | None = None,
    new_classes: bool = False,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> AdaptationData:
    """Read source, pool and test set from a table with one row per image.

    The columns are:

    - ``path``: absolute, or relative to the table's folder.
    - ``domain``: ``source`` or ``target``.
    - ``label``: required for source rows and for target rows of the test split. The other target rows are the
      pool: either all of them have a label, for a simulated oracle, or none has.
    - ``split`` (optional): ``train`` (default) or ``test``.
    - ``key`` (optional): unique in the table; the path by default.

    Classes are the source's labels in ASCII order. Other columns are ignored, except that a column whose name
    looks like a misspelling of one of these is an error.

    Args:
        path: A ``.csv`` (UTF-8, comma-separated) or ``.parquet`` file.
        size: Height and width that images are resized to, ignoring the aspect ratio.
        range: The values of black and white, in images with more than 8 bits per value: ``[0, 4095]``.
        new_classes: See ``folders``.
        cache: See ``decode_images``.
        memory_gb: See ``decode_images``; the memory is that of all images together.
    """
    value_range, table = parse_value_range(range), Path(path).expanduser()
    rows = read_manifest(table)
    source = [row for row in rows if row.domain == "source"]
    pool = [row for row in rows if row.domain == "target" and row.split == "train"]
    test = [row for row in rows if row.domain == "target" and row.split == "test"]
    check_not_empty(describe_rows("source", table), len(source))
    check_not_empty(describe_rows("target", table), len(pool))
    classes = source_classes(describe_rows("source", table), [row.label for row in source])
    check_pool_labels(table, pool)
    added = target_only([row.label for row in (*pool, *test)], classes, allowed=new_classes)
    all_classes = (*classes, *added)
    ground_truth = _labels("target", table, pool, all_classes) if pool[0].label else None
    source_labels = _labels("source", table, source, classes)
    test_labels = _labels("test", table, test, all_classes)
    file_sets = [[(row.key, row.path) for row in rows_of_set] for rows_of_set in (source, pool, test)]
    images = decode_image_sets(file_sets, size, value_range=value_range, cache=cache, memory_gb=memory_gb)
    keys = [[key for key, _ in files] for files in file_sets]
    return AdaptationData(
        source=Domain(images[0], rows_of(images[0], keys[0], source_labels), classes),
        pool=images[1],
        ground_truth=None if ground_truth is None else rows_of(images[1], keys[1], ground_truth),
        test=Domain(images[2], rows_of(images[2], keys[2], test_labels), all_classes) if test else None,
        target_only_classes=added,
    )


def read_manifest(table: Path) -> list[ManifestRow]:
    """Read the rows of a manifest; raise if one is invalid."""
    rows, problems = scan_manifest(table)
    if problems:
        raise UserError(problems[0])
    return rows


def scan_manifest(table: Path) -> tuple[list[ManifestRow], list[str]]:
    """Read a manifest; return its valid rows and an error message for each invalid one."""
    if not table.is_file():
        raise UserError(f"the manifest {table} does not exist; check the path")
    readers = {".csv": _read_csv, ".parquet": _read_parquet}
    if table.suffix.lower() not in readers:
        raise UserError(f"the manifest {table} must be a .csv or .parquet file; convert or rename it")
    lines = readers[table.suffix.lower()](table)
    if not lines:
        raise UserError(f"the manifest {table} has no rows; add one per image")
    rows: dict[str, ManifestRow] = {}
    problems = []
    for line_label, cells in lines:
        try:
            row = _parse_row(table, line_label, cells)
        except UserError as error:
            problems.append(str(error))
            continue
        if row.key in rows:
            problems.append(
                f"{table}, {row.line_label}: the key {row.key!r} is already used on"
                f" {rows[row.key].line_label}; keys must be unique: change it, or add a column `key`"
            )
            continue
        rows[row.key] = row
    return list(rows.values()), problems


def _read_csv(table: Path) -> list[tuple[str, dict[str, str]]]:
    """Return line number and cells of each row of a CSV file."""
    try:
        # utf-8-sig: spreadsheets write a byte order mark, which would end up in the first column's name.
        with table.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey="", restval="", strict=True)
            _check_columns(table, reader.fieldnames or ())
            return [(f"line {reader.line_num}", _cells(table, reader.line_num, row)) for row in reader]
    except UnicodeDecodeError as error:
        raise UserError(f"the manifest {table} is not UTF-8 ({error.reason}); save it as UTF-8") from None
    except csv.Error as error:
        start = reader.line_num + 1  # line_num counts the lines of the rows read so far
        raise UserError(f"{table}, line {start}: {error}; fix the line") from None


def _cells(table: Path, line: int, row: Mapping[str, str | list[str]]) -> dict[str, str]:
    """Return the cells of a CSV row; raise if it has more than the header."""
    if "" in row and isinstance(row[""], list):
        raise UserError(
            f"{table}, line {line}: more cells than the header has columns;"
            " put quotes around cells that contain a comma"
        )
    return {column: cell for column, cell in row.items() if isinstance(cell, str)}


def _read_parquet(table: Path) -> list[tuple[str, dict[str, str]]]:
    """Return row number and cells of each row of a Parquet file."""
    parquet = open_parquet(str(table), table)
    _check_columns(table, parquet.schema_arrow.names)
    return [
        (f"row {number}", {column: _cell_text(value) for column, value in row.items()})
        for start, batch in parquet_batches(str(table), parquet, MANIFEST_COLUMNS)
        for number, row in enumerate(batch_rows(batch), start=start + 1)
    ]


def _cell_text(value: object) -> str:
    """Convert a Parquet value to the text of a CSV cell; null and NaN become empty."""
    return "" if value is None or value != value else str(value)


def _check_columns(table: Path, columns: Iterable[str]) -> None:
    """Raise if a column is missing, duplicated or misspelt."""
    columns = list(columns)
    duplicates = sorted({name for name in columns if name in MANIFEST_COLUMNS and columns.count(name) > 1})
    if duplicates:
        raise UserError(
            f"{table}, header: the column {duplicates[0]!r} occurs more than once; remove the others"
        )
    absent = [name for name in MANIFEST_COLUMNS if name not in columns]
    for name in columns:
        similar = difflib.get_close_matches(name.strip().lower(), absent, n=1, cutoff=0.8)
        if name not in MANIFEST_COLUMNS and similar:
            raise UserError(
                f"{table}, header: unknown column {name!r}; did you mean {similar[0]!r}? rename it"
            )
    missing = [name for name in REQUIRED_COLUMNS if name not in columns]
    if missing:
        raise UserError(
            f"{table}, header: missing column {', '.join(map(repr, missing))}; found"
            f" {', '.join(map(repr, columns)) or 'an empty line'}; the columns are"
            f" {', '.join(MANIFEST_COLUMNS)}, separated by commas"
        )


def _parse_row(table: Path, line_label: str, cells: Mapping[str, str]) -> ManifestRow:
    """Parse one row; raise if a cell is invalid."""
    cell = {column: cells.get(column, "").strip() for column in MANIFEST_COLUMNS}
    split = cell["split"] or "train"
    prefix = f"{table}, {line_label}:"
    if not cell["path"]:
        raise UserError(f"{prefix} the path is empty; give the path of the image")
    for column, value, allowed in (("domain", cell["domain"], DOMAINS), ("split", split, SPLITS)):
        if value not in allowed:
            raise UserError(f"{prefix} the {column} is {value!r}; it must be {allowed[0]} or {allowed[1]}")
    if (cell["domain"], split) == ("source", "test"):
        raise UserError(
            f"{prefix} a source image cannot be in the test split; change the split to train or remove the"
            " row"
        )
    if not cell["label"] and (cell["domain"] == "source" or split == "test"):
        kind = "a source image" if cell["domain"] == "source" else "a test image"
        raise UserError(f"{prefix} {kind} needs a label; add one or remove the row")
    file = table.parent / Path(cell["path"]).expanduser()  # an absolute path replaces the folder
    if not file.is_file():
        raise UserError(f"{prefix} {file} does not exist; paths are relative to the manifest's folder")
    return ManifestRow(line_label, cell["key"] or cell["path"], file, cell["domain"], cell["label"], split)


def check_pool_labels(table: Path, pool: Sequence[ManifestRow]) -> None:
    """Raise if some target rows have a label and others have none."""
    unlabelled = [row.line_label for row in pool if not row.label]
    if 0 < len(unlabelled) < len(pool):
        raise UserError(
            f"{table}: {len(unlabelled)} of {len(pool)} target rows of the train split lack a label"
            f" ({join_names(unlabelled)}); label all of them (for a simulated oracle) or none (for human"
            " annotators)"
        )


def describe_rows(role: str, table: Path) -> str:
    """Describe the rows of source, target or test set in messages."""
    columns = {"source": "domain source", "target": "domain target, split train"}
    return f"{table} ({columns.get(role, 'domain target, split test')})"


def _labels(role: str, table: Path, rows: Sequence[ManifestRow], classes: Sequence[str]) -> Tensor:
    """Return the class index of each row: int64 (N,)."""
    labels, names = [row.label for row in rows], [row.name for row in rows]
    remedy = "" if role == "source" else ADD_CLASSES_REMEDY
    return class_indices(describe_rows(role, table), labels, names, classes, remedy=remedy)
