"""A node must have what we have: another version might compute other numbers, and nobody would know."""

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
    """Of this package, and of those whose numbers we take; a package that is not there has none."""
    known = {}
    for package in PACKAGES:
        try:
            known[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return known


def only_among_equals(theirs: Mapping[str, str], work: str, *arguments: Any) -> Any:
    """Work for somebody who has the same packages as this node.

    Args:
        theirs: versions, of whoever asks.
        work: what to do, a function as ``module:name``.
        *arguments: of the work.

    Raises:
        UserError: This node has others.
    """
    ours = versions()
    for package in PACKAGES:
        if ours.get(package) != theirs.get(package):
            raise UserError(
                f"the node {platform.node()} has {package} {ours.get(package, 'not at all')}, and whoever "
                f"gave the command has {theirs.get(package, 'none')}: install the same on all nodes"
            )
    module, _, name = work.partition(":")
    return getattr(importlib.import_module(module), name)(*arguments)
