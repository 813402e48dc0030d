"""Where decoded images live while a run looks at them: on the device if they fit, else in the host's memory.

What does not fit in the host's memory lies in a file, or is decoded batch by batch; ``data.decode`` sees to
that. Here all of these are one: images whose pixels can be taken by index.
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

SHARE = 0.5  # of the device's free memory that images may take by themselves; the rest is for training
CHUNK = 1024  # images sent at a time: what waits in page-locked memory is bounded
ON_HOST = 2**30  # bytes of maps that are made once rather than for each batch
AHEAD = 4  # batches prepared before they are asked for


def settle(sets: Sequence[Images], device: torch.device, where: Where = "auto") -> list[Images]:
    """Put images where they are quickest to reach; sets that share pixels go on sharing them.

    Args:
        sets: what a run looks at.
        device: where it computes.
        where: ``auto`` sends all of them to a GPU if they take at most half of its free memory.
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
            f"the decoded images take {needed / 2**30:.1f} GB, but the device has {free / 2**30:.1f} GB "
            "left: use --set engine.images_on=host, or a smaller data.knobs.size"
        )
    sent = {key: replace(images, pixels=_send(images, device)) for key, images in unique.items()}
    return [replace(images, pixels=sent[id(images.pixels)].pixels) for images in sets]


def _send(images: Images, device: torch.device) -> Tensor:
    pixels = torch.empty(images.pixels.shape, dtype=torch.uint8, device=device)
    for start in range(0, len(images), CHUNK):
        pixels[start : start + CHUNK] = images.pixels[start : start + CHUNK]
    return pixels


def settle_maps(labels: Labels, device: torch.device, where: Where = "auto") -> Labels:
    """Put label maps beside their images where there is room; labels of whole images stay where they are.

    Args:
        labels: of a source, or what the ledger knows of a pool.
        device: where the run computes.
        where: as for images; on a CPU, maps that are made when looked at are made once if they are few.
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
            f"the label maps take {needed / 2**30:.1f} GB, but the device has {free / 2**30:.1f} GB left: "
            "use --set engine.images_on=host, or a smaller data.knobs.size"
        )
    return _all(labels, device)


def _all(labels: Labels, device: torch.device) -> Tensor:
    maps = torch.empty(labels.shape, dtype=labels.dtype, device=device)
    for start in range(0, len(labels), CHUNK):
        maps[start : start + CHUNK] = labels[start : start + CHUNK]
    return maps


def on_device(held: Held | None, device: torch.device) -> bool:
    """Whether a batch of pixels, or of maps, can be taken without a copy from the host."""
    return isinstance(held, Tensor) and held.device.type == device.type


def some(held: Held, index: Tensor, near: Tensor, device: torch.device) -> Tensor:
    """Some pixels or maps: on the device if they lie there, else in the host's memory, ready to be sent.

    Args:
        held: pixels of images, or their label maps.
        index: which, on the host.
        near: the same on the device.
        device: where the run computes.
    """
    return held[near] if on_device(held, device) else gather(held, index, device)


def take(held: Held, index: Tensor, device: torch.device) -> Tensor:
    """Some pixels or maps, on the device."""
    if isinstance(held, Tensor) and held.device.type != "cpu":
        return held[index.to(held.device, non_blocking=True)]
    return send(gather(held, index, device), device)


def gather(held: Held, index: Tensor, device: torch.device) -> Tensor:
    """Some pixels or maps in the host's memory, ready to be sent."""
    if device.type != "cuda":
        return held[index]
    if not isinstance(held, Tensor):
        return held[index].pin_memory()
    # Straight into page-locked memory: one copy less.
    room = torch.empty(len(index), *held.shape[1:], dtype=held.dtype, pin_memory=True)
    return torch.index_select(held, 0, index, out=room)


def send(pixels: Tensor, device: torch.device) -> Tensor:
    """A batch to the device; from page-locked memory nobody waits for it."""
    return pixels.to(device, non_blocking=True)


def in_order(make: Callable[[int], T], count: int, *, ahead: bool) -> Generator[T, None, None]:
    """``make(0) … make(count - 1)``, each when it is asked for, or some places ahead by a worker."""
    if ahead:
        yield from made_ahead(make, count)
    else:
        yield from map(make, range(count))


def made_ahead(make: Callable[[int], T], count: int) -> Generator[T, None, None]:
    """``make(0) … make(count - 1)`` in order, computed by a worker some places before they are asked for.

    For images that do not lie on the device: they are read, decoded and gathered while it computes. An error
    in the worker is raised here; leaving early ends the worker.
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
