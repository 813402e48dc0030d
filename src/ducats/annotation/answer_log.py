"""Append-only log of received answers, safe for several processes."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from ducats.annotation.answer import Answer
from ducats.runfolder import checksums
from ducats.utils.errors import UserError
from ducats.utils.files import explain_errors, lock_beside, sync_folder
from ducats.utils.typed_json import parse_json

_BINARY = getattr(os, "O_BINARY", 0)  # on Windows: no translation of line ends


class AnswerLog:
    """File with one JSON line per answer, in the order of arrival; created with the first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._answers: list[Answer] = []
        self._bytes_read = 0
        self._digest = hashlib.sha256()  # of these bytes

    def answers(self) -> list[Answer]:
        """Return all answers; reads new lines only. An incomplete line was never confirmed and is skipped.

        Raises:
            UserError: confirmed answers were damaged or lost.
        """
        if not self._bytes_read:
            checksums.verify(self.path)
        if not self.path.exists():
            return self._answers
        with self.path.open("rb") as file:
            file.seek(self._bytes_read)
            new = file.read()
        complete = new[: new.rfind(b"\n") + 1]
        self._bytes_read += len(complete)
        self._digest.update(complete)
        for line in complete.splitlines():
            try:
                self._answers.append(parse_json(Answer, line))
            except ValueError:
                continue
        return self._answers

    def append(self, answers: Sequence[Answer]) -> None:
        """Append answers and flush them to disk. The caller must hold the lock, see ``locked``."""
        if not answers:
            return
        text = "".join(answer.to_json() + "\n" for answer in answers).encode("utf-8")
        new = not self.path.exists()
        with explain_errors(self.path):
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _BINARY, 0o644)
            size = os.fstat(file).st_size
            try:
                if size and _last_byte(file) != b"\n":
                    text = b"\n" + text  # ends an incomplete line left by a killed process
                while text:
                    text = text[os.write(file, text) :]
                os.fsync(file)
            except OSError:
                os.ftruncate(file, size)  # the answers are not confirmed: they must not count
                raise
            finally:
                os.close(file)
        if new:  # without this, the directory entry may be lost in a power failure
            sync_folder(self.path.parent)
        self.answers()
        with suppress(UserError):  # the disk may be full now, but the answers are stored
            checksums.record_growth(self.path, self._bytes_read, self._digest.hexdigest())

    def flush(self) -> None:
        """Flush the file to disk: an existing line may come from a write whose flush failed."""
        if self.path.exists():
            with self.path.open("rb+") as file:
                os.fsync(file.fileno())

    def locked(self) -> AbstractContextManager[object]:
        """Lock the log against writes by other processes and threads."""
        return lock_beside(self.path)


def _last_byte(file: int) -> bytes:
    os.lseek(file, -1, os.SEEK_END)
    return os.read(file, 1)
