"""Every command that a message, a help text or a docstring quotes can be typed."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import ducats
from command_checks import check_command, find_commands
from ducats.annotation import AnnotationStore
from ducats.annotation.oracles.pending import answering_instructions

SOURCE = Path(ducats.__file__).parent


def quoted_commands() -> Iterator[str]:
    """Yield the arguments of `ducats ...` in the strings of the package; a placeholder becomes "X"."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
                text = "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            yield from re.findall(r"`ducats ([^`]*[^` ])`", " ".join(text.split()))


@pytest.mark.parametrize("line", sorted(set(quoted_commands())))
def test_quoted_commands_parse(line: str) -> None:
    for command in find_commands(f"ducats {line}"):
        check_command(command, may_be_partial=True)


def test_many_commands_are_quoted() -> None:
    found = set(quoted_commands())
    assert {"push X --url URL", "label X", "figure X", "run"} <= found


def test_instructions_quote_paths_for_the_shell(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    text = answering_instructions(AnnotationStore(run / "questions"), "fill in the file")
    commands = re.findall(r"`(ducats [^`]*)`", text)
    assert [shlex.split(command)[1:3] for command in commands] == [["label", str(run)], ["push", str(run)]]
