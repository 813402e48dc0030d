"""Wide columns stored on disk in half precision; a query reads only the samples it accesses."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ducats.acquisition.samples import LazyColumn

BLOCK_SAMPLES = 2**16  # samples mapped into memory at a time


def store_columns(folder: Path, count: int, blocks: Iterator[dict[str, Tensor]]) -> None:
    """Write columns block by block, and a JSON file with the number of samples and the widths."""
    folder.mkdir(parents=True)
    first = next(blocks)
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in first}
        for some in chain([first], blocks):
            for name, column in some.items():
                files[name].write(column.half().numpy().tobytes())
    widths = {name: column.shape[1] for name, column in first.items()}
    (folder / "about.json").write_text(json.dumps({"rows": count, "widths": widths}), encoding="utf-8")


def load_columns(folder: Path) -> dict[str, LazyColumn]:
    """Return the stored columns as lazy columns."""
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    rows = about["rows"]
    return {
        name: LazyColumn(make_reader(folder / name, rows, width), torch.arange(rows))
        for name, width in about["widths"].items()
    }


def make_reader(path: Path, count: int, width: int) -> Callable[[Tensor], Tensor]:
    """Return a function that reads samples by index, mapping one block at a time to limit the peak memory."""

    def read(position: Tensor) -> Tensor:
        found = torch.empty(len(position), width)
        order = position.argsort(stable=True)
        ascending = position[order]
        edges = torch.searchsorted(ascending, torch.arange(0, count + BLOCK_SAMPLES, BLOCK_SAMPLES)).tolist()
        for block, (start, stop) in enumerate(pairwise(edges)):
            if start == stop:
                continue
            rows = min(BLOCK_SAMPLES, count - block * BLOCK_SAMPLES)
            held = np.memmap(
                path, np.float16, "r", offset=block * BLOCK_SAMPLES * width * 2, shape=(rows, width)
            )
            some = torch.from_numpy(held[(ascending[start:stop] - block * BLOCK_SAMPLES).numpy()])
            found[order[start:stop]] = some.float()
        return found

    return read
