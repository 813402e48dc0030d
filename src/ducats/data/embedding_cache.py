"""Embeddings of images on disk, shared by all runs. Imports no torch.

An embedding space is one backbone with its weights and one view of the images. Each space is a folder with
two append-only files: ``rows.bin`` (the embeddings) and ``keys.bin`` (the digest of each image and a checksum
of its row). A row counts once its key is written, so a killed process loses at most the rows of its last call
of `EmbeddingSpace.append`. An index of files is such a folder, too: its keys are digests of files, its rows
those of the decoded pixels.
"""

import hashlib
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ducats.utils.errors import UserError
from ducats.utils.files import explain_errors, lock_beside, write_text_atomically

FORMAT_VERSION = 1
KEY_BYTES = 16  # of the digest of an image
_KEY = np.dtype([("key", f"V{KEY_BYTES}"), ("crc", "<u4")])
_DESCRIPTION, _KEYS, _ROWS = "space.json", "keys.bin", "rows.bin"

Rows = NDArray[np.float32] | NDArray[np.float16]
RowType = Literal["<f4", "<f2", "u1"]  # of an embedding, of feature maps, of an index of files
Digests = NDArray[np.uint8]  # (N, KEY_BYTES)


def default_cache_folder() -> Path:
    """Return the folder of the cache: $DUCATS_CACHE, or ``ducats`` in the user's cache folder."""
    if own := os.environ.get("DUCATS_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ducats"


class EmbeddingSpace:
    """Stored embeddings of one backbone and one view.

    Args:
        description: what the embeddings depend on besides the image; JSON values.
        width: number of values of an embedding.
        dtype: of a value.
    """

    def __init__(
        self, folder: Path, description: Mapping[str, Any], width: int, dtype: RowType = "<f4"
    ) -> None:
        self.folder, self.width, self._dtype = folder, width, np.dtype(dtype)
        self._index: _Index | None = None
        self._n_seen = 0  # rows at the last lookup
        self._description = {**description, "width": width}
        self._mark_used()

    def _mark_used(self) -> None:
        """Set the time of the last use, which is that of the description."""
        path = self.folder / _DESCRIPTION
        with lock_beside(path), explain_errors(path):
            if path.exists():
                path.touch()
            else:
                write_text_atomically(path, json.dumps(self._description, indent=1))

    def __len__(self) -> int:
        """Return the number of complete rows."""
        n_keys = _size(self.folder / _KEYS) // _KEY.itemsize
        return min(n_keys, _size(self.folder / _ROWS) // self._row_bytes)

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows."""
        return len(self) * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        return self.width * self._dtype.itemsize

    def lookup(self, keys: Sequence[bytes], out: Rows | Digests | None) -> NDArray[np.bool_]:
        """Copy the embeddings of known images to their rows of ``out``; return which are known.

        A row that does not match its checksum is treated as unknown.

        Args:
            out: None to read no rows, and to check no checksums.
        """
        found, count = np.zeros(len(keys), bool), len(self)
        self._n_seen = count
        if not count or not len(keys):
            return found
        if self._index is None or not self._index.fits(count):
            self._index = _Index(np.fromfile(self.folder / _KEYS, _KEY, count))
        stored = np.memmap(self.folder / _ROWS, self._dtype, "r", shape=(count, self.width))
        for number, key in enumerate(keys):
            row, crc = self._index.find(key)
            if row is None or row >= count:
                continue
            if out is None:
                found[number] = True
            elif zlib.crc32(stored[row].data) == crc:
                out[number], found[number] = stored[row], True
        return found

    def append(self, keys: Sequence[bytes], rows: Rows | Digests) -> None:
        """Store embeddings; other processes may append at the same time.

        Those that other processes have appended since the last lookup are not stored again.
        """
        rows = np.ascontiguousarray(rows, self._dtype)
        index = np.array(
            [(key, zlib.crc32(row.tobytes())) for key, row in zip(keys, rows, strict=True)], _KEY
        )
        self._mark_used()  # `ducats cache --clear` may have removed it meanwhile
        with explain_errors(self.folder / _ROWS), lock_beside(self.folder / _ROWS):
            count = len(self)  # what a killed process left behind is overwritten
            if count > self._n_seen:
                offset = self._n_seen * _KEY.itemsize
                others = np.fromfile(self.folder / _KEYS, _KEY, count - self._n_seen, offset=offset)
                is_new = ~np.isin(_heads(index["key"]), _heads(others["key"]))
                rows, index = rows[is_new], index[is_new]
            self._n_seen = count + len(index)
            for name, array, row_bytes in ((_ROWS, rows, self._row_bytes), (_KEYS, index, _KEY.itemsize)):
                path = self.folder / name
                with path.open("r+b" if path.exists() else "w+b") as file:
                    file.truncate(count * row_bytes)
                    file.seek(0, os.SEEK_END)
                    file.write(array.tobytes())
                    file.flush()
                    os.fsync(file.fileno())


class _Index:
    """Positions of keys in a file, in 24 bytes per key."""

    MAX_UNREAD_SHARE = 0.1  # rows may be added by this process and others before the file is read again

    def __init__(self, entries: NDArray[np.void]) -> None:
        self._count, self._entries = len(entries), entries
        heads = _heads(entries["key"])
        self._order = np.argsort(heads, kind="stable").astype(np.int64)
        self._heads = heads[self._order]

    def fits(self, count: int) -> bool:
        """Return whether the index is recent enough for a file of so many rows."""
        return self._count <= count <= (1 + self.MAX_UNREAD_SHARE) * self._count

    def find(self, key: bytes) -> tuple[int | None, int]:
        """Return row and checksum of a key; None if it is unknown. The latest row wins."""
        head = _heads(np.frombuffer(key, f"V{KEY_BYTES}"))[0]
        last = int(np.searchsorted(self._heads, head, side="right")) - 1
        if last < 0 or self._heads[last] != head:
            return None, 0
        row = int(self._order[last])
        entry = self._entries[row]
        return (row, int(entry["crc"])) if entry["key"].tobytes() == key else (None, 0)


def _heads(keys: NDArray[np.void]) -> NDArray[np.uint64]:
    """Return the first 8 bytes of each key as a number."""
    return np.ascontiguousarray(keys).view(np.uint64).reshape(-1, KEY_BYTES // 8)[:, 0].copy()


@dataclass(frozen=True)
class SpaceInfo:
    """A stored embedding space, for listings."""

    folder: Path
    description: Mapping[str, Any]
    images: int
    size_bytes: int
    last_used: float  # seconds since the epoch

    @property
    def is_file_index(self) -> bool:
        """Whether it holds no embeddings, but the digests of decoded files."""
        return "decoder" in self.description


class EmbeddingCache:
    """Folder of embedding spaces with a largest size.

    Args:
        folder: None for the default folder.
        max_gb: gigabytes (2**30 bytes); 0 stores nothing.
    """

    def __init__(self, folder: str | Path | None = None, max_gb: float = 20.0) -> None:
        self.folder = default_cache_folder() if folder is None else Path(folder).expanduser()
        self.max_bytes = int(max_gb * 2**30)

    @property
    def _spaces_folder(self) -> Path:
        return self.folder / "embeddings"

    def open(self, description: Mapping[str, Any], width: int, dtype: RowType = "<f4") -> EmbeddingSpace:
        """Open a space, which is created if missing."""
        name = f"{description.get('backbone', '')}-{description.get('view_name', '')}"
        return self._open(name, description, width, dtype)

    def open_file_index(self, decoder: object) -> EmbeddingSpace:
        """Open the index of files of one decoder, described by JSON values."""
        return self._open("files", {"decoder": decoder}, KEY_BYTES, "u1")

    def _open(self, name: str, description: Mapping[str, Any], width: int, dtype: RowType) -> EmbeddingSpace:
        described = {"version": FORMAT_VERSION, **description}
        if dtype == "<f2":
            described["dtype"] = dtype
        text = json.dumps([described, width], sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        name = re.sub(r"[^\w.]+", "-", name)
        return EmbeddingSpace(self._spaces_folder / f"{name}-{digest}".strip("-"), described, width, dtype)

    def make_room(self, n_bytes: int, keep: Sequence[EmbeddingSpace]) -> bool:
        """Remove spaces, least recently used first, until so much more fits; return False if it cannot.

        Args:
            keep: spaces that are in use.
        """
        spaces = self.spaces()
        total = sum(space.size_bytes for space in spaces) + n_bytes
        in_use = {space.folder for space in keep}
        removable = [space for space in spaces if space.folder not in in_use]
        if total - sum(space.size_bytes for space in removable) > self.max_bytes:
            return False
        for space in removable:
            if total <= self.max_bytes:
                break
            self.remove(space)
            total -= space.size_bytes
        return True

    def spaces(self) -> list[SpaceInfo]:
        """Return the stored spaces, least recently used first."""
        found = []
        for folder in sorted(self._spaces_folder.glob("*/")):
            try:
                description = json.loads((folder / _DESCRIPTION).read_bytes())
                last_used = (folder / _DESCRIPTION).stat().st_mtime
            except (OSError, ValueError):  # removed meanwhile, or corrupt
                description, last_used = {}, 0.0
            size = sum(_size(path) for path in folder.iterdir()) if folder.is_dir() else 0
            images = _size(folder / _KEYS) // _KEY.itemsize
            found.append(SpaceInfo(folder, description, images, size, last_used))
        return sorted(found, key=lambda space: space.last_used)

    def remove(self, space: SpaceInfo) -> None:
        """Delete a space."""
        shutil.rmtree(space.folder, ignore_errors=True)
        if (space.folder / _ROWS).exists():
            raise UserError(f"{space.folder} cannot be removed; check its permissions")

    def clear(self, *, unused_days: float = 0.0) -> list[SpaceInfo]:
        """Delete the spaces that were not used for so many days; return them."""
        before = time.time() - unused_days * 86400
        removed = [space for space in self.spaces() if space.last_used <= before]
        for space in removed:
            self.remove(space)
        return removed


def digest_pixels(pixels: NDArray[np.uint8]) -> bytes:
    """Return the digest of a decoded image."""
    digest = hashlib.blake2b(pixels.tobytes(), digest_size=KEY_BYTES)
    digest.update(repr((pixels.shape, None)).encode())
    return digest.digest()


def image_key(digest: bytes, aspect: float | None = None) -> bytes:
    """Return the key of an image from the digest of its pixels and, if the view depends on it, its aspect."""
    if aspect is None:
        return digest
    return hashlib.blake2b(digest + repr(aspect).encode(), digest_size=KEY_BYTES).digest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
