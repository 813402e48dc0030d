"""From image files to one tensor: in memory, in a file where that is too much, or bit by bit if need be."""

import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from ducats.domain import Images, Pixels
from ducats.errors import UserError
from ducats.files import write_atomically
from ducats.room import free_disk_gb, free_memory_gb

Files = Sequence[tuple[str, Path]]  # keys, and where the images are
Array = NDArray[np.uint8]
Shape = tuple[int, int, int, int]  # (N, channels, size, size)
T = TypeVar("T")

_BLOCK = 256  # images decoded before they are put in their place: bounds what waits in memory
_NAMED = 5  # unreadable files that an error names
_MODES = {1: "L", 3: "RGB"}
_MEMORY_GB = 4.0  # to hold where the system does not say how much there is
_ORIENTATION, _SIDEWAYS = 0x0112, (5, 6, 7, 8)  # in EXIF
SPARE_GB = 1.0  # of disk that is left for checkpoints
_RECIPE = 1  # raise it when the same files would give other pixels: old caches are then left alone


def decode(
    files: Files,
    size: int,
    *,
    channels: int = 3,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Images:
    """Read images as their viewer would show them, squashed to ``size`` x ``size``, in the given order.

    Turned as their EXIF says, transparency laid on white, 16 bits brought down to 8, the first frame of a
    film; resized with Pillow's bicubic filter, as the published settings do, whatever the aspect ratio.

    Args:
        files: Keys and paths.
        size: Height and width in pixels.
        channels: 3 for RGB, 1 for grey.
        cache: A folder for what does not fit in memory. A later call with the same keys, paths, file
            sizes, times and size opens what is there. Without a folder, an unnamed temporary file is used
            that goes when the process ends, and the next process decodes again.
        memory_gb: Gigabytes (2**30 bytes) of pixels to hold in memory; None for half of what is free. More
            go to a file, from which the system reads what is looked at. Such pixels are read-only: writing
            to them ends the process. Without room for that either, images are decoded when looked at.

    Raises:
        UserError: Some files are no images that can be read.
    """
    images = _decode(files, size, channels, cache, allowance(memory_gb))
    _warn_of_files([images], cache)
    return images


def _decode(files: Files, size: int, channels: int, cache: str | Path | None, memory_gb: float) -> Images:
    """What ``decode`` does, without a word."""
    if size < 1:
        raise UserError(f"images cannot be {size} pixels wide; give a size of 1 or more")
    if channels not in _MODES:
        raise ValueError(f"channels must be 1 (grey) or 3 (RGB), got {channels}")
    shape = (len(files), channels, size, size)
    pixels: Pixels
    if gigabytes(len(files), size, channels) <= memory_gb:
        pixels = torch.from_numpy(_in_memory(files, shape))
    elif cache is not None:
        pixels = _in_cache(files, shape, Path(cache).expanduser())
    else:
        pixels = _in_temporary_file(files, shape)
    return Images(tuple(key for key, _ in files), pixels, tuple(path for _, path in files))


def decode_each(
    parts: Sequence[Files], size: int, *, cache: str | Path | None, memory_gb: float | None
) -> list[Images]:
    """Decode several sets of RGB images that share one allowance of memory, the first ones first."""
    decoded = []
    left = allowance(memory_gb)
    for files in parts:
        decoded.append(_decode(files, size, 3, cache, left))
        taken = gigabytes(len(files), size)
        left -= taken if taken <= left else 0.0
    _warn_of_files(decoded, cache)
    return decoded


def allowance(memory_gb: float | None) -> float:
    """Gigabytes of pixels to hold in memory: as given, or half of what is free, shared by all processes."""
    if memory_gb is not None:
        return memory_gb
    free = free_memory_gb()
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    processes = torch.distributed.get_world_size() if several else 1
    return _MEMORY_GB if free is None else free / 2 / processes


def gigabytes(count: int, size: int, channels: int = 3) -> float:
    """Gigabytes that so many decoded images take.

    >>> gigabytes(2**14, 256)
    3.0
    """
    return count * channels * size * size / 2**30


def find_unreadable(files: Files) -> list[tuple[Path, str]]:
    """Every file that cannot be decoded, with the reason, in the given order."""
    # Each picture is dropped at once: only the reason is wanted.
    outcomes = _side_by_side(
        lambda path: _attempt(lambda: bool(_as_shown(path))), [path for _, path in files]
    )
    return [
        (path, outcome)
        for (_, path), outcome in zip(files, outcomes, strict=True)
        if isinstance(outcome, str)
    ]


def aspects(files: Sequence[Path]) -> Tensor:
    """Width over height of each image as it is shown, from the files' headers: float32 (N,)."""
    outcomes = list(_side_by_side(lambda path: _attempt(lambda: _aspect(path)), files))
    pairs = zip(files, outcomes, strict=True)
    unreadable = [(path, outcome) for path, outcome in pairs if isinstance(outcome, str)]
    if unreadable:
        raise UserError(_complaint(unreadable, len(files)))
    return torch.tensor(outcomes, dtype=torch.float32)


class FilePixels:
    """Pixels that are decoded whenever they are looked at, where neither memory nor disk has room for them.

    To the rest of the library it is what a tensor is, as far as ``domain.Pixels`` goes.
    """

    dtype = torch.uint8
    ndim = 4

    def __init__(self, files: Files, size: int, *, channels: int = 3) -> None:
        self.shape = torch.Size((len(files), channels, size, size))
        self._files = tuple(files)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int | slice | Tensor, /) -> Tensor:
        rows = torch.arange(len(self))[index]
        files = [self._files[row] for row in rows.flatten().tolist()]
        _, channels, height, width = self.shape
        decoded = torch.from_numpy(_in_memory(files, (len(files), channels, height, width)))
        return decoded.view(*rows.shape, channels, height, width)


def _in_memory(files: Files, shape: Shape) -> Array:
    """The decoded images as an array."""
    pixels: Array = np.empty(shape, np.uint8)
    for row, image in enumerate(_decoded(files, shape)):
        pixels[row] = image
    return pixels


def _in_cache(files: Files, shape: Shape, folder: Path) -> Pixels:
    """The decoded images in a file of this folder, written unless it is there already."""
    path = folder / f"images-{_digest(files, shape)}.npy"
    try:
        return _mapped(path, shape)
    except (OSError, ValueError):
        pass  # not there, or spoilt
    if not _has_room(folder, shape):
        return _on_demand(files, shape)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _drop_abandoned_drafts(path)
        _write(path, files, shape)
    except OSError as error:
        raise UserError(
            f"decoded images cannot be kept in the cache folder {folder} ({error.strerror or error});"
            " give a folder that can be written to, or more memory_gb"
        ) from None
    return _mapped(path, shape)


def _in_temporary_file(files: Files, shape: Shape) -> Pixels:
    """The decoded images in a file without a name, gone when the tensor is."""
    where = Path(tempfile.gettempdir())
    if not _has_room(where, shape):
        return _on_demand(files, shape)
    with tempfile.TemporaryDirectory(prefix="ducats-") as folder:
        path = Path(folder) / "images.npy"
        _write(path, files, shape)
        return _mapped(path, shape)  # an open mapping outlives the name


def _has_room(folder: Path, shape: Shape) -> bool:
    """Whether the decoded images fit on the disk where this folder is, or would be made."""
    count, channels, size, _ = shape
    return gigabytes(count, size, channels) <= free_disk_gb(folder) - SPARE_GB


def _on_demand(files: Files, shape: Shape) -> FilePixels:
    """The images as files, each at least begun as an image."""
    _, channels, size, _ = shape
    aspects([path for _, path in files])  # what is no image at all is found now, not hours into a training
    return FilePixels(files, size, channels=channels)


def _warn_of_files(decoded: Sequence[Images], cache: str | Path | None) -> None:
    """Say what it costs that images stay files."""
    if any(isinstance(images.pixels, FilePixels) for images in decoded):
        warnings.warn(
            f"decoded images do not fit in memory or in {cache or tempfile.gettempdir()}: they are decoded "
            "again for every batch, which is slower; give --set data.knobs.cache=DIR on a larger disk, or a "
            "smaller data.knobs.size",
            stacklevel=3,
        )


def _write(path: Path, files: Files, shape: Shape) -> None:
    """Decode into a NumPy file, which has its name only once it is whole."""

    def write(file: IO[bytes]) -> None:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for image in _decoded(files, shape):
            file.write(image.tobytes())

    write_atomically(path, write)


def _mapped(path: Path, shape: Shape) -> Tensor:
    """A file of pixels as a tensor, read by the system when looked at."""
    pixels = np.lib.format.open_memmap(path, mode="r")
    if pixels.shape != shape or pixels.dtype != np.uint8:
        raise ValueError(f"{path} holds {pixels.dtype} {pixels.shape}, not uint8 {shape}")
    with warnings.catch_warnings():
        # PyTorch has no read-only tensors and says so. Read-only is meant: a writable shared mapping would
        # let a slip spoil the cache for good, and a private one is refused when larger than the memory.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(pixels)


def _drop_abandoned_drafts(path: Path) -> None:
    """Remove what killed decodes of the same images left; a draft that still grows is someone's."""
    for draft in path.parent.glob(f".{path.name}.*.part"):
        if time.time() - draft.stat().st_mtime > 3600:
            draft.unlink(missing_ok=True)


def _digest(files: Files, shape: Shape) -> str:
    """A name for these images in this shape; another one as soon as any file was touched."""
    # The path is in it because archives may give one time to files of one name and size.
    described = [(key, str(path.absolute()), *_size_and_time(path)) for key, path in files]
    text = json.dumps([_RECIPE, shape, described])
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


def _size_and_time(path: Path) -> tuple[int, int]:
    """Bytes and time of the last change; a missing file is left to the decoder to complain about."""
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


def _decoded(files: Files, shape: Shape) -> Iterator[Array]:
    """Each image (channels, size, size), in order; after the last, an error if any was unreadable."""
    _, channels, size, _ = shape
    unreadable = []
    outcomes = _side_by_side(
        lambda path: _attempt(lambda: _array(path, size, channels)), [path for _, path in files]
    )
    for (_, path), outcome in zip(files, outcomes, strict=True):
        if isinstance(outcome, str):
            unreadable.append((path, outcome))
        elif not unreadable:  # the rest is read only to count what else is wrong
            yield outcome
    if unreadable:
        raise UserError(_complaint(unreadable, len(files)))


def _complaint(unreadable: Sequence[tuple[Path, str]], count: int) -> str:
    """One sentence about all unreadable files."""
    named = ", ".join(f"{path} ({reason})" for path, reason in unreadable[:_NAMED])
    more = f" and {len(unreadable) - _NAMED} more" if len(unreadable) > _NAMED else ""
    return (
        f"{len(unreadable)} of {count} images cannot be read: {named}{more};"
        " remove or replace them; `ducats doctor` lists all"
    )


def _side_by_side(work: Callable[[Path], T], paths: Sequence[Path]) -> Iterator[T]:
    """The results of ``work`` in order, computed by a thread per core; Pillow frees the interpreter."""
    with warnings.catch_warnings(), ThreadPoolExecutor(_cores()) as threads:
        # Pillow warns of odd metadata and large pictures. What cannot be read is an error of its own,
        # and nobody could tell from the warning which of a hundred thousand files is meant.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        for start in range(0, len(paths), _BLOCK):
            yield from threads.map(work, paths[start : start + _BLOCK])


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _attempt(read: Callable[[], T]) -> T | str:
    """What ``read`` gives, or why it cannot."""
    try:
        return read()
    except FileNotFoundError:
        return "no such file"
    except IsADirectoryError:
        return "a folder"
    except PermissionError:
        return "no permission to read it"
    except UnidentifiedImageError:
        return "not an image"
    except Exception as error:  # Pillow's decoders raise nearly anything on broken files
        return str(error) or type(error).__name__


def _array(path: Path, size: int, channels: int) -> Array:
    """One image, squashed: uint8 (channels, size, size)."""
    image = _as_shown(path).convert(_MODES[channels])
    image = image.resize((size, size), Image.Resampling.BICUBIC)
    pixels: Array = np.asarray(image).reshape(size, size, channels)
    return pixels.transpose(2, 0, 1)


def _as_shown(path: Path) -> Image.Image:
    """One image in full, upright and opaque, in a mode with 8 bits."""
    if path.stat().st_size == 0:
        raise ValueError("empty file")
    with Image.open(path) as opened:
        opened.load()
        image = _upright(opened)
    if image.mode.startswith("I"):
        # Pillow's own conversion cuts at 255 and makes a white picture of 16 bits.
        return Image.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8))
    if image.mode == "F":
        raise ValueError("floating-point pixels have no known range; save as 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB") if image.mode not in ("L", "RGB") else image


def _aspect(path: Path) -> float:
    """Width over height of one image, turned as its EXIF says."""
    with Image.open(path) as opened:
        width, height = opened.size
        # A TIFF is opened with the sides that it is going to have. The PNG's own method would read the whole
        # picture, in case that a note follows it.
        turned = opened.format != "TIFF" and _orientation(opened) in _SIDEWAYS
    return height / width if turned else width / height


def _orientation(image: Image.Image) -> int:
    """How the image is to be turned."""
    try:
        return int(Image.Image.getexif(image).get(_ORIENTATION, 1))
    except Exception:  # as in _upright
        return 1


def _upright(image: Image.Image) -> Image.Image:
    """The image turned as its EXIF says."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a broken note about a sound picture: show it as it is stored
        return image.copy()
