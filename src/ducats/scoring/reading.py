"""Samples are read and decoded by threads some blocks ahead of the model, in order and in bounded memory."""

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

from ducats.data.decode import decode_bytes
from ducats.data.store import Failure, attempt
from ducats.pictures import shown_size
from ducats.pool import Sample

AHEAD = 4  # blocks that are prepared before they are asked for

Picture = tuple[NDArray[np.uint8], float]  # pixels (channels, height, width), and width over height before
Begun = tuple[list[Sample], list["Future[Picture | Failure]"]]


class Block(NamedTuple):
    """Samples that pass through the model together, decoded."""

    key: list[str]  # of those that can be read
    number: list[int]
    pixels: Tensor  # uint8 (N, channels, height, width)
    aspect: Tensor  # float32 (N,), width over height before they were squashed
    unreadable: list[tuple[str, str]]  # keys of the others, and why


def picture_of(sample: Sample, size: tuple[int, int], channels: int) -> Picture:
    """Read a sample, and decode it as `ducats predict` would."""
    data = sample.read()
    pixels = decode_bytes(data, size, channels)
    height, width = shown_size(BytesIO(data))
    return pixels, width / height


def decoded(
    blocks: Iterable[list[Sample]], work: Callable[[Sample], Picture], threads: int
) -> Generator[Block, None, None]:
    """Each block, decoded, in order; samples that cannot be read are named and left out.

    Args:
        blocks: what to read; walked over by a thread of its own.
        work: makes a picture of a sample; whatever it raises is the sample's fault.
        threads: that do so at once.
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
                put((block, [pool.submit(attempt, work, sample) for sample in block]))
                if left.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
        # Pillow warns of odd metadata and large pictures; nobody could tell which of a million is meant.
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


def _block(samples: list[Sample], futures: "list[Future[Picture | Failure]]") -> Block:
    good, failed = list[tuple[Sample, Picture]](), list[tuple[str, str]]()
    for sample, future in zip(samples, futures, strict=True):
        outcome = future.result()
        if isinstance(outcome, Failure):
            failed.append((sample.key, outcome.reason))
        else:
            good.append((sample, outcome))
    if not good:
        return Block([], [], torch.empty(0, 1, 1, 1, dtype=torch.uint8), torch.empty(0), failed)
    pixels = torch.from_numpy(np.stack([picture for _, (picture, _) in good]))
    aspect = torch.tensor([aspect for _, (_, aspect) in good], dtype=torch.float32)
    # Not the samples themselves: one of a shard holds its file.
    return Block([s.key for s, _ in good], [s.number for s, _ in good], pixels, aspect, failed)
