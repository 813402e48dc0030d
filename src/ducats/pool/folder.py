"""Pool of the images in a folder tree, listed one folder at a time."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from ducats.image_files import is_image_name
from ducats.pool.places import Place
from ducats.pool.sample import Pool, Sample, named, shared_out, unreadable


class Folder(Pool):
    """All images below a folder, with the same keys in the same order as in `ducats predict`.

    Hidden files, hidden folders and files without an image suffix are skipped. A folder that cannot be read
    and a name that is not UTF-8 each count as an unreadable sample.

    Args:
        name: pool as the user entered it.
    """

    def __init__(self, name: str, place: Place, path: str) -> None:
        self.name = name
        self._place, self._path = place, path.rstrip("/") or "/"

    def blocks(self, rank: int, world: int, size: int) -> Iterator[list[Sample]]:
        """Yield every ``world``-th block of the listing."""
        return shared_out(self._samples(), rank, world, size)

    def counted(self) -> int:
        """Count the samples by listing all names."""
        return sum(1 for _ in self._samples())

    def _samples(self) -> Iterator[Sample]:
        numbers = count()
        return (named(key, next(numbers), read) for key, read in self._walk(self._path, ""))

    def _walk(self, folder: str, prefix: str) -> Iterator[tuple[str, Callable[[], bytes]]]:
        try:
            entries = self._place.entries(folder)
        except Exception as error:  # remote file systems raise errors of any type
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            yield prefix or self.name, unreadable(f"the folder cannot be read: {why}")
            return
        for entry in entries:
            key, path = f"{prefix}{entry.name}", f"{folder.rstrip('/')}/{entry.name}"
            if entry.folder:
                yield from self._walk(path, f"{key}/")
            elif is_image_name(entry.name):
                yield key, partial(self._place.read, path)
