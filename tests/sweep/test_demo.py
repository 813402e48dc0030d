import io
import json
from pathlib import Path

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


def test_demo_compares_methods_and_resumes(tmp_path: Path, forked_children: None) -> None:
    output = io.StringIO()
    console = Console(file=output, width=200)
    options = {
        "seeds": [0, 1],
        "console": console,
        "methods": ("source-only", "duc"),
        # Figures are covered by the segmentation demo below.
        "settings": (*TINY_SETTINGS, "engine.snapshot_samples=0"),
    }
    assert demo(tmp_path / "demo", workers=2, **options) == 0  # type: ignore[arg-type]
    rows = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert [list(row) for row in rows] == [["method", "seed", "accuracy", "ece", "labels", "seconds"]] * 4
    assert [(row["method"], row["seed"], row["labels"]) for row in rows] == [
        *(("source-only", 0, 0), ("source-only", 1, 0)),
        *(("duc", 0, 65), ("duc", 1, 65)),
    ]
    assert "<svg" in (tmp_path / "demo" / "report.html").read_text()
    assert "│ duc " in output.getvalue()
    before = (tmp_path / "demo" / "summary.json").read_text()
    assert demo(tmp_path / "demo", workers=1, **options) == 0  # type: ignore[arg-type]
    assert "4 runs, 4 already done" in output.getvalue()
    assert (tmp_path / "demo" / "summary.json").read_text() == before


def test_segmentation_demo(tmp_path: Path, forked_children: None) -> None:
    output = io.StringIO()
    code = demo(
        tmp_path / "demo",
        seeds=[0],
        workers=2,
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
    assert code == 0
    rows = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert [(row["method"], row["labels"]) for row in rows] == [("source-only", 0), ("duc", 5 * 26)]
    for row in rows:
        (folder,) = (tmp_path / "demo").glob(f"streets-{row['method']}-*")
        stage = RunFolder(folder).stages()[-1]
        assert row["mean_iou"] == pytest.approx(stage["mean_iou"], abs=1e-6)
    assert "mIoU %" in output.getvalue()
    assert "Rendered to camera streets" in output.getvalue()
    assert "<svg" in (tmp_path / "demo" / "report.html").read_text()


def test_unknown_demo_lists_the_others(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no demo 'detection'; choose from: classification, segmentation"):
        demo(tmp_path, seeds=[0], workers=1, console=Console(quiet=True), task="detection")


def test_failing_run_ends_the_demo_with_its_error(tmp_path: Path, forked_children: None) -> None:
    output = io.StringIO()
    options = {"seeds": [0], "workers": 1, "console": Console(file=output, width=200), "methods": ("duc",)}
    with pytest.raises(UserError, match="no parameter 'kapa'"):
        demo(tmp_path / "demo", settings=(*TINY_SETTINGS, "query.params.kapa=1"), **options)  # type: ignore[arg-type]
    assert demo(tmp_path / "demo", settings=(*TINY_SETTINGS, "train.lr=1e30"), **options) == 1  # type: ignore[arg-type]
    assert "became nan" in output.getvalue()
    assert not (tmp_path / "demo" / "report.html").exists()
