"""Three brokers, of Ottla or of Apache Kafka, that tests kill and restart.

Runs on Apache Kafka show that the harness expects Kafka's behaviour and not Ottla's.
"""

from __future__ import annotations

import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

from ottla.testing.cluster_processes import ClusterProcesses
from ottla.testing.ports import reserve_ports

BROKERS = 3
BROKER_SESSION_MS = 3000
START_S = 60.0
STOP_S = 60.0


def group_settings(session_ms: int) -> dict[str, str]:
    """Settings with sessions short enough to wait for."""
    return {
        "group.min.session.timeout.ms": "1000",
        "group.initial.rebalance.delay.ms": "200",
        "group.consumer.session.timeout.ms": str(session_ms),
        "group.consumer.heartbeat.interval.ms": str(session_ms // 6),
        "offsets.topic.num.partitions": "12",
        "offsets.topic.replication.factor": str(BROKERS),
        "broker.session.timeout.ms": str(BROKER_SESSION_MS),
    }


class World(Protocol):
    bootstrap: str

    def pid(self, node_id: int) -> int: ...

    def kill(self, node_id: int) -> None: ...

    def stop(self, node_id: int) -> None:
        """Stops a broker in order."""

    def start(self, node_id: int) -> None: ...

    def close(self) -> list[str]:
        """Ends all brokers; returns the problems with how they ended."""


class OttlaWorld:
    def __init__(self, directory: Path, session_ms: int, config: Mapping[str, str] | None = None) -> None:
        self._cluster = ClusterProcesses(directory, BROKERS, config={**group_settings(session_ms), **(config or {})})
        try:
            self._cluster.start()
        except BaseException:
            self._cluster.kill()
            raise
        self.bootstrap = self._cluster.bootstrap

    def pid(self, node_id: int) -> int:
        return self._cluster.broker(node_id).pid

    def kill(self, node_id: int) -> None:
        self._cluster.broker(node_id).kill()

    def stop(self, node_id: int) -> None:
        code = self._cluster.broker(node_id).stop(STOP_S)
        assert code == 0, f"broker {node_id} ended with {code}"

    def start(self, node_id: int) -> None:
        self._cluster.broker(node_id).start()

    def close(self) -> list[str]:
        try:
            codes = self._cluster.stop(STOP_S)
        finally:
            self._cluster.kill()
        wrong = [f"brokers ended with {codes}"] if any(codes) else []
        log = self._cluster.log()
        if "Traceback" in log:
            at = log.index("Traceback")
            wrong.append(f"a broker logged {log[at : at + 3000]}")
        return wrong


class KafkaWorld:
    """Apache Kafka from a folder with its jars: each process is a broker and a controller."""

    def __init__(self, directory: Path, session_ms: int, jars: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._jars = jars
        ports = reserve_ports(2 * BROKERS)
        self._ports = dict(enumerate(ports[:BROKERS], 1))
        self._controllers = dict(enumerate(ports[BROKERS:], 1))
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self._ports.values())
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        for node_id in self._ports:
            self._settings(node_id).write_text(self._properties(node_id, session_ms), encoding="utf-8")
            self._java("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._settings(node_id))).wait()
        for node_id in self._ports:
            self._processes[node_id] = self._java("kafka.Kafka", str(self._settings(node_id)))
        for node_id in self._ports:
            self._wait_for(node_id)

    def _settings(self, node_id: int) -> Path:
        return self._directory / f"broker-{node_id}.properties"

    def _properties(self, node_id: int, session_ms: int) -> str:
        own = self._ports[node_id]
        settings = group_settings(session_ms) | {
            "process.roles": "broker,controller",
            "node.id": str(node_id),
            "controller.quorum.voters": ",".join(
                f"{each}@127.0.0.1:{port}" for each, port in self._controllers.items()
            ),
            "listeners": f"PLAINTEXT://127.0.0.1:{own},CONTROLLER://127.0.0.1:{self._controllers[node_id]}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{own}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._directory / f"broker-{node_id}"),
            "min.insync.replicas": "2",
            "group.consumer.min.session.timeout.ms": "1000",
            "group.consumer.min.heartbeat.interval.ms": "100",
            "broker.heartbeat.interval.ms": "500",
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        flags = ["-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        log: IO[bytes]
        with (self._directory / "kafka.log").open("ab") as log:
            return subprocess.Popen(
                ["java", *flags, "-cp", f"{self._jars}/*", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _wait_for(self, node_id: int) -> None:
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            try:
                socket.create_connection(("127.0.0.1", self._ports[node_id]), 1).close()
                return
            except OSError:
                time.sleep(0.2)
        raise TimeoutError(f"broker {node_id} of Apache Kafka does not listen after {START_S} s")

    def pid(self, node_id: int) -> int:
        return self._processes[node_id].pid

    def kill(self, node_id: int) -> None:
        self._processes[node_id].kill()
        self._processes[node_id].wait()

    def stop(self, node_id: int) -> None:
        self._processes[node_id].terminate()
        self._processes[node_id].wait(STOP_S)

    def start(self, node_id: int) -> None:
        self._processes[node_id] = self._java("kafka.Kafka", str(self._settings(node_id)))
        self._wait_for(node_id)

    def close(self) -> list[str]:
        for process in self._processes.values():
            process.kill()
            process.wait()
        return []
