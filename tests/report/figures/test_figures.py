"""All figures: valid SVG, files, deterministic output, error messages."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from ducats.report import figures, find_runs, read_run
from ducats.report.run_reader import Run
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError
from synthetic_records import change_records, without
from synthetic_runs import write_pixel_run, write_run

MAX_SVG_BYTES = 300_000  # bytes
ReadRuns = Callable[..., list[Run]]


@pytest.fixture(scope="module")
def read_shared_runs(tmp_path_factory: pytest.TempPathFactory) -> ReadRuns:
    """Return a function that reads runs by folder name; the runs are shared and read-only."""
    root = tmp_path_factory.mktemp("runs")
    small: Any = {"pool": 60, "source": 30, "rounds": 2, "per_round": 4}
    write_run(root / "duc", **small)
    write_run(root / "random", "random", **small)
    bare = write_run(root / "no snapshots", snapshots=False, **small)
    change_records(bare, without("temperature_scaled"))
    write_run(
        root / "large", pool=5000, source=1500, n_snapshot=3000, rounds=2, per_round=400, thumbnails=False
    )
    write_run(root / "two classes", classes=("a", "b"), **small)
    write_pixel_run(root / "pixels", rounds=2, pool=4)
    write_pixel_run(root / "no thumbnails", snapshots=False)
    for kappa, accuracy in ((1, 0.7), (10, 0.8)):
        settings = [f"query.params.kappa={kappa}"]
        write_run(root / "kappa" / str(kappa), accuracies=[0.5, accuracy], rounds=1, settings=settings)
    for beta in (0.1, 1.0):
        settings = [f"objective.params.beta={beta}"]
        write_run(root / "beta" / str(beta), accuracies=[0.5, 0.7 + beta / 10], rounds=1, settings=settings)
    for budget in (5, 10):
        write_run(root / "budget" / str(budget), rounds=1, per_round=budget, accuracies=[0.5, 0.6])
    return lambda *names: [run for name in names for run in find_runs([root / name])]


RUNS_BY_FIGURE = {
    "entropies": ("random", "duc"),
    "simplex": ("duc",),
    "u_dis": ("duc", "random"),
    "calibration": ("duc", "random"),
    "kappa": ("kappa",),
    "beta_lambda": ("beta",),
    "budget": ("budget",),
    "histogram": ("duc",),
    "gallery": ("duc",),
    "pixels": ("pixels",),
    "tsne": ("duc",),
    "uncertainties": ("duc",),
    "features": ("duc",),
}


def test_every_figure_is_registered() -> None:
    assert list(figures.FIGURES) == list(RUNS_BY_FIGURE)
    assert all({*spec.options} <= {"round", "images"} for spec in figures.FIGURES.values())
    assert all(callable(spec.load()) for spec in figures.FIGURES.values())


@pytest.mark.parametrize("name", RUNS_BY_FIGURE)
def test_svg_is_valid_and_deterministic(name: str, read_shared_runs: ReadRuns) -> None:
    runs = read_shared_runs(*RUNS_BY_FIGURE[name])
    text = figures.draw_svg(name, runs, id_prefix="one-")
    assert text == figures.draw_svg(name, read_shared_runs(*RUNS_BY_FIGURE[name]), id_prefix="one-")
    element = ElementTree.fromstring(text)
    ids = [each.get("id") for each in element.iter() if each.get("id")]
    assert len(ids) == len(set(ids))
    assert all(str(each).startswith(f"one-{name}-") for each in ids)
    references = set(re.findall(r'(?:href="#|url\(#)([^")]*)', text))
    assert references <= set(ids)
    assert element.get("role") == "img"
    assert element.get("aria-label")
    assert element.findtext("desc")
    assert "currentColor" in text
    assert "#010203" not in text
    assert "http" not in text
    assert str(runs[0].folder.parent) not in text
    assert len(text) < MAX_SVG_BYTES


@pytest.mark.parametrize("name", ["entropies", "uncertainties", "features"])
def test_svg_with_thousands_of_points_is_small(name: str, read_shared_runs: ReadRuns) -> None:
    assert len(figures.draw_svg(name, read_shared_runs("large"))) < MAX_SVG_BYTES


@pytest.mark.parametrize("name", ["entropies", "simplex", "u_dis", "calibration", "histogram"])
def test_figures_of_a_segmentation_run(name: str, read_shared_runs: ReadRuns) -> None:
    ElementTree.fromstring(figures.draw_svg(name, read_shared_runs("pixels")))


def test_round_option_selects_one_round(read_shared_runs: ReadRuns) -> None:
    description = figures.prepare_figure("uncertainties", read_shared_runs("duc"), round=2).description
    assert "round 2:" in description
    assert "round 1:" not in description


def test_saves_all_file_types(tmp_path: Path, read_shared_runs: ReadRuns) -> None:
    for suffix, start in (("svg", b"<svg xmlns="), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        for name in ("a", "b"):
            figures.save_figure("kappa", read_shared_runs("kappa"), tmp_path / f"{name}.{suffix}")
        first = (tmp_path / f"a.{suffix}").read_bytes()
        assert first.startswith(start)
        assert first == (tmp_path / f"b.{suffix}").read_bytes()
    standalone = (tmp_path / "a.svg").read_text()
    assert ElementTree.fromstring(standalone).tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme:dark" in standalone


def test_drawing_does_not_change_rcparams(read_shared_runs: ReadRuns) -> None:
    import matplotlib

    with matplotlib.rc_context({"font.size": 17.0}):
        text = figures.draw_svg("kappa", read_shared_runs("kappa"))
        assert matplotlib.rcParams["font.size"] == 17.0
    assert text == figures.draw_svg("kappa", read_shared_runs("kappa"))


def test_class_names_are_escaped(tmp_path: Path) -> None:
    names = ("<script>", "$x_1$", "方法", 'a"b')
    run = read_run(write_run(tmp_path / "run", classes=names, rounds=1, per_round=4, pool=60, source=30))
    for name in ("histogram", "gallery", "entropies", "simplex"):
        element = ElementTree.fromstring(figures.draw_svg(name, [run]))
        assert not any("script" in str(each.tag) for each in element.iter())


def test_run_with_unanswered_round_is_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", finished=False, rounds=2, per_round=4, pool=60, source=30)
    (folder / "labels" / "round-02.npz").unlink()
    for name in ("histogram", "uncertainties", "features", "u_dis"):
        figures.prepare_figure(name, [read_run(folder)])
    assert "→ ?" in figures.draw_svg("gallery", [read_run(folder)])
    assert "4 labelled" in figures.prepare_figure("gallery", [read_run(folder)]).description


# -- missing records ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "folders", "options", "message"),
    [
        ("nope", ("duc",), {}, "no figure 'nope'"),
        ("galery", ("duc",), {}, "no figure 'galery' (did you mean 'gallery'?)"),
        ("kappa", (), {}, "needs run folders"),
        ("kappa", ("duc", "random"), {}, "must differ in query.params.kappa"),
        ("kappa", ("random",), {}, "none of the runs has query.params.kappa"),
        ("kappa", ("kappa",), {"round": 1}, "does not support --round"),
        ("histogram", ("duc",), {"images": ["a"]}, "does not support --images"),
        ("beta_lambda", ("duc",), {}, "must differ in objective.params.beta"),
        ("beta_lambda", ("random",), {}, "none of the runs has objective.params.beta"),
        ("budget", ("duc", "random"), {}, "must differ in acquisition.budget"),
        ("gallery", ("pixels",), {}, "segmentation run"),
        ("gallery", ("duc", "random"), {}, "shows one run, not 2"),
        ("gallery", ("duc",), {"round": 3}, "no snapshot of --round 3"),
        ("pixels", ("duc",), {}, "classification run"),
        ("pixels", ("pixels",), {"images": ["nope"]}, "no thumbnail of --images nope"),
        ("entropies", ("duc", "random", "large"), {}, "not 3"),
        ("entropies", ("duc", "pixels"), {}, "no common samples"),
        ("simplex", ("duc",), {"images": ["nope"]}, "has no --images nope"),
        ("tsne", ("duc",) * 10, {}, "at most 9 runs, not 10"),
        ("pixels", ("no thumbnails",), {}, "ducats picks"),
        ("simplex", ("two classes",), {}, "needs three classes"),
    ],
)
def test_invalid_requests_raise(
    name: str, folders: tuple[str, ...], options: dict[str, object], message: str, read_shared_runs: ReadRuns
) -> None:
    runs = read_shared_runs(*folders) if folders else []
    with pytest.raises(UserError, match=re.escape(message)):
        figures.prepare_figure(name, runs, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["entropies", "simplex", "u_dis", "gallery", "tsne", "uncertainties", "features"]
)
def test_run_without_snapshots_raises(name: str, read_shared_runs: ReadRuns) -> None:
    with pytest.raises(UserError, match=r"has no snapshots.*engine.snapshot_samples=0"):
        figures.draw_svg(name, read_shared_runs("no snapshots"))


@pytest.mark.parametrize("name", ["tsne", "gallery", "calibration"])
def test_run_before_its_first_round_raises(name: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=1, snapshots=False, finished=False)
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="run the same command again"):
        figures.draw_svg(name, [read_run(folder)])


def test_figures_from_records_need_no_snapshots(read_shared_runs: ReadRuns) -> None:
    assert "before any label" in figures.draw_svg("calibration", read_shared_runs("no snapshots"))
    assert (
        "temperature"
        not in figures.prepare_figure("calibration", read_shared_runs("no snapshots")).description
    )
    figures.draw_svg("histogram", read_shared_runs("no snapshots"))


def test_corrupt_snapshot_is_reported_and_skipped(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=2, per_round=4, pool=60, source=30)
    (folder / "snapshots" / "round-01.npz").write_bytes(b"nothing")
    for name, spec in figures.FIGURES.items():
        if spec.needed_runs.startswith("one ") and name not in ("pixels", "tsne"):
            prepared = figures.prepare_figure(name, [read_run(folder)])
            assert ["round-01.npz is corrupt" in warning for warning in prepared.snapshot_warnings] == (
                [True] if spec.uses_snapshots else []
            )
    assert "round 1:" not in figures.prepare_figure("uncertainties", [read_run(folder)]).description
    for path in (folder / "snapshots").glob("*.npz"):
        path.write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"round-01.npz is corrupt .* restore it"):
        figures.prepare_figure("u_dis", [read_run(folder)])


def test_unknown_file_type_raises(tmp_path: Path, read_shared_runs: ReadRuns) -> None:
    with pytest.raises(UserError, match="must end in"):
        figures.save_figure("kappa", read_shared_runs("kappa"), tmp_path / "a.gif")


def test_drawing_imports_neither_torch_nor_pyplot(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rounds=1, pool=60, source=30)
    code = (
        "import sys; from pathlib import Path; from ducats.report import figures; "
        "assert 'matplotlib' not in sys.modules; from ducats.report import read_run; "
        f"figures.draw_svg('uncertainties', [read_run(Path({str(tmp_path / 'a')!r}))]); "
        "sys.exit(bool({'torch', 'matplotlib.pyplot', 'sklearn'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- real runs ---------------------------------------------------------------------------------------------


SHARED_FIGURES = ("entropies", "calibration", "histogram", "uncertainties", "features")


def check_drawn(run: Run, *names: str) -> None:
    """Compute and draw figures without layout or saving, which are tested above."""
    for name in (*SHARED_FIGURES, *names):
        figure = Figure()
        figures.prepare_figure(name, [run]).draw(figure)
        assert figure.axes


def test_figures_of_a_real_classification_run(run_quickly: Callable[..., RunFolder]) -> None:
    check_drawn(read_run(run_quickly().path), "u_dis", "gallery", "tsne")


def test_figures_of_a_real_segmentation_run(run_pixels: Callable[..., RunFolder]) -> None:
    check_drawn(read_run(run_pixels().path), "simplex", "pixels")
