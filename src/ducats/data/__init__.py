"""Where problems come from: each entry makes a ``Shift``, a source with labels and a pool without."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ducats.data.digits import digits
from ducats.data.folders import folders
from ducats.data.manifest import manifest
from ducats.data.toy import toy
from ducats.domain import Shift
from ducats.errors import UserError

DATASETS: Mapping[str, Callable[..., Shift]] = {
    "digits": digits,
    "folders": folders,
    "manifest": manifest,
    "toy": toy,
}


def require_options(name: str, function: Callable[..., Shift], knobs: Mapping[str, Any]) -> None:
    """Ask for the options that a data set cannot do without."""
    parameters = inspect.signature(function).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    missing = [option for option in needed if knobs.get(option) is None]
    if missing:
        options = " and ".join(f"--{option}" for option in missing)
        raise UserError(f"the data set {name!r} needs {options} (or data.knobs.{missing[0]} in a config)")


__all__ = ["DATASETS", "digits", "folders", "manifest", "require_options", "toy"]
