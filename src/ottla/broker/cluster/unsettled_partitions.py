"""The led partitions whose ISR may have to change without another event: a follower falls behind, or may join."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.partition.follower_sessions import FollowerSessions
from ottla.machines.replication import LeaderReplication
from ottla.ports import Clock

if TYPE_CHECKING:
    from ottla.broker.partition.partition import Partition


class UnsettledPartitions:
    """Checks the ISRs of unsettled partitions periodically. A partition leaves the list when it is settled, and returns
    when it gets records or when a replica outside its ISR fetches."""

    def __init__(self, clock: Clock, followers: FollowerSessions, check_isr: Callable[[Partition], None]) -> None:
        self._clock = clock
        self._followers = followers
        self._check_isr = check_isr
        self._partitions: dict[Partition, LeaderReplication] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, partition: Partition) -> None:
        """Adds a partition that this broker leads."""
        leading = partition.leading
        if leading is not None and len(partition.placement.replicas) > 1:
            leading.on_unsettled = partial(self._on_unsettled, partition, leading)
            self._partitions[partition] = leading

    def check(self) -> None:
        """Checks the ISR of each partition in the list, and removes those that are settled."""
        now_ms = self._clock.monotonic_ms()
        for partition, leading in list(self._partitions.items()):
            if partition.leading is not leading:
                del self._partitions[partition]
                continue
            self._check_isr(partition)
            if leading.settle(now_ms):
                del self._partitions[partition]
            elif leading.is_joined_soon(now_ms):
                # The next fetch of its session shows that the follower is still alive and caught up.
                partition.watches.mark_replicas()

    def _on_unsettled(self, partition: Partition, leading: LeaderReplication) -> None:
        """Handles an append to a partition whose ISR had everything, or a fetch by another replica. An idle follower's
        last fetch tells how long it has been silent (safety: isr-changes)."""
        for broker_id, broker_epoch in leading.isr.items():
            leading.on_follower_alive(broker_id, broker_epoch, self._followers.heard_ms(broker_id, broker_epoch))
        self._partitions[partition] = leading
