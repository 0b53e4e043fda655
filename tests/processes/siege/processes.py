"""The clients of a siege, each a process, and the final reader."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.processes.siege.history import SUFFIX

PACKAGE = "tests.processes.siege"
WRITERS = ("librdkafka", "kafka-python", "aiokafka", "ottla")
READERS = ("librdkafka", "aiokafka", "ottla")
WRITERS_END_S = 180.0
READERS_END_S = 60.0


class Clients:
    def __init__(self, directory: Path, bootstrap: str, partitions: Sequence[tuple[str, int]], seed: str) -> None:
        self._directory = directory
        self._bootstrap = bootstrap
        self._places = [f"{topic}:{index}" for topic, index in partitions]
        self._seed = seed
        self._writers: list[subprocess.Popen[bytes]] = []
        self._readers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for number, client in enumerate(WRITERS, 1):
            seed = f"{self._seed} writer {number}"
            path = self._path(f"writer-{client}")
            self._writers.append(self._spawn("writer", client, self._bootstrap, str(number), path, seed))
        for client in READERS:
            seed = f"{self._seed} reader {client}"
            path = self._path(f"reader-{client}")
            self._readers.append(self._spawn("reader", client, self._bootstrap, path, seed, "follow"))

    def wait_until_writing(self, timeout_s: float) -> None:
        """Waits until each writer has an acknowledgement and each reader a record: faults before that show nothing."""
        deadline_s = time.monotonic() + timeout_s
        wanted = [(f"writer-{client}", "\tok\t") for client in WRITERS]
        wanted += [(f"reader-{client}", "\tpoll\t") for client in READERS]
        while wanted and time.monotonic() < deadline_s:
            time.sleep(0.2)
            wanted = [(name, word) for name, word in wanted if word not in self._written(name)]
        if wanted:
            raise TimeoutError(f"nothing happened in {timeout_s:.0f} s at {', '.join(name for name, _ in wanted)}")

    def _written(self, name: str) -> str:
        path = Path(self._path(name))
        return path.read_text(encoding="ascii") if path.exists() else ""

    def stop_writers(self) -> None:
        """Stops the writers; afterwards every record has its outcome."""
        _end(self._writers, WRITERS_END_S)

    def stop_readers(self) -> None:
        _end(self._readers, READERS_END_S)

    def read_to_the_end(self, client: str, timeout_s: float) -> bool:
        """Returns False if the final reader did not reach the end in time."""
        process = self._spawn("reader", client, self._bootstrap, self._path(f"final-{client}"), self._seed, "final")
        try:
            return process.wait(timeout_s) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return False

    def dead(self) -> list[str]:
        """Returns clients that ended by themselves, which is a bug of the siege."""
        return [str(process.args) for process in (*self._writers, *self._readers) if process.poll() is not None]

    def kill(self) -> None:
        for process in (*self._writers, *self._readers):
            if process.poll() is None:
                process.kill()
                process.wait()

    def _path(self, name: str) -> str:
        return str(self._directory / f"{name}{SUFFIX}")

    def _spawn(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"{PACKAGE}.{module}", *arguments, *self._places]
        with (self._directory / "clients.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _end(processes: list[subprocess.Popen[bytes]], timeout_s: float) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    processes.clear()
