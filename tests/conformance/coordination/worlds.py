"""The stores under test. A world is an empty store with as many clients as a test needs."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from ottla.broker.adapters.clock import RealClock
from ottla.coordination.etcd import EtcdCoordination
from ottla.coordination.etcd.endpoints import Endpoints, unary
from ottla.coordination.port import Committed, Coordination, Put
from ottla.coordination.sqlite import History, SqliteCoordination
from ottla.coordination.zookeeper import ZookeeperCoordination
from ottla.ports import Clock
from ottla.protocol.wire.protobuf_messages import Message, integer
from ottla.sim.clock import SimClock
from ottla.sim.coordination import SimCoordination

HISTORY_MAX = 20
"""History limit of clients, where the limit is a setting of the client."""

TURNS = 20
"""Iterations of asyncio's loop after which all tasks wait for time to pass."""


class World(ABC):
    ttl_ms: int
    """Approximately the shortest lease that this store grants."""

    def __init__(self) -> None:
        self.clock: Clock = RealClock(asyncio.get_running_loop())
        self._clients: list[Coordination] = []

    async def client(self) -> Coordination:
        client = await self._connect()
        self._clients.append(client)
        return client

    async def sleep(self, ms: float) -> None:
        await asyncio.sleep(ms / 1000)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    @abstractmethod
    async def _connect(self) -> Coordination: ...

    @abstractmethod
    async def forget_history(self) -> None:
        """Discards the history, so that watches from an older revision than the current one are too late."""


class SqliteWorld(World):
    ttl_ms = 500

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory

    async def _connect(self) -> Coordination:
        return await SqliteCoordination.open(str(self.directory), self.clock)

    async def forget_history(self) -> None:
        short = History(revisions_max=HISTORY_MAX)
        client = await SqliteCoordination.open(str(self.directory), self.clock, history=short)
        await write_past_history(client)
        await client.close()


@dataclass
class CompactionRequest(Message):
    revision: int = integer(1)


class EtcdWorld(World):
    ttl_ms = 1000

    def __init__(self, addresses: Sequence[str]) -> None:
        super().__init__()
        self.addresses = addresses
        self.cluster = uuid4().hex

    async def _connect(self) -> EtcdCoordination:
        return await EtcdCoordination.open(self.addresses, self.cluster, self.clock)

    async def forget_history(self) -> None:
        client = await self._connect()
        outcome = await client.commit([], [Put("unrelated", b"")])
        assert isinstance(outcome, Committed)
        await client.close()
        endpoints = Endpoints(self.addresses, None, 5.0)
        await endpoints.send(unary("/etcdserverpb.KV/Compact", CompactionRequest(outcome.revision), Message))
        await endpoints.close()


class ZookeeperWorld(World):
    ttl_ms = 800

    def __init__(self, hosts: str) -> None:
        super().__init__()
        self.hosts = hosts
        self.cluster = uuid4().hex

    async def _connect(self) -> Coordination:
        return await ZookeeperCoordination.open(self.hosts, self.cluster, self.clock)

    async def forget_history(self) -> None:
        client = await ZookeeperCoordination.open(self.hosts, self.cluster, self.clock, history_max=HISTORY_MAX)
        await write_past_history(client)
        await client.close()


class SimStoreWorld(World):
    """A store on virtual time, which advances whenever nothing else can happen."""

    ttl_ms = 5000

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.clock = self._virtual = SimClock()
        self.store = SimCoordination(self.clock, seed=seed)
        self.store.faults.delay_ms = (0.1, 20.0)
        self.store.faults.watch_lag_ms = (0.1, 100.0)
        self._pump = asyncio.create_task(self._let_time_pass())

    async def _connect(self) -> Coordination:
        return self.store.client(self.clock, name=f"client-{len(self._clients)}")

    async def sleep(self, ms: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        self.clock.call_later(ms, lambda: woken.set_result(None))
        await woken

    async def forget_history(self) -> None:
        self.store.forget_history()

    async def close(self) -> None:
        await super().close()
        self._pump.cancel()

    async def _let_time_pass(self) -> None:
        while True:
            for _ in range(TURNS):
                self._virtual.run_until_idle()
                await asyncio.sleep(0)
            due_ms = self._virtual.next_timer_ms()
            if due_ms is not None:
                self._virtual.advance(due_ms - self._virtual.monotonic_ms())


async def write_past_history(client: Coordination) -> None:
    for number in range(HISTORY_MAX + 2):
        await client.commit([], [Put("unrelated", b"%d" % number)])
