"""Pool listed by a CSV or Parquet table of paths, read in batches of rows."""

import csv
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, Literal

from ducats.errors import UserError
from ducats.pool.places import HERE, Place, place_of
from ducats.pool.sample import Pool, Sample, check_part, shared_out, unreadable

USED = ("key", "path", "domain", "split")  # columns to read, if present
ROWS = 2**16  # Parquet rows in memory at a time


class Manifest(Pool):
    """The images listed in a table, in table order.

    The column ``path`` holds absolute paths, URLs, or paths relative to the table's folder. ``key`` defaults
    to the path. If there is a column ``domain``, only rows with ``target`` are used; if there is a column
    ``split``, only rows with ``train`` or an empty cell. The manifest of a run therefore gives the pool of
    that run. A path that does not exist is an unreadable sample.

    Args:
        name: pool as the user entered it.
    """

    def __init__(self, name: str, place: Place, path: str, kind: Literal["csv", "parquet"]) -> None:
        self.name = name
        self._place, self._path, self._kind = place, path, kind
        self._folder = path.rsplit("/", 1)[0] if "/" in path else "."
        if kind == "parquet":
            with place.open(path) as file:
                table = _parquet(name, file)
                columns = list(table.schema_arrow.names)
                if not {"domain", "split"} & set(columns):
                    self.count = int(table.metadata.num_rows)
        else:
            with place.open(path) as file, _csv(name, file) as reader:
                columns = list(reader.fieldnames or ())
        if "path" not in columns:
            raise UserError(f"table {name} has no column 'path'; rename the column of image paths")

    def blocks(self, rank: int, world: int, size: int) -> Iterator[list[Sample]]:
        """Yield every ``world``-th block of rows."""
        if self.count is None:
            return shared_out(self._samples(), rank, world, size)
        check_part(rank, world, size)
        return self._some_rows(rank, world, size)

    def counted(self) -> int:
        """Return the row count of a Parquet table, or count the rows."""
        return sum(1 for _ in self._samples()) if self.count is None else self.count

    def _samples(self) -> Iterator[Sample]:
        number = 0
        with self._place.open(self._path) as file:
            rows = _csv_rows if self._kind == "csv" else _parquet_rows
            for place, row in rows(self.name, file):
                if row.get("domain", "target") == "target" and (row.get("split") or "train") == "train":
                    yield self._sample(number, place, row)
                    number += 1

    def _some_rows(self, rank: int, world: int, size: int) -> Iterator[list[Sample]]:
        """Yield blocks of a Parquet table without filter columns; rows of other chunks are not converted."""
        begun = list[Sample]()
        with self._place.open(self._path) as file:
            for start, batch in _parquet_batches(self.name, file):
                stop, at = start + len(batch), start
                while at < stop:
                    block = at // size
                    after = min((block + 1) * size, stop)
                    if block % world == rank:
                        rows = batch.slice(at - start, after - at).to_pylist()
                        begun += [
                            self._sample(number, f"row {number + 1}", _text(row))
                            for number, row in enumerate(rows, at)
                        ]
                        if after % size == 0:
                            yield begun
                            begun = []
                    at = after
        if begun:
            yield begun

    def _sample(self, number: int, place: str, row: Mapping[str, str]) -> Sample:
        path = row["path"]
        if not path:
            return Sample(row.get("key") or place, number, unreadable("the path is empty"))
        return Sample(row.get("key") or path, number, partial(self._read, path))

    def _read(self, path: str) -> bytes:
        place, alone = self._place, "://" in path or path.startswith("/")
        if "://" in path or place is HERE:
            place, path = place_of(path)  # also expands ~
        return place.read(path if alone or path.startswith("/") else f"{self._folder}/{path}")


@contextmanager
def _csv(name: str, file: IO[bytes]) -> Iterator["csv.DictReader[str]"]:
    # utf-8-sig: spreadsheets write a byte order mark, which would become part of the first column's name.
    with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        reader = csv.DictReader(text, restval="", strict=True)
        try:
            yield reader
        except (UnicodeDecodeError, csv.Error) as error:
            raise UserError(
                f"{name}, after line {reader.line_num}: {error}; fix the line or save the table as UTF-8"
            ) from None


def _csv_rows(name: str, file: IO[bytes]) -> Iterator[tuple[str, dict[str, str]]]:
    with _csv(name, file) as reader:
        for row in reader:
            used = {column: (row[column] or "").strip() for column in USED if column in row}
            yield f"line {reader.line_num}", used


def _parquet(name: str, file: IO[bytes]) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"reading {name} needs pyarrow; run pip install 'ducats[parquet]' or save the table as CSV"
        ) from None
    try:
        return pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"table {name} is not a valid Parquet file ({error}); write it again") from None


def _parquet_batches(name: str, file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    """Yield batches of rows, each with the index of its first row."""
    table, start = _parquet(name, file), 0
    columns = [column for column in table.schema_arrow.names if column in USED]
    batches = table.iter_batches(batch_size=ROWS, columns=columns)
    while True:
        try:
            batch = next(batches, None)
        except Exception as error:  # from Arrow, a remote file system, or the operating system
            why = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"table {name} is corrupt after row {start} ({why}); write it again") from error
        if batch is None:
            return
        yield start, batch
        start += len(batch)


def _parquet_rows(name: str, file: IO[bytes]) -> Iterator[tuple[str, dict[str, str]]]:
    for start, batch in _parquet_batches(name, file):
        for number, row in enumerate(batch.to_pylist(), start + 1):
            yield f"row {number}", _text(row)


def _text(row: Mapping[str, Any]) -> dict[str, str]:
    # None and NaN correspond to an empty cell of a CSV file.
    return {column: "" if v is None or v != v else str(v).strip() for column, v in row.items()}
