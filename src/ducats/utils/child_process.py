"""`ducats` commands in child processes, which end when their parent ends, even if it is killed."""

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

CHILD_MODULE = "ducats.cli.child"  # `python -m ducats.cli.child PARENT run ...`
_COMMAND_MODULE = "ducats.cli"
_PARENT_POLL_SECONDS = 0.5  # between checks of the parent process
_SIGTERM_GRACE_SECONDS = 5.0  # seconds between SIGTERM and SIGKILL


def start_warm(arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> BaseProcess:
    """Start a command with its imports done already, which take as long as a small run.

    Args:
        arguments: arguments of ``ducats``.
        log: its output is appended to this file.
        environment: added to the environment of this process. The number of threads counts only in the first
            call, because libraries read it when they are imported.
    """
    # The console of the command is set up before its output is redirected.
    with _environment({**environment, "NO_COLOR": "1"}):
        process: BaseProcess = _warm_context().Process(  # type: ignore[attr-defined]  # in all subclasses
            target=_run_command, args=(_COMMAND_MODULE, arguments, log, dict(os.environ))
        )
        process.start()
    return process


def _warm_context() -> BaseContext:
    """Fork from a server that has imported the modules of a run, where a fork is safe."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["ducats.run.factory", "ducats.run", "ducats.run.loggers", "ducats.doctor"]
    )
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


def _run_command(module: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
    os.setsid()  # Ctrl-C reaches only the parent, which stops this process
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_with_parent() -> None:
        parent.join()
        _kill_group()

    threading.Thread(target=exit_with_parent, daemon=True).start()
    importlib.import_module(module).main(arguments)


def start_command(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a command in a new interpreter; its output is appended to a log."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", CHILD_MODULE, str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )


def stop_processes(processes: Sequence[BaseProcess]) -> None:
    """End warm processes and their children, first with SIGTERM."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            assert process.pid is not None
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal_number)
        deadline = time.monotonic() + _SIGTERM_GRACE_SECONDS
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))


def exit_with(parent: int) -> None:
    """Kill this process and its children once its parent, given by its process id, is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_SECONDS)
        _kill_group()

    threading.Thread(target=watch, daemon=True).start()


def _kill_group() -> None:
    if os.getpgid(0) == os.getpid():  # this process leads its process group
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
