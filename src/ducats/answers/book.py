"""The book of received answers: several processes append to it, and nothing in it is ever changed."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ducats.answers.answer import Answer

try:
    import fcntl
except ImportError:  # no such thing on Windows: there, one process at a time must write
    fcntl = None  # type: ignore[assignment]


class Book:
    """A file of answers, one JSON line each, in the order in which they came.

    Args:
        path: made with the first answer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._answers: list[Answer] = []
        self._read = 0  # bytes

    def answers(self) -> list[Answer]:
        """All answers so far; reads what is new. A line that a kill tore was never confirmed: it is none."""
        if not self.path.exists():
            return self._answers
        with self.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                self._answers.append(Answer.read(line))
            except (ValueError, TypeError):
                continue
        return self._answers

    def append(self, answers: Sequence[Answer]) -> None:
        """Write answers down; they are on disk when this returns. Call it with the book ``held``."""
        if not answers:
            return
        text = "".join(answer.line() + "\n" for answer in answers).encode("utf-8")
        new = not self.path.exists()
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                text = b"\n" + text  # closes what a kill tore
            while text:
                text = text[os.write(file, text) :]
            os.fsync(file)
        finally:
            os.close(file)
        if new:  # without this the name itself may be lost in a power cut
            _flush(self.path.parent)

    def flush(self) -> None:
        """Have on disk what was written: a line that is there may be of a write whose flush failed."""
        if self.path.exists():
            _flush(self.path)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes and threads from writing meanwhile."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_name(f".{self.path.name}.lock").open("a") as lock:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _flush(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
