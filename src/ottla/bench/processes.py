"""Processes of the benchmark: what they cost, and one that runs the load beside the broker."""

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
    """A call in a worker failed. Carries its traceback."""


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads.

    In nanoseconds where the kernel counts them for each thread; else in its ticks of a hundredth of a second.
    """
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((thread / "schedstat").read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9
    except (OSError, IndexError):
        return cpu_seconds_in_ticks(pid)


def cpu_seconds_of_all(pids: Iterable[int]) -> float:
    return sum(cpu_seconds(pid) for pid in pids)


def cpu_seconds_in_ticks(pid: int) -> float:
    """Of threads that have ended too, which the other way forgets; and one read, however many threads there are."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[_UTIME_AFTER_NAME]) + int(fields[_UTIME_AFTER_NAME + 1])) / _TICKS_A_SECOND


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def with_children(pids: Iterable[int]) -> tuple[int, ...]:
    """The processes and those that they started, as far as they are still there."""
    found: list[int] = []
    for pid in pids:
        try:
            listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        except OSError:
            listed = []
        found += [pid, *with_children(map(int, listed))]
    return tuple(found)


def cpu_seconds_below(pid: int, without: Iterable[int] = ()) -> float:
    """Of a process and all below it, also of those that have ended by now; but not of the ones left out."""
    ticks = 0
    for each in set(with_children([pid])) - set(with_children(without)):
        try:
            stat = Path(f"/proc/{each}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue  # it has ended, and its parent knows what it took
        ticks += sum(map(int, stat.rpartition(")")[2].split()[_UTIME_AFTER_NAME : _UTIME_AFTER_NAME + 4]))
    return ticks / _TICKS_A_SECOND


def ending_with_us(command: Sequence[str]) -> list[str]:
    """The command, such that the kernel kills it when the process that starts it is killed; where there is a way to.

    It counts for the thread that starts it, so that has to be one that stays.
    """
    setpriv = shutil.which("setpriv")
    return [*((setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()), *command]


class Worker:
    """Runs functions of modules, one at a time, in a process of its own."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None, "it is started when it is made"
        return self._process.pid

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._pipe.send((function, args, kwargs))
        try:
            succeeded, result = self._pipe.recv()
        except EOFError:
            raise WorkFailedError(f"the worker ended during {function.__name__}") from None
        if not succeeded:
            raise WorkFailedError(str(result))
        return cast("T", result)

    def close(self) -> None:
        self._pipe.close()
        end_process(self._process)

    def kill(self) -> None:
        """With whatever it has started. A call under way raises WorkFailedError."""
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
    """It ends by itself when its pipe is closed; if not, it is killed."""
    process.join(patience_s)
    if process.is_alive():
        process.kill()
        process.join(patience_s)


def work(pipe: Connection) -> None:
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
    """Ctrl-C reaches every process of a terminal; the parent ends its children in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
