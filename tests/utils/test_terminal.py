"""Terminal output without control sequences from names."""

import io
import re
from pathlib import Path

import pytest
from rich.progress import Progress
from rich.table import Table

import ducats
from commands import error_of
from ducats.cli.base import print_csv
from ducats.utils.terminal import TerminalConsole

NAME = "a\x1b]0;title\x07b\x9b31mc"


def test_names_cannot_send_commands_to_the_terminal() -> None:
    console = TerminalConsole(file=io.StringIO(), force_terminal=False, width=60)
    console.print(NAME, markup=False, soft_wrap=True)
    table = Table(NAME)
    table.add_row(NAME)
    console.print(table)
    with Progress(console=console) as progress:
        progress.add_task(NAME, total=2)
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert printed.count("]0;title") == 4
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", printed)


def test_errors_show_names_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (("label", f"no/{NAME}"), ("label", "x", f"--{NAME}")):
        message = error_of(capsys, *command)
        assert "a\ufffd]0;title" in message
        assert "\x1b" not in message


def test_csv_is_raw_in_a_pipe_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_csv([["key"], [NAME]])
    assert capsys.readouterr().out == f"key\n{NAME}\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_csv([["key"], [NAME]])
    assert "\x1b" not in capsys.readouterr().out


def test_styles_and_live_displays_still_work() -> None:
    console = TerminalConsole(file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print("warning", style="yellow")
    with Progress(console=console) as progress:
        progress.add_task("epoch", total=2)
        progress.refresh()
    assert isinstance(console.file, io.StringIO)
    assert "\x1b[33mwarning" in console.file.getvalue()
    assert "\x1b[2K" in console.file.getvalue()  # the cursor moves


def test_all_output_passes_this_console() -> None:
    root = Path(ducats.__file__).parent
    made = [path.name for path in root.rglob("*.py") if re.search(r"(?<!\w)Console\(\S", path.read_text())]
    assert made == ["trials.py"]  # which is quiet
