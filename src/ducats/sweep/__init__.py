"""Sweeps over methods, tasks and seeds: one folder and one process per run. Resumable."""

from ducats.sweep.backends import BackendOptions, open_backend
from ducats.sweep.labelling import describe_cost, labelling_costs, run_sweep_with_people
from ducats.sweep.local_backend import LocalSweepBackend, Slot, make_slots
from ducats.sweep.progress import format_run_list
from ducats.sweep.questions import count_labels
from ducats.sweep.runner import SweepOutcome, run_sweep
from ducats.sweep.runs import SweepFilter, SweepRun, check_sweep_runs, expand_sweep
from ducats.sweep.schema import Sweep, SweepMethod, SweepTask, packaged_sweeps, read_sweep

__all__ = [
    "BackendOptions",
    "LocalSweepBackend",
    "Slot",
    "Sweep",
    "SweepFilter",
    "SweepMethod",
    "SweepOutcome",
    "SweepRun",
    "SweepTask",
    "check_sweep_runs",
    "count_labels",
    "describe_cost",
    "expand_sweep",
    "format_run_list",
    "labelling_costs",
    "make_slots",
    "open_backend",
    "packaged_sweeps",
    "read_sweep",
    "run_sweep",
    "run_sweep_with_people",
]
