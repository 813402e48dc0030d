"""Settings and environments of the runs of a report, their differences, and warnings for the reader."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ducats.figures.settings import without_folders
from ducats.records import EVALUATED_ON_DESCRIPTIONS, describe_pixels
from ducats.report.read import Run
from ducats.report.tables import by_kind, counted, methods
from ducats.report.tasks import Column, column_of, columns_of


@dataclass(frozen=True)
class Setting:
    """A setting that differs between methods: its dotted key and one value per method."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Environment:
    """A machine with its package versions, and the names of its runs."""

    facts: tuple[tuple[str, str], ...]
    runs: tuple[str, ...]


def settings(runs: Sequence[Run]) -> list[Setting]:
    """Return the settings that differ between methods, from one run each, with paths cut to the last part."""
    first = _firsts(runs)
    flats = [flat(run.config) for run in first]
    # If the runs cover several tasks, data settings belong to the task, not to the method.
    left_out = ("data.",) if len(columns_of(first)) > 1 else ()
    shown = [flat(without_folders(run.config)) for run in first]
    return [
        Setting(key, tuple(one.get(key, "–") for one in shown))
        for key in _differing(flats)
        if not key.startswith(left_out)
    ]


def _firsts(runs: Sequence[Run]) -> list[Run]:
    """Return one run per method, on the task with the most methods if the method has a run of it."""
    names = methods(runs)
    tried: dict[Column, dict[str, Run]] = {}
    for run in runs:
        tried.setdefault(column_of(run.config), {}).setdefault(run.method, run)
    shared = max(tried.values(), key=len, default={})
    return [shared.get(name) or next(run for run in runs if run.method == name) for name in names]


def environments(runs: Sequence[Run]) -> list[Environment]:
    """Return the different combinations of machine and versions, each with its runs."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run in runs:
        versions = run.environment.get("versions")
        plain = {key: value for key, value in run.environment.items() if key != "versions"}
        plain |= versions if isinstance(versions, Mapping) else {}
        facts = tuple((str(key), str(value)) for key, value in plain.items())
        groups.setdefault(facts, []).append(run.name)
    return [Environment(facts, tuple(names)) for facts, names in groups.items()]


def measured_on(runs: Sequence[Run]) -> str:
    """Describe the images the runs were evaluated on; empty if no run recorded it."""
    kinds: dict[str, set[int]] = {}
    for run in runs:
        if run.result is not None and run.result.get("evaluated_on") in EVALUATED_ON_DESCRIPTIONS:
            kinds.setdefault(run.result["evaluated_on"], set()).add(int(run.result["images"]))
    said = []
    pixels = describe_pixels([run.result for run in runs if run.result is not None])
    for kind, counts in kinds.items():
        count = f"{min(counts):,}" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"
        said.append(f"{count} {EVALUATED_ON_DESCRIPTIONS[kind]}")
    return f"Evaluated on {'; or on '.join(said)}{f': {pixels}' if pixels else ''}." if said else ""


def cautions(runs: Sequence[Run], several: str = "each run counts as a separate seed") -> list[str]:
    """Return warnings about means that are not comparable or not reliable.

    Args:
        several: how several runs with the same seed are counted; the end of that warning.
    """
    groups = by_kind(runs)
    if len(groups) > 1:
        apart = " and ".join(group[0].kind.score for group in groups)
        mixed = f"These runs are ranked by different metrics ({apart}), so each kind is reported separately."
        return [mixed, *(caution for group in groups for caution in cautions(group, several))]
    found = [_other_data(runs), _other_exams(runs), _other_objectives(runs), _without_test(runs)]
    for method in methods(runs):
        group = [run for run in runs if run.method == method]
        found += [_under_way(group, method), _mixed_settings(group, method)]
        found.append(_repeated_seeds(group, method, several))
    return [caution for caution in found if caution]


def _other_data(runs: Sequence[Run]) -> str:
    known = [run.data or run.config.get("data") for run in runs]
    tests = {_text(data.get("test", data)) for data in known if isinstance(data, Mapping)}
    if len(tests) < 2:
        return ""
    return f"These runs have {len(tests)} different test sets, so their results cannot be compared."


def _other_exams(runs: Sequence[Run]) -> str:
    kinds = {run.result.get("evaluated_on") for run in runs if run.result is not None}
    if len(kinds) > 1:
        return "These runs were evaluated on different kinds of images, so their results cannot be compared."
    sizes = {run.result.get("resolution") for run in runs if run.result is not None}
    if len(sizes) > 1:
        return "These runs were evaluated at different resolutions, so their results cannot be compared."
    if kinds == {"unlabelled"} and len(methods(runs)) > 1:
        return (
            "Each run was evaluated on the target images it had not labelled, so a method that labels hard "
            "images is evaluated on easier ones. To compare methods, set evaluation.split to target or "
            "held_out."
        )
    return ""


def _other_objectives(runs: Sequence[Run]) -> str:
    trained: dict[str, list[str]] = {}
    for method in methods(runs):
        objective = next(run for run in runs if run.method == method).config.get("objective")
        if isinstance(objective, Mapping):
            trained.setdefault(str(objective.get("name")), []).append(method)
    if len(trained) < 2:
        return ""
    who = "; ".join(f"{', '.join(names)} with {objective}" for objective, names in trained.items())
    return f"The training objectives differ ({who}), so differences are not due to the selected labels alone."


def _without_test(runs: Sequence[Run]) -> str:
    bare = [run for run in runs if run.result is None]
    if not bare:
        return ""
    spent = [run.name for run in bare if run.stages and run.stages[-1].get("images") == 0]
    if len(spent) == len(bare):
        return f"All target images were labelled, so there is no result in the table: {', '.join(spent)}."
    names = [run.name for run in bare]
    return f"No result on a test set, so not in tables and curves: {', '.join(names)}."


def _under_way(group: Sequence[Run], method: str) -> str:
    waiting = [run.name for run in group if not run.finished and run.result is not None]
    if not waiting:
        return ""
    if counted(group, method)[0].finished:
        return f"Unfinished, so not in the means of {method}: {', '.join(waiting)}."
    return f"No run of {method} is finished; its numbers are from the last stage evaluated so far."


def _mixed_settings(group: Sequence[Run], method: str) -> str:
    keys = _differing([flat(run.config) for run in group])
    if not keys:
        return ""
    more = f" and {len(keys) - 4} more" if len(keys) > 4 else ""
    return f"The mean of {method} mixes runs with different settings ({', '.join(keys[:4])}{more})."


def _repeated_seeds(group: Sequence[Run], method: str, several: str) -> str:
    seeds = [run.seed for run in group if run.result is not None]
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if not twice:
        return ""
    again = ", ".join(map(str, twice))
    return f"{method} has several runs with the same seed ({again}): {several}."


def flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Return all settings except method and seed by dotted key."""
    return _flatten({key: value for key, value in config.items() if key not in ("method", "seed")})


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{prefix}{key}.")
        elif value != {}:  # skip empty groups
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else _text(value)
    return flat


def _differing(flats: Sequence[Mapping[str, str]]) -> list[str]:
    keys = dict.fromkeys(key for flat in flats for key in flat)
    return [key for key in keys if len({flat.get(key) for flat in flats}) > 1]


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
