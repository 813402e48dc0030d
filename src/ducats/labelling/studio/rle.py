"""Run-length encoding of Label Studio's brush masks: the bytes of an RGBA image as a bit stream.

The header holds the number of values (32 bits), the bits per value minus one (5 bits), and the bits of four
count sizes minus one (4 bits each). Blocks follow. Each has one bit (1: a repeated value, 0: literal values),
two bits for the count size, the count minus one, and the value or values. The mask is the alpha channel.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

COUNT_BITS = (3, 4, 8, 16)
CHANNELS = 4
INSIDE = 127  # alpha threshold; strokes drawn in a browser have soft edges
MOST = 1 << 30  # maximum number of values in a mask
_WINDOW = 5  # bytes

Numbers = NDArray[np.int64]


def encode(mask: NDArray[np.bool_]) -> list[int]:
    """Encode a mask ``(H, W)`` as the bytes of a brush stroke."""
    values, lengths = _runs(mask.ravel())
    values, lengths = _split(values, lengths * CHANNELS, 1 << COUNT_BITS[-1])
    kind = np.searchsorted(1 << np.array(COUNT_BITS), lengths)
    bits = np.array(COUNT_BITS, dtype=np.int64)[kind]
    code = ((4 + kind) << bits | (lengths - 1)) << 8 | np.where(values, 255, 0)
    head = np.array([mask.size * CHANNELS, 7, *(count - 1 for count in COUNT_BITS)], dtype=np.int64)
    sizes = np.array([32, 5, *(4 for _ in COUNT_BITS)], dtype=np.int64)
    packed = np.packbits(_bits(np.concatenate([head, code]), np.concatenate([sizes, 3 + bits + 8])))
    return [int(byte) for byte in packed]


def decode(rle: Sequence[int], height: int, width: int) -> NDArray[np.bool_]:
    """Decode a brush stroke to a mask ``(height, width)``. Raise ValueError if it is invalid."""
    stream = _Stream(rle)
    total, word = stream.take(32), stream.take(5) + 1
    kinds = [stream.take(4) + 1 for _ in COUNT_BITS]
    if height < 1 or width < 1:
        raise ValueError(f"a mask cannot have the size {height} x {width}")
    if total != height * width * CHANNELS:
        raise ValueError(f"a mask of {height} x {width} has {height * width * CHANNELS} values, not {total}")
    if word != 8 or total > MOST:
        raise ValueError(f"a mask must have at most {MOST} values of 8 bits, not {total} of {word}")
    flat = np.zeros(total, dtype=np.uint8)
    at = 0
    while at < total:
        repeated, kind = stream.take(1), stream.take(2)
        count = stream.take(kinds[kind]) + 1
        if at + count > total:
            raise ValueError("a mask has more values than its header states")
        flat[at : at + count] = stream.take(8) if repeated else stream.bytes(count)
        at += count
    return flat.reshape(height, width, CHANNELS)[..., CHANNELS - 1] > INSIDE


def _runs(flat: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Numbers]:
    """Return values and lengths of the runs of equal values."""
    starts = np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1]) + 1, [flat.size]])
    return flat[starts[:-1]], np.diff(starts)


def _split(values: NDArray[np.bool_], lengths: Numbers, most: int) -> tuple[NDArray[np.bool_], Numbers]:
    """Split runs longer than ``most``."""
    parts = -(-lengths // most)
    split = np.full(int(parts.sum()), most, dtype=np.int64)
    split[np.cumsum(parts) - 1] = lengths - (parts - 1) * most
    return np.repeat(values, parts), split


def _bits(codes: Numbers, sizes: Numbers) -> NDArray[np.uint8]:
    """Concatenate the lowest ``sizes`` bits of each code, most significant bit first."""
    ends = np.repeat(np.cumsum(sizes), sizes)
    left = ends - np.arange(ends.size) - 1
    return (np.repeat(codes, sizes) >> left & 1).astype(np.uint8)


class _Stream:
    """Bit reader that raises ValueError at the end of the data."""

    def __init__(self, values: Sequence[int]) -> None:
        if not isinstance(values, list | tuple):
            raise ValueError("a mask must be a list of bytes")
        try:
            raw = np.frombuffer(bytes(values), dtype=np.uint8)
        except (TypeError, ValueError) as error:
            raise ValueError(f"a mask must be a list of bytes ({error})") from error
        self._end = raw.size * 8
        self._raw = np.concatenate([raw, np.zeros(_WINDOW, np.uint8)]).astype(np.int64)
        # A window of bytes from each byte on: every number of up to 32 bits lies within one window.
        words = np.zeros(raw.size + 1, dtype=np.int64)
        for offset in range(_WINDOW):
            words = words << 8 | self._raw[offset : offset + words.size]
        self._words: list[int] = words.tolist()
        self._at = 0

    def take(self, bits: int) -> int:
        """Read an unsigned integer of this many bits."""
        at = self._at
        self._at += bits
        if self._at > self._end:
            raise ValueError("a mask is truncated")
        return (self._words[at >> 3] >> (8 * _WINDOW - (at & 7) - bits)) & ((1 << bits) - 1)

    def bytes(self, count: int) -> NDArray[np.uint8]:
        """Read this many 8-bit values."""
        first, shift = self._at >> 3, self._at & 7
        self._at += 8 * count
        if self._at > self._end:
            raise ValueError("a mask is truncated")
        pairs = self._raw[first : first + count] << 8 | self._raw[first + 1 : first + count + 1]
        return (pairs >> (8 - shift) & 255).astype(np.uint8)
