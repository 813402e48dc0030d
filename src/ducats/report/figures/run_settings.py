"""Settings of runs by dotted key, and groups of runs that differ in given settings only."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ducats.report.figures.runs import RunSequence, is_segmentation
from ducats.report.run_reader import Run, finished_or_all
from ducats.runfolder.records import finite_number
from ducats.utils.errors import UserError

# Default values of parameters: key -> (names of the queries or objectives that have it, default).
PARAM_DEFAULTS: Mapping[str, tuple[tuple[str, ...], float]] = {
    "query.params.kappa": (("duc", "euq"), 10.0),
    "objective.params.beta": (("duc",), 1.0),
    "objective.params.lambda_": (("duc",), 0.05),
}
SEGMENTATION_LAMBDA = 0.01
_ABSOLUTE_PATH = re.compile(r"~?[/\\]|[A-Za-z]:[/\\]")  # start of an absolute path


@dataclass(frozen=True)
class RunGroup:
    """Evaluated runs that differ only in the settings on the axes and in their seeds."""

    label: str  # settings that differ from other groups; empty if there is only one group
    runs: tuple[Run, ...]


def find_setting(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key; None if there is none."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def has_duc_query(run: Run) -> bool:
    """Return whether the query is that of DUC, whose first step keeps the samples above a threshold."""
    return bool(find_setting(run.config, "query.name") == "duc")


def get_setting(run: Run, key: str) -> Any:
    """Return the value of a dotted key, or its default parameter value; None if there is none."""
    value = find_setting(run.config, key)
    if value is None and key in PARAM_DEFAULTS:
        names, default = PARAM_DEFAULTS[key]
        if get_setting(run, f"{key.partition('.')[0]}.name") in names:
            return SEGMENTATION_LAMBDA if key.endswith("lambda_") and is_segmentation(run) else default
    return value


def group_runs(runs: RunSequence, axis_keys: Sequence[str], figure: str) -> list[RunGroup]:
    """Group evaluated runs by every setting that is not on an axis.

    Args:
        runs: runs without evaluation are skipped; unfinished ones too if any run is finished.
        axis_keys: dotted keys on the axes, or prefixes of them.
        figure: name of the figure for the error message.
    """
    included = finished_or_all([run for run in runs if final_score(run) is not None])
    if not included:
        raise UserError(
            f"`ducats figure {figure}` has nothing to draw: no run was evaluated on a test set; "
            "set evaluation.split"
        )
    groups: dict[str, list[Run]] = {}
    settings_by_group: dict[str, dict[str, str]] = {}
    shareable_settings: dict[str, dict[str, str]] = {}
    for run in included:
        group_settings = other_settings(run, axis_keys)
        key = json.dumps(group_settings, sort_keys=True)
        groups.setdefault(key, []).append(run)
        settings_by_group[key] = group_settings
        shareable_settings[key] = other_settings(run, axis_keys, strip_folders(run.config))
    differing = differing_keys(list(settings_by_group.values()))
    return [
        RunGroup(_group_label(shareable_settings[key], differing), tuple(group))
        for key, group in groups.items()
    ]


def final_score(run: Run) -> float | None:
    """Return the main metric at the last stage."""
    return finite_number(run.stages[-1], run.kind.headline_metric) if run.stages else None


def flatten_settings(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return every setting as text by its dotted key."""
    flattened: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flattened |= flatten_settings(value, f"{prefix}{key}.")
        else:
            flattened[f"{prefix}{key}"] = value if isinstance(value, str) else to_json(value)
    return flattened


def differing_keys(flat_configs: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the dotted keys whose values differ, in order of first appearance."""
    keys = dict.fromkeys(key for flat_config in flat_configs for key in flat_config)
    return [key for key in keys if len({flat.get(key) for flat in flat_configs}) > 1]


def to_json(value: Any) -> str:
    """Return a value as canonical JSON."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def strip_folders(value: Any) -> Any:
    """Replace absolute paths by their last component, for sharing.

    >>> strip_folders(["/data/ann/office31", "data/maps", 0.5])
    ['office31', 'data/maps', 0.5]
    """
    if isinstance(value, Mapping):
        return {key: strip_folders(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [strip_folders(each) for each in value]
    if isinstance(value, str) and _ABSOLUTE_PATH.match(value):
        return re.split(r"[/\\]", value.rstrip("/\\"))[-1] or "…"
    return value


def other_settings(
    run: Run, axis_keys: Sequence[str], config: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return the settings not on an axis by dotted key, without method and seed, with default parameters.

    Args:
        axis_keys: dotted keys on the axes, or prefixes of them.
        config: config without absolute paths; default: the run's own.
    """
    all_settings = flatten_settings(run.config if config is None else config)
    all_settings |= {
        key: json.dumps(float(value))
        for key in PARAM_DEFAULTS
        if (value := get_setting(run, key)) is not None
    }
    excluded_prefixes = ("method", "seed", *axis_keys)
    return {key: value for key, value in all_settings.items() if not key.startswith(tuple(excluded_prefixes))}


def _group_label(group_settings: Mapping[str, str], differing: Sequence[str]) -> str:
    parts = [
        f"{key.rpartition('.')[2] if 'params' in key else key} {group_settings[key]}"
        for key in differing
        if key in group_settings
    ]
    return ", ".join(parts[:3]) + (" …" if len(parts) > 3 else "")
