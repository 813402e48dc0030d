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
from ducats.errors import UserError


class Strict(BaseModel):
    """Frozen model that rejects unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Layers(Strict):
    """Config files and settings that override them."""

    config: tuple[str, ...] = Field((), description="one or more configs, by name or path")
    settings: tuple[str, ...] = Field((), description="key=value, as for `ducats run --set`")

    @field_validator("config", "settings", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class Method(Layers):
    """A row of the table, or with ``grid`` one row per combination."""

    name: str | None = Field(None, description="name in tables; default: the name in the config")
    grid: dict[str, tuple[Any, ...]] = Field(
        default_factory=dict, description="lists of values by setting; each combination is a method"
    )


class Task(Layers):
    """A column of the table."""

    name: str = Field("", description="name for --tasks; default: the task of the benchmark")
    task: str | None = Field(None, description="source and target of a benchmark, e.g. A-W")

    @property
    def called(self) -> str:
        """Name on the command line and in messages."""
        return self.name or self.task or ""


class Sweep(Strict):
    """Every method on every task with every seed."""

    base: tuple[str, ...] = Field((), description="base configs of all runs")
    settings: tuple[str, ...] = Field((), description="settings of all runs")
    methods: tuple[Method, ...] = Field(min_length=1)
    tasks: tuple[Task, ...] = Field((Task(),), min_length=1)
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0, 1, 2), min_length=1, description="seeds; the paper uses three"
    )

    @field_validator("methods", mode="before")
    @classmethod
    def _methods_by_name(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [{"config": _of_methods(each)} if isinstance(each, str) else each for each in value]

    @field_validator("tasks", mode="before")
    @classmethod
    def _tasks_by_name(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [{"task": each} if isinstance(each, str) else each for each in value]


def _of_methods(name: str) -> str:
    """Return the config of a method given by name; paths are returned unchanged."""
    return name if "/" in name or name.endswith(".yaml") else f"methods/{name}"


def variants(method: Method) -> Iterator[Method]:
    """Expand an entry into named methods, one per combination of its grid."""
    name = method.name or config.load_config(method.config).method
    for values in itertools.product(*method.grid.values()):
        chosen = dict(zip(method.grid, values, strict=True))
        said = "".join(f"-{key.split('.')[-1].strip('_')}-{value}" for key, value in chosen.items())
        settings = [f"{key}={json.dumps(value)}" for key, value in chosen.items()]
        yield Method(name=name + said, config=method.config, settings=(*method.settings, *settings))


def ready() -> list[str]:
    """Return the names of the sweeps in the package."""
    return sorted(path.stem for path in (config.configs_folder() / "sweeps").glob("*.yaml"))


def read_sweep(name: str | Path) -> Sweep:
    """Read a sweep from a file, or from the package by name."""
    path = _find(str(name))
    try:
        return Sweep.model_validate(_layer(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        known = ", ".join(Sweep.model_fields) if first["type"] == "extra_forbidden" else ""
        hint = f"; known fields: {known}" if known and len(first["loc"]) == 1 else ""
        raise UserError(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}{hint}") from None


def _find(name: str) -> Path:
    if Path(name).is_file():
        return Path(name)
    stem = name.removeprefix("configs/").removeprefix("sweeps/").removesuffix(".yaml")
    path = config.configs_folder() / "sweeps" / f"{stem}.yaml"
    if path.is_file():
        return path
    near = difflib.get_close_matches(stem, ready(), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UserError(f"no sweep {name!r}; {hint}give a file or one of: {', '.join(ready())}")


def _layer(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a file and merge it over the sweep that it names in ``like``."""
    try:
        layer = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(layer, Mapping):
        raise UserError(f"{path} must be a mapping with methods, tasks and seeds, not {type(layer).__name__}")
    layer = _located(layer, path.parent)
    base = layer.pop("extends", None)
    if base is None:
        return layer
    if not isinstance(base, str) or path.resolve() in seen:
        raise UserError(f"{path}: `like` must name another sweep, e.g. digits, not {base!r}")
    return _layer(_find(base), (*seen, path.resolve())) | layer


def _located(layer: Mapping[str, Any], home: Path) -> dict[str, Any]:
    """Resolve the names of files next to the sweep file to paths, independent of the working directory.

    Args:
        home: folder of the sweep file.
    """

    def place(value: Any) -> Any:
        if isinstance(value, str):
            return str(home / value) if (home / value).is_file() else value
        if isinstance(value, Mapping):
            return {**value, "config": place(value["config"])} if "config" in value else value
        return [place(each) for each in value] if isinstance(value, list) else value

    found = dict(layer)
    for name in {"extends", "base", "methods"} & found.keys():
        found[name] = place(found[name])
    if isinstance(found.get("tasks"), list):  # a string is a task of the benchmark, never a file
        found["tasks"] = [task if isinstance(task, str) else place(task) for task in found["tasks"]]
    return found
