"""Search space: settings with their values, and the combinations to try."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

import torch
import yaml

from ducats.config import Config, query_epochs
from ducats.errors import UserError
from ducats.randomness import fork

Choices = Mapping[str, Sequence[Any]]
Point = dict[str, Any]  # one value of each searched setting

OBJECTIVE: Choices = {  # grids of the paper's sensitivity study
    "objective.params.beta": (0.01, 0.05, 0.1, 0.5, 1.0),
    "objective.params.lambda_": (0.001, 0.005, 0.01, 0.05, 0.1),
}
QUERY: Choices = {"query.params.kappa": (10, 20, 30)}  # values that work well in the paper

FIXED = {  # reason why a setting cannot be searched, by prefix
    "seed": "the best seed would win by chance",
    "data": "it would change the problem",
    "task": "it would change the problem",
    "oracle": "it would change the labels",
    "evaluation": "it would change the images of the risk estimate",
    "engine": "it does not affect the result",
    "method": "it is only a name",
    "acquisition.budget": "more labels would always win",
}


def usual_choices(config: Config) -> Choices:
    """Return the default search space: DUC's loss weights, and kappa if the run has query rounds."""
    found: dict[str, Sequence[Any]] = {}
    if config.objective.name == "duc":
        found |= OBJECTIVE
    if config.query.name == "duc" and query_epochs(config):
        found |= QUERY
    if not found:
        raise UserError(
            f"there is no default search space for the objective {config.objective.name!r} with the query "
            f"{config.query.name!r}; define one, e.g. --grid train.lr=0.001,0.01"
        )
    return found


def parse(over: Sequence[str]) -> Choices:
    """Parse settings of the form ``key=value,value``, with values in YAML.

    >>> parse(["query.params.kappa=5,10", "train.lr=1e-3"])
    {'query.params.kappa': (5, 10), 'train.lr': (0.001,)}
    """
    found: dict[str, Sequence[Any]] = {}
    for text in over:
        key, equals, listed = (part.strip() for part in text.partition("="))
        if not key or not equals or not listed:
            raise UserError(f"--grid {text!r} must have the form key=value,value, e.g. train.lr=0.001,0.01")
        for beginning, why in FIXED.items():
            if key == beginning or key.startswith(f"{beginning}."):
                raise UserError(f"--grid {key} cannot be searched, because {why}; set one value with --set")
        if key in found:
            raise UserError(f"--grid {key} is given twice; list all values in one option")
        try:
            values = yaml.safe_load(f"[{listed}]")
        except yaml.YAMLError as error:
            raise UserError(
                f"--grid {text} has invalid YAML values: {' '.join(str(error).split())}"
            ) from None
        found[key] = tuple(_number(value) for value in values)
    return found


def _number(value: Any) -> Any:
    """Convert strings like ``1e-3``, which YAML does not parse as numbers."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


def points(choices: Choices, trials: int, seed: int) -> list[Point]:
    """Sample at most ``trials`` combinations; a larger number extends the list of a smaller one."""
    if trials < 1:
        raise UserError(f"--trials must be at least 1, not {trials}")
    every = list(product(*choices.values()))
    order = torch.randperm(len(every), generator=fork(seed, "tune"))[:trials].tolist()
    return [dict(zip(choices, every[place], strict=True)) for place in order]


def combinations(choices: Choices) -> int:
    """Return the number of combinations."""
    count = 1
    for values in choices.values():
        count *= len(values)
    return count


def settings_of(point: Mapping[str, Any]) -> list[str]:
    """Convert a point to ``key=value`` settings.

    >>> settings_of({"train.lr": 1e-05, "query.params.kappa": 5})
    ['train.lr=1.0e-05', 'query.params.kappa=5']
    """
    return [f"{key}={_yaml(value)}" for key, value in point.items()]


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
