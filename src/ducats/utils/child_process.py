"""Child processes that end when their parent ends, even if it is killed."""

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from ducats.utils.files import explain_errors, make_folder, try_lock

CHILD_MODULE = "ducats.cli.child"  # `python -m ducats.cli.child PARENT run ...`
_PARENT_POLL_SECONDS = 0.5  # between checks of the parent process
LOCK_TIMEOUT_SECONDS = 60.0  # seconds to wait for a lost process that still holds the lock
_SIGKILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # which kills on Windows
_SIGTERM_GRACE_SECONDS = 5.0  # seconds between SIGTERM and SIGKILL


def warm_up(environment: Mapping[str, str]) -> None:
    """Start the imports of later warm processes in the background, with more environment variables."""
    if sys.platform == "linux":
        from multiprocessing import forkserver

        with _environment(environment):
            _warm_context()
            forkserver.ensure_running()


def start_warm(
    function: str, arguments: tuple[Any, ...], log: Path, environment: Mapping[str, str]
) -> BaseProcess:
    """Call a function in a process with its imports done already, which take as long as a small run.

    Args:
        function: function as ``module:name``.
        log: the output of the process is appended to this file.
        environment: added to the environment of this process.
    """
    with _environment(environment), _without_main_module():
        process: BaseProcess = _warm_context().Process(  # type: ignore[attr-defined]  # in all subclasses
            target=_run, args=(function, arguments, log, dict(os.environ))
        )
        process.start()
    return process


def _warm_context() -> BaseContext:
    """Fork from a server that has imported what runs need, where a fork is safe."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ducats.run.factory", "ducats.run.loggers", "ducats.deploy.scoring"])
    return context


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Hide the caller's script from multiprocessing, which would execute it again in the new process."""
    main_module = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main_module


def _run(function: str, arguments: tuple[Any, ...], log: Path, environment: Mapping[str, str]) -> None:
    if sys.platform != "win32":
        os.setsid()  # Ctrl-C reaches only the parent, which stops this process
    os.environ.clear()
    os.environ.update(environment)
    if "OMP_NUM_THREADS" in environment and "torch" in sys.modules:  # read by torch when it was imported
        sys.modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    parent = multiprocessing.parent_process()
    assert parent is not None
    _exit_after(parent.join)
    module, _, name = function.partition(":")
    getattr(importlib.import_module(module), name)(*arguments)


def run_subcommand(
    command: Sequence[str], log: Path, lock: Path, environment: Mapping[str, str] | None = None
) -> int:
    """Run ``ducats`` in a new interpreter; return its exit code, or minus the signal that ended it.

    It ends with this process, even if this one is killed.

    Args:
        command: arguments of ``ducats``.
        log: its output is appended to this file.
        lock: file that a process with the same work holds locked; waited for, up to
            ``LOCK_TIMEOUT_SECONDS``, as a lost process may take a moment to notice and to end.
        environment: added to the environment of this process.
    """
    if lock.exists() and (held := try_lock(lock, LOCK_TIMEOUT_SECONDS)) is not None:
        held.release()
    make_folder(log.parent)
    with explain_errors(log), log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", CHILD_MODULE, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        return process.wait()
    finally:
        if process.poll() is None:  # interrupted
            _signal_group(process.pid, _SIGKILL)
            process.wait()


def stop_processes(processes: Sequence[BaseProcess]) -> None:
    """End warm processes and their children, first with SIGTERM."""
    for signal_number in (signal.SIGTERM, _SIGKILL):
        for pid in [process.pid for process in processes if process.exitcode is None]:
            assert pid is not None
            _signal_group(pid, signal_number)
        deadline = time.monotonic() + _SIGTERM_GRACE_SECONDS
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))


def _signal_group(leader: int, number: int) -> None:
    """Signal a process and its children; on Windows, which has no such signals, end the process."""
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            os.kill(leader, number)
        else:
            os.killpg(leader, number)


def exit_with_parent(parent: int) -> None:
    """Kill this process and its children once its parent, given by its process id, is gone."""

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_SECONDS)

    _exit_after(wait)


def _exit_after(wait: Callable[[], object]) -> None:
    """Kill this process and its children once a function, called in a thread, returns."""

    def watch() -> None:
        wait()
        if sys.platform != "win32" and os.getpgid(0) == os.getpid():  # this process leads its process group
            os.killpg(0, _SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
