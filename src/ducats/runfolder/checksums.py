"""Checksums of a run's files: a damaged, missing or foreign file is noticed where it is read.

``checksums.jsonl`` in the run folder has one line per write, with the file's SHA-256. The line is written
before the draft is renamed. After a kill between the two, the file may be as it was before the last line; who
writes the next line records that first. Each line ends with a check of itself and of all lines before it, so
rounds are chained.

A file belongs to the run folder among its parents that has this log. Files elsewhere are neither recorded nor
verified.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from ducats.runfolder import question_names as names
from ducats.utils import files
from ducats.utils.errors import UserError

CHECKSUM_FILE = "checksums.jsonl"

_Version = tuple[int, int, int]  # of a log: inode, size, modification time
_MAX_DEPTH = 3  # questions/round-01/rules.json
_BACKUP = "restore it from a backup,"
_ACCEPT = f"or delete {CHECKSUM_FILE} to accept the files of the run as they are"
_REPEAT = (
    f"{_BACKUP} or delete {{it, }}checkpoint.pt and model.safetensors and run the same command "
    "again: the training is repeated with the acquired labels"
)
_RELABEL = (
    "restore it from a backup, it holds acquired labels; without one, delete {it, }the labels of later "
    "rounds, checkpoint.pt and model.safetensors and run the same command again to acquire them again"
)
_REWRITE = f"{_BACKUP} or {{delete it and }}run the same command again"
_REQUESTION = (
    "restore it from a backup; if the round is not labelled yet, delete its folder and run the same command "
    "again to write new questions"
)
# The checked files of a run, and what to do if one is damaged or missing; {…} only if it is not missing.
REMEDIES = {
    "config.yaml": _REWRITE,
    "data.yaml": _REWRITE,
    "environment.json": _REWRITE,
    "pool.json": f"{_BACKUP} or delete {{it and }}model.safetensors and run the same command again",
    "metrics.jsonl": _REPEAT,
    "confusion/epoch-*.csv": _REPEAT,
    "requests/round-*-hints.npz": "{delete it: }annotators then see no model outputs in this round",
    "requests/round-*.npz": _REPEAT,
    "labels/round-*.npz": _RELABEL,
    "labels/amendment-*.json": "restore it from a backup, it holds corrected labels",
    "classes.json": "restore it from a backup, it holds the names of classes that were added",
    "snapshots/*.npz": _REPEAT,
    "snapshots/thumbnails/*": "{delete it: }reports work without it",
    "checkpoint.pt": "{delete it to }restart training, labels are kept",
    "model.safetensors": (
        "{delete it and }run the same command again: the last checkpoint has the same weights"
    ),
    "loggers.json": "{delete it: }all records are logged again, as a new run",
    "triage.json": "{delete it and }run `ducats triage` again",
    f"questions/{names.ANSWER_LOG}": f"{_BACKUP} {_ACCEPT}",
    f"questions/*/{names.CLOSED}": (
        f"{_BACKUP} or delete {{it, }}the labels of this and later rounds, checkpoint.pt and "
        "model.safetensors and run the same command again: the answers are counted again"
    ),
    f"questions/*/{names.RULES}": _REQUESTION,
    f"questions/*/{names.QUESTIONS}": _REQUESTION,
}
_PRECIOUS = (
    f"questions/{names.ANSWER_LOG}",
    "labels/amendment-*.json",
    "classes.json",
)


class _Entry(NamedTuple):
    """The latest state of a file."""

    digest: str | None  # None: the file was deleted
    n_bytes: int | None = None  # the digest is that of the first bytes of a growing file; None: of all


class _Log(NamedTuple):
    """The contents of a log."""

    entries: dict[str, _Entry]  # by path in the run folder
    last: str | None  # file of the last line
    before_last: _Entry  # its state before that line
    check: str
    n_bytes: int  # without an incomplete line at the end


_EMPTY_LOG = _Log({}, None, _Entry(None), "", 0)


# ---- writing


def create(folder: Path) -> None:
    """Start the log of a run folder; files that exist already are accepted as they are."""
    path = folder / CHECKSUM_FILE
    if path.exists():
        return
    found = sorted({file for pattern in REMEDIES for file in folder.glob(pattern) if file.is_file()})
    lines, check = [], ""
    for file in found:
        name = file.relative_to(folder).as_posix()
        n_bytes = file.stat().st_size if file.name == names.ANSWER_LOG else None
        line, check = _format(check, name, _Entry(_file_digest(file, n_bytes), n_bytes))
        lines.append(line)
    files.write_atomically(path, lambda target: target.write(b"".join(lines)))


def write(path: Path, write_content: Callable[[IO[bytes]], object]) -> None:
    """Write a file of a run atomically and record its checksum."""
    log_path = _find_log(path)
    replace = None if log_path is None else partial(_record_and_replace, log_path)
    files.write_atomically(path, write_content, replace)


def write_text(path: Path, text: str) -> None:
    """Write a text file of a run as UTF-8, see ``write``."""
    write(path, lambda file: file.write(text.encode("utf-8")))


def confirm(path: Path) -> None:
    """Record the last file of a run once more: from now on, its absence means that it was deleted.

    Until another line follows, it might as well mean that a kill came before its renaming.
    """
    if (log_path := _find_log(path)) is None:
        return
    with files.lock_beside(log_path):
        log, name = _settled(log_path), _name(log_path, path)
        _remember(log_path, _append(log_path, log, name, log.entries[name]))


def write_again(path: Path, text: str) -> None:
    """Write a text file that is missing; raise if it was recorded with another content."""
    log_path, digest = _find_log(path), hashlib.sha256(text.encode("utf-8")).hexdigest()
    known: tuple[str | None, ...] = (None,)
    if log_path is not None:
        log, name = _read_log(log_path), _name(log_path, path)
        # After a kill, the last line may be about a file that was never renamed.
        before = log.before_last.digest if name == log.last else ""
        known = (log.entries.get(name, _Entry(None)).digest, before)
    if not {None, digest}.intersection(known):
        raise UserError(
            f"{path} is missing and had another content than this command would write: restore it from a "
            "backup, undo a change of settings or data, or choose another folder with --out"
        )
    write_text(path, text)


def delete(path: Path) -> None:
    """Delete a file of a run, if it exists, and record that."""
    log_path = _find_log(path)
    if log_path is None:
        path.unlink(missing_ok=True)
        return
    with files.lock_beside(log_path):
        log = _settled(log_path)
        if _name(log_path, path) in log.entries:
            log = _append(log_path, log, _name(log_path, path), _Entry(None))
        path.unlink(missing_ok=True)
        _remember(log_path, log)


def accept_missing(folder: Path) -> None:
    """Record that the files that are missing were deleted on purpose, if the run can make them again."""
    log_path = folder / CHECKSUM_FILE
    with files.lock_beside(log_path):
        log = _settled(log_path)
        for name in missing(folder):
            if not any(fnmatchcase(name, pattern) for pattern in _PRECIOUS):
                log = _append(log_path, log, name, _Entry(None))
        _remember(log_path, log)


def record_growth(path: Path, n_bytes: int, digest: str) -> None:
    """Record the first bytes of a file that only grows, after they were written.

    The line is not flushed: if it is lost, an earlier one covers fewer bytes.
    """
    if (log_path := _find_log(path)) is None:
        return
    with files.lock_beside(log_path):
        entry = _Entry(digest, n_bytes)
        _remember(log_path, _append(log_path, _settled(log_path), _name(log_path, path), entry, flush=False))


# Logs whose last line was written by this process, which has also renamed the file; with their version.
_own_logs: dict[Path, tuple[_Version, _Log]] = {}


def _remember(log_path: Path, log: _Log) -> None:
    _own_logs[log_path] = (_version(log_path), log)


def _record_and_replace(log_path: Path, draft: Path, path: Path) -> None:
    entry = _Entry(_file_digest(draft))
    # Other processes wait until the file has its name: else they might add a line before that.
    with files.lock_beside(log_path):
        log = _append(log_path, _settled(log_path), _name(log_path, path), entry)
        draft.replace(path)
        _remember(log_path, log)


def _settled(log_path: Path) -> _Log:
    """Return the log; if a kill kept the file of its last line as it was before, record that first."""
    own_version, own_log = _own_logs.get(log_path, (None, None))
    if own_log is not None and own_version == _version(log_path):
        return own_log
    log = _read_log(log_path)
    if log.last is None:
        return log
    actual = _file_digest(log_path.parent / log.last, log.entries[log.last].n_bytes)
    if actual != log.entries[log.last].digest and actual == log.before_last.digest:
        log = _append(log_path, log, log.last, log.before_last)
    return log


def _append(log_path: Path, log: _Log, name: str, entry: _Entry, *, flush: bool = True) -> _Log:
    """Append a line, in place of an incomplete one; the caller holds the lock."""
    line, check = _format(log.check, name, entry)
    with files.explain_errors(log_path), log_path.open("r+b", buffering=0) as file:
        file.truncate(log.n_bytes)
        file.seek(log.n_bytes)
        try:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(log_path))
            if flush:
                os.fsync(file.fileno())
        except OSError:
            file.truncate(log.n_bytes)
            raise
    before = log.entries.get(name, _Entry(None))
    return _Log({**log.entries, name: entry}, name, before, check, log.n_bytes + len(line))


def _format(previous_check: str, name: str, entry: _Entry) -> tuple[bytes, str]:
    """Return a line of the log, and its check."""
    content: dict[str, Any] = {"file": name, "sha256": entry.digest}
    if entry.n_bytes is not None:
        content["bytes"] = entry.n_bytes
    text = json.dumps(content, ensure_ascii=False)
    check = hashlib.sha256(f"{previous_check}{text}".encode()).hexdigest()[:16]
    return f'{text[:-1]}, "check": "{check}"}}\n'.encode(), check


# ---- reading


def verify(path: Path) -> None:
    """Raise if a file of a run is not as it was written, or is missing.

    Raises:
        UserError: the message names the file and the remedy.
    """
    if (log_path := _find_log(path)) is None:
        return
    while True:
        version = _version(log_path)
        problem = _find_problem(path, _name(log_path, path), _read_log(log_path))
        if problem is None:
            return
        if _version(log_path) == version:
            raise problem
        # Another process has written something meanwhile, perhaps this file: compare again.


def _find_problem(path: Path, name: str, log: _Log) -> UserError | None:
    entry = log.entries.get(name)
    actual = _file_digest(path, None if entry is None else entry.n_bytes)
    if entry is None:
        if actual is None or path.name == names.ANSWER_LOG:  # its line follows its bytes
            return None
        return UserError(
            f"{path} has no checksum in {CHECKSUM_FILE}, which is incomplete; restore {CHECKSUM_FILE} from a "
            f"backup, {_ACCEPT}"
        )
    if actual == entry.digest or (name == log.last and actual == log.before_last.digest):
        return None
    if actual is None:
        return UserError(f"{path} is missing; {remedy(path, is_missing=True)}")
    return corrupt(path, f"it does not match its checksum in {CHECKSUM_FILE}")


def missing(folder: Path, pattern: str = "*") -> list[str]:
    """Return the paths of recorded files that do not exist, relative to the run folder."""
    log_path = folder / CHECKSUM_FILE
    if not log_path.exists():
        return []
    log = _read_log(log_path)
    return [
        name
        for name, entry in log.entries.items()
        if entry.digest is not None
        and fnmatchcase(name, pattern)
        and not (name == log.last and log.before_last.digest is None)
        and not (folder / name).exists()
    ]


def verify_results(folder: Path) -> None:
    """Verify all files that an unfinished run can make again only by repeating its training."""
    for name in _read_log(folder / CHECKSUM_FILE).entries:
        if _remedy_template(folder / name) in (_REPEAT, _RELABEL):
            verify(folder / name)


def corrupt(path: Path, reason: object) -> UserError:
    """Return the error for a file that cannot be used, with the remedy."""
    return UserError(f"{path} is corrupt ({' '.join(str(reason).split())}); {remedy(path)}")


def remedy(path: Path, *, is_missing: bool = False) -> str:
    """Return what to do about a damaged or missing file of a run."""
    return re.sub(r"\{(.*?)\}", "" if is_missing else r"\1", _remedy_template(path))


def _remedy_template(path: Path) -> str:
    found = (text for pattern, text in REMEDIES.items() if path.match(pattern))
    return next(found, "restore it from a backup")


def _find_log(path: Path) -> Path | None:
    candidates = (folder / CHECKSUM_FILE for folder in list(path.parents)[:_MAX_DEPTH])
    return next((log_path for log_path in candidates if log_path.exists()), None)


def _name(log_path: Path, path: Path) -> str:
    return path.relative_to(log_path.parent).as_posix()


def _file_digest(path: Path, n_bytes: int | None = None) -> str | None:
    """Return the SHA-256 of a file, or of its first bytes; None if it does not exist."""
    try:
        with path.open("rb") as file:
            if n_bytes is not None:
                return hashlib.sha256(file.read(n_bytes)).hexdigest()
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def _version(path: Path) -> _Version:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


_parsed_logs: dict[Path, tuple[_Version, _Log]] = {}


def _read_log(path: Path) -> _Log:
    """Return the contents of a log; what this process has read before is not parsed again."""
    version = _version(path)
    known_version, known = _parsed_logs.get(path, (None, _EMPTY_LOG))
    if known_version == version:
        return known
    inode, size, _ = version
    has_grown = known_version is not None and known_version[0] == inode and known_version[1] < size
    log = _parse_log(path, known if has_grown else _EMPTY_LOG)
    _parsed_logs[path] = (version, log)
    return log


def _parse_log(path: Path, known: _Log) -> _Log:
    """Parse the lines that follow the known ones."""
    with path.open("rb") as file:
        file.seek(known.n_bytes)
        lines = file.read().splitlines(keepends=True)
    entries, last, before_last = dict(known.entries), known.last, known.before_last
    check, n_bytes = known.check, known.n_bytes
    for line in lines:
        if not line.endswith(b"\n"):
            break  # left by a kill; its file was not renamed
        try:
            content = json.loads(line)
            entry, name = _Entry(content["sha256"], content.get("bytes")), str(content["file"])
            expected, check = _format(check, name, entry)
        except (ValueError, TypeError, KeyError):
            expected = b""
        if line != expected:
            raise UserError(f"{path} is corrupt after byte {n_bytes}; {_BACKUP} {_ACCEPT}")
        before_last = entries.get(name, _Entry(None))
        entries[name], last = entry, name
        n_bytes += len(line)
    return _Log(entries, last, before_last, check, n_bytes)
