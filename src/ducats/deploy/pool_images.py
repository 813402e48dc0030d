"""Load some images of a run's pool, without reading the others."""

from collections.abc import Container, Sequence
from pathlib import Path

from ducats.config import Config
from ducats.data.benchmarks.tasks import list_task
from ducats.data.decoding import ImageSize, decode_images, parse_value_range
from ducats.data.domain import Images
from ducats.data.folders import existing_folder, list_images
from ducats.data.manifest import read_manifest
from ducats.data.registry import resolve_dataset
from ducats.data.segmentation.reader import SegmentationListing, SegmentationReader
from ducats.run.factory import load_data
from ducats.utils.errors import UserError
from ducats.utils.image_files import ValueRange


def load_images(config: Config, keys: Sequence[str]) -> Images:
    """Load the images with these keys; the whole pool if the data set does not consist of files."""
    listed = _list_pool_files(config)
    if listed is None:
        return load_data(config).pool
    files, size, value_range = listed
    for key in keys:
        check_in_data(key, files)
    shown = [(key, files[key]) for key in dict.fromkeys(keys)]
    return decode_images(shown, size, value_range=value_range)


def _list_pool_files(config: Config) -> tuple[dict[str, Path], ImageSize, ValueRange | None] | None:
    """List the files of the pool by key, with their stored size and range; None if there are no files."""
    spec = resolve_dataset(config.data.name)
    params = spec.with_default_size(config.data.params, config.views.stored_size)
    if isinstance(spec.load, SegmentationReader):
        listing: SegmentationListing = spec.load.list_files(**params)
        return dict(listing.pool_files.images), listing.size, listing.value_range
    if spec.benchmark is not None and spec.benchmark.list_files is not None:
        files = dict(list_task(spec.benchmark, params["root"], params["task"]).by_role["target"].files)
    elif spec.file_layout == "class_folders":
        files = dict(list_images(existing_folder("target", params["target"])))
    elif spec.file_layout == "manifest":
        rows = read_manifest(Path(params["path"]).expanduser())
        files = {row.key: row.path for row in rows if (row.domain, row.split) == ("target", "train")}
    else:
        return None
    size = params.get("size", spec.parameters["size"].default)
    return files, size, parse_value_range(params.get("range"))


def check_in_data(key: str, available: Container[str]) -> None:
    """Raise if the data no longer has an image of the run."""
    if key not in available:
        raise UserError(f"the data has no image {key!r}, which this run labelled; use the data of the run")
