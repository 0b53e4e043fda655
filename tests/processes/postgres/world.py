"""Three brokers, a connector and a PostgreSQL server, each a process that tests kill."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.client import Admin
from ottla.testing.cluster_processes import ClusterProcesses
from ottla.testing.ports import reserve_ports
from tests.support.postgres_server import PostgresServer, unprivileged

SETTINGS = {
    "synchronous_standby_names": "ottla",
    "max_slot_wal_keep_size": "1GB",
    "shared_buffers": "32MB",
    "max_wal_size": "128MB",
    "wal_sender_timeout": "20s",
    "log_min_messages": "warning",
}
SESSION_MS = 6000
LOG = "bank-wal"


class WalBrokers(ClusterProcesses):
    """Brokers whose append streams keep their ports across restarts."""

    def __init__(self, directory: Path, count: int = 3, config: dict[str, str] | None = None) -> None:
        super().__init__(directory, count, config=config, ready_timeout_s=240)
        self.wal_ports = reserve_ports(count)
        for broker, port in zip(self.brokers, self.wal_ports, strict=True):
            broker.configure("ottla.wal.port", str(port))

    @property
    def wal_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.wal_ports)


class Connector:
    """`ottla connect postgres-wal` as a process."""

    def __init__(self, url: str, wal_servers: str, log_path: Path, *options: str) -> None:
        command = [sys.executable, "-m", "ottla", "connect", "postgres-wal", url, "--wal", wal_servers, "--log", LOG]
        self._log_path = log_path
        with log_path.open("ab") as log:
            self._process = subprocess.Popen([*command, *options], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def kill(self) -> None:
        if self.running:
            self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        self._process.terminate()
        return self._process.wait(20)


class World:
    """Brokers, connector and server. The first server is new, each later one restored. Removes everything at exit."""

    def __init__(self, directory: Path, durability: str = "disk") -> None:
        self.directory = directory
        self.durability = durability
        self.store = directory / "backups"
        session = {"broker.session.timeout.ms": str(SESSION_MS)}
        self.brokers = WalBrokers(directory / "brokers", config=session)
        self.server = PostgresServer(settings=SETTINGS, initdb=["--data-checksums"])
        self.connector: Connector | None = None

    @property
    def binaries(self) -> Path:
        return self.server.binaries

    def connect(self) -> None:
        """Starts a connector for the current server."""
        options = ["--durability", self.durability, "--replicas", "3"]
        path = self.directory / "connector.log"
        self.connector = Connector(self.server.url, self.brokers.wal_servers, path, *options)

    def has_all_replicas(self) -> bool:
        """Returns whether every replica has the whole log. In memory, a second broker may die only then."""

        async def ask() -> bool:
            async with Admin(self.brokers.bootstrap) as admin:
                return len((await admin.describe_topic(LOG)).partitions[0].isr) == len(self.brokers.brokers)

        return asyncio.run(ask())

    def backup(self, *options: str) -> None:
        self._ottla("backup", "postgres", self.server.url, *options)

    def restore(self, *options: str, settings: dict[str, str] | None = None) -> PostgresServer:
        """Returns another server, built from the newest backup and the log, not started."""
        restored = PostgresServer(settings={**SETTINGS, "hot_standby": "off", **(settings or {})})
        owner = unprivileged().file_owner
        self._ottla("restore", "postgres", "--to", restored.data_dir, "--server-user", owner, *options)
        return restored

    def _ottla(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "ottla", *arguments, "--store", str(self.store)]
        command += ["--wal", self.brokers.wal_servers, "--log", LOG]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, f"{' '.join(arguments[:2])} failed:\n{done.stdout}{done.stderr}"
        return done.stdout

    def lose_server(self) -> None:
        """Destroys the server and its disk."""
        self.server.kill()
        shutil.rmtree(self.server.home)

    def close(self) -> None:
        if self.connector is not None:
            self.connector.kill()
        self.server.close()
        self.brokers.kill()

    def __enter__(self) -> Self:
        try:
            self.brokers.start()
            self.server.initialize()
            # Commits do not wait until there is a receiver of WAL.
            self.server.settings["synchronous_standby_names"] = ""
            self.server.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
