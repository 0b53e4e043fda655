"""A cluster of brokers in separate processes, which can be killed one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.protocol.model.group_keys import DEVELOPMENT_DEFAULTS, OFFSETS_REPLICATION_FACTOR
from ottla.testing.broker_process import BrokerProcess

STOP_TIMEOUT_S = 40.0


class ClusterProcesses:
    """Runs `count` brokers with the ids 1, 2, ... They coordinate through SQLite unless `coordination` is given.

        with ClusterProcesses(tmp_path) as cluster:
            cluster.broker(1).kill()
            cluster.broker(1).start()

    `config` has broker settings by Kafka's names. Used as a context manager, it kills the brokers that still run.
    """

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        *,
        coordination: str | None = None,
        config: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        ready_timeout_s: float = 60.0,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.brokers = [
            BrokerProcess(
                directory / f"broker-{number}",
                config={
                    "default.replication.factor": str(min(count, 3)),
                    OFFSETS_REPLICATION_FACTOR: str(min(count, 3)),
                    **DEVELOPMENT_DEFAULTS,
                    **(config or {}),
                    "node.id": str(number),
                    "ottla.coordination": coordination or f"sqlite:{directory / 'coordination'}",
                    "ottla.host.shared": "true",
                },
                arguments=arguments,
                ready_timeout_s=ready_timeout_s,
            )
            for number in range(1, count + 1)
        ]

    @property
    def bootstrap(self) -> str:
        """`host:port,...` of all brokers."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def broker(self, node_id: int) -> BrokerProcess:
        """Returns the broker with this id."""
        return self.brokers[node_id - 1]

    def start(self) -> Self:
        """Starts all brokers in parallel and returns when all of them serve."""
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            list(threads.map(BrokerProcess.start, self.brokers))
        return self

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> list[int]:
        """Stops the running brokers one after the other and returns their exit codes."""
        return [broker.stop(timeout_s) for broker in self.brokers if broker.running]

    def kill(self) -> None:
        """Kills all running brokers."""
        for broker in self.brokers:
            if broker.running:
                broker.kill()

    def log(self) -> str:
        """Returns the logs of all brokers, each with a heading."""
        return "\n".join(f"--- broker {number}\n{broker.log()}" for number, broker in enumerate(self.brokers, 1))

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
