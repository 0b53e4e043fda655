"""A follower tells its leader how far its logs are synced, beside the fetch that waits there (SAFETY 14)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from ottla.machines.controller.state import Member
from ottla.ports import Clock
from ottla.wire.replica_acknowledged import API_KEY, Acknowledged, encode_acknowledged

if TYPE_CHECKING:
    from ottla.broker.partition import Partition
    from ottla.client.connection import Connection

Key = tuple[UUID, int]
REPORT_ALL_MS = 500.0


class SyncedReports:
    """Of one connection to a leader."""

    def __init__(self, clock: Clock, member: Member) -> None:
        self._clock = clock
        self._member = member
        self._due: dict[Key, Partition] = {}
        self._is_scheduled = False
        self._all_at_ms = 0.0
        self.connection: Connection | None = None

    def note(self, key: Key, partition: Partition) -> None:
        """For the next report."""
        self._due[key] = partition

    def forget(self, key: Key) -> None:
        self._due.pop(key, None)

    def start_over(self) -> None:
        """With a new connection everything is told again."""
        self._all_at_ms = 0.0

    def repeat_all(self, followed: Mapping[Key, Partition]) -> None:
        """A report has no answer, and a leader that has not heard of this incarnation yet drops it: now and then all
        ends are told again, behind a fetch that the leader can measure them by."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._all_at_ms:
            self._all_at_ms = now_ms + REPORT_ALL_MS
            self._due.update(followed)

    def send_soon(self) -> None:
        """All of one turn of the loop leave in one message."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._clock.call_soon(self.send)

    def send(self) -> None:
        self._is_scheduled = False
        connection = self.connection
        if connection is None or not connection.is_open:
            return  # all ends are told again with the next connection
        entries = [
            Acknowledged(topic_id, index, partition.following.leader_epoch, partition.log.acknowledged_end)
            for (topic_id, index), partition in self._due.items()
            if partition.following is not None
        ]
        self._due.clear()
        if entries:
            connection.send_unanswered(API_KEY, 0, [encode_acknowledged(*self._member, entries)])
