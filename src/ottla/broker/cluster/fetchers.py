"""The replica fetchers of a broker: one for each incarnation of a broker that leads something followed here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.broker.cluster.replica_fetcher import ReplicaFetcher
from ottla.client.connection import Address
from ottla.machines.controller.state import Member, Registration
from ottla.ports import Clock

if TYPE_CHECKING:
    from ottla.broker.cluster.membership import Membership
    from ottla.broker.partition import Partition


class Fetchers:
    def __init__(self, membership: Membership, clock: Clock) -> None:
        self._membership = membership
        self._clock = clock
        self._by_leader: dict[Member, ReplicaFetcher] = {}

    def follow(self, partition: Partition, leader: Registration) -> None:
        self.drop_idle()
        fetcher = self._by_leader.get(leader.member)
        if fetcher is None:
            me = self._membership.member
            assert me is not None
            fetcher = ReplicaFetcher(self._clock, Address(leader.host, leader.port), *me)
            self._by_leader[leader.member] = fetcher
        fetcher.follow(partition)

    def leave(self, partition: Partition) -> None:
        fetcher = self._of(partition)
        if fetcher is not None:
            fetcher.leave(partition)

    def on_acknowledged(self, partition: Partition) -> None:
        fetcher = self._of(partition)
        if fetcher is not None:
            fetcher.on_acknowledged(partition)

    def _of(self, partition: Partition) -> ReplicaFetcher | None:
        return self._by_leader.get(partition.following.leader_member) if partition.following is not None else None

    def drop_idle(self) -> None:
        me = self._membership.member
        for member, fetcher in list(self._by_leader.items()):
            if fetcher.is_idle or fetcher.member != me:
                del self._by_leader[member]
                asyncio.ensure_future(fetcher.stop())  # noqa: RUF006 # it ends by itself, and nobody waits for it

    async def stop(self) -> None:
        for fetcher in self._by_leader.values():
            await fetcher.stop()
