"""One broker of a siege: a process on its own host and disk that is started without waiting for it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from tests.processes.siege.disks import Disk

LOG_LEVEL = "SIEGE_LOG_LEVEL"
"""Environment variable with the brokers' log level."""
FORMAT = "FORMAT"
"""The first file of a data directory."""
BACKING = ".volatile"
"""Where a volatile disk keeps data without a durable name. A real disk would lose it in a power cut."""


class Node:
    def __init__(
        self,
        number: int,
        host: str,
        ports: tuple[int, int],
        disk: Disk,
        config: Mapping[str, str],
        environment: Mapping[str, str],
        place: Callable[[list[str]], list[str]],
    ) -> None:
        """`ports` are those of the Kafka protocol and of the append stream."""
        self.number = number
        self.host = f"broker-{number}"
        self.address, self.wal_address = (f"{host}:{port}" for port in ports)
        self.disk = disk
        directory = disk.path.parent
        self.log_path = directory / f"{self.host}.log"
        self.slow_file = directory / f"{self.host}.slow"
        self._config_path = directory / f"{self.host}.properties"
        self._config_path.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
        self._environment = {**os.environ, **environment}
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._is_wanted = False
        self.is_volatile = False
        self.is_paused = False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, volatile: bool = False) -> None:
        """Starts the broker and returns at once: a broker that cannot reach its store waits for it."""
        assert not self.running, f"{self.host} is already running"
        subprocess.run(["rm", "-rf", str(self.disk.path / BACKING)], check=True)
        self.is_volatile = volatile
        self._is_wanted = True
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._place(self._command()), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )

    def _command(self) -> list[str]:
        host, _, port = self.address.rpartition(":")
        where = ["--host", host, "--port", port, "--data", str(self.disk.path), "--config", str(self._config_path)]
        kind = ["--disk", "volatile"] if self.is_volatile else []
        level = ["--log-level", os.environ.get(LOG_LEVEL, "info")]
        return [sys.executable, "-m", "ottla", "up", *where, *kind, *level]

    def kill(self) -> None:
        self._is_wanted = False
        if self.running:
            self._signal(signal.SIGKILL)
            assert self._process is not None
            self._process.wait(30)
        self.is_paused = False

    def stop(self, timeout_s: float) -> int | None:
        """Sends SIGTERM and returns the exit code; None if the process does not end."""
        self._is_wanted = False
        assert self._process is not None
        if self.running:
            self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.poll()

    def pause(self) -> None:
        self.is_paused = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.is_paused = False
        self._signal(signal.SIGCONT)

    def slow_down(self, sync_ms: int) -> None:
        written = self.slow_file.with_suffix(".new")
        written.write_text(str(sync_ms))
        written.rename(self.slow_file)

    def speed_up(self) -> None:
        self.slow_file.unlink(missing_ok=True)

    def has_data(self, timeout_s: float) -> bool:
        """Waits until the broker has begun its data directory, which is empty after a disk was replaced."""
        deadline_s = time.monotonic() + timeout_s
        while not (self.disk.path / FORMAT).exists():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.05)
        return True

    def ended_by_itself(self) -> int | None:
        """Returns the exit code of a broker that ended by itself."""
        if not self._is_wanted or self._process is None:
            return None
        return self._process.poll()

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            assert self._process is not None
            self._process.send_signal(number)
