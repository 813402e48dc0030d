"""Atomic writes and locks."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ducats.utils.files import folder_lock, lock_beside, try_lock, write_text_atomically

HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom ducats.utils.files import {name}\n"
    "with {name}(Path(sys.argv[1])):\n    print('locked', flush=True)\n    time.sleep(60)\n"
)


@contextmanager
def held_by_another_process(name: str, path: Path) -> Iterator[None]:
    """Hold a lock in another process, which is killed at the end."""
    command = [sys.executable, "-c", HOLD.format(name=name), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("fails", ["open", "fsync"])
def test_a_folder_that_cannot_be_flushed_is_tolerated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    genuine_open, genuine_fsync = os.open, os.fsync
    folders: list[int] = []

    def open_(path: Any, *rest: Any, **more: Any) -> int:
        if Path(path).is_dir():
            if fails == "open":
                folders.append(-1)
                raise PermissionError(13, "is a folder", str(path))
            folders.append(genuine_open(path, *rest, **more))
            return folders[-1]
        return genuine_open(path, *rest, **more)

    def fsync(file: int) -> None:
        if file in folders:
            raise OSError(22, "cannot flush a folder")
        genuine_fsync(file)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "fsync", fsync)
    write_text_atomically(tmp_path / "file.txt", "text")
    assert folders, "the folder was not flushed"
    assert (tmp_path / "file.txt").read_text() == "text"
    if fails == "fsync":
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(folders[0])  # closed


def test_a_file_that_cannot_be_flushed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left"):
        write_text_atomically(tmp_path / "file.txt", "text")
    assert not list(tmp_path.iterdir())


def test_a_locked_folder_is_refused_until_its_holder_is_killed(tmp_path: Path) -> None:
    with held_by_another_process("folder_lock", tmp_path):
        with folder_lock(tmp_path) as acquired:
            assert not acquired
        assert try_lock(tmp_path / ".lock", 0.05) is None
    with folder_lock(tmp_path) as acquired:
        assert acquired


def test_locks_are_released_on_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), folder_lock(tmp_path):
        raise KeyError
    with folder_lock(tmp_path) as acquired:
        assert acquired
        with folder_lock(tmp_path) as again:
            assert not again


@pytest.mark.parametrize("hold", [partial(held_by_another_process, "lock_beside"), lock_beside])
def test_a_lock_beside_a_file_is_awaited(tmp_path: Path, hold: Callable[[Path], Any]) -> None:
    path, acquired = tmp_path / "new" / "log", threading.Event()

    def wait() -> None:
        with lock_beside(path):
            acquired.set()

    waiting = threading.Thread(target=wait)
    with hold(path):
        waiting.start()
        assert not acquired.wait(0.2)
    waiting.join(10)
    assert acquired.is_set()
