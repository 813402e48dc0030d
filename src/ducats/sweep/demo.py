"""Demo: a sweep over methods on digits or synthetic streets, and a report."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ducats.report import report
from ducats.report.figures.summary_stats import MeanStd
from ducats.report.method_results import MethodRow, aggregate_methods
from ducats.sweep.local_backend import LocalSweepBackend, make_slots
from ducats.sweep.progress import print_line
from ducats.sweep.runner import run_sweep
from ducats.sweep.runs import SweepFilter, check_sweep_runs, expand_sweep
from ducats.sweep.schema import Sweep
from ducats.utils.errors import UserError
from ducats.utils.findings import format_duration, pluralise


@dataclass(frozen=True)
class DemoSpec:
    """Data, methods and table columns of a demo."""

    title: str
    data: str  # name of a data config
    methods: tuple[str, ...]  # names of method configs
    columns: Mapping[str, tuple[str, float, int]]  # metric: table header, factor, decimals
    seconds_per_run: float  # on a core of a laptop or a small server


DEMOS: Mapping[str, DemoSpec] = {
    "classification": DemoSpec(
        "Printed to handwritten digits",
        "data/digits",
        ("random", "duc", "ducats"),
        {"accuracy": ("accuracy %", 100, 1)},
        seconds_per_run=30,
    ),
    "segmentation": DemoSpec(
        "Rendered to camera streets",
        "data/streets",
        ("random", "duc", "ducats"),
        {"mean_iou": ("mIoU %", 100, 1), "accuracy": ("pixel accuracy %", 100, 1)},
        seconds_per_run=65,
    ),
}


def demo(
    out: Path,
    *,
    seeds: Sequence[int],
    workers: int,
    console: Console,
    task: str = "classification",
    methods: Sequence[str] | None = None,
    settings: Sequence[str] = (),
) -> int:
    """Run every method with every seed, print a table and write a report; return the exit code.

    Args:
        out: output folder of the sweep and the report. Finished runs are skipped.
        workers: number of parallel runs, with one thread each.
        task: a key of ``DEMOS``.
        methods: names of method configs; None: those of the demo.
        settings: ``key=value`` settings that override the demo's config.
    """
    if task not in DEMOS:
        raise UserError(f"no demo {task!r}; choose from: {', '.join(DEMOS)}")
    spec = DEMOS[task]
    started = time.monotonic()
    sweep = Sweep.model_validate(
        {"base": [spec.data], "methods": list(methods or spec.methods), "settings": settings, "seeds": seeds}
    )
    runs = expand_sweep(sweep, SweepFilter(), device="cpu")
    check_sweep_runs(runs)
    usual = format_duration(len(runs) * spec.seconds_per_run / workers)
    print_line(
        console,
        f"{spec.title}: {len(sweep.methods)} methods x {pluralise(len(seeds), 'seed')}, "
        f"{workers} in parallel; usually takes {usual}",
    )
    slots = make_slots("cpu", workers, cores=workers, environment={})
    outcome = run_sweep(runs, out, LocalSweepBackend(slots), console)
    if outcome.exit_code:
        return outcome.exit_code
    result = report([run.folder(out) for run in runs], out, title=spec.title)
    console.print(comparison_table(aggregate_methods(result.runs), spec.columns))
    print_line(
        console,
        f"{time.monotonic() - started:.0f} s in total; report in {result.page}, "
        f"numbers in {result.summary_json}",
    )
    return 0


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
