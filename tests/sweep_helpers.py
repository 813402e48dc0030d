"""Small sweeps for tests."""

from pathlib import Path

import pytest
import yaml

from conftest import QUICK
from ducats.cli import main
from ducats.sweep import SweepFilter, SweepRun, expand_sweep, read_sweep

QUICK_SWEEP_SETTINGS = [setting for setting in QUICK if not setting.startswith("engine.device")]


def write_sweep(path: Path, **sweep: object) -> Path:
    path.write_text(yaml.safe_dump({"settings": QUICK_SWEEP_SETTINGS, "seeds": [0], **sweep}))
    return path


def make_runs(path: Path, sweep_filter: SweepFilter | None = None, **sweep: object) -> list[SweepRun]:
    return expand_sweep(
        read_sweep(write_sweep(path / "s.yaml", **sweep)), sweep_filter or SweepFilter(), "cpu"
    )


def ducats(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    return int(caught.value.code or 0)
