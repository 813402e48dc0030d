"""Pool listed by a CSV or Parquet table of paths, read in batches of rows."""

import csv
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, Literal

from ducats.data.parquet import batch_rows, open_parquet, parquet_batches
from ducats.data.streaming.filesystem import LOCAL_FILESYSTEM, FileSystem, resolve_filesystem
from ducats.data.streaming.pool import Pool, PoolSample, blocks_of_chunk, check_chunk, failing_reader
from ducats.utils.errors import UserError

USED_COLUMNS = ("key", "path", "domain", "split")  # columns to read, if present


class ManifestPool(Pool):
    """The images listed in a table, in table order.

    The column ``path`` holds absolute paths, URLs, or paths relative to the table's folder. ``key`` defaults
    to the path. If there is a column ``domain``, only rows with ``target`` are used; if there is a column
    ``split``, only rows with ``train`` or an empty cell. The manifest of a run therefore gives the pool of
    that run. A path that does not exist is an unreadable sample.
    """

    def __init__(
        self,
        name: str,
        filesystem: FileSystem,
        path: str,
        table_format: Literal["csv", "parquet"],
        max_sample_bytes: int,
    ) -> None:
        self.name, self._max_bytes = name, max_sample_bytes
        self._filesystem, self._path, self._table_format = filesystem, path, table_format
        self._folder = path.rsplit("/", 1)[0] if "/" in path else "."
        if table_format == "parquet":
            with filesystem.open(path) as file:
                table = open_parquet(name, file)
                columns = list(table.schema_arrow.names)
                if not {"domain", "split"} & set(columns):
                    self.n_samples = int(table.metadata.num_rows)
        else:
            with filesystem.open(path) as file, _open_csv(name, file) as reader:
                columns = list(reader.fieldnames or ())
        if "path" not in columns:
            raise UserError(f"table {name} has no column 'path'; rename the column of image paths")

    def blocks(self, chunk: int, n_chunks: int, block_size: int) -> Iterator[list[PoolSample]]:
        """Yield every ``n_chunks``-th block of rows."""
        if self.n_samples is None:
            return blocks_of_chunk(self._samples(), chunk, n_chunks, block_size)
        check_chunk(chunk, n_chunks, block_size)
        return self._parquet_blocks(chunk, n_chunks, block_size)

    def count_samples(self) -> int:
        """Return the row count of a Parquet table, or count the rows."""
        return sum(1 for _ in self._samples()) if self.n_samples is None else self.n_samples

    def _samples(self) -> Iterator[PoolSample]:
        pool_index = 0
        with self._filesystem.open(self._path) as file:
            read_rows = _csv_rows if self._table_format == "csv" else _parquet_rows
            for position, row in read_rows(self.name, file):
                if row.get("domain", "target") == "target" and (row.get("split") or "train") == "train":
                    yield self._make_sample(pool_index, position, row)
                    pool_index += 1

    def _parquet_blocks(self, chunk: int, n_chunks: int, block_size: int) -> Iterator[list[PoolSample]]:
        """Yield blocks of a Parquet table without filter columns; rows of other chunks are not converted."""
        samples = list[PoolSample]()
        with self._filesystem.open(self._path) as file:
            for start, batch in _parquet_batches(self.name, file):
                stop, row_index = start + len(batch), start
                while row_index < stop:
                    block_index = row_index // block_size
                    next_index = min((block_index + 1) * block_size, stop)
                    if block_index % n_chunks == chunk:
                        rows = batch_rows(batch, row_index - start, next_index - start)
                        samples += [
                            self._make_sample(pool_index, f"row {pool_index + 1}", _row_to_text(row))
                            for pool_index, row in enumerate(rows, row_index)
                        ]
                        if next_index % block_size == 0:
                            yield samples
                            samples = []
                    row_index = next_index
        if samples:
            yield samples

    def _make_sample(self, pool_index: int, position: str, row: Mapping[str, str]) -> PoolSample:
        path = row["path"]
        if not path:
            return PoolSample(row.get("key") or position, pool_index, failing_reader("the path is empty"))
        return PoolSample(row.get("key") or path, pool_index, partial(self._read, path))

    def _read(self, path: str) -> bytes:
        filesystem, is_absolute = self._filesystem, "://" in path or path.startswith("/")
        if "://" in path or filesystem is LOCAL_FILESYSTEM:
            filesystem, path = resolve_filesystem(path)  # also expands ~
        path = path if is_absolute or path.startswith("/") else f"{self._folder}/{path}"
        return filesystem.read(path, self._max_bytes)


@contextmanager
def _open_csv(name: str, file: IO[bytes]) -> Iterator["csv.DictReader[str]"]:
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
    with _open_csv(name, file) as reader:
        for row in reader:
            used = {column: (row[column] or "").strip() for column in USED_COLUMNS if column in row}
            yield f"line {reader.line_num}", used


def _parquet_batches(name: str, file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    return parquet_batches(name, open_parquet(name, file), USED_COLUMNS)


def _parquet_rows(name: str, file: IO[bytes]) -> Iterator[tuple[str, dict[str, str]]]:
    for start, batch in _parquet_batches(name, file):
        for number, row in enumerate(batch_rows(batch), start + 1):
            yield f"row {number}", _row_to_text(row)


def _row_to_text(row: Mapping[str, Any]) -> dict[str, str]:
    # None and NaN correspond to an empty cell of a CSV file.
    return {column: "" if v is None or v != v else str(v).strip() for column, v in row.items()}
