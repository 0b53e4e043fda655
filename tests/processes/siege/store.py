"""The coordination store of a siege, which can be made unavailable for a while."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.conformance.coordination.servers import ETCD

HOST = "store"


class Store(Protocol):
    setting: str
    """The value of `ottla.coordination`."""
    is_remote: bool
    """Whether a broker can be isolated from it."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


class SqliteStore:
    """A file. It is made unavailable by a program that holds its lock."""

    is_remote = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "coordination"
        self.setting = f"sqlite:{self._directory}"
        self._holder: sqlite3.Connection | None = None

    def start(self) -> None:
        if self._holder is not None:
            self._holder.execute("ROLLBACK")
            self._holder.close()
            self._holder = None

    def stop(self) -> None:
        if self._holder is None:
            self._holder = sqlite3.connect(self._directory / "coordination.db", isolation_level=None, timeout=30)
            self._holder.execute("BEGIN IMMEDIATE")

    def close(self) -> None:
        self.start()


class EtcdStore:
    """One etcd member that is killed and restarted. Its data survives."""

    is_remote = True

    def __init__(self, directory: Path, address: str, place: Callable[[list[str]], list[str]]) -> None:
        self._directory = directory
        self._url = f"http://{address}:2379"
        self.setting = f"etcd:{address}:2379/siege"
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is not None:
            return
        with (self._directory / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._place(self._command()), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _command(self) -> list[str]:
        peer = self._url.replace("2379", "2380")
        return [
            ETCD, "--name", "one", "--data-dir", str(self._directory / "etcd"), "--log-level", "warn",
            "--listen-client-urls", self._url, "--advertise-client-urls", self._url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}",
            "--auto-compaction-retention", "1h",
        ]  # fmt: skip

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def close(self) -> None:
        self.stop()
