"""Survey the files of a segmentation data set; nothing is decoded."""

import inspect
from pathlib import Path

from ducats.config import Config
from ducats.data import DATASETS
from ducats.data.decoding import displayed_size, memory_budget
from ducats.data.maps import Codes, Listing, Reader
from ducats.data.maps import Part as Files
from ducats.data.store import ReadFailure, try_files
from ducats.doctor.finding import Finding
from ducats.doctor.found import Found, Part, Role, Survey, knob
from ducats.errors import UserError


def in_map_files(config: Config) -> Found:
    """Survey folders of images and label files."""
    findings: list[Finding] = []
    found, data = Survey(of_pixels=True), config.data
    reader = DATASETS[data.name]
    assert isinstance(reader, Reader)
    memory_gb, cache = (knob(config, findings, name) for name in ("memory_gb", "cache"))
    found.memory_gb = memory_budget(memory_gb)
    found.cache = None if cache is None else Path(cache).expanduser()
    parameters = inspect.signature(reader).parameters
    needed = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    if not all(map(data.params.get, needed)) or not data.params.keys() <= parameters.keys():
        return found, findings  # reported elsewhere
    try:
        listing: Listing = reader.listing(**data.params)
        shapes = listing.shapes
    except UserError as error:
        return found, [*findings, Finding("error", str(error))]
    except Exception as error:  # a parameter of an unexpected type
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        what = f"the files of the data set {data.name!r} cannot be listed ({said})"
        return found, [*findings, Finding("error", f"{what}; check data.params: {data.params}")]
    found.classes, found.truth = listing.codes[0].classes, listing.pool.labels is not None
    _put(found, findings, "source", listing.source, listing.codes[0], shapes[0])
    _put(found, findings, "target", listing.pool, listing.codes[1], shapes[1])
    if listing.test is not None:
        _put(found, findings, "test", listing.test, listing.codes[1], shapes[1])
        found.target_is_test = _same(listing.pool, listing.test)
    return found, findings


def _put(
    found: Survey, findings: list[Finding], role: Role, files: Files, codes: Codes, shape: tuple[int, int]
) -> None:
    findings += [Finding("error", problem) for problem in files.problems]
    paths = [path for _, path in files.images]
    sizes = [None if isinstance(size, ReadFailure) else size for size in try_files(displayed_size, paths)]
    labels, masks = ([path for _, path in some or ()] for some in (files.labels, files.masks))
    found.shapes[role] = (3, *shape)
    found.parts[role] = Part(
        role,
        f"the {role}",
        [str(path) for path in paths],
        [""] * len(paths),
        paths,
        label_files=labels,
        mask_files=masks,
        codes=codes,
        sizes=sizes,
    )


def _same(one: Files, two: Files) -> bool:
    """Return whether two sets are the same images, even if given by different paths."""
    keys = [[key for key, _ in files.images] for files in (one, two)]
    return bool(keys[0]) and keys[0] == keys[1] and one.images[0][1].samefile(two.images[0][1])
