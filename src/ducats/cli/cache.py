"""The command `ducats cache`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table

from ducats.cli.base import app, console, print_line
from ducats.utils.findings import pluralise

if TYPE_CHECKING:
    from ducats.data.embedding_cache import SpaceInfo


@app.command
def cache(
    *,
    clear: Annotated[bool, Parameter(negative=())] = False,
    unused_days: float = 0.0,
    folder: Path | None = None,
) -> int:
    """List or clear the embeddings of frozen backbones, which all runs share, and the index of image files.

    A run that needs embeddings that were removed computes them again.

    Args:
        clear: Delete the embeddings.
        unused_days: With --clear: delete only those that were not used for this many days.
        folder: Folder of the cache; default: $DUCATS_CACHE, or ducats in the user's cache folder.
    """
    from ducats.data.embedding_cache import EmbeddingCache

    found = EmbeddingCache(folder)
    if clear:
        removed = found.clear(unused_days=unused_days)
        freed = sum(space.size_bytes for space in removed)
        print_line(f"{_count_sets(removed)} of embeddings removed, {freed / 2**20:,.1f} MB")
        return 0
    table = Table("backbone", "view", "weights", "images", "MB", "last used", header_style="bold")
    for column in table.columns[3:]:
        column.justify = "right"
    spaces = found.spaces()
    for space in reversed(spaces):
        about = space.description
        table.add_row(
            "index of files" if space.is_file_index else str(about.get("backbone", "unknown")),
            str(about.get("view_name", "")),
            str(about.get("weights", ""))[:8],
            f"{space.images:,}",
            f"{space.size_bytes / 2**20:,.1f}",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(space.last_used)),
        )
    if spaces:
        console.print(table)
    total = sum(space.size_bytes for space in spaces)
    print_line(f"{_count_sets(spaces)} of embeddings, {total / 2**20:,.1f} MB in {found.folder}")
    return 0


def _count_sets(spaces: "Sequence[SpaceInfo]") -> str:
    return pluralise(sum(not space.is_file_index for space in spaces), "set")
