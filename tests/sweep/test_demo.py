import io
import json
import queue
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from conftest import QUICK_PIXELS
from ducats.runfolder.run_folder import RunFolder
from ducats.sweep.demo import demo
from ducats.utils.errors import UserError

TINY_SETTINGS = (
    "train.epochs=6",
    "train.steps_per_epoch=2",
    "data.params={n_source: 200}",
    "model.params={width: 4, features: 16}",
)


class InlineExecutor(Executor):
    """Run work sequentially in this process: importing torch in another one takes seconds."""

    def __init__(self, *_: object) -> None: ...

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, **keywords))
        except UserError as error:
            future.set_exception(error)
        return future


def use_inline_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ducats.sweep.demo.ProcessPoolExecutor", InlineExecutor)
    monkeypatch.setattr("ducats.sweep.demo._to_parent", queue.Queue(), raising=False)


@pytest.fixture
def inline_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    use_inline_executor(monkeypatch)


def test_demo_compares_methods_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    console = Console(file=output, width=200)
    options = {
        "seeds": [0, 1],
        "console": console,
        "methods": ("source-only", "duc"),
        # Figures are covered by the segmentation demo below.
        "settings": (*TINY_SETTINGS, "engine.snapshot_samples=0"),
    }
    result = demo(tmp_path / "demo", workers=2, **options)  # type: ignore[arg-type]
    rows = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert [list(row) for row in rows] == [["method", "seed", "accuracy", "ece", "labels", "seconds"]] * 4
    assert [(row["method"], row["seed"], row["labels"]) for row in rows] == [
        *(("source-only", 0, 0), ("source-only", 1, 0)),
        *(("duc", 0, 65), ("duc", 1, 65)),
    ]
    assert "<svg" in result.page.read_text()
    assert "duc" in output.getvalue()
    before = (tmp_path / "demo" / "summary.json").read_text()
    use_inline_executor(monkeypatch)
    demo(tmp_path / "demo", workers=1, **options)  # type: ignore[arg-type]
    assert (tmp_path / "demo" / "summary.json").read_text() == before


@pytest.mark.usefixtures("inline_executor")
def test_segmentation_demo(tmp_path: Path) -> None:
    output = io.StringIO()
    result = demo(
        tmp_path / "demo",
        seeds=[0],
        workers=1,
        console=Console(file=output, width=200),
        task="segmentation",
        methods=("source-only", "duc"),
        settings=(
            *(s for s in QUICK_PIXELS if not s.startswith("acquisition")),
            "train.epochs=6",
            "acquisition.after_epochs=null",
            "acquisition.budget=5%",
        ),
    )
    rows = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert [(row["method"], row["labels"]) for row in rows] == [("source-only", 0), ("duc", 5 * 26)]
    for row in rows:
        stage = RunFolder(tmp_path / "demo" / f"{row['method']}-seed0").stages()[-1]
        assert row["mean_iou"] == pytest.approx(stage["mean_iou"], abs=1e-6)
    assert "mIoU %" in output.getvalue()
    assert "Rendered to camera streets" in output.getvalue()
    assert "<svg" in result.page.read_text()


def test_unknown_demo_lists_the_others(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no demo 'detection'; choose from: classification, segmentation"):
        demo(tmp_path, seeds=[0], workers=1, console=Console(quiet=True), task="detection")


@pytest.mark.usefixtures("inline_executor")
def test_failing_run_ends_the_demo_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no parameter 'kapa'"):
        demo(
            tmp_path / "demo",
            seeds=[0],
            workers=1,
            console=Console(quiet=True),
            methods=("duc",),
            settings=(*TINY_SETTINGS, "query.params.kapa=1"),
        )
