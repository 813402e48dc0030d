"""Label Studio's mask format, compared with a bit-by-bit decoder."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from ducats.annotation.label_studio.rle import decode_mask, encode_mask


def decode_values(rle: Sequence[int]) -> list[int]:
    """Decode all values of a stream bit by bit, following the format."""
    bits = "".join(f"{byte:08b}" for byte in rle)
    position = 0

    def number(size: int) -> int:
        nonlocal position
        position += size
        return int(bits[position - size : position], 2)

    total, word = number(32), number(5) + 1
    count_sizes = [number(4) + 1 for _ in range(4)]
    values: list[int] = []
    while len(values) < total:
        repeated = number(1)
        count = number(count_sizes[number(2)]) + 1
        values += [number(word)] * count if repeated else [number(word) for _ in range(count)]
    return values


def encode_random_blocks(
    values: Sequence[int], seed: int, count_sizes: Sequence[int] = (3, 4, 8, 16)
) -> list[int]:
    """Encode values in random blocks, literal or repeated, as another encoder might."""
    rng = random.Random(seed)
    bits = f"{len(values):032b}{7:05b}" + "".join(f"{kind - 1:04b}" for kind in count_sizes)
    start = 0
    while start < len(values):
        kind = rng.randrange(4)
        max_count = min(1 << count_sizes[kind], len(values) - start)
        same = next((n for n in range(1, max_count) if values[start + n] != values[start]), max_count)
        if rng.random() < 0.5:
            count = rng.randint(1, same)
            bits += f"1{kind:02b}{count - 1:0{count_sizes[kind]}b}{values[start]:08b}"
        else:
            count = rng.randint(1, min(max_count, 40))
            literal = "".join(f"{value:08b}" for value in values[start : start + count])
            bits += f"0{kind:02b}{count - 1:0{count_sizes[kind]}b}{literal}"
        start += count
    return to_bytes(bits)


def to_bytes(bits: str) -> list[int]:
    return [int(bits[start : start + 8].ljust(8, "0"), 2) for start in range(0, len(bits), 8)]


@given(arrays(np.bool_, array_shapes(min_dims=2, max_dims=2, max_side=24)))
def test_encoded_masks_are_decoded_by_both_decoders(mask: NDArray[np.bool_]) -> None:
    rle = encode_mask(mask)
    assert all(type(byte) is int and 0 <= byte < 256 for byte in rle)
    expected = np.where(mask, 255, 0)[..., None].repeat(4, axis=-1)  # red, green, blue, alpha
    assert decode_values(rle) == expected.ravel().tolist()
    assert np.array_equal(decode_mask(rle, *mask.shape), mask)


def test_runs_longer_than_the_largest_count() -> None:
    mask = np.zeros((300, 200), dtype=np.bool_)
    mask[100:290] = True  # 4 x 38 000 values; a count is at most 65 536
    rle = encode_mask(mask)
    assert np.array_equal(decode_mask(rle, 300, 200), mask)
    assert len(rle) < 60
    assert np.array_equal(np.array(decode_values(rle)).reshape(300, 200, 4)[..., 3] == 255, mask)


@given(
    arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(4))),
    st.integers(0, 2**32),
    st.lists(st.integers(1, 16), min_size=4, max_size=4),
)
def test_streams_of_other_encoders(pixels: NDArray[np.uint8], seed: int, count_sizes: list[int]) -> None:
    rle = encode_random_blocks(pixels.ravel().tolist(), seed, count_sizes)
    assert decode_values(rle) == pixels.ravel().tolist()
    # Strokes drawn in a browser have soft edges: alpha above 127 is inside.
    assert np.array_equal(decode_mask(rle, *pixels.shape[:2]), pixels[..., 3] > 127)


SIZES = "00111" + "0010" + "0011" + "0111" + "1111"  # bits per value and per count, minus one


def test_a_mask_encoded_by_hand() -> None:
    # Two pixels, 8 values: the header, 4 zeros, 4 times 255.
    rle = to_bytes(f"{8:032b}" + SIZES + "1" + "00" + "011" + "00000000" + "1" + "00" + "011" + "11111111")
    assert encode_mask(np.array([[False, True]])) == rle
    assert decode_mask(rle, 1, 2).tolist() == [[False, True]]


@given(st.lists(st.integers(0, 255), max_size=40))
def test_invalid_data_raises_value_error(rle: list[int]) -> None:
    with pytest.raises(ValueError):
        decode_mask(rle, 50, 3)


def test_truncated_wrong_size_and_wrong_type() -> None:
    rle = encode_mask(np.eye(9, dtype=np.bool_))
    for end in range(len(rle) - 1):
        with pytest.raises(ValueError):
            decode_mask(rle[:end], 9, 9)
    fewer_than_in_the_block = to_bytes(f"{4:032b}" + SIZES + "000" + "111" + "00000000" * 8)
    for values, size, words in (
        (encode_mask(np.eye(8, dtype=np.bool_)), 9, "324 values, not"),
        ([300], 9, "list of bytes"),
        (fewer_than_in_the_block, 1, "more values than its header"),
    ):
        with pytest.raises(ValueError, match=words):
            decode_mask(values, size, size)
