"""`ottla connect ...` as a process that tests kill."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

TIMEOUT_S = 120.0


def ottla(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ottla", *words], capture_output=True, text=True, timeout=3600, check=False
    )


class Connector:
    """A supervisor and its workers. Its stderr goes to `log_path`."""

    def __init__(self, log_path: Path, *words: str) -> None:
        self._command = [sys.executable, "-m", "ottla", "connect", *words]
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._cpu_s: dict[int, float] = {}
        self.kills = 0

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def workers(self) -> list[psutil.Process]:
        assert self._process is not None
        try:
            return psutil.Process(self._process.pid).children()
        except psutil.NoSuchProcess:
            return []

    def cpu_s(self) -> float:
        """CPU time of all its workers so far, including killed ones."""
        for worker in self.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                used = worker.cpu_times()
                self._cpu_s[worker.pid] = used.user + used.system
        return sum(self._cpu_s.values())

    def kill_worker(self) -> None:
        self.cpu_s()
        for worker in self.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
                self.kills += 1

    def kill(self) -> None:
        """Kills the supervisor: its workers see the end of their stdin."""
        assert self._process is not None
        self.cpu_s()
        self._process.kill()
        self._process.wait()
        self.kills += 1

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        assert self._process is not None
        return self._process.wait(timeout_s)

    def stop(self) -> int:
        assert self._process is not None
        self.cpu_s()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(TIMEOUT_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not after {timeout_s:g} s: {what}"
        time.sleep(0.1)


def statuses(bootstrap: str) -> dict[str, dict[str, Any]]:
    said = ottla("connect", "status", "--json", "-b", bootstrap)
    assert said.returncode == 0, said.stderr
    return {each["name"]: each for each in json.loads(said.stdout)}
