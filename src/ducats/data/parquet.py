"""Tables in Parquet files, read in bounded memory: a small file can hold many large cells."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

from ducats.utils.errors import UserError

MAX_BATCH_ROWS = 2**16  # rows in memory at a time
MAX_BATCH_BYTES = 2**26  # the same bound in bytes, for large cells
MAX_CELL_BYTES = 2**13  # of a path, key or label
_CONVERTED_ROWS = 2**10  # rows that are Python objects at a time


def open_parquet(name: str, file: IO[bytes] | Path) -> Any:
    """Return a ``pyarrow.parquet.ParquetFile`` whose text columns are read as dictionaries.

    A dictionary has each different value once, however often it occurs.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"reading {name} needs pyarrow; run pip install 'ducats[parquet]' or save the table as CSV"
        ) from None
    try:
        table = pyarrow.parquet.ParquetFile(file)
        text_columns = [field.name for field in table.schema_arrow if pyarrow.types.is_string(field.type)]
        return pyarrow.parquet.ParquetFile(file, metadata=table.metadata, read_dictionary=text_columns)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"table {name} is not a valid Parquet file ({error}); write it again") from None


def parquet_batches(name: str, table: Any, columns: Collection[str]) -> Iterator[tuple[int, Any]]:
    """Yield batches of rows with some of the columns, each with the index of its first row."""
    start, used = 0, [column for column in table.schema_arrow.names if column in columns]
    batches = table.iter_batches(batch_size=_batch_rows(table.metadata), columns=used)
    while True:
        try:
            batch = next(batches, None)
        except Exception as error:  # from Arrow, a remote file system, or the operating system
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(
                f"table {name} is corrupt after row {start} ({reason}); write it again"
            ) from error
        if batch is None:
            return
        _check_cells(name, start, batch)
        yield start, batch
        start += len(batch)


def batch_rows(batch: Any, start: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch from ``start`` to ``stop``."""
    stop = len(batch) if stop is None else stop
    for first in range(start, stop, _CONVERTED_ROWS):
        part = batch.slice(first, min(_CONVERTED_ROWS, stop - first))
        columns = [
            (column.dictionary_decode() if hasattr(column, "dictionary") else column).to_pylist()
            for column in part.columns
        ]
        for cells in zip(*columns, strict=True):
            yield dict(zip(part.schema.names, cells, strict=True))


def _batch_rows(metadata: Any) -> int:
    """Return the number of rows whose cells take at most ``MAX_BATCH_BYTES``, as far as the table tells."""
    row_bytes = 1.0
    for index in range(metadata.num_row_groups):
        # Of all columns: Arrow aborts the process if the metadata of a single one is corrupt.
        group = metadata.row_group(index)
        row_bytes = max(row_bytes, group.total_byte_size / max(1, group.num_rows))
    return max(1, min(MAX_BATCH_ROWS, int(MAX_BATCH_BYTES / row_bytes)))


def _check_cells(name: str, start: int, batch: Any) -> None:
    import pyarrow.compute
    from pyarrow import types

    for column, array in zip(batch.schema.names, batch.columns, strict=True):
        values = array.dictionary if types.is_dictionary(array.type) else array
        if types.is_nested(values.type):
            raise UserError(
                f"table {name} has a column {column!r} of type {values.type}; it must be text or numbers"
            )
        try:
            values.validate(full=True)
        except pyarrow.ArrowInvalid:
            raise UserError(
                f"table {name} has text in the column {column!r} that is not UTF-8, after row {start}; write "
                "it again as UTF-8"
            ) from None
        is_text = any(
            test(values.type)
            for test in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
        )
        longest = (pyarrow.compute.max(pyarrow.compute.binary_length(values)).as_py() or 0) if is_text else 0
        if longest > MAX_CELL_BYTES:
            raise UserError(
                f"table {name} has a cell of {longest} bytes in the column {column!r}, after row {start}; "
                f"shorten it to at most {MAX_CELL_BYTES} bytes"
            )
