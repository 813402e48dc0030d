"""Runs from Python in a terminal and a notebook: progress, tables, figures and the report."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch import nn

import ducats
from ducats.data.toy import toy
from ducats.utils.errors import UserError
from ducats.utils.notebook_display import NotebookDisplay, in_notebook
from ducats.utils.progress import Activity, Event, activity, listen_to_activities
from ducats.utils.progress_display import show_progress

PLAN = ducats.RunPlan(epochs=2, query_epochs=(1,), budget=(5,), steps_per_epoch=2)


def make_components() -> ducats.Components:
    data = toy()
    oracle = ducats.GroundTruthOracle(data.ground_truth)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    return ducats.Components(model, data.source, data.pool, oracle, test=data.test)


class Notebook:
    """Stands in for the display of a notebook: what has been shown, in order."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.n_outputs = 0

    def display(self, bar: Any, display_id: bool = False) -> "Notebook":
        assert display_id
        self.n_outputs += 1
        self.update(bar)
        return self

    def update(self, bar: Any) -> None:
        self.shown.append(bar)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    pytest.importorskip("IPython")
    notebook = Notebook()
    monkeypatch.setattr("IPython.display.display", notebook.display)
    monkeypatch.setattr("ducats.utils.notebook_display.in_notebook", lambda: True)
    return notebook


def training(step: int) -> Event:
    return Event("train", 0, 1, 0, 1, step, 1000, 3, lambda: {"nll": 0.5})


def test_a_notebook_has_one_bar_that_does_not_flood(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("ducats.utils.notebook_display.time.monotonic", lambda: clock[0])
    with NotebookDisplay() as display:
        with activity("embedding <600> images", total=600) as embedding:
            for _ in range(600):
                embedding.advance()
        for step in range(1000):
            clock[0] += 0.01
            display(training(step))
    first, *_, last, cleared = notebook.shown
    assert "embedding &lt;600&gt; images" in first._repr_html_()
    assert repr(last).startswith("stage 0/1, 3 labels, training; nll 0.500 ")
    assert 'max="1000"' in last._repr_html_()
    assert (cleared._repr_html_(), repr(cleared)) == ("", "")
    assert notebook.n_outputs == 1
    assert len(notebook.shown) <= 23  # ten seconds, two updates a second


def test_short_work_shows_no_bar(notebook: Notebook) -> None:
    with show_progress(delay=60), activity("reading 3 images"):
        pass
    assert notebook.shown == []


def test_who_listens_already_is_not_disturbed(notebook: Notebook) -> None:
    received: list[Activity] = []
    with listen_to_activities(received.append), show_progress(), activity("reading 3 images"):
        pass
    with show_progress(), show_progress() as inner:
        inner(training(1))
    assert len(received) == 2
    assert notebook.shown == []


def test_progress_needs_a_terminal_or_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_notebook()
    for is_terminal in (True, False):
        text = io.StringIO()
        console = Console(width=80, file=text, force_terminal=is_terminal)
        monkeypatch.setattr("ducats.utils.progress_display.TerminalConsole", lambda c=console, **_: c)
        with show_progress() as show:
            show(training(1))
        assert ("training" in text.getvalue()) == is_terminal


def test_adapt_and_fit_show_progress_in_a_notebook(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ducats.run.adaptive_classifier.PROGRESS_DELAY", 0)
    ducats.adapt(make_components(), PLAN, tmp_path / "run", on_event=lambda _: None)
    assert any("labels" not in repr(bar) and repr(bar) for bar in notebook.shown), "activities"
    for verbose in (False, True):
        notebook.shown.clear()
        pixels = toy().pool.pixels[:].flatten(1).numpy()
        model = ducats.AdaptiveClassifier(verbose=verbose, fit_steps=20)
        model.fit(X_target=pixels, y=None).query(2)
        model.teach([0, 1], ["a", "b"])
        assert bool(notebook.shown) == verbose


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ducats.RunResults:
    return ducats.adapt(make_components(), PLAN, tmp_path_factory.mktemp("runs") / "mine")


def test_a_run_displays_its_stages(run: ducats.RunResults, tmp_path: Path) -> None:
    table = run._repr_html_()
    assert table is not None
    assert table.count("<tr>") == 1 + len(run.stages()) == 3
    assert "held-out target images" in table
    assert ducats.RunResults(tmp_path)._repr_html_() is None


def test_report_and_figures(run: ducats.RunResults, tmp_path: Path) -> None:
    report = run.report()
    assert report.path == run.path / "report.html"
    shown = report._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert shown.count('"') == 2 * shown.count('="')  # the page's own quotes are escaped
    assert run.report(tmp_path / "other.html").path.read_text(encoding="utf-8").startswith("<!doctype html>")
    figure = run.figure("gallery", round=1)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert len(repr(figure)) < 100
    figure.save(tmp_path / "gallery.png")
    assert (tmp_path / "gallery.png").read_bytes() == figure.png
    with pytest.raises(UserError, match="galery"):
        run.figure("galery")


def test_a_report_of_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=str(tmp_path)):
        ducats.RunResults(tmp_path).report()
