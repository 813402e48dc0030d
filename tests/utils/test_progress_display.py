"""Tests of the progress of a run in a terminal, a log and a notebook."""

import io

import pytest
from rich.console import Console

from ducats.utils.progress import Event, activity
from ducats.utils.progress_display import ProgressDisplay


def training(step: int) -> Event:
    return Event("train", 0, 1, step // 5, 2, step, 10, 0, dict)


def test_lines_of_phases_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("ducats.utils.progress_display.time.monotonic", lambda: clock[0])
    text = io.StringIO()
    with ProgressDisplay(Console(width=200, file=text)) as display:
        with activity("reading 3 images", total=3) as reading:
            assert text.getvalue() == "reading 3 images …\n"  # at once
            reading.advance()
            clock[0] += 40
            reading.advance()
        for step in range(5):
            display(training(step))
            clock[0] += 20
        with activity("predicting 4 images", total=4):
            pass  # an event has announced it
    lines = text.getvalue().splitlines()
    assert lines[1].startswith("reading 3 images: 2 done, about ")
    assert [line.partition(", step ")[2] for line in lines[2:]] == [
        "0/10",
        "2/10, about 2.7 min left",
        "4/10, about 2.0 min left",
    ]


def test_bars_of_activities_in_a_terminal() -> None:
    text = io.StringIO()
    with ProgressDisplay(Console(width=100, file=text, force_terminal=True)) as display:
        with activity("reading 3 images", total=3) as reading:
            reading.advance(2)
            display.bars.refresh()
            assert "reading 3 images" in text.getvalue()
            assert "2/3" in text.getvalue()
        display(training(0))
        assert [task.description for task in display.bars.tasks] == ["stage 0/1, 0 labels, training"]


def test_only_an_open_display_shows_activities() -> None:
    text = io.StringIO()
    console = Console(width=100, file=text)
    for display in (ProgressDisplay(console, activities=False), ProgressDisplay(console)):
        with display:
            pass
        with activity("reading"):
            pass
    with ProgressDisplay(console, activities=False), activity("reading"):
        pass
    assert text.getvalue() == ""


LOSSES = {"source/nll": 0.123, "source/kl": 0.5, "unlabelled/u_dis": 0.25, "unlabelled/u_data": 1.0}


@pytest.mark.parametrize("width", [72, 80, 200])
def test_the_bar_shows_all_losses_and_leaves_room_for_ctrl_c(width: int) -> None:
    text = io.StringIO()
    console = Console(width=width, file=text, force_terminal=True, legacy_windows=False, color_system=None)
    display = ProgressDisplay(console)
    display(Event("train", 0, 3, 1, 20, 51, 1000, 1, lambda: LOSSES))
    console.print(display.bars)
    shown = " ".join(text.getvalue().split())
    assert "stage 0/3, 1 label, training" in shown
    for name, value in LOSSES.items():
        assert f"{name} {value:.3f}" in shown
    # A terminal writes ^C behind the bar. If that wrapped, the bar would be drawn twice.
    assert max(map(len, text.getvalue().splitlines())) <= width - len("^C")
