"""The coordination store of a siege, which can be made unavailable for a while."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.conformance.coordination.servers import ETCD, ZOOKEEPER_LIBRARIES

HOST = "store"
ZOOKEEPER_TICK_MS = 500


class Store(Protocol):
    is_remote: bool
    """Whether a broker can be isolated from it."""

    @property
    def setting(self) -> str:
        """The value of `ottla.coordination`."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


class SqliteStore:
    """A file. It is made unavailable by a program that holds its lock."""

    is_remote = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "coordination"
        self._holder: sqlite3.Connection | None = None

    @property
    def setting(self) -> str:
        return f"sqlite:{self._directory}"

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


Place = Callable[[list[str]], list[str]]
"""Returns the command that runs a command on the host of the store."""


class ServerStore:
    """One server that is killed and restarted. Its data survives."""

    is_remote = True
    name: str

    def __init__(self, directory: Path, address: str, place: Place) -> None:
        self._directory = directory
        self._address = address
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def setting(self) -> str:
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        if self._process is not None:
            return
        with (self._directory / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._place(self._command()), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def close(self) -> None:
        self.stop()


class EtcdStore(ServerStore):
    name = "etcd"

    @property
    def setting(self) -> str:
        return f"etcd:{self._address}:2379/siege"

    def _command(self) -> list[str]:
        url, peer = (f"http://{self._address}:{port}" for port in (2379, 2380))
        return [
            ETCD, "--name", "one", "--data-dir", str(self._directory / "etcd"), "--log-level", "warn",
            "--listen-client-urls", url, "--advertise-client-urls", url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}",
            "--auto-compaction-retention", "1h",
        ]  # fmt: skip


class ZookeeperStore(ServerStore):
    name = "zookeeper"

    @property
    def setting(self) -> str:
        return f"zookeeper:{self._address}:2181/siege"

    def _command(self) -> list[str]:
        config = self._directory / "zoo.cfg"
        config.write_text(
            f"tickTime={ZOOKEEPER_TICK_MS}\ndataDir={self._directory / 'zookeeper'}\nclientPort=2181\n"
            f"clientPortAddress={self._address}\nmaxClientCnxns=0\nadmin.enableServer=false\n"
        )
        return [
            "java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m",
            "-cp", f"{ZOOKEEPER_LIBRARIES}{os.sep}*", "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config),
        ]  # fmt: skip
