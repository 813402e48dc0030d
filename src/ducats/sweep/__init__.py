"""Sweeps over methods, tasks and seeds: one folder and one process per run. Resumable."""

from ducats.sweep.backends import BackendOptions, open_backend
from ducats.sweep.progress import format_run_list
from ducats.sweep.runner import SweepOutcome, run_sweep
from ducats.sweep.runs import SweepFilter, SweepRun, check_sweep_runs, expand_sweep
from ducats.sweep.schema import Sweep, SweepMethod, SweepTask, packaged_sweeps, read_sweep
from ducats.sweep.slots import Slot, make_slots, usable_cores

__all__ = [
    "SweepRun",
    "SweepMethod",
    "SweepOutcome",
    "Slot",
    "Sweep",
    "SweepTask",
    "SweepFilter",
    "BackendOptions",
    "expand_sweep",
    "check_sweep_runs",
    "format_run_list",
    "make_slots",
    "open_backend",
    "read_sweep",
    "packaged_sweeps",
    "run_sweep",
    "usable_cores",
]
