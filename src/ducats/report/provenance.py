"""How the runs of a report were made, in what they differ, and what a reader should beware of."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ducats.figures.settings import without_folders
from ducats.records import MEASURED_ON, pixels_in_words
from ducats.report.read import Run
from ducats.report.tables import by_kind, counted, methods
from ducats.report.tasks import Column, column_of, columns_of


@dataclass(frozen=True)
class Setting:
    """A setting that the methods do not share: its dotted key and one value per method."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Environment:
    """A machine with its versions, and the runs it made."""

    facts: tuple[tuple[str, str], ...]
    runs: tuple[str, ...]


def settings(runs: Sequence[Run]) -> list[Setting]:
    """Settings in which the methods differ, each as its first run has them; paths by their last part."""
    first = _firsts(runs)
    flats = [flat(run.config) for run in first]
    # Of runs of several tasks, where the data lie is the task and no choice of the method.
    left_out = ("data.",) if len(columns_of(first)) > 1 else ()
    shown = [flat(without_folders(run.config)) for run in first]
    return [
        Setting(key, tuple(one.get(key, "–") for one in shown))
        for key in _differing(flats)
        if not key.startswith(left_out)
    ]


def _firsts(runs: Sequence[Run]) -> list[Run]:
    """A run of each method, on the task that most of them have where a method has it."""
    names = methods(runs)
    tried: dict[Column, dict[str, Run]] = {}
    for run in runs:
        tried.setdefault(column_of(run.config), {}).setdefault(run.method, run)
    shared = max(tried.values(), key=len, default={})
    return [shared.get(name) or next(run for run in runs if run.method == name) for name in names]


def environments(runs: Sequence[Run]) -> list[Environment]:
    """Each different machine or set of versions, with its runs."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run in runs:
        versions = run.environment.get("versions")
        plain = {key: value for key, value in run.environment.items() if key != "versions"}
        plain |= versions if isinstance(versions, Mapping) else {}
        facts = tuple((str(key), str(value)) for key, value in plain.items())
        groups.setdefault(facts, []).append(run.name)
    return [Environment(facts, tuple(names)) for facts, names in groups.items()]


def measured_on(runs: Sequence[Run]) -> str:
    """On which images the results of the runs were measured, in words; nothing if no run says so."""
    kinds: dict[str, set[int]] = {}
    for run in runs:
        if run.result is not None and run.result.get("measured_on") in MEASURED_ON:
            kinds.setdefault(run.result["measured_on"], set()).add(int(run.result["images"]))
    said = []
    pixels = pixels_in_words([run.result for run in runs if run.result is not None])
    for kind, counts in kinds.items():
        count = f"{min(counts):,}" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"
        said.append(f"{count} {MEASURED_ON[kind]}")
    return f"Measured on {'; or on '.join(said)}{f': {pixels}' if pixels else ''}." if said else ""


def cautions(runs: Sequence[Run], several: str = "each counts as a seed of its own") -> list[str]:
    """What a reader should know before believing a mean; none for clean runs.

    Args:
        runs: that are compared.
        several: what becomes of several runs of one seed.
    """
    groups = by_kind(runs)
    if len(groups) > 1:
        apart = " and ".join(group[0].kind.score for group in groups)
        mixed = f"These runs are ranked by different measures ({apart}): each kind is reported on its own."
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
    return f"These runs have {len(tests)} different test sets: their numbers cannot be compared."


def _other_exams(runs: Sequence[Run]) -> str:
    kinds = {run.result.get("measured_on") for run in runs if run.result is not None}
    if len(kinds) > 1:
        return "These runs were measured on different kinds of images: their numbers cannot be compared."
    sizes = {run.result.get("resolution") for run in runs if run.result is not None}
    if len(sizes) > 1:
        return "These runs were measured at different resolutions: their numbers cannot be compared."
    if kinds == {"unlabelled"} and len(methods(runs)) > 1:
        return (
            "Each run was measured on what it had not bought: a method that buys the hard images is left "
            "with the easy ones. To compare methods, use evaluation.images=target or held_out."
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
    return f"Not all train alike ({who}): between these, a gap is not due to the choice of labels alone."


def _without_test(runs: Sequence[Run]) -> str:
    bare = [run for run in runs if run.result is None]
    if not bare:
        return ""
    spent = [run.name for run in bare if run.stages and run.stages[-1].get("images") == 0]
    if len(spent) == len(bare):
        return f"Everything was bought and nothing left to measure, so not in table: {', '.join(spent)}."
    names = [run.name for run in bare]
    return f"Without a result on a test set, so not in table and curves: {', '.join(names)}."


def _under_way(group: Sequence[Run], method: str) -> str:
    waiting = [run.name for run in group if not run.finished and run.result is not None]
    if not waiting:
        return ""
    if counted(group, method)[0].finished:
        return f"Not finished, so not in the means of {method}: {', '.join(waiting)}."
    return f"No run of {method} is finished: its numbers are of the last stage measured so far."


def _mixed_settings(group: Sequence[Run], method: str) -> str:
    keys = _differing([flat(run.config) for run in group])
    if not keys:
        return ""
    more = f" and {len(keys) - 4} more" if len(keys) > 4 else ""
    return (
        f"Runs of {method} differ in more than the seed ({', '.join(keys[:4])}{more}): its mean mixes them."
    )


def _repeated_seeds(group: Sequence[Run], method: str, several: str) -> str:
    seeds = [run.seed for run in group if run.result is not None]
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if not twice:
        return ""
    again = ", ".join(map(str, twice))
    return f"{method} has several runs of one seed ({again}): {several}."


def flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Every setting but method and seed, by its dotted key."""
    return _flatten({key: value for key, value in config.items() if key not in ("method", "seed")})


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{prefix}{key}.")
        elif value != {}:  # an empty group of settings sets nothing
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else _text(value)
    return flat


def _differing(flats: Sequence[Mapping[str, str]]) -> list[str]:
    keys = dict.fromkeys(key for flat in flats for key in flat)
    return [key for key in keys if len({flat.get(key) for flat in flats}) > 1]


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
