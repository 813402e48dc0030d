"""A run gives its memory back when it ends, without waiting for Python's cycle collector."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import quick, quick_pixels
from ducats.models import EvidentialModel
from ducats.run import run
from ducats.run.factory import build_run
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric
from ducats.utils.errors import AwaitingLabels

# Objectives whose auxiliary modules refer to the model or copy it.
METHODS = (
    *((quick, method) for method in ("clue", "ducats", "tqs")),
    *((quick_pixels, method) for method in ("proda", "seg-uncertainty", "tpld")),
)


def run_method(make: Any, method: str, folder: Path, device: str = "cpu") -> None:
    acquisition = "acquisition={budget: 2, rounds: 1, after_epochs: null}"
    config = make("train.steps_per_epoch=1", acquisition, method=method)
    components, plan = build_run(config, RunFolder(folder))
    run(components, plan, folder, fabric=make_fabric(device))


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Iterator["weakref.WeakSet[EvidentialModel]"]:
    """Return the models that exist, with the cycle collector turned off."""
    alive: weakref.WeakSet[EvidentialModel] = weakref.WeakSet()
    initialise = EvidentialModel.__init__

    def init(self: EvidentialModel, *args: object, **kwargs: object) -> None:
        initialise(self, *args, **kwargs)  # type: ignore[arg-type]
        alive.add(self)

    def set_state(self: EvidentialModel, state: dict[str, object]) -> None:  # of a deep copy
        super(EvidentialModel, self).__setstate__(state)  # type: ignore[no-untyped-call]
        alive.add(self)

    monkeypatch.setattr(EvidentialModel, "__init__", init)
    monkeypatch.setattr(EvidentialModel, "__setstate__", set_state, raising=False)
    gc.collect()
    gc.disable()
    yield alive
    gc.enable()


@pytest.mark.parametrize(("make", "method"), METHODS)
def test_no_model_survives_its_run(
    tmp_path: Path, models: "weakref.WeakSet[EvidentialModel]", make: Any, method: str
) -> None:
    run_method(make, method, tmp_path / "run")
    assert not len(models)


def test_no_model_survives_a_pause_for_annotators(
    tmp_path: Path, models: "weakref.WeakSet[EvidentialModel]"
) -> None:
    config = quick("oracle.name=human", method="ducats")
    components, plan = build_run(config, RunFolder(tmp_path / "run"))
    with pytest.raises(AwaitingLabels) as pause:
        run(components, plan, tmp_path / "run", fabric=make_fabric("cpu"))
    assert pause.value.__traceback__ is not None  # kept by a notebook, with its frames
    assert list(models) == [components.model]


@pytest.mark.gpu
@pytest.mark.parametrize(("make", "method"), METHODS)
def test_three_runs_give_the_gpu_back(tmp_path: Path, make: Any, method: str) -> None:
    run_method(make, method, tmp_path / "first", device="cuda")  # loads kernels
    gc.collect()
    gc.disable()
    try:
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        for number in range(3):
            run_method(make, method, tmp_path / str(number), device="cuda")
            assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
    finally:
        gc.enable()
