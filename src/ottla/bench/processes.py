"""Processes of the benchmark: their resource usage, and workers that generate load beside the broker."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, Self, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_UTIME_AFTER_NAME = 11


class WorkFailedError(Exception):
    """A call in a worker failed. The message contains its traceback."""


def cpu_seconds(pid: int) -> float:
    """Returns the user and system time of a process with all its threads.

    The resolution is a nanosecond if the kernel counts per thread, and otherwise a tick of a hundredth of a second.
    """
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((thread / "schedstat").read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9
    except (OSError, IndexError):
        return cpu_seconds_in_ticks(pid)


def cpu_seconds_of_all(pids: Iterable[int]) -> float:
    """Returns the CPU time of all these processes together."""
    return sum(cpu_seconds(pid) for pid in pids)


def cpu_seconds_in_ticks(pid: int) -> float:
    """Returns the CPU time by ticks. Unlike `cpu_seconds`, it includes ended threads and takes a single read."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[_UTIME_AFTER_NAME]) + int(fields[_UTIME_AFTER_NAME + 1])) / _TICKS_A_SECOND


def resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def with_children(pids: Iterable[int]) -> tuple[int, ...]:
    """Returns the processes and all their descendants that still exist."""
    found: list[int] = []
    for pid in pids:
        try:
            listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        except OSError:
            listed = []
        found += [pid, *with_children(map(int, listed))]
    return tuple(found)


def cpu_seconds_below(pid: int, without: Iterable[int] = ()) -> float:
    """Returns the CPU time of a process and its descendants, ended ones included, except those in `without`."""
    ticks = 0
    for each in set(with_children([pid])) - set(with_children(without)):
        try:
            stat = Path(f"/proc/{each}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue  # it has ended, and its parent accounts for its time
        ticks += sum(map(int, stat.rpartition(")")[2].split()[_UTIME_AFTER_NAME : _UTIME_AFTER_NAME + 4]))
    return ticks / _TICKS_A_SECOND


def ending_with_us(command: Sequence[str]) -> list[str]:
    """Returns the command such that the kernel kills it when its parent is killed, if the system has a way to do that.

    The parent is the thread that starts the command, so that thread must stay alive.
    """
    setpriv = shutil.which("setpriv")
    return [*((setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()), *command]


class Worker:
    """Calls module-level functions, one at a time, in a separate process."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """The process id of the worker."""
        assert self._process.pid is not None, "it is started when it is made"
        return self._process.pid

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function in the process and returns its result. Raises WorkFailedError if it fails."""
        self._pipe.send((function, args, kwargs))
        try:
            succeeded, result = self._pipe.recv()
        except EOFError:
            raise WorkFailedError(f"the worker ended during {function.__name__}") from None
        if not succeeded:
            raise WorkFailedError(str(result))
        return cast("T", result)

    def close(self) -> None:
        """Closes the pipe, at which the process ends; kills it if it does not within seconds."""
        self._pipe.close()
        end_process(self._process)

    def kill(self) -> None:
        """Kills the process and its descendants. A call in progress raises WorkFailedError."""
        for pid in with_children([self.pid]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def end_process(process: multiprocessing.process.BaseProcess, patience_s: float = 5.0) -> None:
    """Waits for a process, which ends by itself when its pipe is closed, and kills it if it does not."""
    process.join(patience_s)
    if process.is_alive():
        process.kill()
        process.join(patience_s)


def work(pipe: Connection) -> None:
    """The main loop of a worker process."""
    leave_interrupts_to_the_parent()
    while True:
        try:
            function, args, kwargs = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, function(*args, **kwargs)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


def leave_interrupts_to_the_parent() -> None:
    """Ignores Ctrl-C, which reaches every process of a terminal, because the parent ends its children in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
