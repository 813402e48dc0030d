"""Oracles: callables that return one label per requested location."""

from collections.abc import Callable

from torch import Tensor

from ducats.ledger import Request
from ducats.oracles.people import People
from ducats.oracles.truth import Truth

Oracle = Callable[[Request], Tensor]

__all__ = ["Oracle", "People", "Truth"]
