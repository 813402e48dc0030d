"""The file with the pool's keys; image indices in other files refer to them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ducats.runfolder import checksums
from ducats.settings import GridResolution
from ducats.utils.npz_columns import AnyArray


@dataclass(frozen=True)
class PoolInfo:
    """Names of the pool's images, and the grids in which their pixels are labelled."""

    keys: Sequence[str] = ()
    sizes: AnyArray | None = None  # int64 (N, 2): height and width of each grid; None if images are labelled
    resolution: GridResolution = "network"  # whether these are the sizes of the stored or original images


def pool_text(pool: PoolInfo) -> str:
    """Return the contents of the file."""
    content: object = list(pool.keys)
    if (sizes := pool.sizes) is not None:
        same_size = len(sizes) > 0 and bool((sizes == sizes[0]).all())
        shape = {"size": sizes[0].tolist()} if same_size else {"sizes": sizes.tolist()}
        content = {"resolution": pool.resolution, **shape, "keys": content}
    return json.dumps(content, ensure_ascii=False, indent=0)


def read_pool_file(path: Path) -> PoolInfo:
    """Read the pool.

    Raises:
        UserError: the file is corrupt.
    """
    checksums.verify(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, list):
            return PoolInfo([str(key) for key in content])
        keys = [str(key) for key in content["keys"]]
        sizes = np.array(content.get("sizes") or [content["size"]] * len(keys), np.int64)
        return PoolInfo(keys, sizes.reshape(len(keys), 2), content["resolution"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise checksums.corrupt(path, f"{type(error).__name__}: {error}") from error
