"""Small pools of synthetic images."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from ducats.data.streaming import Pool


def image_bytes(seed: int, size: tuple[int, int] = (10, 8), image_format: str = "PNG") -> bytes:
    """Return the encoded bytes of a random image of size (width, height)."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, image_format)
    return file.getvalue()


def write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_tar(path: Path, members: dict[str, bytes], mode: str = "w") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def chunk_keys(pool: Pool, n_chunks: int = 1, block_size: int = 1) -> list[list[str]]:
    """Return the keys of each chunk."""
    return [
        [s.key for block in pool.blocks(chunk, n_chunks, block_size) for s in block]
        for chunk in range(n_chunks)
    ]


def read_errors(pool: Pool) -> dict[str, str]:
    """Return the unreadable samples: key and reason."""
    found = {}
    for sample in pool.samples(0, 1):
        try:
            sample.read()
        except (OSError, ValueError) as error:
            found[sample.key] = str(error)
    return found
