"""Run-length encoding of Label Studio's brush masks: the bytes of an RGBA image as a bit stream.

The header holds the number of values (32 bits), the bits per value minus one (5 bits), and the bits of four
count sizes minus one (4 bits each). Blocks follow. Each has one bit (1: a repeated value, 0: literal values),
two bits for the count size, the count minus one, and the value or values. The mask is the alpha channel.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

COUNT_SIZE_BITS = (3, 4, 8, 16)
CHANNELS = 4
ALPHA_THRESHOLD = 127  # strokes drawn in a browser have soft edges
MAX_MASK_VALUES = 1 << 30
_WINDOW_BYTES = 5

_IntArray = NDArray[np.int64]


def encode_mask(mask: NDArray[np.bool_]) -> list[int]:
    """Encode a mask ``(H, W)`` as the bytes of a brush stroke."""
    values, lengths = _run_lengths(mask.ravel())
    values, lengths = _split_runs(values, lengths * CHANNELS, 1 << COUNT_SIZE_BITS[-1])
    count_size = np.searchsorted(1 << np.array(COUNT_SIZE_BITS), lengths)
    bits = np.array(COUNT_SIZE_BITS, dtype=np.int64)[count_size]
    code = ((4 + count_size) << bits | (lengths - 1)) << 8 | np.where(values, 255, 0)
    header = np.array([mask.size * CHANNELS, 7, *(count - 1 for count in COUNT_SIZE_BITS)], dtype=np.int64)
    sizes = np.array([32, 5, *(4 for _ in COUNT_SIZE_BITS)], dtype=np.int64)
    packed = np.packbits(
        _concatenate_bits(np.concatenate([header, code]), np.concatenate([sizes, 3 + bits + 8]))
    )
    return [int(byte) for byte in packed]


def decode_mask(rle: Sequence[int], height: int, width: int) -> NDArray[np.bool_]:
    """Decode a brush stroke to a mask ``(height, width)``. Raise ValueError if it is invalid."""
    stream = _BitReader(rle)
    total, value_bits = stream.read_int(32), stream.read_int(5) + 1
    count_size_bits = [stream.read_int(4) + 1 for _ in COUNT_SIZE_BITS]
    if height < 1 or width < 1:
        raise ValueError(f"a mask cannot have the size {height} x {width}")
    if total != height * width * CHANNELS:
        raise ValueError(f"a mask of {height} x {width} has {height * width * CHANNELS} values, not {total}")
    if value_bits != 8 or total > MAX_MASK_VALUES:
        raise ValueError(
            f"a mask must have at most {MAX_MASK_VALUES} values of 8 bits, not {total} of {value_bits}"
        )
    flat = np.zeros(total, dtype=np.uint8)
    position = 0
    while position < total:
        repeated, count_size = stream.read_int(1), stream.read_int(2)
        count = stream.read_int(count_size_bits[count_size]) + 1
        if position + count > total:
            raise ValueError("a mask has more values than its header states")
        flat[position : position + count] = stream.read_int(8) if repeated else stream.read_bytes(count)
        position += count
    return flat.reshape(height, width, CHANNELS)[..., CHANNELS - 1] > ALPHA_THRESHOLD


def _run_lengths(flat: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], _IntArray]:
    """Return values and lengths of the runs of equal values."""
    starts = np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1]) + 1, [flat.size]])
    return flat[starts[:-1]], np.diff(starts)


def _split_runs(
    values: NDArray[np.bool_], lengths: _IntArray, max_length: int
) -> tuple[NDArray[np.bool_], _IntArray]:
    """Split runs longer than ``max_length``."""
    n_parts = -(-lengths // max_length)
    split = np.full(int(n_parts.sum()), max_length, dtype=np.int64)
    split[np.cumsum(n_parts) - 1] = lengths - (n_parts - 1) * max_length
    return np.repeat(values, n_parts), split


def _concatenate_bits(codes: _IntArray, sizes: _IntArray) -> NDArray[np.uint8]:
    """Concatenate the lowest ``sizes`` bits of each code, most significant bit first."""
    ends = np.repeat(np.cumsum(sizes), sizes)
    shift = ends - np.arange(ends.size) - 1
    return (np.repeat(codes, sizes) >> shift & 1).astype(np.uint8)


class _BitReader:
    """Bit reader that raises ValueError at the end of the data."""

    def __init__(self, values: Sequence[int]) -> None:
        if not isinstance(values, list | tuple):
            raise ValueError("a mask must be a list of bytes")
        try:
            raw = np.frombuffer(bytes(values), dtype=np.uint8)
        except (TypeError, ValueError) as error:
            raise ValueError(f"a mask must be a list of bytes ({error})") from error
        self._n_bits = raw.size * 8
        self._raw = np.concatenate([raw, np.zeros(_WINDOW_BYTES, np.uint8)]).astype(np.int64)
        # A window of bytes from each byte on: every number of up to 32 bits lies within one window.
        windows = np.zeros(raw.size + 1, dtype=np.int64)
        for offset in range(_WINDOW_BYTES):
            windows = windows << 8 | self._raw[offset : offset + windows.size]
        self._windows: list[int] = windows.tolist()
        self._position = 0

    def read_int(self, bits: int) -> int:
        """Read an unsigned integer of this many bits."""
        position = self._position
        self._position += bits
        if self._position > self._n_bits:
            raise ValueError("a mask is truncated")
        return (self._windows[position >> 3] >> (8 * _WINDOW_BYTES - (position & 7) - bits)) & (
            (1 << bits) - 1
        )

    def read_bytes(self, count: int) -> NDArray[np.uint8]:
        """Read this many 8-bit values."""
        first, shift = self._position >> 3, self._position & 7
        self._position += 8 * count
        if self._position > self._n_bits:
            raise ValueError("a mask is truncated")
        pairs = self._raw[first : first + count] << 8 | self._raw[first + 1 : first + count + 1]
        return (pairs >> (8 - shift) & 255).astype(np.uint8)
