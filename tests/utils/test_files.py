"""Atomic writes and locks."""

import errno
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
from PIL import Image

import ducats
from ducats.utils.errors import UserError
from ducats.utils.files import (
    folder_lock,
    lock_beside,
    make_folder,
    try_lock,
    write_atomically,
    write_text_atomically,
)
from ducats.utils.npz_columns import write_archive

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


def test_a_folder_with_the_name_of_a_file_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match="choose another folder"):
        make_folder(tmp_path / "taken")


def test_a_file_that_cannot_be_flushed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left"):
        write_text_atomically(tmp_path / "file.txt", "text")
    assert not list(tmp_path.iterdir())


class FullDisk:
    """A file on a full disk."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.flush = file, file.flush

    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "write",
    [
        lambda file: file.write(b"a"),
        lambda file: torch.save({"a": torch.zeros(9)}, file),  # raises a RuntimeError
        lambda file: Image.new("L", (2, 2)).save(file, "PNG"),
        lambda file: write_archive(file, {"a": (np.zeros(3), np.float32)}),
    ],
)
def test_a_full_disk_is_one_sentence(tmp_path: Path, write: Callable[[Any], object]) -> None:
    path = tmp_path / "new" / "file"
    words = rf"cannot write {path}: No space left on device, [\d,.]+ MB free; free some space and try again"
    with pytest.raises(UserError, match=words) as caught:
        write_atomically(path, lambda file: write(FullDisk(file)))
    assert isinstance(caught.value, OSError)  # for callers that can do without the file
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("function", ["replace", "mkdir"])
def test_other_steps_of_a_write_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, function: str
) -> None:
    def fail(path: Path, *_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Path, function, fail)
    free = ", .* MB free" if code in (errno.ENOSPC, errno.EDQUOT) else ""
    words = rf"cannot write .*: {os.strerror(code)}{free}; .* and try again"
    with pytest.raises(UserError, match=words):
        write_text_atomically(tmp_path / "file", "text")
    if function == "mkdir":
        with pytest.raises(UserError, match=words):
            make_folder(tmp_path / "new")


def test_an_error_about_another_file_is_not_explained(tmp_path: Path) -> None:
    def write(file: IO[bytes]) -> None:
        raise OSError(errno.EACCES, "Permission denied", "/data/image.png")

    with pytest.raises(OSError, match=r"image\.png") as caught:
        write_atomically(tmp_path / "cache", write)
    assert not isinstance(caught.value, UserError)


def test_files_are_written_in_one_place() -> None:
    """Other ways to write a file would not be atomic, and a full disk would be a traceback."""
    allowed = {
        "utils/files.py": "here",
        "runfolder/checksums.py": "appends lines",
        "annotation/answer_log.py": "appends lines",
        "data/embedding_cache.py": "appends rows",
        "cli/shutdown.py": "the null device",
        "annotation/page/server.py": "a private file",
        "utils/child_process.py": "output of a child",
        "deploy/scoring/ray_backend.py": "a temporary copy on another machine",
    }
    package = Path(ducats.__file__).parent
    pattern = re.compile(
        r"""(?<!checksums)\.write_(text|bytes)\(|open\([^)]*["'](w|a|x|r\+|rb\+)b?["']|O_WRONLY|\.tofile\("""
    )
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if pattern.search(path.read_text(encoding="utf-8"))
    }
    assert found <= allowed.keys(), "use utils.files.write_atomically, or runfolder.checksums.write in a run"


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
