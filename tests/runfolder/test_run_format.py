"""Run folders of another format are refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Runner
from ducats.annotation.page.server import check_run_folder
from ducats.cli.answers import answers
from ducats.report import find_runs
from ducats.report.watch.reader import RunWatcher
from ducats.runfolder.checksums import CHECKSUM_FILE
from ducats.runfolder.run_folder import FORMAT_KEY, RUN_FORMAT, RunFolder
from ducats.utils.errors import UserError


def make_old(folder: Path) -> None:
    """Turn a run folder into one of format 1, which did not record its format."""
    path = RunFolder(folder).environment_path
    environment = json.loads(path.read_text())
    assert environment.pop(FORMAT_KEY) == RUN_FORMAT
    path.write_text(json.dumps(environment))
    (folder / CHECKSUM_FILE).unlink()


def test_another_format_is_refused_everywhere(run_quickly: Runner) -> None:
    folder = run_quickly().path
    RunFolder(folder).check_format()
    make_old(folder)
    uses: list[Callable[[], object]] = [
        RunFolder(folder).check_format,
        lambda: check_run_folder(folder),
        lambda: answers(folder),
        lambda: RunFolder(folder).identity,
        lambda: find_runs([folder]),
        run_quickly,  # cannot be resumed
    ]
    for use in uses:
        with pytest.raises(UserError, match=f"format 1, but .* reads format {RUN_FORMAT}"):
            use()
    (problem,) = RunWatcher().read_state(folder).problems
    assert "format 1" in problem
