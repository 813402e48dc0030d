"""Survey the data without decoding it: images, labels and files of source, target and test set."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from ducats.config import Config, has_source
from ducats.data.benchmarks.benchmark import Benchmark, ImageCount, TaskRole
from ducats.data.benchmarks.tasks import class_order, list_task
from ducats.data.decoding import is_value_range, parse_value_range
from ducats.data.domain import AdaptationData, Images, Labels, Pixels
from ducats.data.evaluation_split import same_images
from ducats.data.folders import (
    check_class_folders,
    check_disjoint,
    describe_folder,
    existing_folder,
    list_images,
    target_classes,
)
from ducats.data.manifest import ManifestRow, check_pool_labels, describe_rows, scan_manifest
from ducats.data.registry import resolve_dataset
from ducats.data.segmentation.file_pairs import SplitFiles
from ducats.data.segmentation.label_encoding import LabelEncoding
from ducats.data.segmentation.reader import SegmentationListing, SegmentationReader
from ducats.data.store import KeyedPaths, ReadFailure, memory_budget, try_files
from ducats.utils.class_names import check_class_names
from ducats.utils.errors import UserError
from ducats.utils.findings import Check, Finding, collect_findings, describe_exception
from ducats.utils.image_files import ValueRange, displayed_size

MAX_ROWS_NAMED = 20  # maximum number of manifest rows that are reported one by one
SplitRole = TaskRole | Literal["folder"]
ROLES: tuple[TaskRole, ...] = ("source", "target", "test")


@dataclass(frozen=True)
class SplitSurvey:
    """Images of the source, target or test set, or of a folder without settings."""

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
    stored_shapes: dict[TaskRole, tuple[int, int, int]] = field(default_factory=dict)
    classes: Sequence[str] = ()  # from a benchmark or class list; if empty, those of the source count
    new_classes: bool = False  # whether the target may have classes that the source lacks
    # For benchmarks: domain name and published counts.
    expected_counts: dict[TaskRole, tuple[str, ImageCount]] = field(default_factory=dict)
    has_ground_truth: bool | None = None  # whether the target has ground truth; None if unknown
    target_is_test: bool = False  # intended, as in published protocols
    memory_gb: float | None = None  # memory for decoded data; None: keep everything in memory
    value_range: ValueRange | None = None  # of images with more than 8 bits per value
    cache: Path | None = None  # for decoded data that does not fit in memory
    per_pixel: bool = False  # segmentation: labels are per pixel
    strict: bool = False  # whether unreadable files are an error; else their images are skipped
    findings: list[Finding] = field(default_factory=list)  # what could not be surveyed, and why

    def check(self, *checks: Check) -> None:
        """Add the findings of checks."""
        self.findings += collect_findings(*checks)

    def report_error(self, message: str) -> None:
        """Add an error."""
        self.findings.append(Finding("error", message))

    def add_files(
        self, role: SplitRole, description: str, files: KeyedPaths, labels: Sequence[str], **more: Any
    ) -> None:
        """Add image files; their paths are their names."""
        paths = [path for _, path in files]
        self.splits[role] = SplitSurvey(role, description, list(map(str, paths)), labels, paths, **more)

    @contextmanager
    def reporting(self, config: Config, attempt: str) -> Iterator[None]:
        """Add the error that ends the block, if any; user code and wrong parameters may raise anything."""
        try:
            yield
        except UserError as error:
            self.report_error(str(error))
        except Exception as error:
            self.report_error(
                f"{attempt} ({describe_exception(error)}); check data.params: {config.data.params}"
            )


def survey_data(config: Config) -> DataSurvey:
    """Survey the data as far as it is readable, and report what is not."""
    try:
        spec = resolve_dataset(config.data.name)
    except UserError:
        return DataSurvey()  # reported by the check of the settings
    if isinstance(spec.load, SegmentationReader):
        survey = _survey_segmentation_files(config, spec.load)
    elif spec.benchmark is not None and spec.benchmark.list_files is not None:
        survey = _survey_benchmark(config, spec.benchmark)
    elif spec.file_layout is not None:
        survey = _survey_folders(config) if spec.file_layout == "class_folders" else _survey_manifest(config)
    else:
        survey = _survey_built(config)
    survey.strict = config.data.strict
    survey.findings[:0] = collect_findings(partial(spec.require_params, config.data.name, config.data.params))
    if survey.splits and spec.benchmark is not None:
        survey.expected_counts = spec.benchmark.expected_counts(get_data_param(config, survey, "task"))
    return survey


def _survey_folders(config: Config) -> DataSurvey:
    """Survey class folders."""
    survey = _survey_storage(config)
    survey.has_ground_truth = get_data_param(config, survey, "ground_truth") or False
    folders: dict[TaskRole, Path] = {}
    for role in ROLES:
        path = get_data_param(config, survey, role)
        if path is not None:
            survey.check(partial(_add_folder, survey, folders, role, Path(path)))
    if "target" in folders:
        test = folders.get("test")
        survey.target_is_test = test is not None and test.resolve() == folders["target"].resolve()
        survey.check(partial(check_disjoint, folders.get("source"), folders["target"], test))
    with survey.reporting(config, "the classes cannot be read"):
        if (classes := get_data_param(config, survey, "classes")) is not None:
            survey.classes = check_class_names(classes)
        elif "target" in folders and not has_source(config):
            survey.classes = target_classes(folders["target"], survey.splits["target"].labels)
    return survey


def _add_folder(
    survey: DataSurvey, folders: dict[TaskRole, Path], role: TaskRole, path: Path
) -> Iterator[Finding]:
    """Add the images of a folder to the survey, and check its class folders."""
    folder = folders[role] = existing_folder(role, path)
    images = list_images(folder)
    labelled = role != "target" or survey.has_ground_truth
    labels = [key.partition("/")[0] if labelled and "/" in key else "" for key, _ in images]
    survey.add_files(role, describe_folder(role, folder), images, labels)
    if labelled and images:
        yield from check_class_folders(role, folder, images)


def _survey_manifest(config: Config) -> DataSurvey:
    """Survey the rows of a manifest."""
    survey = _survey_storage(config)
    path = get_data_param(config, survey, "path")
    if path is None:
        return survey
    manifest = Path(path).expanduser()
    try:
        rows, problems = scan_manifest(manifest)
    except (UserError, OSError) as error:
        survey.report_error(str(error))
        return survey
    for problem in problems[:MAX_ROWS_NAMED]:
        survey.report_error(problem)
    if len(problems) > MAX_ROWS_NAMED:
        survey.report_error(
            f"{manifest} has {len(problems) - MAX_ROWS_NAMED} more bad rows; fix the others first"
        )
    if not rows:
        return survey
    rows_by_role = {role: [row for row in rows if _row_role(row) == role] for role in ROLES}
    for role, role_rows in rows_by_role.items():
        if role_rows or role != "test":
            names, labels = [row.name for row in role_rows], [row.label for row in role_rows]
            paths = [row.path for row in role_rows]
            survey.splits[role] = SplitSurvey(role, describe_rows(role, manifest), names, labels, paths)
    test, pool = rows_by_role["test"], rows_by_role["target"]
    survey.target_is_test = bool(test) and [row.path for row in test] == [row.path for row in pool]
    survey.has_ground_truth = all(row.label for row in pool) if pool else None
    survey.check(partial(check_pool_labels, manifest, pool))
    return survey


def _row_role(row: ManifestRow) -> TaskRole:
    return "test" if row.split == "test" else "source" if row.domain == "source" else "target"


def _survey_benchmark(config: Config, benchmark: Benchmark) -> DataSurvey:
    """Survey the files of a benchmark task."""
    survey = _survey_storage(config)
    root, task = (get_data_param(config, survey, name) for name in ("root", "task"))
    if root is None or task is None:
        return survey
    try:
        task_files = list_task(benchmark, root, task)
        for role, file_list in task_files.by_role.items():
            survey.add_files(role, file_list.description, file_list.files, file_list.labels)
        survey.has_ground_truth = True
        survey.classes = class_order(benchmark, task_files)
    except UserError as error:
        survey.report_error(str(error))
    return survey


def _survey_segmentation_files(config: Config, reader: SegmentationReader[...]) -> DataSurvey:
    """Survey folders of images and label files."""
    survey, params = _survey_storage(config, per_pixel=True), config.data.params
    parameters = inspect.signature(reader).parameters
    required = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    if not all(map(params.get, required)) or not params.keys() <= parameters.keys():
        return survey  # reported elsewhere
    with survey.reporting(config, f"the files of the data set {config.data.name!r} cannot be listed"):
        listing: SegmentationListing = reader.list_files(**params)
        source_size, size = listing.stored_sizes
        source_encoding, encoding = listing.encodings
        survey.classes, survey.value_range = encoding.classes, listing.value_range
        survey.has_ground_truth = listing.pool_files.labels is not None
        _add_segmentation_files(survey, "source", listing.source_files, source_encoding, source_size)
        _add_segmentation_files(survey, "target", listing.pool_files, encoding, size)
        if listing.test_files is not None:
            _add_segmentation_files(survey, "test", listing.test_files, encoding, size)
            survey.target_is_test = _same_images(listing.pool_files, listing.test_files)
    return survey


def _add_segmentation_files(
    survey: DataSurvey, role: TaskRole, files: SplitFiles, encoding: LabelEncoding, shape: tuple[int, int]
) -> None:
    for problem in files.problems:
        survey.report_error(problem)
    outcomes = try_files(displayed_size, [path for _, path in files.images])
    labels, masks = ([path for _, path in file_list or ()] for file_list in (files.labels, files.masks))
    survey.stored_shapes[role] = (3, *shape)
    survey.add_files(
        role,
        f"the {role}",
        files.images,
        [""] * len(files.images),
        label_files=labels,
        mask_files=masks,
        encoding=encoding,
        original_sizes=[None if isinstance(size, ReadFailure) else size for size in outcomes],
    )


def _same_images(first: SplitFiles, second: SplitFiles) -> bool:
    """Return whether two sets are the same images, even if given by different paths."""
    keys = [[key for key, _ in files.images] for files in (first, second)]
    return bool(keys[0]) and keys[0] == keys[1] and first.images[0][1].samefile(second.images[0][1])


def _survey_built(config: Config) -> DataSurvey:
    """Build a data set that is not read from files, and survey it."""
    survey = DataSurvey()
    with survey.reporting(config, f"the data set {config.data.name!r} cannot be built"):
        from ducats.run.factory import load_data

        data = load_data(config)
        if not isinstance(data, AdaptationData):
            raise TypeError(f"it returned {type(data).__name__}, not AdaptationData")
        survey.has_ground_truth, survey.per_pixel = data.ground_truth is not None, data.source.per_pixel
        survey.classes = data.classes if survey.per_pixel else ()
        _add_split(survey, "source", data.source.images, data.source.labels, data.classes)
        _add_split(survey, "target", data.pool, data.ground_truth, data.classes)
        if data.test is not None:
            _add_split(survey, "test", data.test.images, data.test.labels, data.test.classes)
            survey.target_is_test = same_images(data.test.images, data.pool)
    return survey


def _add_split(
    survey: DataSurvey, role: TaskRole, images: Images, labels: Labels | None, classes: Sequence[str]
) -> None:
    channels, height, width = images.pixels.shape[1:]
    survey.stored_shapes[role] = (channels, height, width)
    split = SplitSurvey(role, f"the {role}", images.keys, [""] * len(images), pixels=images.pixels)
    if survey.per_pixel:
        sizes = [(height, width)] * len(images)
        if images.original_sizes is not None:
            sizes = [(int(rows), int(columns)) for rows, columns in images.original_sizes.tolist()]
        split = replace(split, label_maps=labels, original_sizes=sizes)
    elif labels is not None:
        split = replace(split, labels=_class_names(labels[:], classes))
    survey.splits[role] = split


def _class_names(labels: Tensor, classes: Sequence[str]) -> list[str]:
    """Return class names: empty for void (negative), the number itself for an unknown class."""
    names_by_index = dict(enumerate(classes))
    return ["" if label < 0 else names_by_index.get(label, str(label)) for label in labels.tolist()]


def _survey_storage(config: Config, *, per_pixel: bool = False) -> DataSurvey:
    """Return a survey with the storage settings for images from files."""
    survey = DataSurvey(per_pixel=per_pixel)
    cache = get_data_param(config, survey, "cache")
    survey.cache = None if cache is None else Path(cache).expanduser()
    survey.memory_gb = memory_budget(get_data_param(config, survey, "memory_gb"))
    if not per_pixel:
        survey.new_classes = get_data_param(config, survey, "new_classes") or False
        survey.value_range = parse_value_range(get_data_param(config, survey, "range"))
        size = get_data_param(config, survey, "size")
        survey.stored_shapes = {} if size is None else dict.fromkeys(ROLES, (3, size, size))
    return survey


def get_data_param(config: Config, survey: DataSurvey, name: str) -> Any:
    """Return a parameter of the data set, or its default. If it is invalid, report it and return None."""
    spec = resolve_dataset(config.data.name)
    parameter = spec.parameters.get(name)
    # A missing parameter is reported elsewhere.
    default = None if parameter is None or parameter.default is parameter.empty else parameter.default
    value = spec.with_default_size(config.data.params, config.views.stored_size).get(name, default)
    is_valid, description = PARAM_CHECKS.get(name, (lambda given: isinstance(given, str | Path), "a path"))
    if (value is None and default is None) or is_valid(value):
        return value
    survey.report_error(f"data.params.{name} is {value!r}; give {description}")
    return None


PARAM_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "size": (lambda given: type(given) is int and given >= 1, "a number of pixels, 1 or more"),
    "memory_gb": (lambda given: type(given) in (int, float) and given >= 0, "a number of gigabytes"),
    "ground_truth": (lambda given: isinstance(given, bool), "true or false"),
    "new_classes": (lambda given: isinstance(given, bool), "true or false"),
    "range": (is_value_range, "the values of black and white, such as [0, 4095]"),
    "classes": (lambda given: isinstance(given, list | tuple), "a list of names"),
    "task": (lambda given: isinstance(given, str), "source and target, such as Ar-Cl"),
}
