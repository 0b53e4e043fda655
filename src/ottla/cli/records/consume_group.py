"""`ottla consume --group`: prints the records of the partitions assigned to this member, and commits their offsets."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from ottla.cli.client_security import client_security
from ottla.cli.output import count_text, say
from ottla.cli.records.consume_limits import Limits
from ottla.cli.records.record_format import Part

if TYPE_CHECKING:
    from ottla.client import Consumer, ConsumerRecord, TopicPartition


class GroupProtocol(StrEnum):
    """The group protocol to use."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class Membership(NamedTuple):
    """How to join the group."""

    group: str
    protocol: GroupProtocol
    instance_id: str | None
    from_beginning: bool
    """Where to start in partitions without a committed offset."""


async def consume_in_group(
    topic: str, membership: Membership, limits: Limits, part: Part, committed: bool, bootstrap: str
) -> None:
    """Prints records until a limit or Ctrl-C. In both cases, commits what was printed and leaves the group."""
    from ottla.client import Consumer

    consumer = Consumer(
        bootstrap,
        security=client_security(),
        group_id=membership.group,
        group_protocol=membership.protocol.value,
        group_instance_id=membership.instance_id,
        auto_offset_reset="earliest" if membership.from_beginning else "latest",
        isolation_level="read_committed" if committed else "read_uncommitted",
        client_id="ottla-cli",
    )
    printer = _Printer(consumer, membership.group, limits, part)
    async with consumer:
        partitions = await consumer.partitions(topic)
        printer.ends = await consumer.end_offsets(partitions) if limits.at_end else {}
        try:
            consumer.subscribe([topic], on_assigned=printer.assigned, on_revoked=printer.revoked, on_lost=printer.lost)
            await printer.print_all()
        finally:
            say(f'group "{membership.group}": {count_text(printer.printed, "record")} printed')


class _Printer:
    def __init__(self, consumer: Consumer, group: str, limits: Limits, part: Part) -> None:
        self._consumer = consumer
        self._group = group
        self._limits = limits
        self._part = part
        self.printed = 0
        self.ends: dict[TopicPartition, int] = {}
        """With --until-end, the offsets at which to stop: later records are neither printed nor committed."""

    def assigned(self, partitions: list[TopicPartition]) -> None:
        """Reports an assignment."""
        say(f'group "{self._group}": assigned {_names(partitions)}')

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Reports partitions revoked from this member."""
        say(f'group "{self._group}": revoked {_names(partitions)}')

    def lost(self, partitions: list[TopicPartition]) -> None:
        """Reports partitions lost without a chance to commit."""
        say(
            f'group "{self._group}": lost {_names(partitions)}; records printed since the last commit may be '
            "printed again"
        )

    async def print_all(self) -> None:
        """Prints records until a limit is reached."""
        last_record_s = time.monotonic()
        while not self._limits.reached(self.printed):
            if self._limits.at_end and await self._all_reached():
                return
            wait_ms = self._limits.wait_ms(last_record_s)
            records = await self._consumer.fetch_records(self._limits.wanted(self.printed), wait_ms)
            self._print(records)
            if records or not self._consumer.in_group:
                last_record_s = time.monotonic()
            elif self._limits.idle_too_long(last_record_s):
                return

    def _print(self, records: list[ConsumerRecord]) -> None:
        out = sys.stdout.buffer
        for record in records:
            end = self.ends.get(record.at)
            if end is not None and record.offset >= end:
                self._consumer.seek(record.at, end)
                self._consumer.pause(record.at)
            else:
                out.write(self._part(record))
                self.printed += 1
        out.flush()

    async def _all_reached(self) -> bool:
        """Returns whether this member has read all of its partitions up to their end offsets."""
        for at in self._consumer.assignment:
            if await self._consumer.position(at) < self.ends.get(at, 0):
                return False
        return self._consumer.in_group


def _names(partitions: list[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))
