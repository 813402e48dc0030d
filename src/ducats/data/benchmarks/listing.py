"""Listing and loading of one benchmark task, and the error for missing files."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ducats.data.benchmarks.benchmark import Benchmark, Listed, Place, Role, Split
from ducats.data.decode import decode_each
from ducats.domain import Domain, Shift
from ducats.errors import UserError

NAMED = 8  # folder entries or classes listed in a message


@dataclass(frozen=True)
class Listing:
    """Image files of a task by role."""

    parts: Mapping[Role, Listed]  # without "test" if nothing is held out
    unused: Listed | None = None  # the source's test list, which may contain a class that no other list has

    def ends(self) -> tuple[list[Listed], list[Listed]]:
        """Return all file lists of the source and of the target."""
        source = [self.parts["source"], *([self.unused] if self.unused else [])]
        return source, [part for role, part in self.parts.items() if role != "source"]


def list_task(benchmark: Benchmark, root: str | Path, task: Any) -> Listing:
    """List the image files of a task.

    Raises:
        UserError: The task does not exist, or its images are missing.
    """
    folder = Path(root).expanduser()
    sides = benchmark.sides(task)
    parts = {role: _read(benchmark, folder, place, split) for role, (place, split) in sides.items()}
    unused = None
    if benchmark.held_out and benchmark.read is not None:
        unused = benchmark.read(folder, sides["source"][0], "test")
    return Listing(parts, unused)


def _read(benchmark: Benchmark, root: Path, place: Place, split: Split) -> Listed:
    assert benchmark.read is not None
    listed = benchmark.read(root, place, split)
    if listed is None or not listed.files:
        raise absent(benchmark, root, place.name if split == "all" else f"{place.name} ({split})")
    return listed


def absent(benchmark: Benchmark, root: Path, what: str) -> UserError:
    """Return the error for missing images, with the download page and the expected layout."""
    if not root.exists():
        found = "the folder does not exist"
    elif not root.is_dir():
        found = "it is a file"
    else:
        found = f"it contains {_some(sorted(entry.name for entry in root.iterdir())) or 'nothing'}"
    layout = "\n".join(f"  {line}" for line in benchmark.layout.strip().splitlines())
    return UserError(
        f"{benchmark.title}: the images of {what} are not in {root} ({found});"
        f" get them from {benchmark.published}, and set --root to the folder that contains\n{layout}"
    )


def class_order(benchmark: Benchmark, listing: Listing) -> tuple[str, ...]:
    """Return the classes in the order of the lists' class indices, or in ASCII order without lists.

    Raises:
        UserError: Source and target have different classes, or too many.
    """
    source, target = listing.ends()
    names = _names(source)
    for here, there, part in ((names, _names(target), target[0]), (_names(target), names, source[0])):
        if here - there:
            raise UserError(
                f"{part.where} lacks classes that the other domain has: {_some(sorted(here - there))};"
                f" download {benchmark.title} again, or remove these classes from the other domain"
            )
    if len(names) > benchmark.classes:
        raise UserError(
            f"{source[0].where} has {len(names)} classes, but {benchmark.title} has {benchmark.classes};"
            " check for another data set or an extra folder"
        )
    numbers = _numbers([*source, *target])
    return tuple(sorted(names, key=lambda name: (numbers.get(name, 0), name)))


def _names(parts: Iterable[Listed]) -> set[str]:
    return {label for part in parts for label in part.labels}


def _numbers(parts: Iterable[Listed]) -> dict[str, int]:
    """Return the class indices from the lists; raise if lists contradict each other."""
    numbers: dict[str, int] = {}
    for part in parts:
        for name, number in part.numbers.items():
            if numbers.setdefault(name, number) != number:
                raise UserError(
                    f"{part.where} gives the class {name!r} the number {number}, but another list gives it"
                    f" {numbers[name]}; get all lists from the same source"
                )
    by_number: dict[int, str] = {}
    for name, number in numbers.items():
        if by_number.setdefault(number, name) != name:
            raise UserError(
                f"the lists give the number {number} to {by_number[number]!r} and to {name!r};"
                " get all lists from the same source"
            )
    return numbers


def load_task(
    benchmark: Benchmark,
    *,
    root: str | Path,
    task: str,
    size: int,
    cache: str | Path | None,
    memory_gb: float | None,
) -> Shift:
    """Load a task: labelled source, unlabelled target, and the target's labels as ground truth."""
    listing = list_task(benchmark, root, task)
    classes = class_order(benchmark, listing)
    parts = listing.parts
    decoded = decode_each([part.files for part in parts.values()], size, cache=cache, memory_gb=memory_gb)
    images = dict(zip(parts, decoded, strict=True))
    return Shift(
        source=Domain(images["source"], _labels(parts["source"], classes), classes),
        pool=images["target"],
        truth=_labels(parts["target"], classes),
        test=Domain(images["test"], _labels(parts["test"], classes), classes) if "test" in parts else None,
    )


def _labels(part: Listed, classes: tuple[str, ...]) -> Tensor:
    """Return the class index of each image: int64 (N,)."""
    index = {name: i for i, name in enumerate(classes)}
    return torch.tensor([index[label] for label in part.labels], dtype=torch.int64)


def _some(names: list[str]) -> str:
    """Join the first names for a message."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
