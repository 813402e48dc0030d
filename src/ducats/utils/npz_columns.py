"""Named columns in an uncompressed ``.npz`` file, readable by ``np.load`` and memory-mappable."""

import mmap
import struct
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy

from ducats.utils import files

AnyArray = np.typing.NDArray[Any]
Columns = Mapping[str, tuple[AnyArray, np.typing.DTypeLike]]  # name -> values, and the dtype to store them in
READ_ERRORS = (  # raised for a corrupt file
    *(OSError, ValueError, KeyError, EOFError, BadZipFile, struct.error),
    *(TokenError, SyntaxError, NotImplementedError, ArithmeticError, zlib.error),
)

_CHUNK_VALUES = 1 << 22  # values converted at a time


def write_columns(path: Path, columns: Columns) -> None:
    """Write all columns atomically; a memory-mapped column is never loaded as a whole."""
    files.write_atomically(path, lambda file: write_archive(file, columns))


def write_archive(file: IO[bytes], columns: Columns) -> None:
    """Write all columns to an open file, see ``write_columns``."""
    with ZipFile(file, "w", ZIP_STORED) as archive:
        for name, (values, dtype) in columns.items():
            # ZipInfo without a date: equal columns give equal bytes.
            with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                descr = npy.dtype_to_descr(np.dtype(dtype))
                npy.write_array_header_1_0(
                    member, {"descr": descr, "fortran_order": False, "shape": values.shape}
                )
                flat = values.reshape(-1)
                for start in range(0, len(flat), _CHUNK_VALUES):
                    member.write(flat[start : start + _CHUNK_VALUES].astype(dtype).tobytes())


def read_columns(path: Path, mapped: Collection[str]) -> dict[str, AnyArray]:
    """Read a file's columns; those in ``mapped`` are memory-mapped.

    Args:
        mapped: names of long columns. The others are read at once, which verifies their checksums.

    Raises:
        READ_ERRORS: the file is corrupt.
    """
    found = {}
    with path.open("rb") as file, ZipFile(file) as archive:
        file_map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # one for all, to save descriptors
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name in mapped and info.compress_type == ZIP_STORED:
                found[name] = _map_member(file, file_map, info)
            else:
                with archive.open(info) as member:
                    found[name] = npy.read_array(member, allow_pickle=False)
    return found


def _map_member(file: IO[bytes], file_map: mmap.mmap, info: ZipInfo) -> AnyArray:
    """Memory-map a member; zipfile has no API for the offset of its data."""
    file.seek(info.header_offset)
    name, extra = struct.unpack("<26xHH", file.read(30))
    file.seek(info.header_offset + 30 + name + extra)
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{info.filename} has the unknown version {version}")
    header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, kind = header(file)
    count = int(np.prod(shape))
    if not count:
        return np.empty(shape, kind)
    return np.frombuffer(file_map, kind, count, file.tell()).reshape(shape)
