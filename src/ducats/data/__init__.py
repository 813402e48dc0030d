"""Where problems come from: each entry makes a ``Shift``, a source with labels and a pool without."""

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
from ducats.data.folders import folders
from ducats.data.manifest import manifest
from ducats.data.toy import toy
from ducats.domain import Shift
from ducats.errors import UserError

DATASETS: Mapping[str, Callable[..., Shift]] = {
    "digit_sets": digit_sets,
    "digits": digits,
    "domainnet": domainnet,
    "folders": folders,
    "manifest": manifest,
    "mini_domainnet": mini_domainnet,
    "office31": office31,
    "office_home": office_home,
    "pacs": pacs,
    "toy": toy,
    "visda2017": visda2017,
}


def require_options(name: str, function: Callable[..., Shift], knobs: Mapping[str, Any]) -> None:
    """Ask for the options that a data set cannot do without."""
    parameters = inspect.signature(function).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    missing = [option for option in needed if knobs.get(option) is None]
    if not missing:
        return
    options = " and ".join(f"--{option}" for option in missing)
    tasks = (
        f"; its tasks are {', '.join(BENCHMARKS[name].tasks)}"
        if "task" in missing and name in BENCHMARKS
        else ""
    )
    raise UserError(f"the data set {name!r} needs {options} (or data.knobs.{missing[0]} in a config){tasks}")


def usual_task(name: str, task: str) -> str:
    """A benchmark's task in its usual spelling, so that one task is one run; any other as it is."""
    return (BENCHMARKS[name].spell(task) if name in BENCHMARKS else None) or task


__all__ = [
    "BENCHMARKS",
    "DATASETS",
    "digit_sets",
    "digits",
    "domainnet",
    "folders",
    "manifest",
    "mini_domainnet",
    "office31",
    "office_home",
    "pacs",
    "require_options",
    "toy",
    "usual_task",
    "visda2017",
]
