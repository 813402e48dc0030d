"""Data sets by name. Each function returns ``AdaptationData``: a labelled source and an unlabelled pool."""

from collections.abc import Callable, Mapping

from ducats.data.benchmarks import (
    DIGIT_SETS_SPEC,
    DOMAINNET_SPEC,
    MINI_DOMAINNET_SPEC,
    OFFICE31_SPEC,
    OFFICE_HOME_SPEC,
    PACS_SPEC,
    VISDA2017_SPEC,
    digit_sets,
    domainnet,
    mini_domainnet,
    office31,
    office_home,
    pacs,
    visda2017,
)
from ducats.data.digits import DIGITS_SPEC, digits
from ducats.data.domain import AdaptationData
from ducats.data.folders import FOLDERS_SPEC, folders
from ducats.data.manifest import MANIFEST_SPEC, manifest
from ducats.data.segmentation import (
    CARLA_CAMVID_SPEC,
    GTAV_CITYSCAPES_SPEC,
    SEGMENTATION_FOLDERS_SPEC,
    SYNTHIA_CITYSCAPES_SPEC,
    SegmentationReader,
    carla_camvid,
    gtav_cityscapes,
    segmentation_folders,
    synthia_cityscapes,
)
from ducats.data.spec import DatasetSpec
from ducats.data.streets import STREETS_SPEC, streets
from ducats.data.toy import TOY_SPEC, toy
from ducats.utils.registry import resolve

DATASETS: Mapping[str, DatasetSpec] = {
    "carla_camvid": CARLA_CAMVID_SPEC,
    "digit_sets": DIGIT_SETS_SPEC,
    "digits": DIGITS_SPEC,
    "domainnet": DOMAINNET_SPEC,
    "folders": FOLDERS_SPEC,
    "gtav_cityscapes": GTAV_CITYSCAPES_SPEC,
    "manifest": MANIFEST_SPEC,
    "mini_domainnet": MINI_DOMAINNET_SPEC,
    "office31": OFFICE31_SPEC,
    "office_home": OFFICE_HOME_SPEC,
    "pacs": PACS_SPEC,
    "segmentation_folders": SEGMENTATION_FOLDERS_SPEC,
    "streets": STREETS_SPEC,
    "synthia_cityscapes": SYNTHIA_CITYSCAPES_SPEC,
    "toy": TOY_SPEC,
    "visda2017": VISDA2017_SPEC,
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
    "carla_camvid",
    "digit_sets",
    "digits",
    "domainnet",
    "folders",
    "gtav_cityscapes",
    "manifest",
    "mini_domainnet",
    "office31",
    "office_home",
    "pacs",
    "resolve_dataset",
    "segmentation_folders",
    "streets",
    "synthia_cityscapes",
    "toy",
    "visda2017",
]
