"""One or more brokers inside the test process, each on a real port."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from os import PathLike, fspath
from types import TracebackType
from typing import Self

from ottla.broker.app import BrokerSettings
from ottla.broker.app_listeners import BadSettingsError
from ottla.broker.broker import Broker
from ottla.protocol.model.broker_config import BROKER_CONFIGS
from ottla.protocol.model.config_keys import unknown_name
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.foreign_settings import is_unknown
from ottla.protocol.model.group_keys import DEVELOPMENT_DEFAULTS, OFFSETS_REPLICATION_FACTOR
from ottla.testing.broker_thread import BrokerThread
from ottla.testing.groups import GroupWaits

POLL_S = 0.005
TIMEOUT_S = 30.0
REPLICAS_MAX = 3


class TopicRefusedError(Exception):
    """The broker refused to create a topic."""

    def __init__(self, name: str, refused: Refused) -> None:
        super().__init__(f"topic {name!r}: {refused.error.name}: {refused.message or 'refused'}")
        self.error: ErrorCode = refused.error


class Cluster(GroupWaits):
    """A cluster for tests. Use it with `with` or `async with`; it starts when entered.

        with Cluster(brokers=3) as cluster:
            cluster.create_topic("orders", partitions=3)
            cluster.kill(cluster.leader_of("orders"))

    Without a `data_dir`, the data lives in a temporary directory that is removed with the cluster. `storage` is the
    durability of topics that do not set one: `disk`, `cache` or `memory`. `config` has broker settings by Kafka's
    names. With `power_cuts`, `kill` also loses everything that was not yet on stable storage; without it, `kill` loses
    only what a process crash loses. With `wal`, the brokers serve the append stream (`wal_servers`, for `ottla.wal`).

    Several `brokers` get the ids 1, 2, ... Topics get three replicas, or one per broker if there are fewer brokers.
    Each broker can be stopped, killed and restarted by its id. With a `port`, the brokers use that port and the
    following ones.

    The methods block until they are done. This takes milliseconds and is safe in an async test, because the brokers
    have their own event loops. The methods that wait for a group also have async twins, because the group's consumers
    may run on the test's event loop.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        storage: str | None = None,
        data_dir: str | PathLike[str] | None = None,
        port: int = 0,
        config: Mapping[str, str] | None = None,
        power_cuts: bool = False,
        wal: bool = False,
    ) -> None:
        if brokers < 1:
            raise ValueError("a cluster needs at least one broker")
        _check_names(config or {})
        self._data_dir = "" if data_dir is None else fspath(data_dir)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._threads = {
            number: BrokerThread(
                BrokerSettings(
                    data_dir="",
                    host="127.0.0.1",
                    port=port + number - 1 if port else 0,
                    storage=None if storage is None else Durability(storage),
                    properties={
                        **DEVELOPMENT_DEFAULTS,
                        **({"ottla.wal.port": "0"} if wal else {}),
                        **(config or {}),
                    },
                    disk="volatile" if power_cuts else "real",
                ),
                number,
            )
            for number in range(1, brokers + 1)
        }

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,...`; does not change over restarts."""
        return ",".join(thread.address for thread in self._threads.values())

    @property
    def wal_servers(self) -> str:
        """`host:port,...` of the append streams, for `ottla.wal`; does not change over restarts. Needs `wal=True`."""
        ports = [thread.settings.properties.get("ottla.wal.port", "0") for thread in self._threads.values()]
        if "0" in ports:
            raise RuntimeError("the cluster has no append streams: start it with Cluster(wal=True)")
        return ",".join(f"127.0.0.1:{port}" for port in ports)

    @property
    def data_dir(self) -> str:
        """The directory with the data of all brokers."""
        return self._data_dir

    @property
    def is_running(self) -> bool:
        """Whether any broker runs."""
        return bool(self.running_brokers)

    @property
    def broker_ids(self) -> list[int]:
        """The ids of all brokers."""
        return list(self._threads)

    @property
    def running_brokers(self) -> list[int]:
        """The ids of the brokers that run."""
        return [number for number, thread in self._threads.items() if thread.running is not None]

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self, broker_id: int | None = None) -> None:
        """Starts all stopped brokers, or one of them, with the same ports and data as before."""
        if not self._data_dir:
            self._temporary = tempfile.TemporaryDirectory(prefix="ottla-", ignore_cleanup_errors=True)
            self._data_dir = self._temporary.name
        for number, thread in self._threads.items():
            self._place(thread.settings, number)
        starting = [thread for thread in self._chosen(broker_id) if thread.running is None]
        if not starting:
            return
        try:
            with ThreadPoolExecutor(len(starting)) as pool:
                list(pool.map(BrokerThread.start, starting))
        except BaseException:
            for thread in starting:
                thread.kill()
            raise
        count = len(self.running_brokers)
        self._wait_until(
            lambda broker: len(broker.metadata.nodes()) >= count and broker.metadata.controller_id >= 0,
            "know one another",
        )

    def _place(self, settings: BrokerSettings, number: int) -> None:
        if len(self._threads) == 1:
            settings.data_dir = self._data_dir
            return
        settings.data_dir = os.path.join(self._data_dir, f"broker-{number}")
        settings.properties = {
            "default.replication.factor": str(min(len(self._threads), REPLICAS_MAX)),
            OFFSETS_REPLICATION_FACTOR: str(min(len(self._threads), REPLICAS_MAX)),
            **settings.properties,
            "node.id": str(number),
            "ottla.coordination": f"sqlite:{os.path.join(self._data_dir, 'coordination')}",
            "ottla.host.shared": "true",
        }

    def stop(self, broker_id: int | None = None) -> None:
        """Shuts down cleanly: transfers leadership, replies to accepted requests and makes them durable."""
        for thread in self._chosen(broker_id):
            thread.stop()

    def kill(self, broker_id: int | None = None) -> None:
        """Ends all brokers, or one, at once and without flushing. `start` then recovers from what is on disk."""
        for thread in self._chosen(broker_id):
            thread.kill()

    def restart(self, broker_id: int | None = None) -> None:
        """Stops the brokers, or one of them, if they run, and starts them again."""
        self.stop(broker_id)
        self.start(broker_id)

    def close(self) -> None:
        """Stops all brokers and removes the temporary directory."""
        self.stop()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
            self._data_dir = ""

    # -- topics -------------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, *, replication_factor: int = -1, **configs: object) -> None:
        """Creates a topic. Configs are Kafka's with `_` for `.`: `retention_ms=1000`, `cleanup_policy="compact"`."""
        thread, broker = self._any()
        named = {key.replace("_", "."): _config_value(value) for key, value in configs.items()}
        creating = broker.metadata.admin.create_topic(name, partitions, named, replication_factor=replication_factor)
        outcome = thread.call(creating)
        if isinstance(outcome, Refused):
            raise TopicRefusedError(name, outcome)
        self._wait_until(lambda each: each.topics.get(name) is not None, f"know the topic {name!r}")

    def leader_of(self, topic: str, partition: int = 0) -> int | None:
        """Returns the id of the leader, or None while there is none."""
        leader, _ = self._layout(topic, partition)
        return leader if self._runs(leader) else None

    def in_sync(self, topic: str, partition: int = 0) -> list[int]:
        """Returns the ids of the in-sync replicas, including the leader."""
        return list(self._layout(topic, partition)[1])

    def wait_until_in_sync(self, timeout_s: float = TIMEOUT_S) -> None:
        """Waits until every partition has a leader and all replicas in sync. Raises TimeoutError."""

        def is_whole(broker: Broker) -> bool:
            layouts = [layout for topic in broker.topics for layout in topic.layouts]
            return all(
                layout.leader >= 0 and set(layout.isr) == set(layout.replicas) and all(map(self._runs, layout.isr))
                for layout in layouts
            )

        self._wait_until(is_whole, "have all replicas in sync", timeout_s)

    def _layout(self, topic: str, partition: int) -> tuple[int, tuple[int, ...]]:
        thread, broker = self._any()

        async def look() -> tuple[int, tuple[int, ...]] | None:
            found = broker.topics.get(topic)
            layouts = [] if found is None else found.layouts
            return next(((each.leader, each.isr) for each in layouts if each.partition == partition), None)

        layout = thread.call(look())
        if layout is None:
            raise KeyError(f"there is no partition {topic}-{partition}")
        return layout

    # -- the brokers --------------------------------------------------------------------------------------------------

    def _chosen(self, broker_id: int | None) -> list[BrokerThread]:
        if broker_id is None:
            return list(self._threads.values())
        if broker_id not in self._threads:
            raise ValueError(f"there is no broker {broker_id}; there are {', '.join(map(str, self._threads))}")
        return [self._threads[broker_id]]

    def _runs(self, broker_id: int) -> bool:
        """Returns whether the broker runs: others learn of a death a moment later. A single broker may have any id."""
        return broker_id in self.running_brokers or len(self._threads) == 1

    def _any(self) -> tuple[BrokerThread, Broker]:
        for thread in self._threads.values():
            if thread.running is not None:
                return thread, thread.running.broker
        raise RuntimeError("the cluster is not running")

    def _wait_until(self, condition: Callable[[Broker], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
        """Waits until the condition holds on every running broker; a change reaches them at different times."""

        async def holds(broker: Broker) -> bool:
            return condition(broker)

        deadline = time.monotonic() + timeout_s
        for thread in self._threads.values():
            while thread.running is not None and not thread.call(holds(thread.running.broker)):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the brokers do not {what} after {timeout_s:g} s")
                time.sleep(POLL_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


def _config_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_names(config: Mapping[str, str]) -> None:
    """Rejects unknown names: a broker only logs a warning, and nobody reads its log in a test."""
    for name in config:
        if is_unknown(name, BROKER_CONFIGS):
            raise BadSettingsError(unknown_name("broker", name, BROKER_CONFIGS).message)
