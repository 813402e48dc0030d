"""Every command that a message, a help text or a docstring quotes can be typed."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import cyclopts
import pytest

import ducats
from ducats.annotation import AnnotationStore
from ducats.annotation.oracles.pending import answering_instructions
from ducats.cli.base import app

SOURCE = Path(ducats.__file__).parent


def quoted_commands() -> Iterator[str]:
    """Yield the arguments of `ducats ...` in the strings of the package; a placeholder becomes "x"."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "x" for part in node.values]
                text = "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            yield from re.findall(r"`ducats ([^`]*[^` ])`", " ".join(text.split()))


def option_names(command: str) -> set[str]:
    return {name for argument in app[command].assemble_argument_collection() for name in argument.names}


@pytest.mark.parametrize("line", sorted(set(quoted_commands())))
def test_quoted_commands_parse(line: str) -> None:
    command, *words = shlex.split(line.partition(" | ")[0])
    if command.startswith("-"):
        assert line == "--help"
        return
    assert command in app
    options = [word for word in words if word.startswith("-")]
    assert set(options) <= option_names(command)
    if words and not words[0].startswith("-"):  # not only a reference to an option
        try:
            app.parse_args([command, *words], exit_on_error=False, print_error=False)
        except cyclopts.CycloptsError as error:
            pytest.fail(f"`ducats {line}`: {error}")


def test_many_commands_are_quoted() -> None:
    found = set(quoted_commands())
    assert {"push x --url URL", "label x", "figure x", "run"} <= found


def test_instructions_quote_paths_for_the_shell(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    text = answering_instructions(AnnotationStore(run / "questions"), "fill in the file")
    commands = re.findall(r"`(ducats [^`]*)`", text)
    assert [shlex.split(command)[1:3] for command in commands] == [["label", str(run)], ["push", str(run)]]
