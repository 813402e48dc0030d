"""A damaged file of a run: resuming gives the same result or names the file; a reader never uses it.

``benchmarks/file_damage.py`` damages every file in every way and calls every command.
"""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import make_runner, quick
from ducats.cli import main
from ducats.ledger import load_ledger, load_request
from ducats.report.run_reader import read_run
from ducats.report.watch.reader import RunWatcher
from ducats.run.checkpoint import load_model
from ducats.runfolder import snapshot_files
from ducats.runfolder.run_folder import RunFolder
from ducats.utils import files
from ducats.utils.errors import UserError
from ranks import outcome


class Folders(NamedTuple):
    """A finished run, and a copy of it after the third of four epochs, with all labels."""

    finished: Path
    half_done: Path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    parent = tmp_path_factory.mktemp("runs")
    found, genuine, n_checkpoints = Folders(parent / "run", parent / "half"), files.write_atomically, 0

    def write(path: Path, *rest: Any) -> None:
        nonlocal n_checkpoints
        genuine(path, *rest)
        n_checkpoints += path.name == "checkpoint.pt"
        if n_checkpoints == 4 and not found.half_done.exists():
            shutil.copytree(found.finished, found.half_done)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write_atomically", write)
        make_runner(parent, quick)()
    return found


@pytest.fixture
def half_done(folders: Folders, tmp_path: Path) -> RunFolder:
    shutil.copytree(folders.half_done, tmp_path / "run")
    return RunFolder(tmp_path / "run")


@pytest.fixture
def finished(folders: Folders, tmp_path: Path) -> RunFolder:
    shutil.copytree(folders.finished, tmp_path / "run")
    return RunFolder(tmp_path / "run")


def flip(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def swap(path: Path) -> None:
    """Swap the files of two rounds."""
    other = path.with_name("round-02.npz")
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("checkpoint.pt", flip),  # gave other weights
        ("labels/round-02.npz", Path.unlink),  # ended with fewer labels
        ("labels/round-01.npz", swap),
        ("labels/round-01.npz", flip),
        ("pool.json", flip),  # was not noticed
        ("metrics.jsonl", empty),  # lost stages
        ("metrics.jsonl", Path.unlink),
        ("snapshots/round-01.npz", Path.unlink),  # lost the temperature
        ("confusion/epoch-001.csv", Path.unlink),
        ("config.yaml", flip),
        ("data.yaml", empty),
        ("environment.json", flip),
        ("checksums.jsonl", flip),
        ("checksums.jsonl", empty),
    ],
)
def test_a_damaged_run_is_not_resumed(
    half_done: RunFolder, name: str, damage: Callable[[Path], object]
) -> None:
    damage(half_done.path / name)
    with pytest.raises(UserError, match=name):
        make_runner(half_done.path.parent, quick)()
    assert not half_done.finished


@pytest.mark.parametrize(
    "name",
    [
        *("checkpoint.pt", "config.yaml", "data.yaml", "environment.json", "pool.json", "checksums.jsonl"),
        *("requests/round-01-hints.npz", "labels/round-02.npz checkpoint.pt"),
        "metrics.jsonl snapshots/round-01.npz requests/round-01.npz checkpoint.pt",
    ],
)
def test_resuming_makes_deleted_files_again(folders: Folders, half_done: RunFolder, name: str) -> None:
    """Deleting the files is the remedy that the messages name."""
    for one in name.split():
        (half_done.path / one).unlink(missing_ok="hints" in one)
    make_runner(half_done.path.parent, quick)()
    assert outcome(half_done.path) == outcome(folders.finished)
    for pattern in ("pool.json", "*/*.npz", "confusion/*.csv"):
        for path in folders.finished.glob(pattern):
            again = half_done.path / path.relative_to(folders.finished)
            assert again.read_bytes() == path.read_bytes(), path.name


def test_another_config_does_not_replace_a_deleted_one(half_done: RunFolder) -> None:
    half_done.config_path.unlink()
    with pytest.raises(UserError, match=r"config\.yaml is missing and had another content"):
        make_runner(half_done.path.parent, quick)("train.lr=0.1")


READERS: dict[str, Callable[[RunFolder], object]] = {
    "config.yaml": lambda run_folder: run_folder.identity,
    "data.yaml": lambda run_folder: run_folder.data_summary,
    "environment.json": lambda run_folder: run_folder.environment,
    "pool.json": load_ledger,
    "metrics.jsonl": lambda run_folder: read_run(run_folder.path),
    "requests/round-01.npz": lambda run_folder: load_request(run_folder, 1),
    "labels/round-02.npz": load_ledger,
    "snapshots/final.npz": lambda run_folder: snapshot_files.load_snapshots(run_folder.path),
    "model.safetensors": load_model,
}


@pytest.mark.parametrize("damage", [flip, empty, Path.unlink])
@pytest.mark.parametrize("name", READERS)
def test_readers_refuse_a_damaged_file(
    finished: RunFolder, name: str, damage: Callable[[Path], object]
) -> None:
    damage(finished.path / name)
    if damage is Path.unlink and name == "requests/round-01.npz":
        assert load_request(finished, 1) is None  # not needed any more
        return
    with pytest.raises(UserError, match=rf"{name} is (corrupt|missing)|it has no {name}|has no model"):
        READERS[name](finished)


def test_a_finished_run_with_a_damaged_model_is_made_again(finished: RunFolder, folders: Folders) -> None:
    flip(finished.model_path)
    with pytest.raises(UserError, match=r"model\.safetensors is corrupt .* delete it"):
        make_runner(finished.path.parent, quick)()
    finished.model_path.unlink()
    make_runner(finished.path.parent, quick)()
    assert outcome(finished.path) == outcome(folders.finished)


def test_a_finished_run_counts_all_its_labels(
    finished: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    (finished.labels_path / "round-02.npz").unlink()
    with pytest.raises(SystemExit) as end:
        main(["labels", str(finished.path)])
    assert end.value.code == 2
    assert "round-02.npz is missing" in capsys.readouterr().err.replace("\n", "")


def test_a_report_without_the_weights_is_the_same(finished: RunFolder) -> None:
    before = read_run(finished.path)
    finished.model_path.unlink()
    assert read_run(finished.path) == before


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_watch_names_damaged_metrics(finished: RunFolder, damage: Callable[[Path], object]) -> None:
    damage(finished.metrics_path)
    (problem, *_) = RunWatcher().read_state(finished.path).problems
    assert "metrics.jsonl is" in problem


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "name",
    [
        *("config.yaml", "checkpoint.pt", "metrics.jsonl", "labels/.round-02.npz", "model.safetensors"),
        "checksums.jsonl",
    ],
)
def test_a_full_disk_is_one_sentence_and_the_run_resumes(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    genuine = os.fsync

    def fsync(file: int) -> None:
        if name in str(Path(f"/proc/self/fd/{file}").readlink()):
            raise OSError(errno.ENOSPC, "No space left on device")
        genuine(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(UserError, match=rf"cannot write .*{name.replace('/.', '/')}.*MB free"):
            make_runner(tmp_path, quick)()
    make_runner(tmp_path, quick)()
    assert outcome(tmp_path / "run") == outcome(folders.finished)
