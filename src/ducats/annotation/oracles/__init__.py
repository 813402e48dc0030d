"""Oracles: callables that return one label per requested location."""

from collections.abc import Callable

from torch import Tensor

from ducats.annotation.oracles.ground_truth import GroundTruthOracle
from ducats.annotation.oracles.human import HumanOracle
from ducats.ledger import Request

Oracle = Callable[[Request], Tensor]

__all__ = ["GroundTruthOracle", "HumanOracle", "Oracle"]
