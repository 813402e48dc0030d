"""Check of the memory and disk space that decoded images and label maps need."""

import tempfile
from collections.abc import Iterator
from math import prod
from pathlib import Path

from ducats.data.store import RESERVED_DISK_GB
from ducats.doctor.survey import DataSurvey
from ducats.run.checks import VIEW_ROLES
from ducats.settings import StreamViews
from ducats.utils.findings import Finding
from ducats.utils.resources import free_disk_gb, free_memory_gb


def check_memory(views: StreamViews, survey: DataSurvey) -> Iterator[Finding]:
    """Estimate memory and disk space of the decoded images and label maps."""
    memory = disk = 0.0
    remaining = float("inf") if survey.memory_gb is None else survey.memory_gb
    for size in (*_array_sizes_gb(survey), *_bilinear_sizes_gb(views, survey)):
        if size <= remaining:
            memory, remaining = memory + size, remaining - size
        else:  # as in ArrayStore: an array that does not fit goes to a file as a whole
            disk += size
    if memory + disk == 0:
        return
    content = "images and label maps" if survey.per_pixel else "images"
    cache_folder = survey.cache or Path(tempfile.gettempdir())
    note = f"decoded {content} take {_format_gb(memory + disk)}"
    if survey.memory_gb is not None:
        note += f"; {survey.memory_gb:.3g} GB may be kept in memory (data.params.memory_gb)"
    if disk:
        note += f", so {_format_gb(disk)} go to {cache_folder}{'' if survey.cache else ' in every run'}"
    yield Finding("note", note)
    free = free_memory_gb()
    # Built images are in memory already.
    if survey.memory_gb is not None and free is not None and memory > free:
        yield Finding(
            "warning",
            f"{memory:.1f} GB of {content} would be kept in memory, but only {free:.1f} GB are free; lower "
            "data.params.memory_gb or data.params.size",
        )
    if disk > free_disk_gb(cache_folder) - RESERVED_DISK_GB:
        yield Finding(
            "warning",
            f"{disk:.1f} GB of {content} would be written to {cache_folder}, but only "
            f"{free_disk_gb(cache_folder):.1f} GB are free there, so they will be decoded again for every "
            "batch, which is slower; set another data.params.cache or a smaller data.params.size",
        )


def _array_sizes_gb(survey: DataSurvey) -> Iterator[float]:
    """Yield the gigabytes of each array, in the order of decoding."""
    for role, split in survey.splits.items():
        if role in survey.stored_shapes:
            channels, height, width = survey.stored_shapes[role]
            yield len(split) * channels * height * width / 2**30
            if split.label_files or split.label_maps is not None:
                bytes_per_label = 1 if len(survey.classes) <= 127 else 2
                yield len(split) * height * width * bytes_per_label / 2**30


def _bilinear_sizes_gb(views: StreamViews, survey: DataSurvey) -> Iterator[float]:
    """Yield the gigabytes of the second versions that are resized with a bilinear filter."""
    for role, split in survey.splits.items():
        role_views = [getattr(views, name) for name, of_role in VIEW_ROLES.items() if of_role == role]
        is_needed = any(view is not None and view.interpolation == "bilinear" for view in role_views)
        if is_needed and role in survey.stored_shapes:
            yield len(split) * prod(survey.stored_shapes[role]) / 2**30


def _format_gb(gigabytes: float) -> str:
    return f"{gigabytes:.2f} GB" if gigabytes >= 0.01 else "less than 0.01 GB"
