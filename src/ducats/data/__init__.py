"""Data sets by name. Each function returns ``AdaptationData``: a labelled source and an unlabelled pool."""

from collections.abc import Callable, Mapping

from ducats.data.benchmarks.digit_sets import DIGIT_SETS_SPEC
from ducats.data.benchmarks.image_benchmarks import (
    DOMAINNET,
    MINI_DOMAINNET,
    OFFICE31,
    OFFICE_HOME,
    PACS,
    VISDA2017,
)
from ducats.data.benchmarks.tasks import image_dataset
from ducats.data.digits import DIGITS_SPEC, digits
from ducats.data.domain import AdaptationData
from ducats.data.folders import FOLDERS_SPEC, folders
from ducats.data.manifest import MANIFEST_SPEC, manifest
from ducats.data.segmentation.camvid import CARLA_CAMVID_SPEC
from ducats.data.segmentation.cityscapes import GTAV_CITYSCAPES_SPEC, SYNTHIA_CITYSCAPES_SPEC
from ducats.data.segmentation.folders import SEGMENTATION_FOLDERS_SPEC, segmentation_folders
from ducats.data.segmentation.reader import SegmentationReader
from ducats.data.spec import DatasetSpec
from ducats.data.streets import STREETS_SPEC, streets
from ducats.data.toy import TOY_SPEC, toy
from ducats.utils.registry import resolve

DATASETS: Mapping[str, DatasetSpec] = {
    "carla_camvid": CARLA_CAMVID_SPEC,
    "digit_sets": DIGIT_SETS_SPEC,
    "digits": DIGITS_SPEC,
    "domainnet": image_dataset(DOMAINNET),
    "folders": FOLDERS_SPEC,
    "gtav_cityscapes": GTAV_CITYSCAPES_SPEC,
    "manifest": MANIFEST_SPEC,
    "mini_domainnet": image_dataset(MINI_DOMAINNET),
    "office31": image_dataset(OFFICE31),
    "office_home": image_dataset(OFFICE_HOME),
    "pacs": image_dataset(PACS),
    "segmentation_folders": SEGMENTATION_FOLDERS_SPEC,
    "streets": STREETS_SPEC,
    "synthia_cityscapes": SYNTHIA_CITYSCAPES_SPEC,
    "toy": TOY_SPEC,
    "visda2017": image_dataset(VISDA2017),
}


def resolve_dataset(name: str) -> DatasetSpec:
    """Return a data set by its name in `DATASETS`, or a user's own as ``package.module:attribute``."""
    return resolve("data set", DATASETS, name, as_dataset_spec)


def as_dataset_spec(data: Callable[..., AdaptationData] | DatasetSpec) -> DatasetSpec:
    """Wrap a plain function; return a `DatasetSpec` unchanged."""
    if isinstance(data, DatasetSpec):
        return data
    return DatasetSpec(data, per_pixel=True if isinstance(data, SegmentationReader) else None)


__all__ = [
    "DATASETS",
    "DatasetSpec",
    "digits",
    "folders",
    "manifest",
    "resolve_dataset",
    "segmentation_folders",
    "streets",
    "toy",
]
