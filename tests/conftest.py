from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ducats import config
from ducats.assemble import assemble
from ducats.domain import Shift
from ducats.engine.processes import make_fabric
from ducats.run import run
from ducats.rundir import RunDir

# On a machine with few cores, threads of several test processes fight: one each is several times faster.
torch.set_num_threads(1)

# Small enough for seconds: 20 pool labels in 2 rounds, 4 epochs of 6 steps.
QUICK = (
    "data.name=toy",
    "model.name=small_cnn",
    "model.knobs={width: 4, features: 16}",
    "train.epochs=4",
    "train.steps_per_epoch=6",
    "train.batch_size=16",
    "train.lr=0.05",
    "ask.after=[1, 2]",
    "ask.budget=20",
    "engine.device=cpu",
    "engine.scoring_batch=32",
    "views={source: {crop: none}, unlabelled: {crop: none}, scoring: {crop: none}, test: {crop: none}}",
)

Runner = Callable[..., RunDir]


def quick(*settings: str, method: str = "duc") -> config.Config:
    """A config whose run takes about a second."""
    return config.load([f"methods/{method}"], [*QUICK, *settings])


@pytest.fixture
def run_quickly(tmp_path: Path) -> Runner:
    """Run a quick config in a folder."""

    def go(
        *settings: str, method: str = "duc", folder: str = "run", shift: Shift | None = None, **more: Any
    ) -> RunDir:
        settled = quick(*settings, method=method)
        home = RunDir(tmp_path / folder)
        parts, plan = assemble(settled, home, shift)
        fabric = make_fabric("cpu")
        fabric.launch()
        return run(parts, plan, home.folder, fabric=fabric, identity=settled.identity(), **more)

    return go
