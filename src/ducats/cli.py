"""The command `ducats`. Each subcommand parses, calls one function, prints what came out.

Exit codes: 0 done, 1 a defect of ours or findings of the doctor, 2 bad input, 3 waiting for people's answers.
Torch is imported inside the subcommands, so that `--help` answers at once.
"""

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console

from ducats.errors import AwaitingLabels, UserError

app = App(
    name="ducats",
    help="Active domain adaptation: train on labelled source images, ask for the few target labels that are "
    "worth it, learn, and tell how sure the model is.",
    version=lambda: version("ducats"),
    suppress_keyboard_interrupt=False,
    help_epilogue="Start with `ducats demo`, then `ducats run --source DIR --target DIR`.",
)
console = Console()


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

    def load(self) -> Any:
        """Resolve everything into one config."""
        from ducats import config

        files = [*self.config, *([f"methods/{self.method}"] if self.method else [])]
        settled = config.load(files, self.set, self._options())
        if (self.root or self.task) and settled.data.name in ("folders", "manifest", "digits", "toy"):
            raise UserError(
                f"--root and --task are for a benchmark, and the data set is {settled.data.name!r}: name one "
                "with -c, e.g. -c data/office31, and leave --source and --target out"
            )
        return _spelt(settled) if _task(settled) else settled

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


def _task(config: Any) -> str:
    """The task that a config names; empty if it names none."""
    task = config.data.knobs.get("task")
    return task if isinstance(task, str) else ""


def _spelt(config: Any) -> Any:
    """The same config with its task as it is usually written: one task is one run, however it is typed."""
    from ducats.data import usual_task

    knobs = {**config.data.knobs, "task": usual_task(config.data.name, _task(config))}
    return config.model_copy(update={"data": config.data.model_copy(update={"knobs": knobs})})


def _folder(config: Any) -> Path:
    """Where a run goes by default."""
    task = re.sub(r"[^\w.]+", "-", _task(config)).strip("-")
    names = (config.data.name.split(":")[-1], task, config.method, config.digest())
    return Path("runs") / "-".join(name for name in names if name)


def _absolute(path: Path) -> str:
    return str(path.expanduser().absolute())


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@app.command
def run(*, settings: Settings = Settings(), out: Path | None = None) -> int:  # noqa: B008 - never changed
    """Train, ask for labels, learn, repeat. The same command goes on after a kill or a pause.

    With two folders and nothing else, DUC runs on an ImageNet ResNet-50 and asks people: questions with
    thumbnails are put into the run's folder, and the run pauses (exit code 3) until answers.csv is there.
    `ducats config --explain` with the same options lists every setting, `ducats queries` the queries.

    Args:
        settings: what to run.
        out: The run's folder. By default runs/DATA-METHOD-DIGEST (with a benchmark's task after DATA), so
            that one command means one folder.
    """
    config = settings.load()
    import torch

    from ducats.assemble import assemble, check_names, make_speed, settled
    from ducats.display import Show, stage_table
    from ducats.doctor.known import incomplete
    from ducats.engine.processes import make_fabric
    from ducats.run import run as run_parts
    from ducats.rundir import RunDir

    config = settled(config)
    folder = out or _folder(config)
    home = RunDir(folder)
    check_names(config, begun=home.begun)
    engine = config.engine
    fabric = make_fabric(
        engine.device, engine.processes, engine.precision, deterministic=engine.deterministic
    )
    if engine.threads:
        torch.set_num_threads(engine.threads)
    fabric.launch()
    finished = home.finished
    if fabric.is_global_zero and not finished:
        for lack in incomplete(config):
            console.print(f"warning: {lack}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    parts, plan = assemble(config, home)
    if fabric.is_global_zero:
        rounds = "1 round" if len(plan.budget) == 1 else f"{len(plan.budget)} rounds"
        asked = f"{sum(plan.budget)} labels in {rounds}" if plan.budget else "no labels"
        console.print(
            f"{config.method} on {' '.join(filter(None, (config.data.name, _task(config))))}: "
            f"{len(parts.source)} source images, "
            f"{len(parts.pool)} target images, {len(parts.source.classes)} classes, {asked}; folder {folder}",
            highlight=False,
            soft_wrap=True,
        )
    with Show() as show:
        run_parts(
            parts,
            plan,
            folder,
            fabric=fabric,
            identity=config.identity(),
            speed=make_speed(config),
            listen=show,
        )
    if fabric.is_global_zero:
        if finished:
            console.print("finished already: this is from its folder (another --seed or --out runs anew)")
        if stages := home.stages():
            console.print(stage_table(stages))
        note = "" if parts.test is not None else " (no labelled target images, so nothing was measured)"
        console.print(
            f"{len(home.bought())} labels spent; model in {folder}/model.safetensors{note}", soft_wrap=True
        )
    return 0


@app.command
def evaluate(run: Path, *, data: Path | None = None, device: str = "auto") -> int:
    """Measure a finished run's model on the images it was measured on, or on a folder of labelled ones.

    The answer says which images these are: held-out ones, the target without what was bought, or all of it.

    Args:
        run: The run's folder.
        data: A folder of labelled images, class/...; by default the run's own.
        device: auto, cpu, cuda or mps.
    """
    from ducats.engine.processes import make_fabric
    from ducats.inference import load_trained, measure, usable_precision
    from ducats.metrics import compute

    trained = load_trained(run)
    tally, on = measure(trained, make_fabric(device, precision=usable_precision(trained, device)), data)
    print_json({"measured_on": on, "images": tally.total, **(compute(tally) if tally.total else {})})
    return 0


@app.command
def predict(
    run: Path,
    images: Path,
    *,
    out: Path = Path("predictions.csv"),
    every_class: bool = False,
    device: str = "auto",
) -> int:
    """Write a finished run's answers for a folder of images, each with its probability and uncertainties.

    Args:
        run: The run's folder.
        images: A folder of images, in any sub-folders or none.
        out: The CSV to write: key, label, probability, entropy, u_data, u_dis.
        every_class: Also write the probability of each class.
        device: auto, cpu, cuda or mps.
    """
    from ducats.engine.processes import make_fabric
    from ducats.inference import load_trained, usable_precision
    from ducats.inference import predict as predict_folder

    trained = load_trained(run)
    fabric = make_fabric(device, precision=usable_precision(trained, device))
    count = predict_folder(trained, fabric, images, out, every_class=every_class)
    console.print(f"{count} images, answers in {out}", soft_wrap=True)
    return 0


@app.command
def report(*runs: Path, out: Path = Path("report")) -> int:
    """Make one offline page of one or many runs: table, curves, calibration.

    Args:
        runs: Run folders, or folders that hold them.
        out: Where to put index.html, table.md, table.csv and summary.json.
    """
    from ducats.report import report as write_report

    if not runs:
        raise UserError("name at least one run folder, e.g. `ducats report runs`")
    for caution in write_report(list(runs), out).cautions:
        console.print(f"beware: {caution}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    console.print(f"report in {out}/index.html", soft_wrap=True)
    return 0


@app.command
def labels(run: Path) -> int:
    """Print the labels that a run bought, as CSV: round, key, label.

    Args:
        run: The run's folder.
    """
    import csv

    from ducats.domain import VOID
    from ducats.rundir import RunDir

    home = RunDir(run)
    classes = home.data["classes"]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["round", "key", "label"])
    for entry in home.bought().entries():
        writer.writerow([entry.round, entry.key, "void" if entry.label == VOID else classes[entry.label]])
    return 0


@app.command
def config(
    *,
    settings: Settings = Settings(),  # noqa: B008 - never changed
    explain: Annotated[bool, Parameter(negative=())] = False,
    schema: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Print the resolved config, nothing left to defaults.

    Args:
        settings: what to resolve.
        explain: List every setting with its value and meaning instead, and the knobs of each part.
        schema: Print the JSON schema instead, for editors.
    """
    from ducats import config as configs

    if schema:
        print_json(configs.Config.model_json_schema())
    elif explain:
        from ducats.assemble import knobs_of

        settled = settings.load()
        knobs = knobs_of(settled)
        for name, default, meaning in configs.explain(settled):
            meaning = knobs.get(name, meaning)
            console.print(f"[bold]{name}[/bold] = {default}", highlight=False, soft_wrap=True)
            if meaning:
                console.print(f"    {meaning}", highlight=False, markup=False, soft_wrap=True)
    else:
        sys.stdout.write(configs.to_yaml(settings.load()))
    return 0


@app.command
def doctor(*, settings: Settings = Settings()) -> int:  # noqa: B008 - never changed
    """Check data and settings before training: unreadable files, duplicates, classes, budget, memory.

    Args:
        settings: what to check; the same options as `ducats run`.
    """
    from ducats.doctor import examine, verdict

    findings = examine(settings.load())
    style = {"error": "bold red", "warning": "yellow", "note": "dim"}
    for finding in findings:
        console.print(
            f"{finding.severity}: {finding.what}",
            style=style[finding.severity],
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    sentence, code = verdict(findings)
    console.print(sentence, soft_wrap=True)
    return code


@app.command
def queries() -> int:
    """List the queries: how each picks what is worth a label."""
    from rich.table import Table

    from ducats.queries import QUERIES

    table = Table("query", "knobs", "what it asks", header_style="bold")
    for name, strategy in QUERIES.items():
        table.add_row(name, strategy.knobs, strategy.summary)
    console.print(table)
    return 0


@app.command
def demo(
    *,
    out: Path = Path("runs/demo"),
    seeds: Annotated[list[int] | None, Parameter(negative=(), consume_multiple=True)] = None,
    jobs: int | None = None,
) -> int:
    """Adapt from printed to handwritten digits with five methods, and compare them. No download.

    Args:
        out: Where to put the runs, summary.json and index.html; what is done already is not done again.
        seeds: By default 0 1 2.
        jobs: Runs at a time, one thread each; by default the number of cores.
    """
    from ducats.demo import demo as run_demo

    run_demo(out, seeds=seeds or [0, 1, 2], jobs=jobs or os.cpu_count() or 1, console=console)
    return 0


def print_json(value: Any) -> None:
    """Print JSON for programs and people."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; bad input is one sentence, not a traceback."""
    try:
        code = app(arguments, exit_on_error=False)
    except CycloptsError:
        code = 2  # said already
    except UserError as error:
        code = _say(f"ducats: {error}", "red", 2)
    except AwaitingLabels as pause:
        code = _say(f"paused: {pause}", "yellow", 3)
    except KeyboardInterrupt:
        code = _say("stopped; the same command goes on", "yellow", 130)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        code = _say(f"ducats: the system refused{where}: {error.strerror or error}", "red", 2)
    _leave_together()
    sys.exit(code)


def _say(sentence: str, style: str, code: int) -> int:
    """Say it once, however many processes found out."""
    if int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0:
        Console(stderr=True).print(sentence, style=style, highlight=False, markup=False, soft_wrap=True)
    return code


def _leave_together() -> None:
    """End the group of processes in order; one that just exits may be aborted, with another exit code."""
    if "torch.distributed" in sys.modules:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()
