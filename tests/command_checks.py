"""Check commands and settings that pages and messages quote, without running anything."""

import pkgutil
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import cyclopts

from ducats.acquisition.queries import QUERIES
from ducats.cli import app
from ducats.config import load_config
from ducats.config.layers import read_yaml
from ducats.config.options import RunOptions
from ducats.report.figures.registry import resolve_figure
from ducats.run.factory import config_checks
from ducats.sweep import SweepFilter, expand_sweep, read_sweep
from ducats.sweep.tune.trials import parse_grid
from ducats.utils.errors import UserError
from ducats.utils.findings import raise_first_error

FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", flags=re.S | re.M)
SETTING = re.compile(
    r"(?:acquisition|data|engine|evaluation|model|objective|oracle|query|task|train|views)\.\w[\w.]*(?:=.*)?"
)
FILE = re.compile(r"\w+\.(json|npz|onnx|pt|py|safetensors|yaml)")
LAUNCHERS = ("docker run", "srun", "torchrun", "uvx")
ELLIPSES = ("…", "...")
# Values of placeholders, by the word before.
EXAMPLES = {"-c": "data/digits", "--method": "duc", "figure": "simplex", "sweep": "digits"}


class Quote(NamedTuple):
    """Code of a page, in one line."""

    line: int
    text: str
    is_inline: bool


def code_blocks(page: Path, *languages: str) -> list[tuple[int, str]]:
    """Return the first line and the text of each block of code in one of the languages."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, block.start(2)) + 1, block[2])
        for block in FENCE.finditer(text)
        if block[1] in languages
    ]


def shell_lines(page: Path, *languages: str) -> Iterator[Quote]:
    """Yield the lines of shell commands, continued lines joined; by default also without a language."""
    for first, block in code_blocks(page, *(languages or ("sh", "bash", ""))):
        for line in re.finditer(r"(?:.*\\\n)*.*\n", block):
            joined = line[0].replace("\\\n", " ").strip()
            yield Quote(first + block.count("\n", 0, line.start()), joined, is_inline=False)


def inline_code(page: Path) -> Iterator[Quote]:
    """Yield the code in the sentences of a page."""
    text = FENCE.sub(lambda block: "\n" * block[0].count("\n"), page.read_text(encoding="utf-8"))
    for code in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text):
        yield Quote(text.count("\n", 0, code.start()) + 1, " ".join(code[1].split()), is_inline=True)


def check_quote(quote: Quote) -> None:
    """Raise if a command in the code cannot be typed, or a setting does not exist."""
    text, is_inline = quote.text, quote.is_inline
    for command in find_commands(text):
        check_command(command, may_be_partial=is_inline)
        unquoted = re.sub(r"""'[^']*'|"[^"]*"|\[-[^][]*\]|\s#\s.*""", "", text)
        if not is_inline and re.search(r"[][?*{}]", unquoted):
            raise ValueError("brackets and wildcards need quotes")
    if is_inline:
        words = shlex.split(text) if text.startswith("--set ") else [text]
        for word in words:
            if SETTING.fullmatch(word) and not FILE.fullmatch(word):
                check_setting(word)


def find_commands(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each `ducats` in a line of shell."""
    line = re.sub(r"(^|\s)#\s.*", "", line)
    if not re.search(r"\bducats\b", line):
        return
    line = re.sub(r"\[(-[^][]*)\]", r"\1", line)  # optional arguments
    words = shlex.shlex(line, posix=True, punctuation_chars=";<>|&")
    words.whitespace_split, words.commenters = True, ""
    commands: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set(";<>|&"):
            commands.append([])
        else:
            commands[-1].append(word)
    for command in commands:
        while command and re.match(r"[A-Z_]+=", command[0]):
            del command[0]
        at = next((i for i, word in enumerate(command) if word in ("ducats", "ducats:cuda")), None)
        is_launched = at is not None and " ".join(command).startswith(LAUNCHERS)
        if at is not None and (at == 0 or is_launched) and command[at + 1 :]:
            yield command[at + 1 :]


def check_command(arguments: Sequence[str], *, may_be_partial: bool = False) -> None:
    """Raise if a command cannot be typed, its settings included. The files that it names need not exist.

    Words in capitals are placeholders; an ellipsis stands for more arguments.

    Args:
        may_be_partial: accept a command without its arguments, or with an option only.
    """
    command, *words = arguments
    if command not in app:
        raise ValueError(f"unknown command {command!r}")
    if command.startswith("-"):
        return
    known = {name for argument in app[command].assemble_argument_collection() for name in argument.names}
    if unknown := {word for word in words if re.match("--?[a-z]", word)} - known:
        raise ValueError(f"unknown option {', '.join(sorted(unknown))}")
    try:
        _, bound, _ = app.parse_args(
            [command, *_fill_in(command, words)], exit_on_error=False, print_error=False
        )
    except cyclopts.MissingArgumentError:
        if set(words) & set(ELLIPSES) or (may_be_partial and (not words or words[0].startswith("-"))):
            return
        raise
    _check_values(command, bound.arguments)


def _fill_in(command: str, words: Sequence[str]) -> list[str]:
    """Replace the placeholders."""
    filled = []
    for before, word in zip((command, *words), words, strict=False):
        if word not in ELLIPSES or before.startswith("-"):
            filled.append(EXAMPLES.get(before, "1") if _is_placeholder(word) else word)
    return filled


def _is_placeholder(word: str) -> bool:
    return word in (*ELLIPSES, "[…]") or re.fullmatch(r"[A-Z]+(…|\.\.\.)?", word) is not None


def _check_values(command: str, values: Mapping[str, Any]) -> None:
    """Check what is only text to the parser: settings, sweeps, grids, figures, queries."""
    if isinstance(options := values.get("options"), RunOptions):
        check_options(options)
    for setting in parse_grid(values.get("grid") or ()):
        check_setting(setting)
    if command == "sweep" and not values["name"].endswith(".yaml"):
        check_sweep(values["name"], values)
    if command == "figure" and values.get("name"):
        resolve_figure(values["name"])
    if command == "score" and not QUERIES[values.get("query", "random")].streaming_rule:
        raise ValueError(f"{values['query']} does not work in `ducats score`")


def check_options(options: RunOptions) -> None:
    """Raise if a config cannot be loaded, or its components cannot have these parameters."""
    names = [setting for setting in options.set if _is_placeholder(setting.partition("=")[2])]
    for name in names:
        check_setting(name)
    files = [name for name in options.config if not name.endswith(".yaml") or Path(name).is_file()]
    given = [setting for setting in options.set if setting not in names]
    config = replace(options, config=files, set=given, start_from=None).load()
    components = (config.data, config.model, config.objective, config.query, config.oracle)
    if any(":" in component.name for component in components):
        return
    for check in config_checks(config, runs_here=False):
        try:
            raise_first_error(check)
        except UserError as error:
            if "does not exist" not in str(error):
                raise


def check_config_file(file: Path) -> None:
    """Raise if a file is not a valid config of a run, nor of a sweep."""
    if "methods" in read_yaml(file):
        check_sweep(file, {})
    else:
        check_options(RunOptions(config=[str(file)]))


def check_sweep(name: str | Path, values: Mapping[str, Any]) -> None:
    """Raise if a sweep cannot be expanded; of the tasks, only the first is combined with all methods."""
    sweep = read_sweep(name)
    chosen = {key: values[key] for key in ("data", "config", "methods", "tasks") if key in values}
    if "tasks" not in chosen and sweep.tasks[0].display_name:
        chosen["tasks"] = [sweep.tasks[0].display_name]
    settings = tuple(values.get("set") or ())
    expand_sweep(sweep, SweepFilter(**chosen, settings=settings, seeds=(0,)), device="cpu")


@cache
def check_setting(setting: str) -> None:
    """Raise if the setting does not exist, or neither task accepts the value."""
    name, _, value = setting.partition("=")
    has_value = value != "" and not _is_placeholder(value)
    errors: list[str] = []
    for task in ("classification", "segmentation"):
        try:
            load_config((), [f"task.name={task}", setting if has_value else f"{name}=null"])
            return
        except UserError as error:
            errors.append(str(error))
    if has_value:
        raise UserError(errors[0])
    with suppress(AttributeError, ImportError):
        pkgutil.resolve_name(f"ducats.{name.rpartition('.')[0]}")
        return  # a name in the code
    if "unknown setting" in errors[0]:
        raise UserError(errors[0])
