"""One task of a benchmark: which images, of which classes, in which order; and what to say if they lack."""

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

NAMED = 8  # entries of a folder, or classes, that a message names


@dataclass(frozen=True)
class Listing:
    """The images of a task by role, none of them decoded."""

    parts: Mapping[Role, Listed]  # no test where nothing is held out
    unused: Listed | None = None  # the source's test list: it may be the only one to name a class

    def ends(self) -> tuple[list[Listed], list[Listed]]:
        """All that is listed of the source, and of the target."""
        source = [self.parts["source"], *([self.unused] if self.unused else [])]
        return source, [part for role, part in self.parts.items() if role != "source"]


def list_task(benchmark: Benchmark, root: str | Path, task: Any) -> Listing:
    """Find the images of a task.

    Raises:
        UserError: There is no such task, or its images are not there: where to get them, how to lay them.
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
    """Where to get a benchmark that is not in this folder, and how to lay it out."""
    if not root.exists():
        found = "no such folder"
    elif not root.is_dir():
        found = "a file"
    else:
        found = f"there is: {_some(sorted(entry.name for entry in root.iterdir())) or 'nothing'}"
    layout = "\n".join(f"  {line}" for line in benchmark.layout.strip().splitlines())
    return UserError(
        f"{benchmark.title}: the images of {what} are not in {root} ({found});"
        f" get them from {benchmark.published}, and give with --root the folder that holds\n{layout}"
    )


def class_order(benchmark: Benchmark, listing: Listing) -> tuple[str, ...]:
    """The classes: by the numbers of the lists where there are lists, as ASCII otherwise.

    Raises:
        UserError: Source and target have different classes, or more than the benchmark has.
    """
    source, target = listing.ends()
    names = _names(source)
    for here, there, part in ((names, _names(target), target[0]), (_names(target), names, source[0])):
        if here - there:
            raise UserError(
                f"{part.where} lacks classes that the other domain has: {_some(sorted(here - there))};"
                f" get {benchmark.title} anew, or remove these from the other one"
            )
    if len(names) > benchmark.classes:
        raise UserError(
            f"{source[0].where} has {len(names)} classes, but {benchmark.title} has {benchmark.classes};"
            " is this another data set, or a folder too many?"
        )
    numbers = _numbers([*source, *target])
    return tuple(sorted(names, key=lambda name: (numbers.get(name, 0), name)))


def _names(parts: Iterable[Listed]) -> set[str]:
    return {label for part in parts for label in part.labels}


def _numbers(parts: Iterable[Listed]) -> dict[str, int]:
    """The number of each class that a list numbers, the same in all lists."""
    numbers: dict[str, int] = {}
    for part in parts:
        for name, number in part.numbers.items():
            if numbers.setdefault(name, number) != number:
                raise UserError(
                    f"{part.where} gives the class {name!r} the number {number}, another list"
                    f" {numbers[name]}; get all lists from one place"
                )
    by_number: dict[int, str] = {}
    for name, number in numbers.items():
        if by_number.setdefault(number, name) != name:
            raise UserError(
                f"the lists give the number {number} to {by_number[number]!r} and to {name!r};"
                " get all lists from one place"
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
    """Read a task: the source with its labels, the target without; they are ``truth``, for an oracle."""
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
    """The class of each image: int64 (N,)."""
    index = {name: i for i, name in enumerate(classes)}
    return torch.tensor([index[label] for label in part.labels], dtype=torch.int64)


def _some(names: list[str]) -> str:
    """The first names for a sentence."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
