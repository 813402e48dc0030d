"""A run gives its memory back when it ends, without waiting for Python's cycle collector."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from conftest import QUICK, QUICK_PIXELS
from ducats.config import load_config
from ducats.models import EvidentialModel
from ducats.run import run
from ducats.run.factory import build_run
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric
from ducats.utils.errors import AwaitingLabels

# Objectives whose auxiliary modules refer to the model or copy it.
METHODS = (
    ("", "clue"),
    ("", "ducats"),
    ("", "tqs"),
    ("data/streets", "mada"),
    ("data/streets", "proda"),
    ("data/streets", "seg-uncertainty"),
    ("data/streets", "tpld"),
)


def run_method(data: str, method: str, folder: Path, *settings: str, device: str = "cpu") -> None:
    files = [*([data] if data else []), f"methods/{method}"]
    budget = ("train.steps_per_epoch=1", "acquisition={budget: 2, rounds: 1, after_epochs: null}")
    config = load_config(files, [*(QUICK_PIXELS if data else QUICK), *budget, *settings], {})
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


@pytest.mark.parametrize(("data", "method"), METHODS)
def test_no_model_survives_its_run(
    tmp_path: Path, models: "weakref.WeakSet[EvidentialModel]", data: str, method: str
) -> None:
    run_method(data, method, tmp_path / "run")
    assert not len(models)


def test_no_model_survives_a_pause_for_annotators(
    tmp_path: Path, models: "weakref.WeakSet[EvidentialModel]"
) -> None:
    config = load_config(["methods/ducats"], [*QUICK, "oracle.name=human"], {})
    components, plan = build_run(config, RunFolder(tmp_path / "run"))
    with pytest.raises(AwaitingLabels) as pause:
        run(components, plan, tmp_path / "run", fabric=make_fabric("cpu"))
    assert pause.value.__traceback__ is not None  # kept by a notebook, with its frames
    assert list(models) == [components.model]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("data", "method"), METHODS)
def test_three_runs_give_the_gpu_back(tmp_path: Path, data: str, method: str) -> None:
    run_method(data, method, tmp_path / "first", device="cuda")  # loads kernels
    gc.collect()
    gc.disable()
    try:
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        for number in range(3):
            run_method(data, method, tmp_path / str(number), device="cuda")
            assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
    finally:
        gc.enable()
