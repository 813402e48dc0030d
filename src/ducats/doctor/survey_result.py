"""Survey of the data: images, labels and files of source, target and test set."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ducats.config import Config
from ducats.data import resolve_dataset
from ducats.data.benchmarks import ImageCount
from ducats.data.domain import Labels, Pixels
from ducats.data.segmentation import LabelEncoding
from ducats.doctor.finding import Finding

SplitRole = Literal["source", "target", "test"]
ROLES: tuple[SplitRole, ...] = ("source", "target", "test")


@dataclass(frozen=True)
class SplitSurvey:
    """Images of the source, target or test set."""

    role: SplitRole
    description: str  # for messages: "the source folder photos"
    names: Sequence[str]  # for messages: paths or keys
    labels: Sequence[str]  # class of each image; "" if unknown or in segmentation
    paths: Sequence[Path] = ()  # of the images, if they are files
    pixels: Pixels | None = None  # (N, C, H, W), if the data set is built
    label_files: Sequence[Path] = ()  # one per image, in segmentation
    mask_files: Sequence[Path] = ()  # one per image if given; non-zero where a pixel is void
    encoding: LabelEncoding | None = None  # encoding of the label files
    label_maps: Labels | None = None  # label maps (N, H, W), if the data set is built
    # Original heights and widths, in segmentation; None for a file that cannot be read.
    original_sizes: Sequence[tuple[int, int] | None] = ()

    def __len__(self) -> int:
        return len(self.names)

    def class_counts(self) -> dict[str, int]:
        """Return the number of images per class, largest first."""
        return dict(Counter(label for label in self.labels if label).most_common())


@dataclass
class DataSurvey:
    """What is known about the data. A role is missing if it is unused or could not be read."""

    splits: dict[SplitRole, SplitSurvey] = field(default_factory=dict)
    # Channels, height and width as stored.
    stored_shapes: dict[SplitRole, tuple[int, int, int]] = field(default_factory=dict)
    classes: Sequence[str] = ()  # from a benchmark or class list; if empty, those of the source count
    # For benchmarks: domain name and published counts.
    expected_counts: dict[SplitRole, tuple[str, ImageCount]] = field(default_factory=dict)
    has_ground_truth: bool | None = None  # whether the target has ground truth; None if unknown
    target_is_test: bool = False  # intended, as in published protocols
    memory_gb: float | None = None  # memory for decoded data; None: keep everything in memory
    cache: Path | None = None  # for decoded data that does not fit in memory
    per_pixel: bool = False  # segmentation: labels are per pixel


SurveyResult = tuple[DataSurvey, list[Finding]]


def get_data_param(config: Config, findings: list[Finding], name: str) -> Any:
    """Return a parameter of the data set, or its default. If it is invalid, add a finding and return None."""
    parameter = resolve_dataset(config.data.name).parameters.get(name)
    # A missing parameter is reported elsewhere.
    default = None if parameter is None or parameter.default is parameter.empty else parameter.default
    value = config.data.params.get(name, default)
    is_valid, description = PARAM_CHECKS.get(name, (lambda given: isinstance(given, str | Path), "a path"))
    if (value is None and default is None) or is_valid(value):
        return value
    findings.append(Finding("error", f"data.params.{name} is {value!r}; give {description}"))
    return None


PARAM_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "size": (lambda given: type(given) is int and given >= 1, "a number of pixels, 1 or more"),
    "memory_gb": (lambda given: type(given) in (int, float) and given >= 0, "a number of gigabytes"),
    "ground_truth": (lambda given: isinstance(given, bool), "true or false"),
    "task": (lambda given: isinstance(given, str), "source and target, such as Ar-Cl"),
}
