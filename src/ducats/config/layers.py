"""Nested settings: read from YAML files, merged, and those of the default method."""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ducats.utils.errors import UserError
from ducats.utils.yaml_text import load_yaml

Settings = Mapping[str, Any]

DEFAULT_METHOD = "ducats"
TASK_SECTION = "segmentation"  # section of a config file whose settings apply to this task only


@cache
def default_method(task: str) -> Settings:
    """Return the settings of the default method for a task."""
    return for_task(read_yaml(configs_folder() / "methods" / f"{DEFAULT_METHOD}.yaml"), task)


def names_method(settings: Settings) -> bool:
    """Return whether the settings name a method, an objective or a query."""
    components = [settings[section] for section in ("objective", "query") if section in settings]
    return "method" in settings or any(
        "name" in each if isinstance(each, Mapping) else each is not None for each in components
    )


def split_method(settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the settings of a run into those of its method and the others.

    >>> split_method({"method": "duc", "seed": 1, "train": {"target_batching": "joint", "epochs": 9}})
    ({'method': 'duc', 'train': {'target_batching': 'joint'}}, {'seed': 1, 'train': {'epochs': 9}})
    """
    names, train = ("method", "objective", "query"), dict(settings.get("train", {}))
    method = {name: settings[name] for name in names if name in settings}
    if "target_batching" in train:
        method["train"] = {"target_batching": train.pop("target_batching")}
    others = {name: value for name, value in settings.items() if name not in names}
    return method, {**others, **({"train": train} if train else {})}


def for_task(settings: Settings, task: str) -> dict[str, Any]:
    """Merge the section for a task over the other settings, or drop it if the task is another one."""
    others = {key: value for key, value in settings.items() if key != TASK_SECTION}
    if task != TASK_SECTION:
        return others
    return merge_layers(others, settings.get(TASK_SECTION, {}), keeps_params=False)


def configs_folder() -> Path:
    """Return the folder of the configs included in the package."""
    return Path(str(resources.files("ducats"))) / "configs"


_REPLACED_MAPPINGS = ("source_weight",)  # mappings that are replaced, not merged


def merge_layers(below: Settings, above: Settings, *, keeps_params: bool = True) -> dict[str, Any]:
    """Merge two nested mappings; ``above`` wins.

    If ``above`` names another component (``name:``), the keyword arguments of the previous one are dropped.
    Its other settings are kept.

    Args:
        keeps_params: keep the keyword arguments if ``above`` names the same component.

    >>> merge_layers({"query": {"name": "duc", "params": {"kappa": 5}}}, {"query": {"name": "random"}})
    {'query': {'name': 'random'}}
    """
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping) and key not in _REPLACED_MAPPINGS:
            is_same = "name" not in value or (
                keeps_params and value["name"] == old.get("name", value["name"])
            )
            inherited = (
                old
                if is_same
                else {inner: inner_value for inner, inner_value in old.items() if inner != "params"}
            )
            merged[key] = merge_layers(inherited, value, keeps_params=keeps_params)
        else:
            merged[key] = value
    return merged


def read_yaml(path: Path) -> Settings:
    """Read the settings of a file."""
    try:
        layer = load_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if layer is None:
        return {}
    if not isinstance(layer, Mapping):
        raise UserError(f"{path} must contain `key: value` settings, not {type(layer).__name__}")
    return layer
