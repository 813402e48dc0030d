"""Version check of cluster nodes: another version could silently compute different results."""

import importlib
import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import Any

from ducats.utils.errors import UserError

CHECKED_PACKAGES = ("ducats", "torch", "torchvision", "pillow")


@cache
def installed_versions() -> Mapping[str, str]:
    """Return the versions of the packages that affect results; missing packages are left out."""
    found = {}
    for package in CHECKED_PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def run_if_same_versions(caller_versions: Mapping[str, str], function: str, *arguments: Any) -> Any:
    """Call a function, given as ``module:name``, if this node has the caller's package versions."""
    node_versions = installed_versions()
    for package in CHECKED_PACKAGES:
        if node_versions.get(package) != caller_versions.get(package):
            raise UserError(
                f"{package} is {node_versions.get(package, 'not installed')} on node {platform.node()}, but "
                f"{caller_versions.get(package, 'not installed')} on the submitting machine; install the "
                "same version on all nodes"
            )
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)(*arguments)
