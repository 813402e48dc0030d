"""Demo: compare methods on digits or synthetic streets over several seeds."""

import multiprocessing
import queue
import signal
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from ducats import config as configs
from ducats.data.domain import AdaptationData
from ducats.report import report
from ducats.report.method_results import MeanStd, MethodRow, aggregate_methods
from ducats.report.progress_display import REFRESH_SECONDS, ProgressDisplay
from ducats.report.write import Report
from ducats.run import run
from ducats.run.factory import build_run, load_data, with_resolved_precision
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric
from ducats.utils.errors import UserError
from ducats.utils.progress import Event


@dataclass(frozen=True)
class DemoSpec:
    """Data, methods and table columns of a demo."""

    title: str
    data: str  # name of a data config
    methods: tuple[str, ...]  # names of method configs
    columns: Mapping[str, tuple[str, float, int]]  # metric: table header, factor, decimals


DEMOS: Mapping[str, DemoSpec] = {
    "classification": DemoSpec(
        "Printed to handwritten digits",
        "data/digits",
        ("source-only", "random", "duc", "duc-random", "spread"),
        {"accuracy": ("accuracy %", 100, 1)},
    ),
    "segmentation": DemoSpec(
        "Rendered to camera streets",
        "data/streets",
        ("source-only", "random", "duc"),
        {"mean_iou": ("mIoU %", 100, 1), "accuracy": ("pixel accuracy %", 100, 1)},
    ),
}

WorkerMessage = tuple[str, Event]


def demo(
    out: Path,
    *,
    seeds: Sequence[int],
    workers: int,
    console: Console,
    task: str = "classification",
    methods: Sequence[str] | None = None,
    settings: Sequence[str] = (),
) -> Report:
    """Run every method with every seed in parallel, and write a report.

    Args:
        out: output folder: one subfolder per run, the report and ``summary.json``. Finished runs are skipped.
        seeds: random seeds.
        workers: number of processes, with one thread each.
        console: destination of the table.
        task: a key of ``DEMOS``.
        methods: names of method configs; None: those of the demo.
        settings: ``key=value`` settings that override the demo's config.
    """
    if task not in DEMOS:
        raise UserError(f"no demo {task!r}; choose from: {', '.join(DEMOS)}")
    spec = DEMOS[task]
    methods = methods or spec.methods
    started = time.monotonic()
    # Ordered by seed: the first comparison is complete early.
    work = [(method, seed) for seed in seeds for method in methods]
    console.print(
        f"{spec.title}: {len(methods)} methods x {len(seeds)} seeds, {workers} in parallel",
        highlight=False,
        soft_wrap=True,
    )
    context = multiprocessing.get_context("spawn")
    messages: queue.Queue[WorkerMessage] = context.Queue()  # type: ignore[assignment]  # same interface
    with ProgressDisplay() as show, ProcessPoolExecutor(workers, context, _init_worker, (messages,)) as pool:
        futures = [pool.submit(run_job, out, spec.data, *job, tuple(settings)) for job in work]
        try:
            _display_until_done(futures, messages, show)
        except BaseException:
            for process in multiprocessing.active_children():
                process.kill()  # runs survive a kill; the next demo resumes them
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    folders = [out / run_folder_name(method, seed) for method, seed in work]
    result = report(folders, out, title=spec.title)
    console.print(comparison_table(aggregate_methods(result.runs), spec.columns))
    console.print(
        f"{time.monotonic() - started:.0f} s in total; report in {result.page}, "
        f"numbers in {result.summary_json}",
        highlight=False,
        soft_wrap=True,
    )
    return result


def run_folder_name(method: str, seed: int) -> str:
    """Return the folder name of one run."""
    return f"{method}-seed{seed}"


_to_parent: "queue.Queue[WorkerMessage]"  # set once in each worker


def _init_worker(messages: "queue.Queue[WorkerMessage]") -> None:
    """Set up a worker process; Ctrl-C is handled by the parent."""
    global _to_parent
    _to_parent = messages
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def run_job(out: Path, data: str, method: str, seed: int, settings: tuple[str, ...]) -> None:
    """Execute one run in this process and send its progress to the parent."""
    config = with_resolved_precision(
        configs.load_config([data, f"methods/{method}"], [f"seed={seed}", "engine.device=cpu", *settings])
    )
    folder = out / run_folder_name(method, seed)
    fabric = make_fabric("cpu", precision=config.engine.precision)
    fabric.launch()
    components, plan = build_run(config, RunFolder(folder), _load_data_once(repr(config.data), config))
    last_sent = 0.0

    def send_event(event: Event) -> None:
        nonlocal last_sent
        now = time.monotonic()
        if event.phase != "train" or now - last_sent > REFRESH_SECONDS:
            last_sent = now
            values: Mapping[str, float] = dict(event.values())
            _to_parent.put((f"{method} #{seed}", replace(event, values=partial(dict, values))))

    run(components, plan, folder, fabric=fabric, identity=config.identity(), on_event=send_event)


_data_cache: dict[str, AdaptationData] = {}


def _load_data_once(key: str, config: configs.Config) -> AdaptationData:
    """Load the data of a config once per process."""
    if key not in _data_cache:
        _data_cache[key] = load_data(config)
    return _data_cache[key]


def _display_until_done(
    futures: Sequence["Future[None]"], messages: "queue.Queue[WorkerMessage]", show: ProgressDisplay
) -> None:
    """Display the workers' progress until all are done; re-raise the first failure."""
    while True:
        all_done = all(future.done() for future in futures)
        try:
            while True:
                name, event = messages.get(timeout=0.0 if all_done else 0.1)
                show(event, name)
        except queue.Empty:
            pass
        for future in futures:
            if future.done():
                future.result()
        if all_done:
            return


def comparison_table(
    rows: Sequence[MethodRow], metric_columns: Mapping[str, tuple[str, float, int]]
) -> Table:
    """Return the comparison as a table: mean and standard deviation over the seeds."""
    result = Table(header_style="bold")
    result.add_column("method")
    columns = {**metric_columns, "ece": ("calibration error %", 100, 1)}
    columns |= {"labels": ("labels", 1, 0), "seconds": ("seconds", 1, 1)}
    for title, _, _ in columns.values():
        result.add_column(title, justify="right")
    for row in rows:
        cells = (_cell(row.values.get(key), scale, digits) for key, (_, scale, digits) in columns.items())
        result.add_row(row.method, *cells)
    return result


def _cell(value: MeanStd | None, scale: float, digits: int) -> str:
    if value is None:
        return "-"
    mean = f"{scale * value.mean:.{digits}f}"
    return mean if not value.std else f"{mean} ± {scale * value.std:.{digits}f}"
