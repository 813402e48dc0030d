"""Placement of decoded images: on the device if they fit, else in host memory.

Images that do not fit in host memory are in a file or decoded batch by batch, see ``data.decode``. This
module indexes all of them in the same way.
"""

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from ducats.domain import Held, Images, Labels
from ducats.errors import UserError

Where = Literal["auto", "device", "host"]
T = TypeVar("T")

SHARE = 0.5  # of the device's free memory that images may use; the rest is for training
CHUNK = 1024  # images per transfer, to bound the use of pinned memory
ON_HOST = 2**30  # bytes; smaller label maps are computed once, not for each batch
AHEAD = 4  # batches prepared in advance


def settle(sets: Sequence[Images], device: torch.device, where: Where = "auto") -> list[Images]:
    """Move images to the device if they fit; sets that share pixels keep sharing them.

    Args:
        sets: all images of a run.
        device: of the computation.
        where: ``auto`` moves all of them to a GPU if they take at most half of its free memory.
    """
    if device.type == "cpu" or where == "host":
        return list(sets)
    unique = {id(images.pixels): images for images in sets}
    needed = sum(images.pixels.shape.numel() for images in unique.values())
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    if where == "auto" and needed > SHARE * free:
        return list(sets)
    if device.type == "cuda" and needed > free:
        raise UserError(
            f"the decoded images need {needed / 2**30:.1f} GB, but the device has {free / 2**30:.1f} GB "
            "free; use --set engine.image_placement=host or a smaller data.params.size"
        )
    sent = {key: replace(images, pixels=_send(images, device)) for key, images in unique.items()}
    return [replace(images, pixels=sent[id(images.pixels)].pixels) for images in sets]


def _send(images: Images, device: torch.device) -> Tensor:
    pixels = torch.empty(images.pixels.shape, dtype=torch.uint8, device=device)
    for start in range(0, len(images), CHUNK):
        pixels[start : start + CHUNK] = images.pixels[start : start + CHUNK]
    return pixels


def settle_maps(labels: Labels, device: torch.device, where: Where = "auto") -> Labels:
    """Move label maps to the device if they fit; class labels are returned unchanged.

    Args:
        labels: of the source, or of the pool from the ledger.
        device: of the computation. On a CPU, lazily computed maps are computed once if they are small.
        where: as in `settle`.
    """
    if labels.ndim == 1 or where == "host":
        return labels
    needed = labels.shape.numel() * labels.dtype.itemsize
    if device.type == "cpu":
        return labels if isinstance(labels, Tensor) or needed > ON_HOST else _all(labels, device)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    if where == "auto" and needed > SHARE * free / 2:
        return labels
    if device.type == "cuda" and needed > free:
        raise UserError(
            f"the label maps need {needed / 2**30:.1f} GB, but the device has {free / 2**30:.1f} GB free; "
            "use --set engine.image_placement=host or a smaller data.params.size"
        )
    return _all(labels, device)


def _all(labels: Labels, device: torch.device) -> Tensor:
    maps = torch.empty(labels.shape, dtype=labels.dtype, device=device)
    for start in range(0, len(labels), CHUNK):
        maps[start : start + CHUNK] = labels[start : start + CHUNK]
    return maps


def on_device(held: Held | None, device: torch.device) -> bool:
    """Return whether the data is a tensor on a device of this type."""
    return isinstance(held, Tensor) and held.device.type == device.type


def some(held: Held, index: Tensor, near: Tensor, device: torch.device) -> Tensor:
    """Return a batch: on the device if the data is there, else in host memory, pinned for a GPU.

    Args:
        held: pixels or label maps.
        index: on the host.
        near: the same indices on the device.
        device: of the computation.
    """
    return held[near] if on_device(held, device) else gather(held, index, device)


def take(held: Held, index: Tensor, device: torch.device) -> Tensor:
    """Return a batch of pixels or label maps on the device."""
    if isinstance(held, Tensor) and held.device.type != "cpu":
        return held[index.to(held.device, non_blocking=True)]
    return send(gather(held, index, device), device)


def gather(held: Held, index: Tensor, device: torch.device) -> Tensor:
    """Return a batch of pixels or label maps in host memory, pinned for a GPU."""
    if device.type != "cuda":
        return held[index]
    if not isinstance(held, Tensor):
        return held[index].pin_memory()
    # Index directly into pinned memory, which saves a copy.
    room = torch.empty(len(index), *held.shape[1:], dtype=held.dtype, pin_memory=True)
    return torch.index_select(held, 0, index, out=room)


def send(pixels: Tensor, device: torch.device) -> Tensor:
    """Copy a batch to the device, asynchronously from pinned memory."""
    return pixels.to(device, non_blocking=True)


def in_order(make: Callable[[int], T], count: int, *, ahead: bool) -> Generator[T, None, None]:
    """Yield ``make(0) … make(count - 1)``, computed on demand or, with ``ahead``, prefetched."""
    if ahead:
        yield from made_ahead(make, count)
    else:
        yield from map(make, range(count))


def made_ahead(make: Callable[[int], T], count: int) -> Generator[T, None, None]:
    """Yield ``make(0) … make(count - 1)`` in order, computed in advance by a worker thread.

    Used for images that are not on the device: they are read, decoded and indexed while it computes. An error
    in the worker is raised here. Closing the generator stops the worker.
    """
    made: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(AHEAD)
    left = threading.Event()

    def work() -> None:
        for number in range(count):
            try:
                outcome: tuple[T | None, BaseException | None] = (make(number), None)
            except BaseException as error:
                outcome = (None, error)
            while not left.is_set():
                try:
                    made.put(outcome, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if left.is_set() or outcome[1] is not None:
                return

    worker = threading.Thread(target=work, daemon=True, name="ducats-images")
    worker.start()
    try:
        for _ in range(count):
            value, error = made.get()
            if error is not None:
                raise error
            yield value  # type: ignore[misc]
    finally:
        left.set()
        worker.join()
