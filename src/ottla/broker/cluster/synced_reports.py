"""A follower's reports of its synced ends to the leader, sent beside the fetch that is parked there
(safety: synced-ends)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from ottla.machines.controller.state import Member
from ottla.ports import Clock
from ottla.protocol.wire.synced_ends import API_KEY, SyncedEnd, encode_acknowledged

if TYPE_CHECKING:
    from ottla.broker.partition.partition import Partition
    from ottla.net.connection import Connection

Key = tuple[UUID, int]
REPORT_ALL_MS = 500.0


class SyncedReports:
    """The reports on one connection to a leader."""

    def __init__(self, clock: Clock, member: Member) -> None:
        self._clock = clock
        self._member = member
        self._due: dict[Key, Partition] = {}
        self._is_scheduled = False
        self._all_at_ms = 0.0
        self.connection: Connection | None = None

    def note(self, key: Key, partition: Partition) -> None:
        """Adds a partition to the next report."""
        self._due[key] = partition

    def forget(self, key: Key) -> None:
        """Removes a partition from the next report."""
        self._due.pop(key, None)

    def start_over(self) -> None:
        """Makes the next repetition due at once, because a new leader connection has to hear everything."""
        self._all_at_ms = 0.0

    def repeat_all(self, followed: Mapping[Key, Partition]) -> None:
        """Repeats all synced ends periodically, after a fetch by which the leader can validate them. Reports have no
        reply, and a leader that does not know this incarnation yet drops them."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._all_at_ms:
            self._all_at_ms = now_ms + REPORT_ALL_MS
            self._due.update(followed)

    def send_soon(self) -> None:
        """Schedules a report. All ends noted in one iteration of the event loop are sent in one message."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._clock.call_soon(self.send)

    def send(self) -> None:
        """Sends the noted ends now."""
        self._is_scheduled = False
        connection = self.connection
        if connection is None or not connection.is_open:
            return  # the next connection repeats all ends
        entries = [
            SyncedEnd(topic_id, index, partition.following.leader_epoch, partition.log.acknowledged_end)
            for (topic_id, index), partition in self._due.items()
            if partition.following is not None
        ]
        self._due.clear()
        if entries:
            connection.send_unanswered(API_KEY, 0, [encode_acknowledged(*self._member, entries)])
