"""Opens a client in any process of these tests, by the kind and the place of the store."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from ottla.broker.adapters.clock import RealClock
from ottla.coordination.etcd import EtcdCoordination
from ottla.coordination.port import Coordination
from ottla.coordination.sqlite import SqliteCoordination
from ottla.coordination.zookeeper import ZookeeperCoordination


class Place(NamedTuple):
    """`where` is a directory, or addresses separated by commas."""

    kind: str
    where: str
    cluster: str = "cluster"

    async def client(self, request_timeout_ms: int = 5000) -> Coordination:
        clock = RealClock(asyncio.get_running_loop())
        match self.kind:
            case "sqlite":
                return await SqliteCoordination.open(self.where, clock, request_timeout_ms=request_timeout_ms)
            case "etcd":
                return await EtcdCoordination.open(
                    self.where.split(","), self.cluster, clock, request_timeout_ms=request_timeout_ms
                )
            case _:
                return await ZookeeperCoordination.open(
                    self.where, self.cluster, clock, request_timeout_ms=request_timeout_ms
                )
