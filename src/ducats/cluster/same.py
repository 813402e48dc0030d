"""Version check of cluster nodes: another version could silently compute different results."""

import importlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any

from ducats.errors import UserError

PACKAGES = ("ducats", "torch", "torchvision", "pillow")


@cache
def versions() -> Mapping[str, str]:
    """Return the versions of the packages that affect results; missing packages are left out."""
    known = {}
    for package in PACKAGES:
        try:
            known[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return known


def only_among_equals(theirs: Mapping[str, str], work: str, *arguments: Any) -> Any:
    """Call a function if this node has the same package versions as the caller.

    Args:
        theirs: versions of the caller.
        work: function as ``module:name``.
        *arguments: of the function.

    Raises:
        UserError: Versions differ.
    """
    ours = versions()
    for package in PACKAGES:
        if ours.get(package) != theirs.get(package):
            raise UserError(
                f"{package} is {ours.get(package, 'not installed')} on node {platform.node()}, but "
                f"{theirs.get(package, 'not installed')} on the submitting machine; install the same version "
                "on all nodes"
            )
    module, _, name = work.partition(":")
    return getattr(importlib.import_module(module), name)(*arguments)
