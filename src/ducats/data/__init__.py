"""Where problems come from: each entry makes a ``Shift``, a source with labels and a pool without."""

from collections.abc import Callable, Mapping

from ducats.data.digits import digits
from ducats.data.folders import folders
from ducats.data.manifest import manifest
from ducats.data.toy import toy
from ducats.domain import Shift

DATASETS: Mapping[str, Callable[..., Shift]] = {
    "digits": digits,
    "folders": folders,
    "manifest": manifest,
    "toy": toy,
}

__all__ = ["DATASETS", "digits", "folders", "manifest", "toy"]
