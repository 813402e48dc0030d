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
            help="A YAML file, or one of the package's by name (segmentation, data/digits). May be repeated.",
        ),
    ] = field(default_factory=list)
    method: Annotated[
        str | None,
        Parameter(
            help="Short for -c methods/NAME: duc, spread, random, entropy, source-only, ripu (pixels), ..."
        ),
    ] = None
    set: Annotated[
        list[str],
        Parameter(negative=(), help="One setting as key=value, e.g. train.lr=0.01. May be repeated."),
    ] = field(default_factory=list)
    source: Annotated[
        Path | None,
        Parameter(
            help="Folder of labelled source images, class/...; of segmentation with images/ and labels/."
        ),
    ] = None
    target: Annotated[
        Path | None,
        Parameter(help="Folder of target images without labels; of segmentation with images/ in it."),
    ] = None
    test: Annotated[
        Path | None, Parameter(help="Folder of held-out labelled target images, laid out as the source is.")
    ] = None
    truth: Annotated[
        bool,
        Parameter(
            negative=(),
            help="The target's first-level folders are classes (of segmentation, its labels/ are true): the "
            "oracle may look there.",
        ),
    ] = False
    classes: Annotated[
        Path | None,
        Parameter(
            help="Segmentation: a file that says what label files mean, a line for each value in them: an id "
            "and a name (0 road), or a colour and a name (128 64 128 road); the name void means no class."
        ),
    ] = None
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
        str | None,
        Parameter(
            help="Labels in all: a count (65) or a share of the pool (5%); of pixels also a count for each "
            "image (40/image); or people's time (30min, 1.5h)."
        ),
    ] = None
    rounds: Annotated[int | None, Parameter(help="In how many questions the budget is spent.")] = None
    epochs: Annotated[int | None, Parameter(help="Length of the training.")] = None
    seed: Annotated[int | None, Parameter(help="Fixes the run.")] = None
    device: Annotated[str | None, Parameter(help="auto, cpu, cuda or mps.")] = None
    processes: Annotated[
        int | None,
        Parameter(
            name=["--devices", "--processes"],
            help="Processes on each machine, on GPUs one for each; torchrun and srun say it themselves.",
        ),
    ] = None
    nodes: Annotated[
        int | None, Parameter(help="Machines; the same command runs on each, started by torchrun or srun.")
    ] = None

    def load(self) -> "Config":
        """Resolve everything into one config."""
        from ducats.config import load

        files = [*self.config, *([f"methods/{self.method}"] if self.method else [])]
        plan = self._plan()
        settled = load(files, self.set, {**plan, **self._data(load(files, self.set, plan))})
        if (self.root or self.task) and settled.data.name in NO_BENCHMARK:
            raise UserError(
                f"--root and --task are for a benchmark, and the data set is {settled.data.name!r}: name one "
                "with -c, e.g. -c data/office31, and leave --source and --target out"
            )
        return _spelt(settled) if task_of(settled) else settled

    def _plan(self) -> dict[str, Any]:
        """Options as a last layer of settings, but for the data's."""
        layer = {
            "oracle": _given(name=self.oracle),
            "ask": _given(budget=self.budget, rounds=self.rounds),
            "train": _given(epochs=self.epochs),
            "engine": _given(device=self.device, processes=self.processes, nodes=self.nodes),
            **_given(seed=self.seed),
        }
        return {key: value for key, value in layer.items() if value != {}}

    def _data(self, chosen: "Config") -> dict[str, Any]:
        """The data's options as a layer; folders of images and of label maps are read in different ways.

        Args:
            chosen: what the files and settings alone come to.
        """
        if self.manifest and (self.source or self.target or self.test or self.truth):
            raise UserError(
                "give either --manifest or the folders --source, --target, --test, --truth, not both"
            )
        maps = chosen.task.name == "segmentation"
        if self.classes and not maps:
            raise UserError("--classes is for segmentation: begin with -c segmentation")
        # Absolute, so that a run means the same images from whatever folder it is looked at.
        paths = {"source": self.source, "target": self.target, "test": self.test, "classes": self.classes}
        knobs: dict[str, Any] = {name: _absolute(path) for name, path in paths.items() if path is not None}
        if self.truth:
            knobs["truth"] = True
        data: dict[str, Any] = {}
        if knobs:
            # A benchmark with label maps has a source and a target folder of its own.
            named = {"name": "map_folders" if chosen.data.name == "streets" else chosen.data.name}
            data = {**(named if maps else {"name": "folders"}), "knobs": knobs}
        if self.manifest:
            data = {"name": "manifest", "knobs": {"path": _absolute(self.manifest)}}
        part = _given(root=self.root and _absolute(self.root), task=self.task)
        if part:  # of whatever data set a config names
            data = {**data, "knobs": {**data.get("knobs", {}), **part}}
        return {"data": data} if data else {}


NO_BENCHMARK = ("folders", "manifest", "digits", "toy", "streets")  # data sets without a root


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
    method = re.sub(r"[^\w.+%]+", "-", config.method).strip("-")  # a budget of 5% may be in it
    names = (config.data.name.split(":")[-1], task, method, config.digest())
    return Path("runs") / "-".join(name for name in names if name)


def _absolute(path: Path) -> str:
    return str(path.expanduser().absolute())


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
