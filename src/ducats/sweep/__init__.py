"""Sweeps over methods, tasks and seeds: one folder and one process per run. Resumable."""

from ducats.sweep.cells import Cell, Wanted, cells_of, check
from ducats.sweep.opening import Where, opened
from ducats.sweep.plan import Method, Sweep, Task, read_sweep, ready
from ducats.sweep.show import listing
from ducats.sweep.slots import Slot, make_slots, usable_cores
from ducats.sweep.workers import Outcome, run_all

__all__ = [
    "Cell",
    "Method",
    "Outcome",
    "Slot",
    "Sweep",
    "Task",
    "Wanted",
    "Where",
    "cells_of",
    "check",
    "listing",
    "make_slots",
    "opened",
    "read_sweep",
    "ready",
    "run_all",
    "usable_cores",
]
