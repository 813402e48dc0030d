"""From image files to one tensor, in memory or, where that would be too much, in a file."""

import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from ducats.domain import Images
from ducats.errors import UserError
from ducats.files import write_atomically

Files = Sequence[tuple[str, Path]]  # keys, and where the images are
Pixels = NDArray[np.uint8]
Shape = tuple[int, int, int, int]  # (N, channels, size, size)
T = TypeVar("T")

_BLOCK = 256  # images decoded before they are put in their place: bounds what waits in memory
_NAMED = 5  # unreadable files that an error names
_MODES = {1: "L", 3: "RGB"}
_RECIPE = 1  # raise it when the same files would give other pixels: old caches are then left alone


def decode(
    files: Files, size: int, *, channels: int = 3, cache: str | Path | None = None, memory_gb: float = 4.0
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
        memory_gb: Gigabytes (2**30 bytes) of pixels to hold in memory; more go to a file, from which the
            system reads what is looked at. Such pixels are read-only: writing to them ends the process.

    Raises:
        UserError: Some files are no images that can be read, or the file system is too full.
    """
    if size < 1:
        raise UserError(f"images cannot be {size} pixels wide; give a size of 1 or more")
    if channels not in _MODES:
        raise ValueError(f"channels must be 1 (grey) or 3 (RGB), got {channels}")
    shape = (len(files), channels, size, size)
    if gigabytes(len(files), size, channels) <= memory_gb:
        pixels = torch.from_numpy(_in_memory(files, shape))
    elif cache is not None:
        pixels = _in_cache(files, shape, Path(cache).expanduser())
    else:
        pixels = _in_temporary_file(files, shape)
    return Images(tuple(key for key, _ in files), pixels, tuple(path for _, path in files))


def decode_each(
    parts: Sequence[Files], size: int, *, cache: str | Path | None, memory_gb: float
) -> list[Images]:
    """Decode several sets of RGB images that share one allowance of memory, the first ones first."""
    decoded = []
    for files in parts:
        decoded.append(decode(files, size, cache=cache, memory_gb=memory_gb))
        taken = gigabytes(len(files), size)
        memory_gb -= taken if taken <= memory_gb else 0.0
    return decoded


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


def _in_memory(files: Files, shape: Shape) -> Pixels:
    """The decoded images as an array."""
    pixels: Pixels = np.empty(shape, np.uint8)
    for row, image in enumerate(_decoded(files, shape)):
        pixels[row] = image
    return pixels


def _in_cache(files: Files, shape: Shape, folder: Path) -> Tensor:
    """The decoded images in a file of this folder, written unless it is there already."""
    path = folder / f"images-{_digest(files, shape)}.npy"
    try:
        return _mapped(path, shape)
    except (OSError, ValueError):
        pass  # not there, or spoilt
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


def _in_temporary_file(files: Files, shape: Shape) -> Tensor:
    """The decoded images in a file without a name, gone when the tensor is."""
    with tempfile.TemporaryDirectory(prefix="ducats-") as folder:
        path = Path(folder) / "images.npy"
        _write(path, files, shape)
        return _mapped(path, shape)  # an open mapping outlives the name


def _write(path: Path, files: Files, shape: Shape) -> None:
    """Decode into a NumPy file, which has its name only once it is whole."""
    count, channels, size, _ = shape
    needed, free = gigabytes(count, size, channels), shutil.disk_usage(path.parent).free / 2**30
    if needed > free:
        raise UserError(
            f"{count} decoded images need {needed:.1f} GB, but {path.parent} has {free:.1f} GB left;"
            " free some, give another cache folder, a smaller size, or more memory_gb"
        )

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


def _decoded(files: Files, shape: Shape) -> Iterator[Pixels]:
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


def _array(path: Path, size: int, channels: int) -> Pixels:
    """One image, squashed: uint8 (channels, size, size)."""
    image = _as_shown(path).convert(_MODES[channels])
    image = image.resize((size, size), Image.Resampling.BICUBIC)
    pixels: Pixels = np.asarray(image).reshape(size, size, channels)
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


def _upright(image: Image.Image) -> Image.Image:
    """The image turned as its EXIF says."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a broken note about a sound picture: show it as it is stored
        return image.copy()
