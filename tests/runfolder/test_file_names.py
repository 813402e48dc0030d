"""Only the package ``runfolder`` spells the names of a run's files."""

import ast
import re
from functools import cache
from pathlib import Path

import ducats
from ducats.runfolder import question_names
from ducats.runfolder.run_folder import RunFolder

PACKAGE = Path(ducats.__file__).parent
# A file of the same name that is not a file of a run.
ELSEWHERE = {
    "classes.txt": {"deploy/exporter.py", "deploy/segmentation.py", "deploy/model_card.py"},  # of an output
    "model.safetensors": {"models/hub.py", "deploy/model_card.py"},  # on the hub; in an export
    ".lock": {"utils/files.py"},  # of any folder
    "unreadable.csv": {  # of an output; described
        *("deploy/classification.py", "deploy/scoring/files.py", "config/schema.py"),
    },
}


def file_names() -> set[str]:
    """Return the names of a run's files; folders have too common names for this test."""
    paths = [value for value in vars(RunFolder(Path())).values() if isinstance(value, Path)]
    questions = [value for name, value in vars(question_names).items() if name.isupper()]
    return {name for name in (*(path.name for path in paths), *questions) if "." in name}


@cache
def string_literals() -> list[tuple[str, int, str]]:
    """Return module, line and value of all strings in the package except docstrings."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        docstrings = {
            id(node.body[0].value)
            for node in nodes
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        found += [
            (path.relative_to(PACKAGE).as_posix(), node.lineno, node.value)
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        ]
    return found


def test_file_names_are_spelt_in_one_package() -> None:
    names = file_names()
    assert {"metrics.jsonl", "config.yaml", "checkpoint.pt", "answers.jsonl", "closed.json"} <= names
    pattern = re.compile(rf"(?<![\w.*-])({'|'.join(map(re.escape, sorted(names)))})(?!\w)")
    found = [
        f"{module}:{line}: {match[1]}"
        for module, line, text in string_literals()
        if not module.startswith("runfolder/")
        for match in pattern.finditer(text)
        if module not in ELSEWHERE.get(match[1], ())
    ]
    assert not found, "use RunFolder's paths instead"


def test_round_names_are_spelt_in_one_module() -> None:
    found = [
        f"{module}:{line}"
        for module, line, text in string_literals()
        if module != "runfolder/rounds.py" and text.startswith("round-") and text != "round-robin"
    ]
    assert not found, "use ducats.runfolder.rounds instead"
