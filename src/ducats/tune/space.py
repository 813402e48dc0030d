"""What is searched: settings with their choices, and which of their combinations are tried."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

import torch
import yaml

from ducats.config import Config, ask_epochs
from ducats.errors import UserError
from ducats.randomness import fork

Choices = Mapping[str, Sequence[Any]]
Point = dict[str, Any]  # one value of each searched setting

OBJECTIVE: Choices = {  # the grids of the paper's sensitivity study
    "objective.knobs.beta": (0.01, 0.05, 0.1, 0.5, 1.0),
    "objective.knobs.lambda_": (0.001, 0.005, 0.01, 0.05, 0.1),
}
QUERY: Choices = {"query.knobs.kappa": (10, 20, 30)}  # what the paper finds to work

FIXED = {  # by the beginning of a setting's name: why it cannot be searched
    "seed": "a seed is luck, and the luckiest would win",
    "data": "the problem would be another",
    "task": "the problem would be another",
    "oracle": "the labels would be others",
    "evaluation": "the risk would be of other images",
    "engine": "where a run is computed does not change it",
    "method": "it is a name and changes nothing",
    "ask.budget": "more labels would always win",
}


def usual_choices(config: Config) -> Choices:
    """What is searched if nothing is said: DUC's weights, and kappa where the run asks."""
    found: dict[str, Sequence[Any]] = {}
    if config.objective.name == "duc":
        found |= OBJECTIVE
    if config.query.name == "duc" and ask_epochs(config):
        found |= QUERY
    if not found:
        raise UserError(
            f"for the objective {config.objective.name!r} and the query {config.query.name!r} nothing is "
            "searched by default: say what, e.g. --over train.lr=0.001,0.01"
        )
    return found


def parse(over: Sequence[str]) -> Choices:
    """Choices from ``key=value,value``, values in YAML.

    >>> parse(["query.knobs.kappa=5,10", "train.lr=1e-3"])
    {'query.knobs.kappa': (5, 10), 'train.lr': (0.001,)}
    """
    found: dict[str, Sequence[Any]] = {}
    for text in over:
        key, equals, listed = (part.strip() for part in text.partition("="))
        if not key or not equals or not listed:
            raise UserError(f"--over {text!r} is not of the form key=value,value, e.g. train.lr=0.001,0.01")
        for beginning, why in FIXED.items():
            if key == beginning or key.startswith(f"{beginning}."):
                raise UserError(f"--over {key} cannot be searched: {why}; give one value with --set")
        if key in found:
            raise UserError(f"--over {key} is given twice: name all its values at once")
        try:
            values = yaml.safe_load(f"[{listed}]")
        except yaml.YAMLError as error:
            raise UserError(
                f"--over {text}: the values are not YAML: {' '.join(str(error).split())}"
            ) from None
        found[key] = tuple(_number(value) for value in values)
    return found


def _number(value: Any) -> Any:
    """YAML takes ``1e-3`` for a word."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


def points(choices: Choices, trials: int, seed: int) -> list[Point]:
    """At most so many combinations, in random order; more trials begin with those that fewer have.

    Args:
        choices: of each setting.
        trials: how many to take.
        seed: of the order.
    """
    if trials < 1:
        raise UserError(f"--trials {trials} tries nothing: give at least 1")
    every = list(product(*choices.values()))
    order = torch.randperm(len(every), generator=fork(seed, "tune"))[:trials].tolist()
    return [dict(zip(choices, every[place], strict=True)) for place in order]


def combinations(choices: Choices) -> int:
    """How many there are."""
    count = 1
    for values in choices.values():
        count *= len(values)
    return count


def settings_of(point: Mapping[str, Any]) -> list[str]:
    """A point as ``key=value`` settings.

    >>> settings_of({"train.lr": 1e-05, "query.knobs.kappa": 5})
    ['train.lr=1.0e-05', 'query.knobs.kappa=5']
    """
    return [f"{key}={_yaml(value)}" for key, value in point.items()]


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
