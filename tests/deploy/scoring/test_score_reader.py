import io
import threading
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from ducats.data.streaming import PoolSample
from ducats.deploy.scoring import reader
from ducats.deploy.scoring.reader import PREFETCH_BLOCKS, DecodedImage, decode_blocks


def samples(count: int) -> list[PoolSample]:
    return [PoolSample(str(number), number, lambda: b"") for number in range(count)]


def decode_constant(sample: PoolSample) -> DecodedImage:
    return np.full((1, 2, 2), sample.pool_index % 256, np.uint8), 1.0


def test_blocks_are_in_order_and_prefetch_is_bounded() -> None:
    started, finished = 0, 0

    def blocks() -> Iterator[list[PoolSample]]:
        nonlocal started
        for sample in samples(100):
            started += 1
            yield [sample, sample]

    for number, block in enumerate(decode_blocks(blocks(), decode_constant, threads=3)):
        finished += 1
        assert block.pool_index == [number, number]
        assert block.pixels[:, 0, 0, 0].tolist() == [number, number]
        # PREFETCH_BLOCKS in the queue, one held by the consumer, one by the producer.
        assert started - finished <= PREFETCH_BLOCKS + 2
    assert finished == 100


def test_content_that_waits_to_be_decoded_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also within a block: samples are decoded while the rest of their block is still being read."""
    monkeypatch.setattr(reader, "MAX_HELD_BYTES", 25)
    lock, held, most = threading.Lock(), 0, 0

    def block() -> Iterator[PoolSample]:
        nonlocal held, most
        for sample in samples(40):
            with lock:
                held += 10
                most = max(most, held)
            yield sample._replace(n_bytes=10)

    def decode(sample: PoolSample) -> DecodedImage:
        nonlocal held
        with lock:
            held -= 10
        return decode_constant(sample)

    (decoded,) = decode_blocks([block()], decode, threads=1)
    assert decoded.pool_index == list(range(40))
    assert most <= 25 + 10 + 10  # one above the limit, and one that is being decoded


def test_listing_error_is_raised_after_earlier_blocks() -> None:
    def blocks() -> Iterator[list[PoolSample]]:
        yield samples(2)
        raise RuntimeError("the table is corrupt")

    stream = decode_blocks(blocks(), decode_constant, threads=1)
    assert len(next(stream).key) == 2
    with pytest.raises(RuntimeError, match="corrupt"):
        next(stream)
    assert "ducats-pool" not in [thread.name for thread in threading.enumerate()]


def test_closing_early_stops_all_threads() -> None:
    stream = decode_blocks(([sample] for sample in samples(1000)), decode_constant, threads=2)
    next(stream)
    assert "ducats-pool" in [thread.name for thread in threading.enumerate()]
    stream.close()
    left = [thread.name for thread in threading.enumerate()]
    assert not [name for name in left if name.startswith(("ducats-pool", "ThreadPoolExecutor"))]


def test_pillow_warnings_are_suppressed() -> None:
    def odd(sample: PoolSample) -> DecodedImage:
        warnings.warn_explicit("odd metadata", UserWarning, "Tiff.py", 1, module="PIL.TiffImagePlugin")
        return decode_constant(sample)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (block,) = decode_blocks([samples(3)], odd, threads=1)
    assert (len(block.key), caught) == (3, [])


def test_aspect_respects_exif_orientation() -> None:
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6  # rotated by 90 degrees
    Image.new("RGB", (30, 20), "red").save(file, "JPEG", exif=exif)
    pixels, aspect = reader.decode_sample(PoolSample("x", 0, file.getvalue), (4, 5), 3)
    assert (pixels.shape, aspect) == ((3, 4, 5), 20 / 30)
