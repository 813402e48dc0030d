"""Commands that inspect configs, data, queries and methods."""

import itertools
import re
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ducats.cli.base import app, console, print_json, print_line
from ducats.config.options import RunOptions
from ducats.utils.errors import UserError


@app.command
def config(
    *,
    options: RunOptions = RunOptions(),  # noqa: B008 - never changed
    explain: Annotated[bool, Parameter(negative=())] = False,
    schema: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Print the resolved config, defaults included.

    Args:
        options: Options of `ducats run`.
        explain: List every setting with its value and description, and the parameters of each component.
        schema: Print the JSON schema, for editors.
    """
    from ducats import config as configs

    if schema:
        print_json(configs.Config.model_json_schema())
    elif explain:
        from ducats.run.factory import describe_params

        resolved = options.load()
        params = describe_params(resolved)
        for name, default, meaning in configs.describe_settings(resolved):
            meaning = params.get(name, meaning)
            console.print(f"[bold]{name}[/bold] = {default}", highlight=False, soft_wrap=True)
            if meaning:
                print_line(f"    {meaning}")
    else:
        sys.stdout.write(configs.to_yaml(options.load()))
    return 0


@app.command
def doctor(
    folder: Path | None = None,
    /,
    *,
    options: RunOptions = RunOptions(),  # noqa: B008 - never changed
) -> int:
    """Check data and settings before training: unreadable files, duplicates, classes, budget, memory.

    Args:
        folder: Check only the images of this folder, without any settings: readable, sizes, colours, classes
            (subfolders), duplicates.
        options: Options of `ducats run`.
    """
    from ducats.doctor import diagnose, diagnose_folder, verdict

    if folder is not None and options != RunOptions(strict=options.strict):
        raise UserError(
            f"`ducats doctor {folder}` checks a folder without settings; omit the other options, or give the "
            "folder with --source, --target or --test"
        )
    findings = diagnose(options.load()) if folder is None else diagnose_folder(folder, strict=options.strict)
    style = {"error": "bold red", "warning": "yellow", "note": "dim"}
    for finding in findings:
        print_line(f"{finding.severity}: {finding.message}", style[finding.severity])
    message, code = verdict(findings, "ready to run" if folder is None else "the images can be used")
    print_line(message)
    return code


@app.command
def queries() -> int:
    """List the query strategies and their parameters; those marked for score work in `ducats score`."""
    from rich.table import Table

    from ducats.acquisition.queries import QUERIES

    table = Table("query", "score", "parameters", "description", header_style="bold")
    for name, spec in QUERIES.items():
        table.add_row(name, "yes" if spec.streaming_rule else "", spec.params_text, spec.summary)
    console.print(table)
    return 0


def first_sentence(text: str) -> str:
    r"""Return the first sentence of the leading comment of a config.

    >>> first_sentence("# One thing. And\n# another.\nmethod: a\n")
    'One thing.'
    """
    comment = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    comment_text = " ".join(line.lstrip("# ") for line in comment)
    return re.split(r"(?<=\.) ", comment_text)[0]


@app.command
def methods() -> int:
    """List the methods, each a pair of an objective and a query."""
    from rich.table import Table

    from ducats.config import configs_folder, load_config

    table = Table("method", "objective", "query", "description", header_style="bold")
    for path in sorted((configs_folder() / "methods").glob("*.yaml")):
        loaded = load_config([path])
        has_rounds = loaded.acquisition.rounds != 0
        query = loaded.query.name if has_rounds else "–"
        table.add_row(
            path.stem, loaded.objective.name, query, first_sentence(path.read_text(encoding="utf-8"))
        )
    console.print(table)
    return 0
