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
from ducats.utils.image_files import ValueRange, displayed_size

PREFETCH_BLOCKS = 4  # blocks decoded in advance

DecodedImage = tuple[NDArray[np.uint8], float]  # pixels (channels, height, width) and original width / height
_PendingBlock = tuple[list[PoolSample], list["Future[DecodedImage | ReadFailure]"]]


class DecodedBlock(NamedTuple):
    """Decoded samples that form one batch."""

    key: list[str]  # readable samples only
    pool_index: list[int]
    pixels: Tensor  # uint8 (N, channels, height, width)
    aspect: Tensor  # float32 (N,), width / height before resizing
    unreadable: list[tuple[str, str]]  # keys and reasons


def decode_sample(
    sample: PoolSample, size: tuple[int, int], channels: int, value_range: ValueRange | None = None
) -> DecodedImage:
    """Read a sample and decode it as `ducats predict` does."""
    data = sample.read()
    pixels = decode_image_bytes(data, size, channels, value_range)
    height, width = displayed_size(BytesIO(data))
    return pixels, width / height


def decode_blocks(
    blocks: Iterable[list[PoolSample]], decode: Callable[[PoolSample], DecodedImage], threads: int
) -> Generator[DecodedBlock, None, None]:
    """Yield each block decoded, in order; unreadable samples are listed separately.

    Args:
        blocks: iterated in a separate thread.
        decode: decodes a sample; any exception marks the sample unreadable.
        threads: number of decoding threads.
    """
    ready: queue.Queue[_PendingBlock | BaseException | None] = queue.Queue(PREFETCH_BLOCKS)
    stopped = threading.Event()

    def put(item: _PendingBlock | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                break
            except queue.Full:
                continue

    def submit_blocks() -> None:
        try:
            for block in blocks:
                put((block, [executor.submit(try_file, decode, sample) for sample in block]))
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


def _collect_block(
    samples: list[PoolSample], futures: "list[Future[DecodedImage | ReadFailure]]"
) -> DecodedBlock:
    readable, failed = list[tuple[PoolSample, DecodedImage]](), list[tuple[str, str]]()
    for sample, future in zip(samples, futures, strict=True):
        outcome = future.result()
        if isinstance(outcome, ReadFailure):
            failed.append((sample.key, outcome.reason))
        else:
            readable.append((sample, outcome))
    if not readable:
        return DecodedBlock([], [], torch.empty(0, 1, 1, 1, dtype=torch.uint8), torch.empty(0), failed)
    pixels = torch.from_numpy(np.stack([image for _, (image, _) in readable]))
    aspect = torch.tensor([aspect for _, (_, aspect) in readable], dtype=torch.float32)
    # Do not keep the samples: a sample of a shard holds its file content.
    return DecodedBlock(
        [s.key for s, _ in readable], [s.pool_index for s, _ in readable], pixels, aspect, failed
    )
