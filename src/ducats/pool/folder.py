"""A folder of images, at any depth, listed one folder at a time."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from ducats.pictures import is_image
from ducats.pool.places import Place
from ducats.pool.sample import Pool, Sample, named, shared_out, unreadable


class Folder(Pool):
    """Every image below a folder, by key: the same keys in the same order as `ducats predict` has them.

    Hidden files and folders and files that are no images by their suffix are passed over. A folder that may
    not be read, and a name that is not UTF-8, are samples that cannot be read.

    Args:
        name: as it was given.
        place: where the folder is.
        path: of the folder.
    """

    def __init__(self, name: str, place: Place, path: str) -> None:
        self.name = name
        self._place, self._path = place, path.rstrip("/") or "/"

    def blocks(self, rank: int, world: int, size: int) -> Iterator[list[Sample]]:
        """Every ``world``-th block of the listing."""
        return shared_out(self._samples(), rank, world, size)

    def counted(self) -> int:
        """By a walk over all names."""
        return sum(1 for _ in self._samples())

    def _samples(self) -> Iterator[Sample]:
        numbers = count()
        return (named(key, next(numbers), read) for key, read in self._walk(self._path, ""))

    def _walk(self, folder: str, prefix: str) -> Iterator[tuple[str, Callable[[], bytes]]]:
        try:
            entries = self._place.entries(folder)
        except Exception as error:  # stores raise what they like
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            yield prefix or self.name, unreadable(f"the folder cannot be read: {why}")
            return
        for entry in entries:
            key, path = f"{prefix}{entry.name}", f"{folder.rstrip('/')}/{entry.name}"
            if entry.folder:
                yield from self._walk(path, f"{key}/")
            elif is_image(entry.name):
                yield key, partial(self._place.read, path)
