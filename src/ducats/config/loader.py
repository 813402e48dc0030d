"""Load a config from files, settings and options, and write it as YAML."""

import difflib
import fnmatch
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ducats.config.layers import (
    DEFAULT_METHOD,
    TASK_SECTION,
    Settings,
    configs_folder,
    for_task,
    merge_layers,
    names_method,
    read_yaml,
    split_method,
)
from ducats.config.schema import Config, ObjectiveConfig, QueryConfig, TaskConfig
from ducats.settings import View
from ducats.utils.errors import UserError
from ducats.utils.yaml_text import load_yaml

RECIPE_PATTERNS = "applies_to"  # key of a recipe in configs/backbones: the timm architectures that it is for


@dataclass(frozen=True)
class _Layer:
    """Settings of one origin; later layers override earlier ones."""

    origin: str  # for messages: a file, or an option
    settings: Settings
    is_option: bool = False  # `--set`, which changes the default method, but never replaces it
    is_data: bool = False  # a data config of the package, which belongs to no method


def load_config(
    files: Sequence[str | Path] = (),
    settings: Iterable[str] = (),
    extra: Settings | None = None,
    *,
    default_method: Settings | None = None,
    base: Settings | None = None,
) -> Config:
    """Merge files, ``key=value`` settings and command-line options into one config.

    The method is `ducats`, unless a file names a method, an objective or a query.

    Args:
        files: YAML files, or names of configs included in the package (``methods/duc``, ``duc``).
        settings: ``key=value`` strings such as ``train.lr=0.01``; values are YAML.
        extra: a nested mapping that overrides files and settings, as if it were the last file.
        default_method: settings of the method to use instead of `ducats`.
        base: settings below all files, such as those of an earlier run; its method counts unless a file names
            one.
    """
    layers = [layer for file in files for layer in _layers_with_base(str(file))]
    if base:
        if any(names_method(layer.settings) for layer in layers if not layer.is_data):
            _, base = split_method(base)
        layers.insert(0, _Layer("--start-from", base))
    layers += [_Layer(f"--set {setting}", _parse_setting(setting), is_option=True) for setting in settings]
    if extra:
        layers.append(_Layer("the command line", extra))
    for layer in layers:
        _check_layer(layer)
    task = _task_name(layers)
    if default_method is None:
        default = _layers_with_base(f"methods/{DEFAULT_METHOD}")
    else:
        default = [_Layer("the default method", default_method)]
    layers, default = ([_for_task(layer, task) for layer in each] for each in (layers, default))
    layers = _with_default_method(layers, default)
    merged = _merge_all(layers)
    try:
        return Config.model_validate(merged | _derived_method_name(layers, merged))
    except ValidationError as error:
        raise UserError(_validation_message(error, layers)) from None


def _layers_with_base(file: str, visited: tuple[str, ...] = ()) -> list[_Layer]:
    """Return the file's layer, preceded by the layers of the config named in its ``extends`` key."""
    path = find_config(file)
    settings = dict(read_yaml(path))
    base = settings.pop("extends", None)
    settings.pop(RECIPE_PATTERNS, None)
    layer = _Layer(file, settings, is_data=path.parent == configs_folder() / "data")
    if base is None:
        return [layer]
    if not isinstance(base, str) or str(path) in visited:
        raise UserError(f"{path}: `extends` must name another config, e.g. segmentation, not {base!r}")
    sibling = path.parent / base  # independent of the working directory
    base = str(sibling) if sibling.is_file() else base
    return [*_layers_with_base(base, (*visited, str(path))), layer]


def _merge_all(layers: Sequence[_Layer]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = merge_layers(merged, layer.settings)
    return merged


def _task_name(layers: Sequence[_Layer]) -> str:
    """Return the task of a run, before its sections for one task are merged."""
    task = _merge_all(layers).get("task")
    name = task.get("name") if isinstance(task, Mapping) else None
    return name if isinstance(name, str) else TaskConfig().name


def _for_task(layer: _Layer, task: str) -> _Layer:
    """Merge the layer's section for a task over its other settings, or drop it if the task is another one."""
    return replace(layer, settings=for_task(layer.settings, task))


def _with_default_method(layers: list[_Layer], default: list[_Layer]) -> list[_Layer]:
    """Insert the default method, unless a file names a method, an objective or a query.

    It is inserted above the data configs of the package, as ``--method`` would be, and below all other files,
    which can change it.
    """
    if any(names_method(layer.settings) for layer in layers if not (layer.is_option or layer.is_data)):
        return layers
    above_data = max((i + 1 for i, layer in enumerate(layers) if layer.is_data), default=0)
    return [*layers[:above_data], *default, *layers[above_data:]]


def _derived_method_name(layers: Sequence[_Layer], merged: Settings) -> dict[str, str]:
    """Return a new method name if a later layer changed the query or objective of the named method."""
    naming_index = max((i for i, layer in enumerate(layers) if "method" in layer.settings), default=-1)
    merged_at_naming = _merge_all(layers[: naming_index + 1])

    def pairing(settings: Settings) -> tuple[str, str]:
        objective = ObjectiveConfig(**settings.get("objective", {}))
        return objective.name, QueryConfig(**settings.get("query", {})).name

    try:
        before, after = pairing(merged_at_naming), pairing(merged)
    except (ValidationError, TypeError):
        return {}  # validation of the whole config gives a better message
    return {} if before == after else {"method": "+".join(name.split(":")[-1] for name in after)}


def find_config(name: str | Path) -> Path:
    """Return the path of a config: an existing file, or a config of the package by name."""
    path = Path(name)
    if path.is_file():
        return path
    folder = configs_folder()
    stem = str(name).removeprefix("configs/").removesuffix(".yaml")
    # A sweep is not the config of a run.
    configs = [path for path in folder.rglob("*.yaml") if path.parent.name != "sweeps"]
    for candidate in (folder / f"{stem}.yaml", *sorted(folder.glob(f"*/{stem}.yaml"))):
        if candidate in configs:
            return candidate
    known = sorted(str(path.relative_to(folder).with_suffix("")) for path in configs)
    near = difflib.get_close_matches(stem, [*known, *(k.split("/")[-1] for k in known)], n=1)
    if near:
        raise UserError(f"no config {str(name)!r}: did you mean {near[0]!r}?")
    group = f"{stem.split('/')[0]}/"
    listed = [config for config in known if config.startswith(group)] or known
    raise UserError(f"no config {str(name)!r}; give the path of a file, or one of {', '.join(listed)}")


def find_recipe(backbone: str) -> str | None:
    """Return the config of the recipe for a backbone, if there is one; the longest matching pattern wins.

    Args:
        backbone: name of a recipe, or of a timm model, with or without tag.

    >>> [find_recipe(name) for name in ("clip", "vit_base_patch14_dinov2.lvd142m", "mobilenetv3_large_100")]
    ['backbones/clip', 'backbones/dinov2', None]
    """
    recipes = {path.stem: path for path in (configs_folder() / "backbones").glob("*.yaml")}
    if backbone in recipes:
        return f"backbones/{backbone}"
    architecture = backbone.split(".")[0]
    matches = [
        (len(pattern), f"backbones/{name}")
        for name, path in recipes.items()
        for pattern in read_yaml(path).get(RECIPE_PATTERNS, ())
        if fnmatch.fnmatchcase(architecture, pattern)
    ]
    return max(matches)[1] if matches else None


def to_yaml(config: Config) -> str:
    """Return the resolved config as YAML, defaults included."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def describe_settings(section: Any = None, prefix: str = "") -> list[tuple[str, str, str]]:
    """Return every setting as (name, value, description)."""
    section = section or Config()
    lines = []
    for name, info in _fields(type(section)).items():
        value = getattr(section, name)
        if _fields(type(value)) and (name == "source" or not isinstance(value, View)):
            lines += describe_settings(value, f"{prefix}{name}.")
            continue
        plain = (
            {
                inner: inner_value
                for inner, inner_value in vars(value).items()
                if inner_value != getattr(View(), inner)
            }
            if isinstance(value, View)
            else value
        )
        choices = (
            " | ".join(map(str, get_args(info.annotation))) if get_origin(info.annotation) is Literal else ""
        )
        meaning = "; ".join(text for text in (info.description, choices and f"one of {choices}") if text)
        lines.append((f"{prefix}{name}", json.dumps(plain), meaning))
    return lines


def _fields(kind: Any) -> Mapping[str, FieldInfo]:
    """Return the settings of a config or of a section; of any other type, none."""
    return getattr(kind, "__pydantic_fields__", {})


def _parse_setting(setting: str) -> Settings:
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise UserError(f"--set {setting!r} must have the form key=value, e.g. --set train.lr=0.01")
    try:
        layer: Any = load_yaml(text)
    except yaml.YAMLError as error:
        raise UserError(
            f"--set {setting}: the value is not valid YAML: {' '.join(str(error).split())}"
        ) from None
    for name in reversed(key.strip().split(".")):
        layer = {name: layer}
    return dict(layer)


def _check_layer(layer: _Layer) -> None:
    """Raise on an unknown name; checking each layer separately lets the message name the file."""
    settings = dict(layer.settings)
    section = {} if layer.is_option else settings.pop(TASK_SECTION, {})
    _check_names(settings, Config, layer.origin)
    if not isinstance(section, Mapping):
        raise UserError(f"{layer.origin}: `{TASK_SECTION}` must contain settings, not {section!r}")
    _check_names(section, Config, layer.origin, f"{TASK_SECTION}.")
    task = section.get("task")
    if isinstance(task, Mapping) and "name" in task:
        raise UserError(
            f"{layer.origin}: '{TASK_SECTION}.task.name' is {TASK_SECTION} already; set task.name outside "
            f"the section `{TASK_SECTION}`"
        )


def _check_names(settings: Settings, schema: Any, origin: str, prefix: str = "") -> None:
    fields = _fields(schema)
    for key, value in settings.items():
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"did you mean '{prefix}{near[0]}'?" if near else f"known: {', '.join(fields)}"
            raise UserError(f"{origin}: unknown setting '{prefix}{key}'; {hint}")
        annotation = fields[key].annotation
        section = next((kind for kind in (annotation, *get_args(annotation)) if _fields(kind)), None)
        if section is not None and isinstance(value, Mapping):
            _check_names(value, section, origin, f"{prefix}{key}.")


def _validation_message(error: ValidationError, layers: Sequence[_Layer]) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    what = first["msg"].removeprefix("Value error, ")
    if not where:
        return what
    origin_name = next(
        (layer.origin for layer in reversed(layers) if _contains_path(layer.settings, first["loc"])), None
    )
    return f"{origin_name + ': ' if origin_name else ''}{where}: {what}, got {first['input']!r}"


def _contains_path(settings: Any, path: tuple[int | str, ...]) -> bool:
    """Return whether the settings contain this one or part of it."""
    for name in path:
        if not isinstance(settings, Mapping):
            return True
        if name not in settings:
            return False
        settings = settings[name]
    return True
