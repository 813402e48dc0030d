"""What there is, as far as it was looked at: images of each role, with what belongs to them."""

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ducats.config import Config
from ducats.data import DATASETS
from ducats.data.benchmarks import Count
from ducats.data.maps import Codes
from ducats.doctor.finding import Finding
from ducats.domain import Labels, Pixels

Role = Literal["source", "target", "test"]
ROLES: tuple[Role, ...] = ("source", "target", "test")


@dataclass(frozen=True)
class Part:
    """The images of one role."""

    role: Role
    where: str  # for sentences: "the source folder photos"
    names: Sequence[str]  # for sentences: a file, or a key
    labels: Sequence[str]  # a class each; "" where none is known, or where pixels have classes
    paths: Sequence[Path] = ()  # one each, if they are files
    pixels: Pixels | None = None  # (N, C, H, W), if they are built
    label_files: Sequence[Path] = ()  # one each, where pixels have labels that are files
    mask_files: Sequence[Path] = ()  # one each, if there are any: not zero where a pixel has no class
    codes: Codes | None = None  # what the numbers in label files mean
    maps: Labels | None = None  # label maps (N, H, W), if they are built
    # Own heights and widths, where pixels have labels; None for a file that cannot be read.
    sizes: Sequence[tuple[int, int] | None] = ()

    def __len__(self) -> int:
        return len(self.names)

    def classes(self) -> dict[str, int]:
        """How many images each class has, the largest first."""
        return dict(Counter(label for label in self.labels if label).most_common())


@dataclass
class Survey:
    """What is known about the data; a role is absent if it is not used or could not be looked at."""

    parts: dict[Role, Part] = field(default_factory=dict)
    shapes: dict[Role, tuple[int, int, int]] = field(
        default_factory=dict
    )  # channels, height, width as stored
    classes: Sequence[str] = ()  # a benchmark's own, or a class list's; else those of the source's images
    expected: dict[Role, tuple[str, Count]] = field(
        default_factory=dict
    )  # of a benchmark: a domain's name and known counts
    truth: bool | None = None  # whether the target's classes are known; None: the doctor could not find out
    target_is_test: bool = False  # on purpose, as in published protocols
    memory_gb: float | None = None  # of pixels to hold in memory; None: all are
    cache: Path | None = None  # for those that are not held
    of_pixels: bool = False  # whether pixels have labels, rather than images


Found = tuple[Survey, list[Finding]]


def knob(config: Config, findings: list[Finding], name: str) -> Any:
    """A knob of the data set as given, or by default; None, and a finding, if it is not what it should be."""
    default = inspect.signature(DATASETS[config.data.name]).parameters[name].default
    if default is inspect.Parameter.empty:
        default = None  # that it is missing is said elsewhere
    value = config.data.knobs.get(name, default)
    fits, meant = KNOBS.get(name, (lambda given: isinstance(given, str | Path), "a path"))
    if (value is None and default is None) or fits(value):
        return value
    findings.append(Finding("error", f"data.knobs.{name} is {value!r}; give {meant}"))
    return None


KNOBS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "size": (lambda given: type(given) is int and given >= 1, "a number of pixels, 1 or more"),
    "memory_gb": (lambda given: type(given) in (int, float) and given >= 0, "a number of gigabytes"),
    "truth": (lambda given: isinstance(given, bool), "true or false"),
    "task": (lambda given: isinstance(given, str), "source and target, such as Ar-Cl"),
}
