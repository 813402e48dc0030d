"""Data sets by name. Each function returns ``AdaptationData``: a labelled source and an unlabelled pool."""

from collections.abc import Callable, Mapping

from ducats.data.benchmarks.digit_sets import DIGIT_SETS, digit_sets
from ducats.data.benchmarks.image_benchmarks import (
    DOMAINNET,
    MINI_DOMAINNET,
    OFFICE31,
    OFFICE_HOME,
    PACS,
    VISDA2017,
)
from ducats.data.benchmarks.tasks import image_dataset
from ducats.data.digits import digits
from ducats.data.domain import AdaptationData
from ducats.data.folders import folders
from ducats.data.manifest import manifest
from ducats.data.segmentation.camvid import carla_camvid
from ducats.data.segmentation.cityscapes import gtav_cityscapes, synthia_cityscapes
from ducats.data.segmentation.folders import segmentation_folders
from ducats.data.segmentation.reader import SegmentationReader
from ducats.data.spec import DatasetSpec
from ducats.data.streets import streets
from ducats.data.toy import toy
from ducats.utils.registry import resolve

DATASETS: Mapping[str, DatasetSpec] = {
    "carla_camvid": DatasetSpec(carla_camvid, per_pixel=True),
    "digit_sets": DatasetSpec(digit_sets, per_pixel=False, benchmark=DIGIT_SETS),
    "digits": DatasetSpec(digits, per_pixel=False),
    "domainnet": image_dataset(DOMAINNET),
    "folders": DatasetSpec(folders, per_pixel=False, file_layout="class_folders"),
    "gtav_cityscapes": DatasetSpec(gtav_cityscapes, per_pixel=True),
    "manifest": DatasetSpec(manifest, per_pixel=False, file_layout="manifest"),
    "mini_domainnet": image_dataset(MINI_DOMAINNET),
    "office31": image_dataset(OFFICE31),
    "office_home": image_dataset(OFFICE_HOME),
    "pacs": image_dataset(PACS),
    "segmentation_folders": DatasetSpec(segmentation_folders, per_pixel=True),
    "streets": DatasetSpec(streets, per_pixel=True),
    "synthia_cityscapes": DatasetSpec(synthia_cityscapes, per_pixel=True),
    "toy": DatasetSpec(toy, per_pixel=False),
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
