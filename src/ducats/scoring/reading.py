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
from ducats.image_files import displayed_size
from ducats.pool import Sample

AHEAD = 4  # blocks decoded in advance

Picture = tuple[NDArray[np.uint8], float]  # pixels (channels, height, width) and original width / height
Begun = tuple[list[Sample], list["Future[Picture | ReadFailure]"]]


class Block(NamedTuple):
    """Decoded samples that form one batch."""

    key: list[str]  # readable samples only
    number: list[int]
    pixels: Tensor  # uint8 (N, channels, height, width)
    aspect: Tensor  # float32 (N,), width / height before resizing
    unreadable: list[tuple[str, str]]  # keys and reasons


def picture_of(sample: Sample, size: tuple[int, int], channels: int) -> Picture:
    """Read a sample and decode it as `ducats predict` does."""
    data = sample.read()
    pixels = decode_image_bytes(data, size, channels)
    height, width = displayed_size(BytesIO(data))
    return pixels, width / height


def decoded(
    blocks: Iterable[list[Sample]], work: Callable[[Sample], Picture], threads: int
) -> Generator[Block, None, None]:
    """Yield each block decoded, in order; unreadable samples are listed separately.

    Args:
        blocks: iterated in a separate thread.
        work: decodes a sample; any exception marks the sample unreadable.
        threads: number of decoding threads.
    """
    ready: queue.Queue[Begun | BaseException | None] = queue.Queue(AHEAD)
    left = threading.Event()

    def put(item: Begun | BaseException | None) -> None:
        while not left.is_set():
            try:
                ready.put(item, timeout=0.1)
                break
            except queue.Full:
                continue

    def feed() -> None:
        try:
            for block in blocks:
                put((block, [pool.submit(try_file, work, sample) for sample in block]))
                if left.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
        # Pillow warns of odd metadata and large images without naming the file.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        feeder = threading.Thread(target=feed, daemon=True, name="ducats-pool")
        feeder.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield _block(*item)
        finally:
            left.set()
            feeder.join()
            pool.shutdown(cancel_futures=True)


def _block(samples: list[Sample], futures: "list[Future[Picture | ReadFailure]]") -> Block:
    good, failed = list[tuple[Sample, Picture]](), list[tuple[str, str]]()
    for sample, future in zip(samples, futures, strict=True):
        outcome = future.result()
        if isinstance(outcome, ReadFailure):
            failed.append((sample.key, outcome.reason))
        else:
            good.append((sample, outcome))
    if not good:
        return Block([], [], torch.empty(0, 1, 1, 1, dtype=torch.uint8), torch.empty(0), failed)
    pixels = torch.from_numpy(np.stack([picture for _, (picture, _) in good]))
    aspect = torch.tensor([aspect for _, (_, aspect) in good], dtype=torch.float32)
    # Do not keep the samples: a sample of a shard holds its file content.
    return Block([s.key for s, _ in good], [s.number for s, _ in good], pixels, aspect, failed)
