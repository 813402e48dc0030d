"""The command `ducats figure`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from commands import Capture, ducats
from ducats.report.figures import FIGURES
from synthetic_runs import write_run


def test_lists_all_figures_without_a_name(capsys: Capture) -> None:
    assert ducats("figure") == 0
    first = [line.split(" ")[0] for line in capsys.readouterr().out.splitlines()]
    assert [name for name in first if name in FIGURES] == list(FIGURES)


def test_help_lists_figures_without_plotting_imports() -> None:
    code = (
        "import sys\nfrom ducats.cli import app\n"
        "try:\n app(['figure', '--help'])\nexcept SystemExit: pass\n"
        "sys.exit(bool({'torch', 'matplotlib', 'numpy', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert all(name in done.stdout for name in FIGURES)


def test_figure_is_saved_to_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    folder = write_run(tmp_path / "run", rounds=2, per_round=4, pool=60, source=30)
    monkeypatch.chdir(tmp_path)
    assert ducats("figure", "histogram", "run") == 0
    assert (tmp_path / "histogram.svg").read_bytes().startswith(b"<svg")
    out = tmp_path / "new" / "picks.png"
    assert ducats("figure", "gallery", folder, "--round", "2", "--out", out) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert "picks.png" in capsys.readouterr().out
    assert (
        ducats("figure", "simplex", folder, "--images", "target/0001", "target/0002", "--out", "a.pdf") == 0
    )
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


def test_docs_list_all_figures() -> None:
    page = Path(__file__).parents[3] / "docs" / "figures.md"
    assert re.findall(r"^\| .*?\| `(\w+)`", page.read_text(encoding="utf-8"), flags=re.M) == list(FIGURES)


def test_missing_records_give_an_error_message(tmp_path: Path, capsys: Capture) -> None:
    folder = write_run(tmp_path / "run", rounds=1, snapshots=False)
    assert ducats("figure", "tsne", folder, "--out", tmp_path / "a.svg") == 2
    stderr = capsys.readouterr().err
    assert "has no snapshots" in stderr.replace("\n", " ")
    assert "Traceback" not in stderr
    assert not (tmp_path / "a.svg").exists()
    assert ducats("figure", "nope", folder) == 2
