"""Placement of decoded images: on the device if they fit, else in host memory.

Images that do not fit in host memory are in a file or decoded batch by batch, see ``data.decoding``. This
module indexes all of them in the same way.
"""

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from ducats.data.domain import Images, Indexable, Labels
from ducats.settings import Placement
from ducats.utils.errors import UserError

_T = TypeVar("_T")

MAX_DEVICE_MEMORY_SHARE = 0.5  # share of the free memory that images may use; the rest is for training
TRANSFER_BATCH_IMAGES = 1024  # images per transfer, to bound the use of pinned memory
MAX_HOST_MAP_BYTES = 2**30  # smaller label maps are computed once, not for each batch
PREFETCH_BATCHES = 4  # batches prepared in advance


def place_images(
    image_sets: Sequence[Images], device: torch.device, placement: Placement = "auto"
) -> list[Images]:
    """Move images to the device if they fit; sets that share pixels keep sharing them.

    Args:
        placement: ``auto`` moves all of them to a GPU if they take at most half of its free memory.
    """
    unique = {id(array): array for images in image_sets for array in _arrays_to_place(images)}
    needed_bytes = sum(array.shape.numel() * array.dtype.itemsize for array in unique.values())
    if (
        device.type == "cpu"
        or placement == "host"
        or not _fits("decoded images", needed_bytes, device, placement, MAX_DEVICE_MEMORY_SHARE)
    ):
        return list(image_sets)
    moved = {key: _copy(array, device) for key, array in unique.items()}
    return [
        replace(
            images,
            pixels=moved.get(id(images.pixels), images.pixels),
            bilinear_pixels=moved.get(id(images.bilinear_pixels), images.bilinear_pixels),
            embeddings=moved.get(id(images.embeddings)),
        )
        for images in image_sets
    ]


def _arrays_to_place(images: Images) -> list[Indexable]:
    """Return what the model reads: embeddings if there are any, else pixels."""
    if images.embeddings is not None:
        return [images.embeddings]
    return [images.pixels, *([] if images.bilinear_pixels is None else [images.bilinear_pixels])]


def place_label_maps(labels: Labels, device: torch.device, placement: Placement = "auto") -> Labels:
    """Move label maps to the device if they fit; class labels are returned unchanged.

    Args:
        device: of the computation. On a CPU, lazily computed maps are computed once if they are small.
        placement: as in `place_images`.
    """
    if labels.ndim == 1 or placement == "host":
        return labels
    needed_bytes = labels.shape.numel() * labels.dtype.itemsize
    if device.type == "cpu":
        is_ready = isinstance(labels, Tensor) or needed_bytes > MAX_HOST_MAP_BYTES
        return labels if is_ready else _copy(labels, device)
    fits = _fits("label maps", needed_bytes, device, placement, MAX_DEVICE_MEMORY_SHARE / 2)
    return _copy(labels, device) if fits else labels


def _fits(
    name: str, needed_bytes: int, device: torch.device, placement: Placement, max_memory_share: float
) -> bool:
    """Return whether data should be moved to a device other than a CPU; raise if it must but does not fit."""
    free_bytes = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    if placement == "auto" and needed_bytes > max_memory_share * free_bytes:
        return False
    if device.type == "cuda" and needed_bytes > free_bytes:
        raise UserError(
            f"the {name} need {needed_bytes / 2**30:.1f} GB, but the device has "
            f"{free_bytes / 2**30:.1f} GB free; use --set engine.image_placement=host or a smaller "
            "data.params.size"
        )
    return True


def _copy(array: Indexable, device: torch.device) -> Tensor:
    copied = torch.empty(array.shape, dtype=array.dtype, device=device)
    for start in range(0, len(array), TRANSFER_BATCH_IMAGES):
        copied[start : start + TRANSFER_BATCH_IMAGES] = array[start : start + TRANSFER_BATCH_IMAGES]
    return copied


def is_on_device(array: Indexable | None, device: torch.device) -> bool:
    """Return whether the data is a tensor on a device of this type."""
    return isinstance(array, Tensor) and array.device.type == device.type


def index_batch(array: Indexable, index: Tensor, device_index: Tensor, device: torch.device) -> Tensor:
    """Return a batch: on the device if the data is there, else in host memory, pinned for a GPU.

    Args:
        index: on the host.
        device_index: the same indices on the device.
    """
    return array[device_index] if is_on_device(array, device) else index_to_host(array, index, device)


def index_to_device(array: Indexable, index: Tensor, device: torch.device) -> Tensor:
    """Return a batch of pixels or label maps on the device."""
    if isinstance(array, Tensor) and array.device.type != "cpu":
        return array[index.to(array.device, non_blocking=True)]
    return to_device(index_to_host(array, index, device), device)


def index_to_host(array: Indexable, index: Tensor, device: torch.device) -> Tensor:
    """Return a batch of pixels or label maps in host memory, pinned for a GPU."""
    if device.type != "cuda":
        return array[index]
    if not isinstance(array, Tensor):
        return array[index].pin_memory()
    # Index directly into pinned memory, which saves a copy.
    pinned = torch.empty(len(index), *array.shape[1:], dtype=array.dtype, pin_memory=True)
    return torch.index_select(array, 0, index, out=pinned)


def to_device(pixels: Tensor, device: torch.device) -> Tensor:
    """Copy a batch to the device, asynchronously from pinned memory."""
    return pixels.to(device, non_blocking=True)


def produce(make: Callable[[int], _T], count: int, *, prefetched: bool) -> Generator[_T, None, None]:
    """Yield ``make(0) … make(count - 1)``, computed on demand or, with ``prefetched``, in advance."""
    if prefetched:
        yield from prefetch(make, count)
    else:
        yield from map(make, range(count))


def prefetch(make: Callable[[int], _T], count: int) -> Generator[_T, None, None]:
    """Yield ``make(0) … make(count - 1)`` in order, computed in advance by a worker thread.

    Used for images that are not on the device: they are read, decoded and indexed while it computes. An error
    in the worker is raised here. Closing the generator stops the worker.
    """
    results: queue.Queue[tuple[_T | None, BaseException | None]] = queue.Queue(PREFETCH_BATCHES)
    stopped = threading.Event()

    def work() -> None:
        for number in range(count):
            try:
                outcome: tuple[_T | None, BaseException | None] = (make(number), None)
            except BaseException as error:
                outcome = (None, error)
            while not stopped.is_set():
                try:
                    results.put(outcome, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if stopped.is_set() or outcome[1] is not None:
                return

    worker = threading.Thread(target=work, daemon=True, name="ducats-images")
    worker.start()
    try:
        for _ in range(count):
            value, error = results.get()
            if error is not None:
                raise error
            yield value  # type: ignore[misc]
    finally:
        stopped.set()
        worker.join()
