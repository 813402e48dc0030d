"""Oracles: callables that return one label per requested location."""

from collections.abc import Callable

from torch import Tensor

from ducats.ledger import Request
from ducats.oracles.ground_truth import GroundTruthOracle
from ducats.oracles.human import HumanOracle

Oracle = Callable[[Request], Tensor]

__all__ = ["GroundTruthOracle", "HumanOracle", "Oracle"]
