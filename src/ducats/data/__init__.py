"""Data sets by name. Each function returns ``AdaptationData``: a labelled source and an unlabelled pool."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ducats.data.benchmarks import (
    BENCHMARKS,
    digit_sets,
    domainnet,
    mini_domainnet,
    office31,
    office_home,
    pacs,
    visda2017,
)
from ducats.data.digits import digits
from ducats.data.domain import AdaptationData
from ducats.data.folders import folders
from ducats.data.manifest import manifest
from ducats.data.segmentation import carla_camvid, gtav_cityscapes, segmentation_folders, synthia_cityscapes
from ducats.data.streets import streets
from ducats.data.toy import toy
from ducats.utils.errors import UserError

DATASETS: Mapping[str, Callable[..., AdaptationData]] = {
    "carla_camvid": carla_camvid,
    "digit_sets": digit_sets,
    "digits": digits,
    "domainnet": domainnet,
    "folders": folders,
    "gtav_cityscapes": gtav_cityscapes,
    "manifest": manifest,
    "mini_domainnet": mini_domainnet,
    "office31": office31,
    "office_home": office_home,
    "pacs": pacs,
    "segmentation_folders": segmentation_folders,
    "streets": streets,
    "synthia_cityscapes": synthia_cityscapes,
    "toy": toy,
    "visda2017": visda2017,
}
# Parameters with a command-line option of their own.
_PARAMS_WITH_OPTIONS = ("source", "target", "test", "root", "task", "path", "classes")


def require_params(name: str, function: Callable[..., AdaptationData], params: Mapping[str, Any]) -> None:
    """Raise if a required parameter of a data set is missing."""
    signature_params = inspect.signature(function).parameters.values()
    required = [p.name for p in signature_params if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    missing = [param for param in required if params.get(param) is None]
    if not missing:
        return
    options = " and ".join(
        f"--{param}" if param in _PARAMS_WITH_OPTIONS else f"--set data.params.{param}=..."
        for param in missing
    )
    tasks = (
        f"; its tasks are {', '.join(BENCHMARKS[name].tasks)}"
        if "task" in missing and name in BENCHMARKS
        else ""
    )
    raise UserError(f"the data set {name!r} needs {options} (or data.params.{missing[0]} in a config){tasks}")


def canonical_task(name: str, task: str) -> str:
    """Return a benchmark task in its canonical spelling; other tasks are returned unchanged.

    All spellings of a task then name the same run.
    """
    return (BENCHMARKS[name].canonical_task(task) if name in BENCHMARKS else None) or task


__all__ = [
    "BENCHMARKS",
    "DATASETS",
    "canonical_task",
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
    "require_params",
    "segmentation_folders",
    "streets",
    "synthia_cityscapes",
    "toy",
    "visda2017",
]
