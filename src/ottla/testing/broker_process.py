"""A broker in a separate process, for tests that kill it.

`Cluster` runs inside the test process; this class is for tests that need a real crash. `kill` sends SIGKILL. A later
`start` uses the same port and the same data directory, so connected clients continue.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from ottla.testing.ports import reserve_port

READY = "ottla ready bootstrap="
WAL_PORT = "ottla.wal.port"
POLL_S = 0.005


class BrokerEndedError(Exception):
    """The broker ended, or was not ready in time. The message says how it ended and what it logged last."""

    def __init__(self, sentence: str, exit_code: int | None, log: str) -> None:
        super().__init__(f"{sentence}; it logged:\n{log[-4000:]}")
        self.exit_code = exit_code
        self.log = log


class BrokerProcess:
    """Runs `python -m ottla up` on one data directory. Used as a context manager, it stops the broker cleanly.

    Example:

        with BrokerProcess(tmp_path / "data") as broker:
            ...                # connect to broker.bootstrap
            broker.kill()
            broker.start()     # recovers, on the same port
    """

    def __init__(
        self,
        data: Path,
        *,
        arguments: Sequence[str] = (),
        config: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        ready_timeout_s: float = 30.0,
    ) -> None:
        self.data = data
        self.host = "127.0.0.1"
        self.port = 0
        self.log_path = data.with_name(data.name + ".log")
        self._arguments = list(arguments)
        self._environment = {**os.environ, **(environment or {})}
        self._ready_timeout_s = ready_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._config = dict(config or {})
        self._config_path = data.with_name(data.name + ".properties")

    @property
    def bootstrap(self) -> str:
        """The broker's `host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def wal_server(self) -> str:
        """The address of the append stream, if `ottla.wal.port` is configured; the first start replaces port 0."""
        return f"{self.host}:{self._config[WAL_PORT]}"

    @property
    def pid(self) -> int:
        """The id of the broker's process."""
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def configure(self, name: str, value: str) -> None:
        """Sets a broker setting by Kafka's name. It takes effect at the next start."""
        self._config[name] = value

    def command(self) -> list[str]:
        """Returns the command line, after writing the configuration file that it names."""
        command = [sys.executable, "-m", "ottla", "up", "--brokers", "1"]
        command += ["--port", str(self.port), "--data", str(self.data)]
        if self._config:
            self._config_path.write_text("".join(f"{name}={value}\n" for name, value in self._config.items()))
            command += ["--config", str(self._config_path)]
        return command + self._arguments

    def start(self) -> BrokerProcess:
        """Returns once the broker serves. Restarts keep the first port. Raises BrokerEndedError if it ends."""
        assert not self.running, "the broker is already running"
        self._reserve_ports()
        output_path = self.data.with_name(self.data.name + ".out")
        with output_path.open("wb") as output, self.log_path.open("ab") as log:
            self._process = self._spawn(output, log)
        deadline = time.monotonic() + self._ready_timeout_s
        while time.monotonic() < deadline:
            exit_code = self._process.poll()
            if (line := _ready_line(output_path)) is not None:
                self.host, _, port = line.removeprefix(READY).split(",")[0].rpartition(":")
                self.port = int(port)
                return self
            if exit_code is not None:
                raise BrokerEndedError(f"the broker ended with {exit_code}", exit_code, self.log())
            time.sleep(POLL_S)
        self.kill()
        raise BrokerEndedError(f"the broker was not ready after {self._ready_timeout_s} s", None, self.log())

    def _reserve_ports(self) -> None:
        """Replaces port 0 by ports that stay free while the broker is down."""
        self.port = self.port or reserve_port()
        if self._config.get(WAL_PORT) == "0":
            self._config[WAL_PORT] = str(reserve_port())

    def _spawn(self, output: IO[bytes], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(), stdin=subprocess.DEVNULL, stdout=output, stderr=log, env=self._environment
        )

    def kill(self) -> None:
        """Sends SIGKILL: no shutdown, no flush, no further replies."""
        self._end(signal.SIGKILL, timeout_s=10)

    def stop(self, timeout_s: float = 20) -> int:
        """Sends SIGTERM and returns the exit code. After the timeout, kills the broker and raises BrokerEndedError."""
        try:
            return self._end(signal.SIGTERM, timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerEndedError(f"the broker did not stop in {timeout_s} s", None, self.log()) from None

    def _end(self, number: signal.Signals, timeout_s: float) -> int:
        assert self._process is not None, "the broker was not started"
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait(timeout_s)

    def wait(self, timeout_s: float) -> int:
        """Waits for a broker that ends by itself and returns its exit code."""
        assert self._process is not None, "the broker was not started"
        return self._process.wait(timeout_s)

    def log(self) -> str:
        """Returns what the broker wrote to stderr over all its starts."""
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    def __enter__(self) -> BrokerProcess:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.running:
            self.stop()


def _ready_line(path: Path) -> str | None:
    """Returns the line with the broker's address once it is complete."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        if line.startswith(READY) and line.endswith("\n"):
            return line.strip()
    return None
