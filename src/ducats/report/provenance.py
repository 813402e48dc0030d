"""Progress, settings and environments of runs, differences between them, and warnings for the reader."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from ducats.report.figures.run_settings import (
    differing_keys,
    find_setting,
    flatten_settings,
    strip_folders,
    to_json,
)
from ducats.report.method_results import counted_runs, group_by_kind, method_names
from ducats.report.run_reader import Run
from ducats.report.tasks import DataTask, collect_data_tasks, data_and_task
from ducats.runfolder.question_names import ANSWER_MAPS, MASKS, RULES
from ducats.runfolder.records import EVALUATED_ON_DESCRIPTIONS, describe_pixels
from ducats.runfolder.rounds import round_name
from ducats.utils.findings import join_names, pluralise


@dataclass(frozen=True)
class SettingDifference:
    """A setting that differs between methods: its dotted key and one value per method."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Environment:
    """A machine with its package versions, and the names of its runs."""

    facts: tuple[tuple[str, str], ...]
    run_names: tuple[str, ...]


@dataclass(frozen=True)
class RunProvenance:
    """Provenance of a run: settings as YAML, other facts and versions as (name, value) pairs."""

    settings: str
    facts: tuple[tuple[str, str], ...]
    versions: tuple[tuple[str, str], ...]


def differing_settings(runs: Sequence[Run]) -> list[SettingDifference]:
    """Return the settings that differ between methods, from one run each, with paths cut to the last part."""
    first_runs = _first_run_by_method(runs)
    flat_configs = [flatten_config(run.config) for run in first_runs]
    # If the runs cover several tasks, data settings belong to the task, not to the method.
    skipped_prefixes = ("data.",) if len(collect_data_tasks(first_runs)) > 1 else ()
    shown_configs = [flatten_config(strip_folders(run.config)) for run in first_runs]
    return [
        SettingDifference(key, tuple(shown_config.get(key, "–") for shown_config in shown_configs))
        for key in differing_keys(flat_configs)
        if not key.startswith(skipped_prefixes)
    ]


def _first_run_by_method(runs: Sequence[Run]) -> list[Run]:
    """Return one run per method, on the task with the most methods if the method has a run of it."""
    names = method_names(runs)
    runs_by_task: dict[DataTask, dict[str, Run]] = {}
    for run in runs:
        runs_by_task.setdefault(data_and_task(run.config), {}).setdefault(run.method, run)
    runs_of_largest_task = max(runs_by_task.values(), key=len, default={})
    return [
        runs_of_largest_task.get(name) or next(run for run in runs if run.method == name) for name in names
    ]


def group_environments(runs: Sequence[Run]) -> list[Environment]:
    """Return the different combinations of machine and versions, each with its runs."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run in runs:
        versions = run.environment.get("versions")
        environment = {key: value for key, value in run.environment.items() if key != "versions"}
        environment |= versions if isinstance(versions, Mapping) else {}
        facts = tuple((str(key), str(value)) for key, value in environment.items())
        groups.setdefault(facts, []).append(run.name)
    return [Environment(facts, tuple(names)) for facts, names in groups.items()]


def describe_evaluation(runs: Sequence[Run]) -> str:
    """Describe the images the runs were evaluated on; empty if no run recorded it."""
    kinds: dict[str, set[int]] = {}
    for run in runs:
        if run.result is not None and run.result.get("evaluated_on") in EVALUATED_ON_DESCRIPTIONS:
            kinds.setdefault(run.result["evaluated_on"], set()).add(int(run.result["images"]))
    phrases = []
    pixels = describe_pixels([run.result for run in runs if run.result is not None])
    for kind, counts in kinds.items():
        count = f"{min(counts):,}" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"
        phrases.append(f"{count} {EVALUATED_ON_DESCRIPTIONS[kind]}")
    return f"Evaluated on {'; or on '.join(phrases)}{f': {pixels}' if pixels else ''}." if phrases else ""


def collect_cautions(
    runs: Sequence[Run], repeated_seed_note: str = "each run counts as a separate seed"
) -> list[str]:
    """Return warnings about means that are not comparable or not reliable.

    Args:
        repeated_seed_note: how several runs with the same seed are counted; the end of that warning.
    """
    groups = group_by_kind(runs)
    if len(groups) > 1:
        score_names = " and ".join(group[0].kind.score_name for group in groups)
        cautions = [
            f"These runs are ranked by different metrics ({score_names}), so each kind is reported "
            "separately."
        ]
        return cautions + [c for group in groups for c in collect_cautions(group, repeated_seed_note)]
    found_cautions = [_test_set_caution(runs), _evaluation_caution(runs), _void_caution(runs)]
    found_cautions += [_objective_caution(runs), _no_result_caution(runs)]
    for method in method_names(runs):
        group = [run for run in runs if run.method == method]
        found_cautions += [_unfinished_caution(group, method), _mixed_settings_caution(group, method)]
        found_cautions.append(_repeated_seeds_caution(group, method, repeated_seed_note))
    return [caution for caution in found_cautions if caution]


def _test_set_caution(runs: Sequence[Run]) -> str:
    data_records = [run.data or run.config.get("data") for run in runs]
    test_sets = {to_json(data.get("test", data)) for data in data_records if isinstance(data, Mapping)}
    if len(test_sets) < 2:
        return ""
    return f"These runs have {len(test_sets)} different test sets, so their results cannot be compared."


def _evaluation_caution(runs: Sequence[Run]) -> str:
    kinds = {run.result.get("evaluated_on") for run in runs if run.result is not None}
    if len(kinds) > 1:
        return "These runs were evaluated on different kinds of images, so their results cannot be compared."
    resolutions = {run.result.get("resolution") for run in runs if run.result is not None}
    if len(resolutions) > 1:
        return "These runs were evaluated at different resolutions, so their results cannot be compared."
    if kinds == {"unlabelled"} and len(method_names(runs)) > 1:
        return (
            "Each run was evaluated on the target images it had not labelled, so a method that labels hard "
            "images is evaluated on easier ones. To compare methods, set evaluation.split to target or "
            "held_out."
        )
    return ""


def _void_caution(runs: Sequence[Run]) -> str:
    key = "data.params.void_pixels"
    if len({find_setting(run.config, key) or "excluded" for run in runs}) < 2:
        return ""
    return f"These runs differ in {key}, so their results cannot be compared."


def _objective_caution(runs: Sequence[Run]) -> str:
    methods_by_objective: dict[str, list[str]] = {}
    for method in method_names(runs):
        objective = next(run for run in runs if run.method == method).config.get("objective")
        if isinstance(objective, Mapping):
            methods_by_objective.setdefault(str(objective.get("name")), []).append(method)
    if len(methods_by_objective) < 2:
        return ""
    groups_text = "; ".join(
        f"{', '.join(names)} with {objective}" for objective, names in methods_by_objective.items()
    )
    return (
        f"The training objectives differ ({groups_text}), so differences are not due to the selected labels "
        "alone."
    )


def _no_result_caution(runs: Sequence[Run]) -> str:
    without_result = [run for run in runs if run.result is None]
    if not without_result:
        return ""
    fully_labelled = [run.name for run in without_result if run.stages and run.stages[-1].get("images") == 0]
    if len(fully_labelled) == len(without_result):
        names = ", ".join(fully_labelled)
        return f"All target images were labelled, so there is no result in the table: {names}."
    if len(runs) == 1:
        return ""  # its page says so, or has the result of an audit
    names = ", ".join(run.name for run in without_result)
    return f"No result on a test set, so not in tables and curves: {names}."


def _unfinished_caution(group: Sequence[Run], method: str) -> str:
    unfinished = [run.name for run in group if not run.finished and run.result is not None]
    if not unfinished:
        return ""
    if counted_runs(group, method)[0].finished:
        return f"Unfinished, so not in the means of {method}: {', '.join(unfinished)}."
    return f"No run of {method} is finished; its numbers are from the last stage evaluated so far."


def _mixed_settings_caution(group: Sequence[Run], method: str) -> str:
    keys = differing_keys([flatten_config(run.config) for run in group])
    if not keys:
        return ""
    return f"The mean of {method} mixes runs with different settings ({join_names(keys, 4)})."


def _repeated_seeds_caution(group: Sequence[Run], method: str, repeated_seed_note: str) -> str:
    seeds = [run.seed for run in group if run.result is not None]
    repeated = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if not repeated:
        return ""
    repeated_text = ", ".join(map(str, repeated))
    return f"{method} has several runs with the same seed ({repeated_text}): {repeated_seed_note}."


def flatten_config(config: Mapping[str, Any]) -> dict[str, str]:
    """Return all settings except method and seed by dotted key."""
    return flatten_settings({key: value for key, value in config.items() if key not in ("method", "seed")})


def progress_message(run: Run) -> str:
    """Return the progress of an unfinished run and how to resume it; empty if it is finished."""
    if run.finished:
        return ""
    unanswered_round = first_unanswered_round(run)
    if unanswered_round:
        folder = label_png_folder(run)
        channel = f"label PNGs in {folder}" if folder else "`ducats label`"
        return (
            f"This run is waiting for labels: round {unanswered_round} is not answered yet. Answer it with "
            f"{channel}, then run the same `ducats run` command again."
        )
    done = max((int(record["epoch"]) for record in run.epochs), default=0)
    train = run.config.get("train")
    epochs = train.get("epochs") if isinstance(train, Mapping) else None
    progress = f"{done} of {pluralise(epochs, 'epoch')}" if epochs else pluralise(done, "epoch")
    verb = "is" if 1 in (done, epochs) else "are"
    return (
        f"This run is not finished: {progress} {verb} done. Run the same `ducats run` command again to "
        "resume."
    )


def first_unanswered_round(run: Run) -> int:
    """Return the first round that annotators have not answered; 0 if there is none."""
    if not run.files.questions_path.is_dir():
        return 0
    return min(set(run.files.requested_rounds()) - set(run.files.labelled_rounds()), default=0)


def label_png_folder(run: Run) -> str:
    """Return the folder for label PNGs if only they can answer the open round; else an empty string.

    It starts with the name of the run folder, since pages show no more of its path.
    """
    folder = run.files.questions_path / round_name(first_unanswered_round(run))
    if not (folder / MASKS).is_dir() or (folder / RULES).exists():
        return ""
    return f"{run.name}/{(folder / ANSWER_MAPS).relative_to(run.folder).as_posix()}/"


def read_provenance(run: Run) -> RunProvenance:
    """Return settings, seed, digests of settings and data, versions and machine."""
    plain = json.loads(json.dumps(run.config, default=str))
    text = json.dumps(plain, sort_keys=True)
    facts = [
        ("method", run.method),
        ("seed", str(run.seed)),
        ("settings digest", hashlib.blake2b(text.encode(), digest_size=4).hexdigest()),
    ]
    facts += [
        (domain, _describe_data(run.data[domain]))
        for domain in ("source", "pool", "test")
        if isinstance(run.data.get(domain), Mapping)
    ]
    if run.classes:
        facts.append(("classes", str(len(run.classes))))
    settings = yaml.safe_dump(strip_folders(plain), sort_keys=False, allow_unicode=True, width=100)
    return RunProvenance(settings, tuple(facts), group_environments([run])[0].facts)


def _describe_data(data_record: Mapping[str, Any]) -> str:
    images = data_record.get("images")
    count_text = pluralise(images, "image", f"{images:,}") if isinstance(images, int) else "images"
    return f"{count_text}, digest {data_record.get('digest', 'not recorded')}"
