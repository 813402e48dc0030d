"""The command `ducats`. Each subcommand parses, calls one function, prints what came out.

Exit codes: 0 done, 1 a defect of ours or findings of the doctor, 2 bad input, 3 waiting for people's answers.
Torch is imported inside the subcommands, so that `--help` answers at once.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console

from ducats.errors import AwaitingLabels, UserError
from ducats.options import Settings, folder_of, task_of

app = App(
    name="ducats",
    help="Active domain adaptation: train on labelled source images, ask for the few target labels that are "
    "worth it, of images or of their pixels, learn, and tell how sure the model is.",
    version=lambda: version("ducats"),
    suppress_keyboard_interrupt=False,
    help_epilogue="Start with `ducats demo`, then `ducats run --source DIR --target DIR`. Segmentation: "
    "`ducats demo --task segmentation`, then `ducats run -c segmentation --source DIR --target DIR --classes "
    "FILE`.",
)
console = Console()


@app.command
def run(*, settings: Settings = Settings(), out: Path | None = None) -> int:  # noqa: B008 - never changed
    """Train, ask for labels, learn, repeat. The same command goes on after a kill or a pause.

    With two folders and nothing else, DUC runs on an ImageNet ResNet-50 and asks people: questions with
    thumbnails are put into the run's folder, and the run pauses (exit code 3) until answers.csv is there.
    With -c segmentation, pixels are bought: DIR holds images/ and labels/ (the target needs no labels),
    --classes says what label files mean, and people answer masks with label PNGs in the same way.
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
    from ducats.doctor.task import misfits
    from ducats.engine.processes import make_fabric
    from ducats.run import run as run_parts
    from ducats.rundir import RunDir

    for misfit in misfits(config):
        raise UserError(misfit)
    config = settled(config)
    folder = out or folder_of(config)
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
        what = "pixels" if parts.buys_pixels else "images, whole" if parts.source.of_pixels else "labels"
        asked = f"{sum(plan.budget):,} {what} in {rounds}".replace(",", " ") if plan.budget else "no labels"
        console.print(
            f"{config.method} on {' '.join(filter(None, (config.data.name, task_of(config))))}: "
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
        ledger = home.bought()
        spent = f"{len(ledger)} labels spent"
        if parts.source.of_pixels:
            spent = f"{len(ledger)} pixels bought with {ledger.clicks()} clicks"
        console.print(f"{spent}; model in {folder}/model.safetensors{note}", soft_wrap=True)
    return 0


@app.command
def evaluate(run: Path, *, data: Path | None = None, device: str = "auto") -> int:
    """Measure a finished run's model on the images it was measured on, or on a folder of labelled ones.

    The answer says which images these are: held-out ones, the target without what was bought, or all of it.

    Args:
        run: The run's folder.
        data: A folder of labelled images, class/...; of segmentation with images/ and labels/, which are read
            with the run's class list. By default the run's own.
        device: auto, cpu, cuda or mps.
    """
    from ducats.engine.processes import make_fabric
    from ducats.inference import load_trained, measure, usable_precision

    trained = load_trained(run)
    found = measure(trained, make_fabric(device, precision=usable_precision(trained, device)), data)
    print_json(found.numbers(trained.classes, trained.config.evaluation.star_without))
    return 0


@app.command
def predict(
    run: Path,
    images: Path,
    *,
    out: Path | None = None,
    every_class: Annotated[bool, Parameter(negative=())] = False,
    uncertainty: Annotated[bool, Parameter(negative=())] = False,
    device: str = "auto",
) -> int:
    """Write a finished run's answers for a folder of images, each with its probability and uncertainties.

    Of segmentation, a label map for each image, in its own size: a PNG with class numbers and colours.

    Args:
        run: The run's folder.
        images: A folder of images, in any sub-folders or none.
        out: The CSV to write (key, label, probability, entropy, u_data, u_dis), by default predictions.csv.
            Of segmentation, the folder for labels/, classes.txt and predictions.csv (means over each image's
            pixels, and the share of each class), by default predictions.
        every_class: Also write the probability of each class; not of segmentation.
        uncertainty: Segmentation: also write uncertainty/, an NPZ for each image with probability, entropy,
            u_data and u_dis of each pixel.
        device: auto, cpu, cuda or mps.
    """
    from ducats.engine.processes import make_fabric
    from ducats.inference import load_trained, predict_maps, usable_precision
    from ducats.inference import predict as predict_folder

    trained = load_trained(run)
    if every_class and trained.of_pixels:
        raise UserError("--every-class is for classification: of pixels, --uncertainty writes what there is")
    if uncertainty and not trained.of_pixels:
        raise UserError("--uncertainty is for segmentation: of images, the CSV has uncertainties already")
    fabric = make_fabric(device, precision=usable_precision(trained, device))
    if trained.of_pixels:
        out = out or Path("predictions")
        count = predict_maps(trained, fabric, images, out, uncertainty=uncertainty)
    else:
        out = out or Path("predictions.csv")
        count = predict_folder(trained, fabric, images, out, every_class=every_class)
    console.print(f"{count} image{'' if count == 1 else 's'}, answers in {out}", soft_wrap=True)
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
    """Print the labels that a run bought, as CSV: round, key, label; of pixels also y and x.

    Args:
        run: The run's folder.
    """
    import csv

    from ducats.domain import VOID
    from ducats.rundir import RunDir

    home = RunDir(run)
    classes, ledger = home.data["classes"], home.bought()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    names = {VOID: "void", **dict(enumerate(classes))}
    # One by one: of pixels, there may be a hundred million.
    if ledger.sizes is None:
        writer.writerow(["round", "key", "label"])
        writer.writerows((e.round, e.key, names[e.label]) for e in ledger.entries())
    else:
        widths = dict(zip(ledger.keys, ledger.sizes[:, 1].tolist(), strict=True))
        writer.writerow(["round", "key", "y", "x", "label"])
        writer.writerows(
            (e.round, e.key, *divmod(e.position, widths[e.key]), names[e.label]) for e in ledger.entries()
        )
    return 0


@app.command
def picks(
    run: Path,
    *,
    out: Path | None = None,
    images: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
    count: int = 4,
) -> int:
    """Draw a picture of the pixels that a segmentation run bought: a row per image, a column per round.

    Args:
        run: The run's folder.
        out: The PNG to write; by default picks.png in the run's folder.
        images: Keys of the images to show; by default some, evenly spaced.
        count: How many to show if none are named.
    """
    from ducats.inference import config_of
    from ducats.picks import choose, images_of, picks_figure
    from ducats.rundir import RunDir

    home = RunDir(run)
    settled, classes, ledger = config_of(home), home.data["classes"], home.bought()
    chosen = choose(ledger, images, count)  # before images are read, which may take long
    shown = images_of(settled, chosen)
    path = picks_figure(ledger, shown, out or run / "picks.png", classes=classes, chosen=chosen)
    console.print(f"picture in {path}", soft_wrap=True)
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
    """Check data and settings before training: unreadable files, copies, classes, budget, memory.

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
    task: Literal["classification", "segmentation"] = "classification",
    out: Path | None = None,
    seeds: Annotated[list[int] | None, Parameter(negative=(), consume_multiple=True)] = None,
    jobs: int | None = None,
) -> int:
    """Compare five methods from printed to handwritten digits, or on drawn streets. No download.

    With --task segmentation, from rendered to camera-like street scenes, buying pixels.

    Args:
        task: What the demo is about: images with a label each, or with a label for each pixel.
        out: Where to put the runs, summary.json and index.html (by default runs/demo, or
            runs/demo-segmentation); what is done already is not done again.
        seeds: By default 0 1 2.
        jobs: Runs at a time, one thread each; by default the number of cores.
    """
    from ducats.demo import demo as run_demo

    folder = out or Path("runs/demo" if task == "classification" else f"runs/demo-{task}")
    jobs = jobs or os.cpu_count() or 1
    run_demo(folder, seeds=seeds or [0, 1, 2], jobs=jobs, console=console, task=task)
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
    except BrokenPipeError:
        code = _stop_writing()
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        code = _say(f"ducats: the system refused{where}: {error.strerror or error}", "red", 2)
    _leave_together()
    if code:
        _let_the_first_process_leave()
    sys.exit(code)


def _stop_writing() -> int:
    """Whoever read what is printed has enough (`ducats labels RUN | head`): no error."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - until the end, where Python flushes it
    return 0


def _say(sentence: str, style: str, code: int) -> int:
    """Say it once, however many processes found out."""
    if _rank() == 0:
        Console(stderr=True).print(sentence, style=style, highlight=False, markup=False, soft_wrap=True)
    return code


def _leave_together() -> None:
    """End the group of processes in order; one that just exits may be aborted, with another exit code."""
    if "torch.distributed" in sys.modules:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()


def _rank() -> int:
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def _let_the_first_process_leave(seconds: float = 20.0) -> None:
    """Wait for whoever started this process: it kills itself when another one fails before it has spoken.

    All processes hear of a failure and end alike, but Fabric's observer cannot know that.
    """
    parent, until = os.getppid(), time.monotonic() + seconds
    while _rank() > 0 and os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.05)
