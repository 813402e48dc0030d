import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import child_process
from ducats import config
from ducats.data.domain import AdaptationData
from ducats.run import estimate, run
from ducats.run.factory import build_run
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric

# With few cores, the threads of several test processes compete: one thread each is several times faster.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of commands that tests start

# Modules that would keep one process busy when the others have nothing left to do.
LONG = {"test_notebooks.py", "test_package.py", "test_tutorials.py"}
# Test helpers that fork this process.
FORKING = {"child_process", "page_browser", "ranks"}

# Commands started by tests see only the packages that users have.
STUBS = Path(__file__).parent / "stubs"
collect_ignore = [STUBS.name]


def pytest_configure(config: pytest.Config) -> None:
    """Set PYTHONPATH where tests run, but not in the xdist controller, whose workers would inherit it."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        before = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(STUBS), before)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that fork first, then those that wait for servers or take long; the others fill the cores.

    A fork is not safe once autograd, onnxruntime or Ray has started threads. Tests that need a GPU are
    skipped without one.
    """
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))
    groups = dict[Path, int]()
    for item in items:
        groups[item.path] = min(_group(item), groups.get(item.path, 2))
    items.sort(key=lambda item: groups[item.path])


def _group(item: pytest.Item) -> int:
    if item.path.name in LONG:
        return 1
    helpers = _imported_modules(getattr(item, "module", item))
    if "ray_clusters" in helpers:  # one cluster at a time: those of sweeps come later
        return 1 if "deploy" in item.path.parts else 2
    if "studio_server" in helpers:
        return 1
    forks = helpers & FORKING or "forked_children" in getattr(item, "fixturenames", ())
    return 0 if forks else 2


def _imported_modules(module: object) -> set[str | None]:
    return {getattr(value, "__module__", None) for value in vars(module).values()}


@pytest.fixture(autouse=True, scope="module")
def cpu_where_tests_fork(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hide GPUs from modules that fork, because CUDA does not survive a fork."""
    with pytest.MonkeyPatch.context() as patch:
        if _imported_modules(request.module) & FORKING:
            _hide_gpus(patch)
        yield


def _hide_gpus(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.cuda, "is_available", lambda: False)
    patch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.fixture(autouse=True, scope="session")
def short_estimates() -> None:
    """Time only a few steps for the estimates of runs."""
    estimate.MIN_TIMED_SECONDS = 0.0


@pytest.fixture(autouse=True, scope="session")
def embedding_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use a cache of embeddings of its own, not the user's; commands started by tests use it, too."""
    os.environ["DUCATS_CACHE"] = str(tmp_path_factory.mktemp("cache"))


# Images as they are, without augmentation.
PLAIN_VIEWS = (
    "views={source: {crop: none, size: null, flip: 0, jitter: [0, 0, 0, 0]}, "
    "unlabelled: {crop: none, size: null}, scoring: {crop: none, size: null}, test: {crop: none, size: null}}"
)
# Small enough for seconds: 20 pool labels in 2 rounds, 4 epochs of 3 steps.
QUICK = (
    "data.name=toy",
    "model.name=small_cnn",
    "model.params={width: 4, features: 16}",
    "train.epochs=4",
    "train.steps_per_epoch=3",
    "train.batch_size=16",
    "train.lr=0.05",
    "acquisition.after_epochs=[1, 2]",
    "acquisition.budget=20",
    "engine.device=cpu",
    "engine.scoring_batch_size=32",
    PLAIN_VIEWS,
)

# A frozen backbone, in addition to QUICK.
FROZEN = (
    "model={name: timm, params: {backbone: test_resnet, pretrained: false, bottleneck: 16}}",
    "model.freeze=backbone",
    "views.source={flip: 0.5}",
    "views.embedded=3",
)

# The same for pixels: 5 pool images of 16 x 32, 5 % of each in 2 rounds, 4 epochs of 2 steps.
QUICK_PIXELS = (
    "data.params={n_source: 6, n_pool: 5, n_test: 3, height: 16, width: 32}",
    "model.params={width: 8}",
    "train.epochs=4",
    "train.steps_per_epoch=2",
    "train.batch_size=2",
    "acquisition={budget: 5%, rounds: null, after_epochs: [1, 2]}",
    "engine.device=cpu",
    "engine.scoring_batch_size=2",
)

Runner = Callable[..., RunFolder]


def quick(*settings: str, method: str = "duc") -> config.Config:
    """Return a config whose run takes about a second."""
    return config.load_config([f"methods/{method}"], [*QUICK, *settings])


def quick_pixels(*settings: str, method: str = "duc") -> config.Config:
    """Return a segmentation config whose run takes about half a second."""
    return config.load_config(["data/streets", f"methods/{method}"], [*QUICK_PIXELS, *settings])


def make_runner(parent: Path, make: Callable[..., config.Config]) -> Runner:
    """Return a function that runs configs in folders below ``parent``."""

    def run_config(
        *settings: str,
        method: str = "duc",
        folder: str = "run",
        data: AdaptationData | None = None,
        shared_answers: Sequence[Path] = (),
        **run_options: Any,
    ) -> RunFolder:
        resolved = make(*settings, method=method)
        run_folder = RunFolder(parent / folder)
        components, plan = build_run(resolved, run_folder, data, shared_answers=shared_answers)
        fabric = make_fabric("cpu")
        fabric.launch()
        return run(
            components, plan, run_folder.path, fabric=fabric, identity=resolved.identity(), **run_options
        )

    return run_config


@pytest.fixture
def run_quickly(tmp_path: Path) -> Runner:
    """Run a quick config in a folder."""
    return make_runner(tmp_path, quick)


@pytest.fixture
def run_pixels(tmp_path: Path) -> Runner:
    """Run a quick segmentation config in a folder."""
    return make_runner(tmp_path, quick_pixels)


@pytest.fixture
def forked_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the children of a command from this process, which has imported everything."""
    _hide_gpus(monkeypatch)
    child_process.fork_children(monkeypatch)
