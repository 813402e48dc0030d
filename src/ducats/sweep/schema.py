"""Schema and loader of sweep files: methods, tasks and seeds on a common base."""

import difflib
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ducats import config
from ducats.utils.errors import UserError
from ducats.utils.yaml_text import load_yaml


class _SweepModel(BaseModel):
    """Frozen model that rejects unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ConfigLayers(_SweepModel):
    """Config files and settings that override them."""

    config: tuple[str, ...] = Field((), description="one or more configs, by name or path")
    settings: tuple[str, ...] = Field((), description="key=value, as for `ducats run --set`")

    @field_validator("config", "settings", mode="before")
    @classmethod
    def _wrap_single(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class SweepMethod(ConfigLayers):
    """A row of the table, or with ``grid`` one row per combination."""

    name: str | None = Field(None, description="name in tables; default: the name in the config")
    grid: dict[str, tuple[Any, ...]] = Field(
        default_factory=dict, description="lists of values by setting; each combination is a method"
    )


class SweepTask(ConfigLayers):
    """A column of the table."""

    name: str = Field("", description="name for --tasks; default: the task of the benchmark")
    task: str | None = Field(None, description="source and target of a benchmark, e.g. A-W")

    @property
    def display_name(self) -> str:
        """Name on the command line and in messages."""
        return self.name or self.task or ""


class Sweep(_SweepModel):
    """Every method on every task with every seed."""

    base: tuple[str, ...] = Field((), description="base configs of all runs")
    settings: tuple[str, ...] = Field((), description="settings of all runs")
    methods: tuple[SweepMethod, ...] = Field(min_length=1)
    tasks: tuple[SweepTask, ...] = Field((SweepTask(),), min_length=1)
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0, 1, 2), min_length=1, description="seeds; the paper uses three"
    )

    @field_validator("methods", mode="before")
    @classmethod
    def _methods_by_name(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [{"config": _method_config(each)} if isinstance(each, str) else each for each in value]

    @field_validator("tasks", mode="before")
    @classmethod
    def _tasks_by_name(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [{"task": each} if isinstance(each, str) else each for each in value]


def _method_config(name: str) -> str:
    """Return the config of a method given by name; paths are returned unchanged."""
    return name if "/" in name or name.endswith(".yaml") else f"methods/{name}"


def expand_grid(sweep: Sweep, method: SweepMethod) -> Iterator[SweepMethod]:
    """Expand an entry of a sweep into named methods, one per combination of its grid."""
    name = method.name or config.load_config((*sweep.base, *method.config), sweep.settings).method
    for values in itertools.product(*method.grid.values()):
        values_by_setting = dict(zip(method.grid, values, strict=True))
        suffix = "".join(
            f"-{key.split('.')[-1].strip('_')}-{value}" for key, value in values_by_setting.items()
        )
        settings = [f"{key}={json.dumps(value)}" for key, value in values_by_setting.items()]
        yield SweepMethod(name=name + suffix, config=method.config, settings=(*method.settings, *settings))


def packaged_sweeps() -> list[str]:
    """Return the names of the sweeps in the package."""
    return sorted(path.stem for path in (config.configs_folder() / "sweeps").glob("*.yaml"))


def read_sweep(name: str | Path) -> Sweep:
    """Read a sweep from a file, or from the package by name."""
    path = _find_sweep(str(name))
    try:
        return Sweep.model_validate(_read_layer(path))
    except ValidationError as error:
        details = error.errors()[0]
        location = ".".join(map(str, details["loc"]))
        fields = ", ".join(Sweep.model_fields) if details["type"] == "extra_forbidden" else ""
        hint = f"; known fields: {fields}" if fields and len(details["loc"]) == 1 else ""
        raise UserError(f"{path}: {location}: {details['msg'].removeprefix('Value error, ')}{hint}") from None


def _find_sweep(name: str) -> Path:
    if Path(name).is_file():
        return Path(name)
    stem = name.removeprefix("configs/").removeprefix("sweeps/").removesuffix(".yaml")
    path = config.configs_folder() / "sweeps" / f"{stem}.yaml"
    if path.is_file():
        return path
    near = difflib.get_close_matches(stem, packaged_sweeps(), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UserError(f"no sweep {name!r}; {hint}give a file or one of: {', '.join(packaged_sweeps())}")


def _read_layer(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a file and merge it over the sweep that it names in ``extends``."""
    try:
        layer = load_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(layer, Mapping):
        raise UserError(f"{path} must be a mapping with methods, tasks and seeds, not {type(layer).__name__}")
    layer = _resolve_paths(layer, path.parent)
    base = layer.pop("extends", None)
    if base is None:
        return layer
    if not isinstance(base, str) or path.resolve() in seen:
        raise UserError(f"{path}: `extends` must name another sweep, e.g. digits, not {base!r}")
    return _read_layer(_find_sweep(base), (*seen, path.resolve())) | layer


def _resolve_paths(layer: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Resolve the names of files next to the sweep file to paths, independent of the working directory."""

    def resolve(value: Any) -> Any:
        if isinstance(value, str):
            return str(folder / value) if (folder / value).is_file() else value
        if isinstance(value, Mapping):
            return {**value, "config": resolve(value["config"])} if "config" in value else value
        return [resolve(each) for each in value] if isinstance(value, list) else value

    resolved = dict(layer)
    for name in {"extends", "base", "methods"} & resolved.keys():
        resolved[name] = resolve(resolved[name])
    if isinstance(resolved.get("tasks"), list):  # a string is a task of the benchmark, never a file
        resolved["tasks"] = [task if isinstance(task, str) else resolve(task) for task in resolved["tasks"]]
    return resolved
