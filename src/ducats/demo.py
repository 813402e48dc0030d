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
from ducats.assemble import assemble, load_data, settled
from ducats.display import BETWEEN, Show
from ducats.domain import Shift
from ducats.engine.processes import make_fabric
from ducats.errors import UserError
from ducats.progress import Event
from ducats.report import MethodRow, Report, Spread, by_method, report
from ducats.run import run
from ducats.rundir import RunDir


@dataclass(frozen=True)
class Showing:
    """Data, methods and table columns of a demo."""

    title: str
    data: str  # name of a data config
    methods: tuple[str, ...]  # names of method configs
    columns: Mapping[str, tuple[str, float, int]]  # metric: table header, factor, decimals


DEMOS: Mapping[str, Showing] = {
    "classification": Showing(
        "Printed to handwritten digits",
        "data/digits",
        ("source-only", "random", "duc", "duc-random", "spread"),
        {"accuracy": ("accuracy %", 100, 1)},
    ),
    "segmentation": Showing(
        "Rendered to camera streets",
        "data/streets",
        ("source-only", "random", "duc"),
        {"mean_iou": ("mIoU %", 100, 1), "accuracy": ("pixel accuracy %", 100, 1)},
    ),
}

Message = tuple[str, Event]


def demo(
    out: Path,
    *,
    seeds: Sequence[int],
    jobs: int,
    console: Console,
    task: str = "classification",
    methods: Sequence[str] | None = None,
    settings: Sequence[str] = (),
) -> Report:
    """Run every method with every seed in parallel, and write a report.

    Args:
        out: output folder: one subfolder per run, the report and ``summary.json``. Finished runs are skipped.
        seeds: random seeds.
        jobs: number of processes, with one thread each.
        console: destination of the table.
        task: a key of ``DEMOS``.
        methods: names of method configs; None: those of the demo.
        settings: ``key=value`` settings that override the demo's config.
    """
    if task not in DEMOS:
        raise UserError(f"no demo {task!r}; choose from: {', '.join(DEMOS)}")
    showing = DEMOS[task]
    methods = methods or showing.methods
    started = time.monotonic()
    # Ordered by seed: the first comparison is complete early.
    work = [(method, seed) for seed in seeds for method in methods]
    console.print(
        f"{showing.title}: {len(methods)} methods x {len(seeds)} seeds, {jobs} in parallel",
        highlight=False,
        soft_wrap=True,
    )
    context = multiprocessing.get_context("spawn")
    messages: queue.Queue[Message] = context.Queue()  # type: ignore[assignment]  # same interface
    with Show() as show, ProcessPoolExecutor(jobs, context, _begin_worker, (messages,)) as pool:
        todo = [pool.submit(work_on, out, showing.data, *one, tuple(settings)) for one in work]
        try:
            _watch(todo, messages, show)
        except BaseException:
            for process in multiprocessing.active_children():
                process.kill()  # runs survive a kill; the next demo resumes them
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    folders = [out / folder_name(method, seed) for method, seed in work]
    made = report(folders, out, title=showing.title)
    console.print(table(by_method(made.runs), showing.columns))
    console.print(
        f"{time.monotonic() - started:.0f} s in total; report in {made.page}, numbers in {made.summary_json}",
        highlight=False,
        soft_wrap=True,
    )
    return made


def folder_name(method: str, seed: int) -> str:
    """Return the folder name of one run."""
    return f"{method}-seed{seed}"


_to_parent: "queue.Queue[Message]"  # set once in each worker


def _begin_worker(messages: "queue.Queue[Message]") -> None:
    """Set up a worker process; Ctrl-C is handled by the parent."""
    global _to_parent
    _to_parent = messages
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def work_on(out: Path, data: str, method: str, seed: int, settings: tuple[str, ...]) -> None:
    """Execute one run in this process and send its progress to the parent."""
    config = settled(
        configs.load([data, f"methods/{method}"], [f"seed={seed}", "engine.device=cpu", *settings])
    )
    folder = out / folder_name(method, seed)
    fabric = make_fabric("cpu", precision=config.engine.precision)
    fabric.launch()
    parts, plan = assemble(config, RunDir(folder), _data(config.data.model_dump_json(), config))
    said = 0.0

    def tell(event: Event) -> None:
        nonlocal said
        now = time.monotonic()
        if event.phase != "train" or now - said > BETWEEN:
            said = now
            values: Mapping[str, float] = dict(event.values())
            _to_parent.put((f"{method} #{seed}", replace(event, values=partial(dict, values))))

    run(parts, plan, folder, fabric=fabric, identity=config.identity(), listen=tell)


_KEPT: dict[str, Shift] = {}


def _data(key: str, config: configs.Config) -> Shift:
    """Load the data of a config once per process."""
    if key not in _KEPT:
        _KEPT[key] = load_data(config)
    return _KEPT[key]


def _watch(todo: Sequence["Future[None]"], messages: "queue.Queue[Message]", show: Show) -> None:
    """Display the workers' progress until all are done; re-raise the first failure."""
    while True:
        over = all(future.done() for future in todo)
        try:
            while True:
                name, event = messages.get(timeout=0.0 if over else 0.1)
                show(event, name)
        except queue.Empty:
            pass
        for future in todo:
            if future.done():
                future.result()
        if over:
            return


def table(rows: Sequence[MethodRow], first: Mapping[str, tuple[str, float, int]]) -> Table:
    """Return the comparison as a table: mean and standard deviation over the seeds."""
    view = Table(header_style="bold")
    view.add_column("method")
    columns = {**first, "ece": ("calibration error %", 100, 1)}
    columns |= {"labels": ("labels", 1, 0), "seconds": ("seconds", 1, 1)}
    for title, _, _ in columns.values():
        view.add_column(title, justify="right")
    for row in rows:
        cells = (_cell(row.values.get(key), scale, digits) for key, (_, scale, digits) in columns.items())
        view.add_row(row.method, *cells)
    return view


def _cell(spread: Spread | None, scale: float, digits: int) -> str:
    if spread is None:
        return "-"
    mean = f"{scale * spread.mean:.{digits}f}"
    return mean if not spread.deviation else f"{mean} ± {scale * spread.deviation:.{digits}f}"
