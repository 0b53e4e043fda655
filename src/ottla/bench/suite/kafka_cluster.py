"""Runs Apache Kafka in separate processes: KRaft, one or three combined brokers and controllers, small heaps."""

from __future__ import annotations

import base64
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.bench.leaders import any_broker, ask_leaders
from ottla.bench.processes import ending_with_us
from ottla.bench.suite.kafka_jars import KafkaUnavailableError, kafka_libraries, require_java
from ottla.testing.ports import reserve_ports

READY_S = 180.0
JVM_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
"""The options of Kafka's own start script."""


class KafkaCluster:
    """An Apache Kafka cluster. As a context manager, it kills the processes at the end."""

    def __init__(self, directory: Path, count: int, *, heap_mb: int, config: Mapping[str, str]) -> None:
        self._directory = directory
        self._heap_mb = heap_mb
        self._java = require_java()
        self._libraries = kafka_libraries()
        ports = reserve_ports(2 * count)
        self._ports, controllers = ports[:count], ports[count:]
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(controllers, 1))
        self.settings = [
            node_settings(node, self._ports[node - 1], controllers[node - 1], voters, count, directory) | dict(config)
            for node in range(1, count + 1)
        ]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, separated by commas."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the brokers."""
        return tuple(process.pid for process in self._processes)

    @property
    def jvm_options(self) -> list[str]:
        """The options of each broker's JVM, heap included."""
        return [*JVM_OPTIONS, f"-Xms{self._heap_mb}m", f"-Xmx{self._heap_mb}m"]

    def format(self) -> None:
        """Formats the storage, as an operator does once before the first start."""
        self._directory.mkdir(parents=True, exist_ok=True)
        cluster_id = new_cluster_id(os.urandom)
        for node, settings in enumerate(self.settings, 1):
            text = "".join(f"{name}={value}\n" for name, value in settings.items())
            self._settings_path(node).write_text(text, encoding="utf-8")
        with ThreadPoolExecutor(len(self.settings)) as threads:
            list(threads.map(lambda node: self._format_node(node, cluster_id), range(1, len(self.settings) + 1)))

    def _format_node(self, node: int, cluster_id: str) -> None:
        command = self._command("kafka.tools.StorageTool", "-Xmx128m")
        command += ["format", "-t", cluster_id, "-c", str(self._settings_path(node))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KafkaUnavailableError(
                f"Kafka's storage could not be formatted: {(done.stderr or done.stdout)[-500:]}"
            )

    def start(self) -> Self:
        """Starts the brokers and waits until all of them are in the metadata."""
        for node in range(1, len(self.settings) + 1):
            command = [*self._command("kafka.Kafka", *self.jvm_options), str(self._settings_path(node))]
            with self._log_path(node).open("ab") as log:
                process = subprocess.Popen(ending_with_us(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            self._processes.append(process)
        deadline = time.monotonic() + READY_S
        while not self._is_ready():
            ended = [process.poll() for process in self._processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                reason = f"a broker ended with {ended[0]}" if ended else f"not ready after {READY_S:.0f} s"
                raise KafkaUnavailableError(f"Apache Kafka did not start: {reason}; it logged {self.log()[-2000:]}")
            time.sleep(0.05)
        return self

    def _is_ready(self) -> bool:
        for port in self._ports:
            try:
                with any_broker(f"127.0.0.1:{port}") as caller:
                    if len(ask_leaders(caller, []).addresses) < len(self._ports):
                        return False
            except OSError:
                return False
        return True

    def log(self) -> str:
        """Returns what all brokers have logged."""
        paths = [self._log_path(node) for node in range(1, len(self.settings) + 1)]
        return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in paths if path.exists())

    def _command(self, main: str, *options: str) -> list[str]:
        return [self._java, *options, "-cp", f"{self._libraries}/*", main]

    def _settings_path(self, node: int) -> Path:
        return self._directory / f"kafka-{node}.properties"

    def _log_path(self, node: int) -> Path:
        return self._directory / f"kafka-{node}.log"

    def kill(self) -> None:
        """Kills the brokers and waits for their ends. Their data stays."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def __enter__(self) -> Self:
        try:
            self.format()
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def new_cluster_id(random_bytes: Callable[[int], bytes]) -> str:
    """Returns a cluster id as Kafka does: never with a leading hyphen, which its own tools would take for an option."""
    while (found := base64.urlsafe_b64encode(random_bytes(16)).decode().rstrip("=")).startswith("-"):
        pass
    return found


def node_settings(
    node: int, port: int, controller_port: int, voters: str, count: int, directory: Path
) -> dict[str, str]:
    """Returns Kafka's defaults, except for settings that a cluster of this size requires."""
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(directory / f"data-{node}"),
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": str(count),
        "transaction.state.log.replication.factor": str(count),
        "transaction.state.log.min.isr": str(count // 2 + 1),
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
    }
