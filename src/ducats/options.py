"""What a user types to say what to run, as one config. Needs no torch until a task has to be spelt."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ducats.errors import UserError

if TYPE_CHECKING:  # `--help` answers before settings are known
    from ducats.config import Config


@Parameter(name="*")
@dataclass(kw_only=True)
class Settings:
    """What to run. Later sources win: files in their order, then --set, then the options."""

    config: Annotated[
        list[str],
        Parameter(
            name=["--config", "-c"],
            negative=(),
            help="A YAML file, or a config of the package by name (data/digits). May be repeated.",
        ),
    ] = field(default_factory=list)
    method: Annotated[
        str | None,
        Parameter(
            help="Short for -c methods/NAME: duc, spread, duc-random, random, entropy, source-only, ..."
        ),
    ] = None
    set: Annotated[
        list[str],
        Parameter(negative=(), help="One setting as key=value, e.g. train.lr=0.01. May be repeated."),
    ] = field(default_factory=list)
    source: Annotated[Path | None, Parameter(help="Folder of labelled source images, class/...")] = None
    target: Annotated[Path | None, Parameter(help="Folder of target images without labels.")] = None
    test: Annotated[Path | None, Parameter(help="Folder of held-out labelled target images, class/...")] = (
        None
    )
    truth: Annotated[
        bool,
        Parameter(
            negative=(), help="The target's first-level folders are classes: the oracle may look there."
        ),
    ] = False
    manifest: Annotated[
        Path | None,
        Parameter(help="CSV or Parquet with key, path, domain, label, split, instead of folders."),
    ] = None
    root: Annotated[Path | None, Parameter(help="Folder of a benchmark, with -c data/NAME.")] = None
    task: Annotated[
        str | None, Parameter(help="Source and target of a benchmark: A-W of office31, Ar-Cl of office-home.")
    ] = None
    oracle: Annotated[str | None, Parameter(help="Who answers: people, truth, or auto.")] = None
    budget: Annotated[
        str | None, Parameter(help="Labels in all: a count (65) or a share of the pool (5%).")
    ] = None
    rounds: Annotated[int | None, Parameter(help="In how many questions the budget is spent.")] = None
    epochs: Annotated[int | None, Parameter(help="Length of the training.")] = None
    seed: Annotated[int | None, Parameter(help="Fixes the run.")] = None
    device: Annotated[str | None, Parameter(help="auto, cpu, cuda or mps.")] = None
    processes: Annotated[int | None, Parameter(help="Processes on this machine.")] = None

    def load(self) -> "Config":
        """Resolve everything into one config."""
        from ducats.config import load

        files = [*self.config, *([f"methods/{self.method}"] if self.method else [])]
        settled = load(files, self.set, self._options())
        if (self.root or self.task) and settled.data.name in ("folders", "manifest", "digits", "toy"):
            raise UserError(
                f"--root and --task are for a benchmark, and the data set is {settled.data.name!r}: name one "
                "with -c, e.g. -c data/office31, and leave --source and --target out"
            )
        return _spelt(settled) if task_of(settled) else settled

    def _options(self) -> dict[str, Any]:
        """Options as a last layer of settings."""
        if self.manifest and (self.source or self.target or self.test or self.truth):
            raise UserError(
                "give either --manifest or the folders --source, --target, --test, --truth, not both"
            )
        # Absolute, so that a run means the same images from whatever folder it is looked at.
        paths = {"source": self.source, "target": self.target, "test": self.test}
        knobs: dict[str, Any] = {name: _absolute(path) for name, path in paths.items() if path is not None}
        if self.truth:
            knobs["truth"] = True
        data: dict[str, Any] = {"name": "folders", "knobs": knobs} if knobs else {}
        if self.manifest:
            data = {"name": "manifest", "knobs": {"path": _absolute(self.manifest)}}
        part = _given(root=self.root and _absolute(self.root), task=self.task)
        if part:  # of whatever data set a config names
            data = {**data, "knobs": {**data.get("knobs", {}), **part}}
        layer = {
            "data": data,
            "oracle": {"name": self.oracle} if self.oracle else {},
            "ask": _given(budget=self.budget, rounds=self.rounds),
            "train": _given(epochs=self.epochs),
            "engine": _given(device=self.device, processes=self.processes),
            **_given(seed=self.seed),
        }
        return {key: value for key, value in layer.items() if value != {}}


def task_of(config: "Config") -> str:
    """The task that a config names; empty if it names none."""
    task = config.data.knobs.get("task")
    return task if isinstance(task, str) else ""


def _spelt(config: "Config") -> "Config":
    """The same config with its task as it is usually written: one task is one run, however it is typed."""
    from ducats.data import usual_task

    knobs = {**config.data.knobs, "task": usual_task(config.data.name, task_of(config))}
    return config.model_copy(update={"data": config.data.model_copy(update={"knobs": knobs})})


def folder_of(config: "Config") -> Path:
    """Where a run goes by default."""
    task = re.sub(r"[^\w.]+", "-", task_of(config)).strip("-")
    names = (config.data.name.split(":")[-1], task, config.method, config.digest())
    return Path("runs") / "-".join(name for name in names if name)


def _absolute(path: Path) -> str:
    return str(path.expanduser().absolute())


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
