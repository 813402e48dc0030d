"""Load a config from files, settings and options, and write it as YAML."""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from ducats.config.schema import Config, Objective, Query
from ducats.config.views import View
from ducats.errors import UserError

Layer = Mapping[str, Any]


def load(
    files: Sequence[str | Path] = (), settings: Iterable[str] = (), extra: Layer | None = None
) -> Config:
    """Merge files, ``key=value`` settings and command-line options into one config.

    Args:
        files: YAML files, or names of configs included in the package (``methods/duc``, ``duc``).
        settings: ``key=value`` strings such as ``train.lr=0.01``; values are YAML.
        extra: a nested mapping that overrides files and settings.
    """
    layers: list[tuple[str, Layer]] = []
    for file in files:
        layers += _with_what_it_is_like(str(file))
    layers += [(f"--set {setting}", _setting(setting)) for setting in settings]
    if extra:
        layers.append(("the command line", extra))
    merged: dict[str, Any] = {}
    for origin, layer in layers:
        _check_names(layer, Config, origin)
        merged = merge(merged, layer)
    try:
        return Config.model_validate(merged | _renamed(layers, merged))
    except ValidationError as error:
        raise UserError(_explain(error, layers)) from None


def _with_what_it_is_like(file: str, seen: tuple[str, ...] = ()) -> list[tuple[str, Layer]]:
    """Return the file's layer, preceded by the layers of the config named in its ``like`` key."""
    path = find(file)
    layer = dict(_read(path))
    base = layer.pop("like", None)
    if base is None:
        return [(file, layer)]
    if not isinstance(base, str) or str(path) in seen:
        raise UserError(f"{path}: `like` must name another config, e.g. segmentation, not {base!r}")
    beside = path.parent / base  # independent of the working directory
    base = str(beside) if beside.is_file() else base
    return [*_with_what_it_is_like(base, (*seen, str(path))), (file, layer)]


def _renamed(layers: list[tuple[str, Layer]], merged: Layer) -> dict[str, str]:
    """Return a new method name if a later layer changed the query or objective of the named method."""
    named = max((i for i, (_, layer) in enumerate(layers) if "method" in layer), default=-1)
    at_naming: dict[str, Any] = {}
    for _, layer in layers[: named + 1]:
        at_naming = merge(at_naming, layer)

    def pairing(settings: Layer) -> tuple[str, str]:
        names = (
            Objective.model_validate(settings.get("objective", {})).name,
            settings.get("query", {}).get("name"),
        )
        return names[0], names[1] or Query().name

    try:
        before, now = pairing(at_naming), pairing(merged)
    except (ValidationError, AttributeError):
        return {}  # validation of the whole config gives a better message
    return {} if before == now else {"method": "+".join(name.split(":")[-1] for name in now)}


def find(name: str | Path) -> Path:
    """Return the path of a config: an existing file, or a config of the package by name."""
    path = Path(name)
    if path.is_file():
        return path
    home = shipped()
    stem = str(name).removeprefix("configs/").removesuffix(".yaml")
    configs = [
        path for path in home.rglob("*.yaml") if path.parent.name != "sweeps"
    ]  # a sweep is not the config of a run
    for candidate in (home / f"{stem}.yaml", *sorted(home.glob(f"*/{stem}.yaml"))):
        if candidate in configs:
            return candidate
    known = sorted(str(path.relative_to(home).with_suffix("")) for path in configs)
    near = difflib.get_close_matches(stem, [*known, *(k.split("/")[-1] for k in known)], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UserError(
        f"no config {str(name)!r}: {hint}there is no such file; configs of the package: {', '.join(known)}"
    )


def shipped() -> Path:
    """Return the folder of the configs included in the package."""
    return Path(str(resources.files("ducats"))) / "configs"


def to_yaml(config: Config) -> str:
    """Return the resolved config as YAML, defaults included."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def explain(part: BaseModel | None = None, prefix: str = "") -> list[tuple[str, str, str]]:
    """Return every setting as (name, value, description)."""
    part = part or Config()
    lines = []
    for name, info in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, BaseModel) and (name == "source" or not isinstance(value, View)):
            lines += explain(value, f"{prefix}{name}.")
            continue
        plain = value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, View) else value
        choices = (
            " | ".join(map(str, get_args(info.annotation))) if get_origin(info.annotation) is Literal else ""
        )
        meaning = "; ".join(text for text in (info.description, choices and f"one of {choices}") if text)
        lines.append((f"{prefix}{name}", json.dumps(plain), meaning))
    return lines


WHOLE = ("source_weight",)  # mappings that are replaced, not merged


def merge(below: Layer, above: Layer) -> dict[str, Any]:
    """Merge two nested mappings; ``above`` wins.

    If ``above`` names another component (``name:``), the keyword arguments of the previous one are dropped.
    Its other settings are kept.

    >>> merge({"query": {"name": "duc", "knobs": {"kappa": 5}}}, {"query": {"name": "random"}})
    {'query': {'name': 'random'}}
    """
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping) and key not in WHOLE:
            renamed = "name" in value and value["name"] != old.get("name", value["name"])
            kept = {inner: said for inner, said in old.items() if inner != "knobs"} if renamed else old
            merged[key] = merge(kept, value)
        else:
            merged[key] = value
    return merged


def _read(path: Path) -> Layer:
    try:
        layer = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if layer is None:
        return {}
    if not isinstance(layer, Mapping):
        raise UserError(f"{path} must contain `key: value` settings, not {type(layer).__name__}")
    return layer


def _setting(setting: str) -> Layer:
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise UserError(f"--set {setting!r} must have the form key=value, e.g. --set train.lr=0.01")
    try:
        layer: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(
            f"--set {setting}: the value is not valid YAML: {' '.join(str(error).split())}"
        ) from None
    for name in reversed(key.strip().split(".")):
        layer = {name: layer}
    return dict(layer)


def _check_names(layer: Layer, schema: type[BaseModel], origin: str, prefix: str = "") -> None:
    """Raise on an unknown name; checking each layer separately lets the message name the file."""
    for key, value in layer.items():
        if key not in schema.model_fields:
            near = difflib.get_close_matches(str(key), schema.model_fields, n=1)
            hint = (
                f"did you mean '{prefix}{near[0]}'?" if near else f"known: {', '.join(schema.model_fields)}"
            )
            raise UserError(f"{origin}: unknown setting '{prefix}{key}'; {hint}")
        inner = _model_of(schema.model_fields[key].annotation)
        if inner is not None and isinstance(value, Mapping):
            _check_names(value, inner, origin, f"{prefix}{key}.")


def _model_of(annotation: Any) -> type[BaseModel] | None:
    kinds = (annotation, *getattr(annotation, "__args__", ()))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)


def _explain(error: ValidationError, layers: list[tuple[str, Layer]]) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    what = first["msg"].removeprefix("Value error, ")
    if not where:
        return what
    said = next((origin for origin, layer in reversed(layers) if _has(layer, first["loc"])), None)
    return f"{said + ': ' if said else ''}{where}: {what}, got {first['input']!r}"


def _has(layer: Any, path: tuple[int | str, ...]) -> bool:
    """Return whether a layer contains this setting or part of it."""
    for name in path:
        if not isinstance(layer, Mapping):
            return True
        if name not in layer:
            return False
        layer = layer[name]
    return True
