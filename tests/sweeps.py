"""Small sweeps for tests."""

from pathlib import Path

import pytest
import yaml

from conftest import QUICK
from ducats.cli import main
from ducats.sweep import Cell, Wanted, cells_of, read_sweep

QUICK_ONES = [setting for setting in QUICK if not setting.startswith("engine.device")]


def write(path: Path, **sweep: object) -> Path:
    path.write_text(yaml.safe_dump({"settings": QUICK_ONES, "seeds": [0], **sweep}))
    return path


def plan(path: Path, wanted: Wanted | None = None, **sweep: object) -> list[Cell]:
    return cells_of(read_sweep(write(path / "s.yaml", **sweep)), wanted or Wanted(), "cpu")


def ducats(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    return int(caught.value.code or 0)
