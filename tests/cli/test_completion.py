"""Shell completion."""

from pathlib import Path

import pytest

from commands import Capture, output_of
from ducats.cli import app

COMMANDS = [name for name in app if not name.startswith("-")]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_commands_and_options(shell: str, tmp_path: Path, capsys: Capture) -> None:
    script = tmp_path / "script"
    assert str(script) in output_of(capsys, "--install-completion", "--shell", shell, "--output", script)
    text = script.read_text(encoding="utf-8")
    assert len(COMMANDS) > 20
    assert all(name in text for name in (*COMMANDS, "budget", "methods"))
