"""Read and decode blocks of samples in threads, ahead of the model, in order and in bounded memory."""

import queue
import threading
import warnings
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ducats.data.decoding import decode_image_bytes
from ducats.data.store import ReadFailure, try_file
from ducats.data.streaming import PoolSample
from ducats.settings import Interpolation
from ducats.utils.image_files import ValueRange, displayed_size

PREFETCH_BLOCKS = 4  # blocks decoded in advance
MAX_HELD_BYTES = 2**28  # content of samples that wait to be decoded, before more is read

DecodedImage = tuple[NDArray[np.uint8], float]  # pixels (channels, height, width) and original width / height
# The key and index of each sample, not the sample itself: a sample of a shard holds its file content.
_PendingBlock = tuple[list[tuple[str, int]], list["Future[DecodedImage | ReadFailure]"]]


class DecodedBlock(NamedTuple):
    """Decoded samples that form one batch."""

    key: list[str]  # readable samples only
    pool_index: list[int]
    pixels: Tensor  # uint8 (N, channels, height, width)
    aspect: Tensor  # float32 (N,), width / height before resizing
    unreadable: list[tuple[str, str]]  # keys and reasons


def decode_sample(
    sample: PoolSample,
    size: tuple[int, int],
    channels: int,
    value_range: ValueRange | None = None,
    interpolation: Interpolation = "bicubic",
) -> DecodedImage:
    """Read a sample and decode it as `ducats predict` does."""
    data = sample.read()
    pixels = decode_image_bytes(data, size, channels, value_range, interpolation)
    height, width = displayed_size(BytesIO(data))
    return pixels, width / height


def decode_blocks(
    blocks: Iterable[Iterable[PoolSample]], decode: Callable[[PoolSample], DecodedImage], threads: int
) -> Generator[DecodedBlock, None, None]:
    """Yield each block decoded, in order; unreadable samples are listed separately.

    Args:
        blocks: iterated in a separate thread.
        decode: decodes a sample; any exception marks the sample unreadable.
        threads: number of decoding threads.
    """
    ready: queue.Queue[_PendingBlock | BaseException | None] = queue.Queue(PREFETCH_BLOCKS)
    stopped, held = threading.Event(), _HeldBytes()

    def put(item: _PendingBlock | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                break
            except queue.Full:
                continue

    def decode_and_release(sample: PoolSample) -> DecodedImage | ReadFailure:
        try:
            return try_file(decode, sample)
        finally:
            held.add(-sample.n_bytes)

    def submit_blocks() -> None:
        try:
            for block in blocks:
                names, futures = list[tuple[str, int]](), list["Future[DecodedImage | ReadFailure]"]()
                for sample in block:
                    names.append((sample.key, sample.pool_index))
                    held.add(sample.n_bytes)
                    futures.append(executor.submit(decode_and_release, sample))
                    del sample
                    held.wait(stopped)
                put((names, futures))
                if stopped.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as executor:
        # Pillow warns of odd metadata and large images without naming the file.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        feeder = threading.Thread(target=submit_blocks, daemon=True, name="ducats-pool")
        feeder.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield _collect_block(*item)
        finally:
            stopped.set()
            feeder.join()
            executor.shutdown(cancel_futures=True)


class _HeldBytes:
    """Counts the content of samples that are read but not decoded."""

    def __init__(self) -> None:
        self._bytes, self._changed = 0, threading.Condition()

    def add(self, count: int) -> None:
        """Add to the count."""
        with self._changed:
            self._bytes += count
            self._changed.notify_all()

    def wait(self, stopped: threading.Event) -> None:
        """Wait until more may be read, or the reader is stopped."""
        with self._changed:
            while self._bytes > MAX_HELD_BYTES and not stopped.is_set():
                self._changed.wait(0.1)


def _collect_block(
    names: list[tuple[str, int]], futures: "list[Future[DecodedImage | ReadFailure]]"
) -> DecodedBlock:
    readable, failed = list[tuple[str, int, DecodedImage]](), list[tuple[str, str]]()
    for (key, pool_index), future in zip(names, futures, strict=True):
        outcome = future.result()
        if isinstance(outcome, ReadFailure):
            failed.append((key, outcome.reason))
        else:
            readable.append((key, pool_index, outcome))
    if not readable:
        return DecodedBlock([], [], torch.empty(0, 1, 1, 1, dtype=torch.uint8), torch.empty(0), failed)
    keys, indices, images = zip(*readable, strict=True)
    pixels = torch.from_numpy(np.stack([image for image, _ in images]))
    aspect = torch.tensor([aspect for _, aspect in images], dtype=torch.float32)
    return DecodedBlock(list(keys), list(indices), pixels, aspect, failed)
