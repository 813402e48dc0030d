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
from ducats.runfolder.run_folder import FORMAT_KEY, RUN_FORMAT, RunFolder
from ducats.utils.errors import UserError


def make_old(folder: Path) -> None:
    """Turn a run folder into one of format 1, which did not record its format."""
    path = RunFolder(folder).environment_path
    environment = json.loads(path.read_text())
    assert environment.pop(FORMAT_KEY) == RUN_FORMAT
    path.write_text(json.dumps(environment))


@pytest.mark.parametrize(
    "use",
    [
        lambda folder: RunFolder(folder).check_format(),
        check_run_folder,
        answers,
        lambda folder: RunFolder(folder).identity,
        lambda f: find_runs([f]),
    ],
)
def test_another_format_is_refused(run_quickly: Runner, use: Callable[[Path], object]) -> None:
    folder = run_quickly().path
    RunFolder(folder).check_format()
    make_old(folder)
    with pytest.raises(UserError, match=f"format 1, but .* reads format {RUN_FORMAT}"):
        use(folder)


def test_a_run_of_another_format_cannot_resume(run_quickly: Runner) -> None:
    make_old(run_quickly().path)
    with pytest.raises(UserError, match="format 1"):
        run_quickly()


def test_watch_shows_runs_of_another_format(run_quickly: Runner) -> None:
    folder = run_quickly().path
    make_old(folder)
    (problem,) = RunWatcher().read_state(folder).problems
    assert "format 1" in problem
