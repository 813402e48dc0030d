"""A run folder from someone else executes no code."""

from pathlib import Path

import pytest
import yaml

from commands import ducats
from ducats.runfolder import checksums
from scoring_runs import train_run, write_image_folder

FOREIGN_CODE = """
from pathlib import Path

Path({marker!r}).touch()

from ducats.models.small_cnn import small_cnn as anything
"""
SECTIONS = ("data", "model", "objective", "query", "oracle", "train.schedule")
COMMANDS = {
    "evaluate": (),
    "predict": ("@pool", "--out", "@out"),
    "export": ("--out", "@out"),
    "triage": (),
    "score": ("@pool", "--budget", "1", "--out", "@out"),
    "picks": (),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a pool, and a module that leaves a mark when it is imported."""
    folder = tmp_path_factory.mktemp("received")
    train_run(folder / "run")
    write_image_folder(folder / "pool", 2)
    (folder / "foreign.py").write_text(FOREIGN_CODE.format(marker=str(folder / "executed")))
    return folder


def run_command(folder: Path, name: str, *more: str) -> int:
    paths = {"@pool": str(folder / "pool"), "@out": str(folder / f"out of {name}")}
    return ducats(name, folder / "run", *(paths.get(word, word) for word in COMMANDS[name]), *more)


def rename(folder: Path, section: str, name: str) -> str:
    """Set the name of a component in the run's config; return the previous name."""
    path = folder / "run" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    component = config
    for key in section.split("."):
        component = component[key]
    before, component["name"] = component["name"], name
    checksums.write_text(path, yaml.safe_dump(config))  # as its sender would
    return str(before)


@pytest.mark.parametrize("section", SECTIONS)
def test_foreign_code_needs_trust(
    folder: Path, section: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    before = rename(folder, section, "foreign:anything")
    try:
        for name in COMMANDS:
            assert run_command(folder, name) == 2
            error = capsys.readouterr().err
            assert f"{section}.name=foreign:anything" in error
            assert "add --trust-code" in error
    finally:
        rename(folder, section, before)
    assert not (folder / "executed").exists()


def test_trusted_code_is_executed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    before = rename(folder, "model", "foreign:anything")
    try:
        assert run_command(folder, "predict", "--trust-code", "--device", "cpu") == 0, capsys.readouterr().err
    finally:
        rename(folder, "model", before)
    assert (folder / "executed").exists()
