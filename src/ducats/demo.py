"""The demo: digits or drawn streets, several methods and seeds, one table."""

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
    """What a demo is about."""

    title: str
    data: str  # a config of the package
    methods: tuple[str, ...]  # names of method configs
    columns: Mapping[str, tuple[str, float, int]]  # of the table: its title, factor, digits after the point


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
    """Run every method with every seed, several at a time, and report.

    Args:
        out: one sub-folder per run, the page and ``summary.json``; finished runs are not repeated.
        seeds: of the runs.
        jobs: processes at a time, one thread each.
        console: where the table goes.
        task: a name from DEMOS.
        methods: names of method configs; the demo's own by default.
        settings: ``key=value`` on top of the demo's config.
    """
    if task not in DEMOS:
        raise UserError(f"no demo of {task!r}; there are: {', '.join(DEMOS)}")
    showing = DEMOS[task]
    methods = methods or showing.methods
    started = time.monotonic()
    # Seed by seed, so that the first comparison is complete early.
    work = [(method, seed) for seed in seeds for method in methods]
    console.print(
        f"{showing.title}: {len(methods)} methods x {len(seeds)} seeds, {jobs} at a time",
        highlight=False,
        soft_wrap=True,
    )
    context = multiprocessing.get_context("spawn")
    messages: queue.Queue[Message] = context.Queue()  # type: ignore[assignment]  # the same methods
    with Show() as show, ProcessPoolExecutor(jobs, context, _begin_worker, (messages,)) as pool:
        todo = [pool.submit(work_on, out, showing.data, *one, tuple(settings)) for one in work]
        try:
            _watch(todo, messages, show)
        except BaseException:
            for process in multiprocessing.active_children():
                process.kill()  # a run may be killed at any moment; the next demo goes on with it
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    folders = [out / folder_name(method, seed) for method, seed in work]
    made = report(folders, out, title=showing.title)
    console.print(table(by_method(made.runs), showing.columns))
    console.print(
        f"{time.monotonic() - started:.0f} s in all; page in {made.page}, numbers in {made.summary_json}",
        highlight=False,
        soft_wrap=True,
    )
    return made


def folder_name(method: str, seed: int) -> str:
    """Folder of one run."""
    return f"{method}-seed{seed}"


_to_parent: "queue.Queue[Message]"  # set once in each worker


def _begin_worker(messages: "queue.Queue[Message]") -> None:
    """Ctrl-C is the parent's business; a worker is told by it."""
    global _to_parent
    _to_parent = messages
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def work_on(out: Path, data: str, method: str, seed: int, settings: tuple[str, ...]) -> None:
    """Do one run in this process, telling the parent how it goes."""
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
    """The data of a config, read once per process."""
    if key not in _KEPT:
        _KEPT[key] = load_data(config)
    return _KEPT[key]


def _watch(todo: Sequence["Future[None]"], messages: "queue.Queue[Message]", show: Show) -> None:
    """Show what the workers say until all are done; a failure ends the demo with its own words."""
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
    """The comparison as a table: mean and deviation over the seeds."""
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
