"""The commands `ducats run` and `ducats demo`."""

import os
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from ducats.cli.base import app, check_poll, console, print_line, print_warning
from ducats.cli.shutdown import connect_monitored, is_reporter, repeat_in_local_ranks
from ducats.config.options import RunOptions, SharedAnswers, benchmark_task, default_run_folder
from ducats.utils.errors import AwaitingLabels, UserError
from ducats.utils.findings import join_names, join_quoted, pluralise
from ducats.utils.progress import activity, combine_listeners

if TYPE_CHECKING:
    from ducats.config import Config
    from ducats.run.components import Components, RunPlan
    from ducats.runfolder.run_folder import RunFolder
    from ducats.settings import PerformanceOptions


@app.command
def run(
    *,
    options: RunOptions = RunOptions(),  # noqa: B008 - never changed
    out: Path | None = None,
    answers: SharedAnswers = [],  # noqa: B006 - never changed
    wait: Annotated[bool, Parameter(negative=())] = False,
    poll: float = 5.0,
) -> int:
    """Train, query, label, repeat. Run the same command again to resume after a kill or a pause.

    With only --source and --target, the method `ducats` trains an ImageNet ResNet-50 and queries human
    annotators: questions with thumbnails are written to the run folder, and the run pauses (exit code 3)
    until answers.csv exists. `ducats` asks where a label would settle the most uncertainty around it, and
    lets acquired labels propagate to similar images; --method duc is the method of the paper.
    With -c segmentation, pixels are labelled: each folder contains images/ and labels/ (optional for the
    target), --classes defines the values of the label files, and masks are answered with label PNGs.
    `ducats config --explain` with the same options lists every setting, `ducats queries` the queries.

    Args:
        options: Options of the run.
        out: Run folder; default: runs/DATA-METHOD-DIGEST (with the benchmark task after DATA), so that the
            same command always uses the same folder.
        answers: Folders of earlier runs or sweeps.
        wait: Instead of pausing, wait until all answers are there, then continue. Ctrl-C stops waiting; run
            the same command again to resume.
        poll: With --wait: seconds between checks for answers.
    """
    check_poll(poll)
    from ducats.training import launch_environment
    from ducats.utils.progress_display import ProgressDisplay

    is_first = launch_environment.node_and_local_rank()[1] == 0
    with ProgressDisplay(transient=True, activities=is_first), activity("loading libraries"):
        config = options.load(resumed=out)
        check_answer_files(config, out)
        import torch

        from ducats.data.registry import resolve_dataset
        from ducats.doctor.images import completeness_warnings
        from ducats.run import run as run_components
        from ducats.run.components import steps_per_epoch, unreadable_files
        from ducats.run.factory import build_run, check_config, resolve_for_machine
        from ducats.run.loggers import LoggerDispatcher, find_loggers
        from ducats.runfolder.class_changes import ClassList
        from ducats.runfolder.run_folder import RunFolder
        from ducats.training.distributed import all_ranks_or_raise, make_fabric

    config = resolve_for_machine(config)
    folder = out or default_run_folder(config)
    run_folder = RunFolder(folder)
    with ProgressDisplay(transient=True, activities=is_first), activity("checking the settings"):
        check_config(config, is_resumable=run_folder.is_resumable, runs_here=False)
        # Before the weights, which `build_run` checks as well.
        resolve_dataset(config.data.name).require_params(config.data.name, config.data.params)
    engine = config.engine
    loggers = find_loggers(engine.loggers)
    world = launch_environment.resolve_world(engine.processes, engine.nodes)
    fabric = make_fabric(
        engine.device,
        world.processes_per_node,
        engine.precision,
        nodes=world.nodes,
        strategy=engine.strategy,
        deterministic=engine.deterministic,
    )
    if engine.threads:
        torch.set_num_threads(engine.threads)
    if launch_environment.starts_local_ranks(world):
        repeat_in_local_ranks(world)
    connect_monitored(fabric)
    finished = run_folder.finished
    if fabric.is_global_zero and not finished:
        for gap in completeness_warnings(config):
            print_warning(gap)
    # May fail on one host only.
    with ProgressDisplay(transient=True, activities=fabric.is_global_zero):
        components, plan = all_ranks_or_raise(
            fabric, lambda: build_run(config, run_folder, shared_answers=answers)
        )
    is_resumed = run_folder.is_resumable
    classes = run_folder.classes if is_resumed else ClassList(components.source.classes)
    if fabric.is_global_zero:
        print_line(
            f"{config.method} on {' '.join(filter(None, (config.data.name, benchmark_task(config))))}: "
            f"{pluralise(len(components.source), 'source image')}, "
            f"{pluralise(len(components.pool), 'target image')}, "
            f"{pluralise(len(classes.current), 'class')}, {describe_budget(components, plan)}; "
            f"folder {folder}"
        )
    if fabric.is_global_zero and fabric.device.type == "cpu" and not run_folder.is_resumable:
        with ProgressDisplay(transient=True):
            costs = describe_costs(components, plan, config.engine)
        if costs:
            print_line(costs)
    unreadable = unreadable_files(components)
    if unreadable and fabric.is_global_zero:
        names = join_names([f"{file.path} ({file.reason})" for _, file in unreadable], 3)
        print_warning(
            f"{pluralise(len(unreadable), 'unreadable file')} skipped: {names}; listed in "
            f"{run_folder.unreadable_path}; --strict refuses such data"
        )
    with (
        ProgressDisplay(activities=fabric.is_global_zero) as display,
        LoggerDispatcher(
            loggers if fabric.is_global_zero else {},
            folder,
            settings=config.identity(),
            steps_per_epoch=steps_per_epoch(components, plan),
            warn=partial(print_warning, output=display.console),
        ) as logs,
    ):
        try:
            run_components(
                components,
                plan,
                folder,
                fabric=fabric,
                identity=config.identity(),
                performance=config.engine,
                on_event=combine_listeners(display, logs),
                wait=make_wait_callback(display.console, poll) if wait else None,
            )
        finally:
            if fabric.is_global_zero:
                _print_added_classes(run_folder, len(classes))
    if fabric.is_global_zero:
        if finished:
            hint = "use another --seed or --out for a new run"
            print_line(f"already finished; results from its folder ({hint})")
        print_results(run_folder, has_test=components.test is not None, n_unreadable=len(unreadable))
        print_line(f"next: `ducats report {shlex.quote(str(run_folder.path))}`", "dim")
    return 0


def print_results(run_folder: "RunFolder", *, has_test: bool, n_unreadable: int = 0) -> None:
    """Print the metrics of a finished run, what was spent, and where its model is."""
    from ducats.annotation import AnnotationStore
    from ducats.annotation.summary import summarise_channels
    from ducats.ledger import load_ledger
    from ducats.report.stage_table import terminal_stage_table
    from ducats.runfolder.records import (
        describe_audit,
        describe_random_gain,
        describe_stop,
        describe_timed,
    )

    if stages := run_folder.stages():
        console.print(terminal_stage_table(stages))
    audits = run_folder.read_records("audit")
    if audits:
        pixels_or_images = "pixels" if "pixels" in audits[-1] else "images"
        when = f"on {pixels_or_images} that were not trained on"
        if run_folder.identity["acquisition"].get("release_audit"):
            when = "before training on the audit labels"
        print_line(f"{when}: {describe_audit(audits[-1])}")
    for gain in run_folder.read_records("random_gain"):
        print_line(describe_random_gain(gain))
    for stop in run_folder.read_records("stop"):
        print_line(describe_stop(stop))
    remark = "" if has_test or audits else " (not evaluated: no labelled target images)"
    ledger = load_ledger(run_folder)
    spent = f"{pluralise(len(ledger), 'label')} acquired"
    if ledger.sizes is not None:
        by_channel = "; ".join(map(str, summarise_channels(AnnotationStore(run_folder.questions_path))))
        how = f" ({by_channel})" if by_channel else f" with {pluralise(ledger.clicks(), 'click')}"
        spent = f"{pluralise(len(ledger), 'pixel')} labelled{how}"
    if (seconds := ledger.seconds()) is not None:
        timed = describe_timed(ledger.n_timed_units(), ledger.n_units())
        spent += f", {seconds / 60:.1f} minutes of annotation{f' ({timed})' if timed else ''}"
    if n_corrected := ledger.n_corrected:
        spent += f", {n_corrected} corrected"
    if n_unreadable:
        skipped = pluralise(n_unreadable, "unreadable file")
        remark += f"; {skipped} skipped, see {run_folder.unreadable_path}"
    print_line(f"{spent}; model in {run_folder.model_path}{remark}")


def _print_added_classes(run_folder: "RunFolder", n_before: int) -> None:
    with suppress(UserError):  # it would hide another error
        if added := run_folder.classes.names[n_before:]:
            title = "added the class" if len(added) == 1 else "added the classes"
            command = f"`ducats classes {shlex.quote(str(run_folder.path))}`"
            print_line(f"{title} {join_quoted(added)}; {command} lists, renames and merges classes")


def check_answer_files(config: "Config", out: Path | None) -> None:
    """Import the CSV answers to the open round of a run, before torch is imported; raise if one is wrong."""
    from ducats.annotation import AnnotationStore
    from ducats.annotation.csv_answers import describe_problems, import_csv_answers
    from ducats.runfolder.run_folder import RunFolder

    folders = [out]
    if out is None:
        # What is "auto" becomes one of these; only torch knows which.
        engines, models = [config.engine], [config.model]
        if config.engine.precision == "auto":
            engines = [
                replace(config.engine, precision="32-true"),
                replace(config.engine, precision="bf16-mixed"),
            ]
        if config.model.freeze == "auto":
            models = [replace(config.model, freeze="none"), replace(config.model, freeze="backbone")]
        folders = [
            default_run_folder(config.model_copy(update={"engine": engine, "model": model}))
            for engine in engines
            for model in models
        ]
    existing = [RunFolder(folder) for folder in folders if folder is not None and folder.is_dir()]
    if len(existing) != 1:
        return
    existing[0].check_format()
    store = AnnotationStore(existing[0].questions_path)
    question_round = store.open_round()
    problems = [] if question_round is None else import_csv_answers(store, question_round.rules.round)
    if problems:
        raise UserError(describe_problems(problems))


def describe_budget(components: "Components", plan: "RunPlan") -> str:
    """Describe the budget and the rounds of a plan."""
    count = len(plan.query_epochs)
    if not count:
        return "no labels"
    rounds = pluralise(count, "round")
    if plan.time_budget is not None:
        unit = components.task.resolved_unit if components.source.per_pixel else "label"
        questions = pluralise(plan.time_budget.questions_in_round(None, 0, 0, count), unit)
        per_round = f"about {questions} each at {plan.time_budget.seconds_per_label:g} s"
        audit = f", {sum(plan.audit)} of them for the audit" if plan.audit else ""
        return f"{plan.time_budget} in {rounds}, {per_round}{audit}"
    unit_name = (
        "pixel" if components.selects_pixels else "whole image" if components.source.per_pixel else "label"
    )
    total, initial = sum(plan.budget), components.initial_labels
    audit = f", {sum(plan.audit)} of them for the audit" if plan.audit else ""
    if initial is None:
        return f"{pluralise(total, unit_name, f'{total:,}')} in {rounds}".replace(",", " ") + audit
    start = f"starts with {pluralise(len(initial), 'label')}"
    if initial.n_unmatched:
        start += f" ({initial.n_unmatched} of images that are not in the target ignored)"
    if count == 1:
        return f"{start}, asks for no more"
    return f"{start}, {total - len(initial)} more in {pluralise(count - 1, 'round')}{audit}"


def describe_costs(components: "Components", plan: "RunPlan", performance: "PerformanceOptions") -> str:
    """Estimate time and memory of a run on this CPU; with a frozen backbone, of fine-tuning as well.

    Empty if there is no estimate.
    """
    from ducats.run.estimate import estimate_components

    estimates = None
    with suppress(Exception):  # the run itself reports what is wrong
        estimates = estimate_components(components, plan, performance)
    return "" if estimates is None else estimates[0].describe(estimates[1])


def make_wait_callback(output: Console, poll: float) -> Callable[[int, AwaitingLabels | UserError], None]:
    """Return a callback that sleeps for ``poll`` seconds and prints each message only once per round."""
    printed = set[int | str]()

    def wait(round_number: int, pause: AwaitingLabels | UserError) -> None:
        is_error = isinstance(pause, UserError)
        # The number of open questions changes with each answer.
        message_key = str(pause) if is_error else round_number
        if is_reporter() and message_key not in printed:
            hint = f"--wait: checking every {poll:g} s; Ctrl-C stops waiting"
            style = "red" if is_error else "yellow"
            print_line(f"{pause} ({hint})", style, output=output)
        printed.add(message_key)
        time.sleep(poll)

    return wait


@app.command
def demo(
    *,
    task: Literal["classification", "segmentation"] = "classification",
    out: Path | None = None,
    seeds: Annotated[list[int] | None, Parameter(negative=(), consume_multiple=True)] = None,
    workers: int | None = None,
) -> int:
    """Compare the default method with DUC and random images on digits, printed to handwritten; no download.

    With --task segmentation, do so on synthetic streets, from rendered to camera-like images.

    Args:
        task: Task of the demo.
        out: Output folder for the runs, summary.json and report.html; default: runs/demo or
            runs/demo-segmentation. Finished runs are skipped.
        seeds: Random seeds; default: 0 1 2.
        workers: Number of parallel runs, with one thread each; default: the number of cores.
    """
    from ducats.utils.child_process import warm_up

    warm_up({"OMP_NUM_THREADS": "1"})  # while this process imports torch, too
    from ducats.sweep.demo import demo as run_demo

    folder = out or Path("runs/demo" if task == "classification" else f"runs/demo-{task}")
    workers = workers or os.cpu_count() or 1
    return run_demo(folder, seeds=seeds or [0, 1, 2], workers=workers, console=console, task=task)
