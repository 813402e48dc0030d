"""Warnings on the command line are sentences, not lines of code."""

import warnings
from pathlib import Path

import pytest

from commands import ducats
from ducats.runfolder import run_folder


def test_warnings_of_ducats_name_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # restored at the end
    assert ducats("methods") == 0
    own = warnings.formatwarning("lower the size", UserWarning, run_folder.__file__, 7)
    assert own == "ducats: warning: lower the size\n"
    for category, file in ((UserWarning, str(Path("torch") / "nn.py")), (FutureWarning, run_folder.__file__)):
        assert f"{file}:7: {category.__name__}: x" in warnings.formatwarning("x", category, file, 7)
