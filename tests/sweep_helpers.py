"""Small sweeps for tests."""

import json
import os
from pathlib import Path

import yaml

from conftest import QUICK
from ducats.sweep import SweepFilter, SweepRun, expand_sweep, read_sweep

QUICK_SWEEP_SETTINGS = [setting for setting in QUICK if not setting.startswith("engine.device")]


def write_sweep(path: Path, **sweep: object) -> Path:
    path.write_text(yaml.safe_dump({"settings": QUICK_SWEEP_SETTINGS, "seeds": [0], **sweep}))
    return path


def make_runs(path: Path, sweep_filter: SweepFilter | None = None, **sweep: object) -> list[SweepRun]:
    return expand_sweep(
        read_sweep(write_sweep(path / "s.yaml", **sweep)), sweep_filter or SweepFilter(), "cpu"
    )


def run_script(arguments: list[str]) -> None:
    """In place of a run, execute the script for a word in the name of its folder, given as ``out``."""
    out = Path(arguments[arguments.index("--out") + 1])
    out.mkdir(exist_ok=True)
    scripts = json.loads(os.environ["TEST_SCRIPTS"])
    script = next((code for word, code in scripts.items() if word in out.name), scripts["default"])
    exec(script, {"out": out})
