"""Listing and loading of one benchmark task, and the error for missing files."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ducats.data.benchmarks.benchmark import Benchmark, DomainInfo, FileList, Split, TaskRole
from ducats.data.class_labels import class_indices
from ducats.data.decoding import decode_image_sets
from ducats.data.domain import AdaptationData, Domain, Images, rows_of
from ducats.data.spec import DatasetSpec
from ducats.data.store import unreadable_message
from ducats.utils.errors import UserError
from ducats.utils.findings import join_names

_MAX_LISTED_NAMES = 8  # folder entries or classes listed in a message


@dataclass(frozen=True)
class TaskFiles:
    """Image files of a task by role."""

    by_role: Mapping[TaskRole, FileList]  # without "test" if nothing is held out
    source_test_list: FileList | None = None  # it may contain a class that no other list has

    def source_and_target(self) -> tuple[list[FileList], list[FileList]]:
        """Return all file lists of the source and of the target."""
        source = [self.by_role["source"], *([self.source_test_list] if self.source_test_list else [])]
        return source, [file_list for role, file_list in self.by_role.items() if role != "source"]


def list_task(benchmark: Benchmark, root: str | Path, task: Any) -> TaskFiles:
    """List the image files of a task.

    Raises:
        UserError: The task does not exist, or its images are missing.
    """
    folder = Path(root).expanduser()
    role_splits = benchmark.role_splits(task)
    by_role = {
        role: _list_split(benchmark, folder, domain, split) for role, (domain, split) in role_splits.items()
    }
    source_test_list = None
    if benchmark.has_test_lists and benchmark.list_files is not None:
        source_test_list = benchmark.list_files(folder, role_splits["source"][0], "test")
    return TaskFiles(by_role, source_test_list)


def _list_split(benchmark: Benchmark, root: Path, domain: DomainInfo, split: Split) -> FileList:
    assert benchmark.list_files is not None
    file_list = benchmark.list_files(root, domain, split)
    if file_list is None or not file_list.files:
        raise missing_images_error(
            benchmark, root, domain.name if split == "all" else f"{domain.name} ({split})"
        )
    return file_list


def missing_images_error(benchmark: Benchmark, root: Path, split_name: str) -> UserError:
    """Return the error for missing images, with the download page and the expected layout."""
    if not root.exists():
        found = "the folder does not exist"
    elif not root.is_dir():
        found = "it is a file"
    else:
        entries = sorted(entry.name for entry in root.iterdir())
        found = f"it contains {join_names(entries, _MAX_LISTED_NAMES) or 'nothing'}"
    layout = "\n".join(f"  {line}" for line in benchmark.layout.strip().splitlines())
    return UserError(
        f"{benchmark.title}: the images of {split_name} are not in {root} ({found});"
        f" get them from {benchmark.download_info}, and set --root to the folder that contains\n{layout}"
    )


def class_order(benchmark: Benchmark, task_files: TaskFiles) -> tuple[str, ...]:
    """Return the classes in the order of the lists' class indices, or in ASCII order without lists.

    Raises:
        UserError: Source and target have different classes, or too many.
    """
    source, target = task_files.source_and_target()
    names = _class_names(source)
    for classes, other_classes, other_list in (
        (names, _class_names(target), target[0]),
        (_class_names(target), names, source[0]),
    ):
        if classes - other_classes:
            raise UserError(
                f"{other_list.description} lacks classes that the other domain has:"
                f" {join_names(sorted(classes - other_classes), _MAX_LISTED_NAMES)}; download"
                f" {benchmark.title} again, or remove these classes from the other domain"
            )
    if len(names) > benchmark.n_classes:
        raise UserError(
            f"{source[0].description} has {len(names)} classes, but {benchmark.title} has"
            f" {benchmark.n_classes}; check for another data set or an extra folder"
        )
    numbers = _class_numbers([*source, *target])
    return tuple(sorted(names, key=lambda name: (numbers.get(name, 0), name)))


def _class_names(file_lists: Iterable[FileList]) -> set[str]:
    return {label for file_list in file_lists for label in file_list.labels}


def _class_numbers(file_lists: Iterable[FileList]) -> dict[str, int]:
    """Return the class indices from the lists; raise if lists contradict each other."""
    numbers: dict[str, int] = {}
    for file_list in file_lists:
        for name, number in file_list.class_numbers.items():
            if numbers.setdefault(name, number) != number:
                raise UserError(
                    f"{file_list.description} gives the class {name!r} the number {number}, but another list"
                    f" gives it {numbers[name]}; get all lists from the same source"
                )
    by_number: dict[int, str] = {}
    for name, number in numbers.items():
        if by_number.setdefault(number, name) != name:
            raise UserError(
                f"the lists give the number {number} to {by_number[number]!r} and to {name!r};"
                " get all lists from the same source"
            )
    return numbers


def image_dataset(benchmark: Benchmark) -> DatasetSpec:
    """Return the data set of a benchmark of image files; its task is a default if it is the only one."""
    load = partial(load_task, benchmark)
    if len(benchmark.tasks) == 1:
        load = partial(load, task=benchmark.tasks[0])
    return DatasetSpec(load, per_pixel=False, benchmark=benchmark)


def load_task(
    benchmark: Benchmark,
    *,
    root: str | Path,
    task: str,
    size: int = 256,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> AdaptationData:
    """Load a task: labelled source, unlabelled target, and the target's labels as ground truth.

    If the domains have lists, source and pool are the train lists, and the test set is the target's test
    list. Classes are in the order of the lists' class indices, or in ASCII order (``TV`` before ``Table``).
    Keys are paths relative to the root.

    Args:
        root: Folder that contains the domains, as in the benchmark's layout.
        task: Source and target: ``A-W``, ...; other spellings such as ``A2W``, ``amazon->webcam`` also work.
        size: Height and width that images are resized to, ignoring the aspect ratio.
        cache, memory_gb: See ``decode_images``; the memory is that of all images together.
    """
    task_files = list_task(benchmark, root, task)
    classes = class_order(benchmark, task_files)
    by_role = task_files.by_role
    decoded = decode_image_sets(
        [file_list.files for file_list in by_role.values()], size, cache=cache, memory_gb=memory_gb
    )
    images = dict(zip(by_role, decoded, strict=True))
    for role, role_images in images.items():  # a damaged file is skipped, but a list must be complete
        missing = [file for file in role_images.unreadable if not file.path.exists()]
        if missing:
            count = len(by_role[role].files)
            raise UserError(unreadable_message(missing, count, "images", "unpack the data set again"))
    labels = {role: _labels(by_role[role], images[role], classes) for role in by_role}
    return AdaptationData(
        source=Domain(images["source"], labels["source"], classes),
        pool=images["target"],
        ground_truth=labels["target"],
        test=Domain(images["test"], labels["test"], classes) if "test" in by_role else None,
    )


def _labels(file_list: FileList, images: Images, classes: tuple[str, ...]) -> Tensor:
    """Return the class index of each image that could be read: int64 (N,)."""
    names = [str(path) for _, path in file_list.files]
    indices = class_indices(file_list.description, file_list.labels, names, classes)
    return rows_of(images, [key for key, _ in file_list.files], indices)
