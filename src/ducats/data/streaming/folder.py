"""Pool of the images in a folder tree, listed one folder at a time."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from ducats.data.streaming.filesystem import FileSystem
from ducats.data.streaming.pool import Pool, PoolSample, blocks_of_chunk, failing_reader, make_sample
from ducats.utils.image_files import is_image_name


class FolderPool(Pool):
    """All images below a folder, with the same keys in the same order as in `ducats predict`.

    Hidden files, hidden folders and files without an image suffix are skipped. A folder that cannot be read
    and a name that is not UTF-8 each count as an unreadable sample.

    Args:
        name: pool as the user entered it.
    """

    def __init__(self, name: str, filesystem: FileSystem, path: str) -> None:
        self.name = name
        self._filesystem, self._path = filesystem, path.rstrip("/") or "/"

    def blocks(self, chunk: int, n_chunks: int, block_size: int) -> Iterator[list[PoolSample]]:
        """Yield every ``n_chunks``-th block of the listing."""
        return blocks_of_chunk(self._samples(), chunk, n_chunks, block_size)

    def count_samples(self) -> int:
        """Count the samples by listing all names."""
        return sum(1 for _ in self._samples())

    def _samples(self) -> Iterator[PoolSample]:
        indices = count()
        return (make_sample(key, next(indices), read) for key, read in self._walk(self._path, ""))

    def _walk(self, folder: str, prefix: str) -> Iterator[tuple[str, Callable[[], bytes]]]:
        try:
            entries = self._filesystem.list_folder(folder)
        except Exception as error:  # remote file systems raise errors of any type
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            yield prefix or self.name, failing_reader(f"the folder cannot be read: {reason}")
            return
        for entry in entries:
            key, path = f"{prefix}{entry.name}", f"{folder.rstrip('/')}/{entry.name}"
            if entry.is_folder:
                yield from self._walk(path, f"{key}/")
            elif is_image_name(entry.name):
                yield key, partial(self._filesystem.read, path)
