"""Small synthetic sweeps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ducats.report.page import write_page
from ducats.report.run_reader import BrokenRun, Run
from synthetic_runs import write_run

FINAL_ACCURACIES = {  # by method and task, for seeds 0 and 1
    "random": {"Ar-Cl": (0.52, 0.54), "Cl-Ar": (0.56, 0.57), "Pr-Rw": (0.70, 0.71)},
    "entropy": {"Ar-Cl": (0.58, 0.57), "Cl-Ar": (0.60, 0.62), "Pr-Rw": (0.69, 0.74)},
    "clue": {"Ar-Cl": (0.58, 0.60), "Cl-Ar": (0.66, 0.64), "Pr-Rw": (0.75, 0.77)},
    "duc": {"Ar-Cl": (0.64, 0.66), "Cl-Ar": (0.72, 0.73), "Pr-Rw": (0.80, 0.79)},
}


def write_sweep_run(
    root: Path,
    method: str,
    task: str,
    seed: int,
    final_accuracy: float,
    *,
    data: str = "office_home",
    folder: str = "",
    **more: Any,
) -> Path:
    """Write a run without thumbnails and snapshots, with the given final accuracy."""
    return write_run(
        root / (folder or f"{data}-{task}-{method}-{seed}"),
        method,
        seed,
        accuracies=[0.4, 0.45, final_accuracy],
        rounds=2,
        settings=[f"data.name={data}", f"data.params={{task: {task}}}" if task else "data.params={}"],
        data=f"{data}-{task}",
        snapshots=False,
        **more,
    )


def write_sweep(root: Path) -> Path:
    """Write a run for every method, task and seed of ``FINAL_ACCURACIES``."""
    for method, tasks in FINAL_ACCURACIES.items():
        for task, values in tasks.items():
            for seed, value in enumerate(values):
                write_sweep_run(root, method, task, seed, value)
    return root


def write_page_without_sections(runs: Sequence[Run], out: Path, broken: Sequence[BrokenRun] = ()) -> Path:
    """Write a page without run sections, which take a second each and are not tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ducats.report.page.select_section_runs", lambda runs: [])
        return write_page(runs, out, broken=broken)
