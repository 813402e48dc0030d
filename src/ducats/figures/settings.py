"""Settings of runs by dotted key, and groups of runs that differ in given settings only."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ducats.errors import UserError
from ducats.figures.numbers import number
from ducats.figures.runs import RunLike, Runs, of_pixels

# Default values of parameters: key -> (names of the queries or objectives that have it, default).
USUAL: Mapping[str, tuple[tuple[str, ...], float]] = {
    "query.params.kappa": (("duc", "spread", "euq"), 10.0),
    "objective.params.beta": (("duc",), 1.0),
    "objective.params.lambda_": (("duc",), 0.05),
}
LAMBDA_OF_PIXELS = 0.01
WHOLE = re.compile(r"~?[/\\]|[A-Za-z]:[/\\]")  # start of an absolute path


@dataclass(frozen=True)
class Line:
    """Evaluated runs that differ only in the settings on the axes and in their seeds.

    Args:
        label: settings that differ from other groups; empty if there is only one group.
    """

    label: str
    runs: tuple[RunLike, ...]


def setting(run: RunLike, key: str) -> Any:
    """Return the value of a dotted key, or its default parameter value; None if there is none."""
    value: Any = run.config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is None and key in USUAL:
        names, usual = USUAL[key]
        if setting(run, f"{key.partition('.')[0]}.name") in names:
            return LAMBDA_OF_PIXELS if key.endswith("lambda_") and of_pixels(run) else usual
    return value


def lines(runs: Runs, drawn: Sequence[str], figure: str) -> list[Line]:
    """Group evaluated runs by every setting that is not on an axis.

    Args:
        runs: runs without evaluation are skipped; unfinished ones too if any run is finished.
        drawn: dotted keys on the axes, or prefixes of them.
        figure: name of the figure for the error message.
    """
    measured = [run for run in runs if score(run) is not None]
    chosen = [run for run in measured if run.finished] or measured
    if not chosen:
        raise UserError(
            f"`ducats figure {figure}` has nothing to draw: no run was evaluated on a test set; "
            "set evaluation.split"
        )
    groups: dict[str, list[RunLike]] = {}
    rests: dict[str, dict[str, str]] = {}
    told: dict[str, dict[str, str]] = {}
    for run in chosen:
        others = rest(run, drawn)
        key = json.dumps(others, sort_keys=True)
        groups.setdefault(key, []).append(run)
        rests[key] = others
        told[key] = rest(run, drawn, without_folders(run.config))
    differing = [
        name
        for name in dict.fromkeys(name for others in rests.values() for name in others)
        if len({others.get(name) for others in rests.values()}) > 1
    ]
    return [Line(_label(told[key], differing), tuple(group)) for key, group in groups.items()]


def score(run: RunLike) -> float | None:
    """Return the main metric at the last stage."""
    return number(run.stages[-1], run.kind.headline) if run.stages else None


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return every setting as text by its dotted key."""
    found: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return found


def without_folders(value: Any) -> Any:
    """Replace absolute paths by their last component, for sharing.

    >>> without_folders(["/data/ann/office31", "data/maps", 0.5])
    ['office31', 'data/maps', 0.5]
    """
    if isinstance(value, Mapping):
        return {key: without_folders(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(each) for each in value]
    if isinstance(value, str) and WHOLE.match(value):
        return re.split(r"[/\\]", value.rstrip("/\\"))[-1] or "…"
    return value


def rest(run: RunLike, drawn: Sequence[str], config: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the settings not on an axis by dotted key, without method and seed, with default parameters.

    Args:
        drawn: dotted keys on the axes, or prefixes of them.
        config: config without absolute paths; default: the run's own.
    """
    found = flat(run.config if config is None else config)
    found |= {key: json.dumps(float(value)) for key in USUAL if (value := setting(run, key)) is not None}
    left_out = ("method", "seed", *drawn)
    return {key: value for key, value in found.items() if not key.startswith(tuple(left_out))}


def _label(others: Mapping[str, str], differing: Sequence[str]) -> str:
    told = [
        f"{key.rpartition('.')[2] if 'params' in key else key} {others[key]}"
        for key in differing
        if key in others
    ]
    return ", ".join(told[:3]) + (" …" if len(told) > 3 else "")
