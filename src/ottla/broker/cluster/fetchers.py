"""The replica fetchers of a broker: per incarnation of a followed leader, one for live partitions and one for those
that lag behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.broker.cluster.catch_up import Flush
from ottla.broker.cluster.replica_fetcher import ReplicaFetcher
from ottla.broker.cluster.replication_lanes import CATCH_UP, LIVE, Lane
from ottla.machines.controller.state import Member, Registration
from ottla.net.connection import Address
from ottla.net.security import NO_SECURITY, ConnectionSecurity
from ottla.ports import Allocate, Clock

if TYPE_CHECKING:
    from ottla.broker.cluster.membership import Membership
    from ottla.broker.partition.follower_partition import FollowerPartition
    from ottla.broker.partition.partition import Partition
    from ottla.broker.partition.replication_throttles import ReplicationThrottles


class Fetchers:
    """Assigns followed partitions to fetchers."""

    def __init__(
        self,
        membership: Membership,
        clock: Clock,
        flush: Flush,
        allocate: Allocate,
        throttles: ReplicationThrottles,
        security: ConnectionSecurity = NO_SECURITY,
    ) -> None:
        self._security = security
        self._membership = membership
        self._throttles = throttles
        self._allocate = allocate
        self._flush = flush
        self._clock = clock
        self._by_leader: dict[tuple[Member, Lane], ReplicaFetcher] = {}
        self._by_partition: dict[Partition, ReplicaFetcher] = {}
        self._is_stopped = False

    def follow(self, partition: Partition, leader: Registration) -> None:
        """Starts to fetch a partition from its leader."""
        if self._is_stopped:
            return
        self.drop_idle()
        following = partition.following
        assert following is not None
        self._follow_in_lane(partition, following, leader.member, Address(*leader.inter_broker_address))

    def _follow_in_lane(
        self, partition: Partition, following: FollowerPartition, leader: Member, address: Address
    ) -> None:
        lane = CATCH_UP if following.lag.is_lagging else LIVE
        fetcher = self._by_partition[partition] = self._lane_of(leader, address, lane)
        fetcher.follow(partition)

    def _lane_of(self, leader: Member, address: Address, lane: Lane) -> ReplicaFetcher:
        fetcher = self._by_leader.get((leader, lane))
        if fetcher is None:
            me = self._membership.member
            assert me is not None
            fetcher = ReplicaFetcher(
                self._clock,
                address,
                me,
                self._throttles,
                lane,
                self._change_lane,
                self._flush,
                self._allocate,
                self._security,
            )
            self._by_leader[leader, lane] = fetcher
        return fetcher

    def _change_lane(self, partition: Partition) -> None:
        """Moves a partition that has become live or lagging to the other lane. No request for it is in flight."""
        following, fetcher = partition.following, self.of(partition)
        if following is None or fetcher is None or fetcher.member != self._membership.member or self._is_stopped:
            return
        fetcher.leave(partition)
        self._follow_in_lane(partition, following, following.leader_member, fetcher.address)

    def of(self, partition: Partition) -> ReplicaFetcher | None:
        """Returns the fetcher that serves a partition, if any."""
        return self._by_partition.get(partition)

    def leave(self, partition: Partition) -> None:
        """Stops fetching a partition."""
        fetcher = self._by_partition.pop(partition, None)
        if fetcher is not None:
            fetcher.leave(partition)

    def on_acknowledged(self, partition: Partition) -> None:
        """Notes that the local log has acknowledged more."""
        fetcher = self._by_partition.get(partition)
        if fetcher is not None:
            fetcher.on_acknowledged(partition)

    def on_in_sync(self, partition: Partition) -> None:
        """Notes that this replica has joined the ISR."""
        fetcher = self._by_partition.get(partition)
        if fetcher is not None:
            fetcher.on_in_sync(partition)

    def drop_idle(self) -> None:
        """Stops fetchers that have no partitions or belong to an earlier incarnation of this broker."""
        me = self._membership.member
        for key, fetcher in list(self._by_leader.items()):
            if fetcher.is_idle or fetcher.member != me:
                del self._by_leader[key]
                asyncio.ensure_future(fetcher.stop())  # noqa: RUF006 # it ends by itself, and nothing waits for it

    async def stop(self) -> None:
        """Stops all fetchers for good. Leaders may change while the fetchers end one by one; nothing is fetched from
        the new ones."""
        self._is_stopped = True
        while self._by_leader:
            _, fetcher = self._by_leader.popitem()
            await fetcher.stop()
