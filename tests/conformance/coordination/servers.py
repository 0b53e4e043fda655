"""etcd and ZooKeeper processes that tests stop, kill and restart on the same ports and data."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ottla.testing.ports import reserve_ports

CACHE = Path(__file__).resolve().parents[3] / ".cache"
ETCD = shutil.which("etcd") or str(CACHE / "etcd" / "usr" / "bin" / "etcd")
ZOOKEEPER_LIBRARIES = CACHE / "zookeeper"
READY_TIMEOUT_S = 30.0

TICK_MS = 200
"""ZooKeeper's tick. Its shortest session is two ticks."""


def why_no_etcd() -> str:
    """Returns why there is no etcd; empty if there is one."""
    return "" if Path(ETCD).exists() else "etcd is not here; scripts/prepare_coordination.py fetches it"


def why_no_zookeeper() -> str:
    if shutil.which("java") is None:
        return "ZooKeeper needs Java, which is not installed"
    if not list(ZOOKEEPER_LIBRARIES.glob("zookeeper-[0-9]*.jar")):
        return "ZooKeeper is not here; scripts/prepare_coordination.py fetches it"
    return ""


class ServerProcess(ABC):
    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def command(self) -> list[str]: ...

    def launch(self) -> None:
        with (self.directory / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self) -> None:
        """Starts the server and returns once it serves."""
        self.launch()
        self.wait_until_ready()

    def is_ready(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.is_ready():
                return
            assert self._process is not None
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError(f"{self.command()[0]} did not start:\n{self.log()[-4000:]}")

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def stop(self) -> None:
        self.end(signal.SIGTERM)

    def end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait(20)

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def log(self) -> str:
        return (self.directory / "log.txt").read_text(errors="replace")


class EtcdServer(ServerProcess):
    """A member of a cluster; `peers` maps the names of all members to their peer ports."""

    def __init__(self, directory: Path, port: int, name: str, peers: dict[str, int]) -> None:
        super().__init__(directory, port)
        self.name = name
        self._peers = {one: f"http://127.0.0.1:{peer}" for one, peer in peers.items()}

    def command(self) -> list[str]:
        return [
            ETCD, "--name", self.name, "--data-dir", str(self.directory / "data"),
            "--listen-client-urls", f"http://{self.address}", "--advertise-client-urls", f"http://{self.address}",
            "--listen-peer-urls", self._peers[self.name], "--initial-advertise-peer-urls", self._peers[self.name],
            "--initial-cluster", ",".join(f"{name}={url}" for name, url in self._peers.items()),
            "--heartbeat-interval", "50", "--election-timeout", "500",
        ]  # fmt: skip


class ZookeeperServer(ServerProcess):
    def is_ready(self) -> bool:
        """Returns whether it serves; it listens before that."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"srvr")
                return b"Mode:" in connection.recv(4096)
        except OSError:
            return False

    def command(self) -> list[str]:
        config = self.directory / "zoo.cfg"
        config.write_text(
            f"tickTime={TICK_MS}\ndataDir={self.directory / 'data'}\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nmaxSessionTimeout=120000\nadmin.enableServer=false\n"
            "4lw.commands.whitelist=srvr\n"
        )
        return [
            "java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m",
            "-cp", f"{ZOOKEEPER_LIBRARIES}{os.sep}*", "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config),
        ]  # fmt: skip


def etcd_cluster(directory: Path, size: int) -> list[EtcdServer]:
    """Returns the members of a cluster, not started yet."""
    ports = reserve_ports(2 * size)
    peers = {f"member-{number}": port for number, port in enumerate(ports[size:])}
    return [EtcdServer(directory / name, port, name, peers) for name, port in zip(peers, ports, strict=False)]


@contextmanager
def running(servers: Sequence[ServerProcess]) -> Iterator[None]:
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_until_ready()
        yield
    finally:
        for server in servers:
            server.kill()
