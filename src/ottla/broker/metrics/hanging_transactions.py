"""Counts hanging transactions: open in partitions led here, but no coordinator will end them.

A partition cannot know this by itself. For transactions that have been open for a while, the coordinators are queried
once per page, in the same way as by `ottla transactions list --hanging`. An idle broker queries nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.broker.metrics import definitions as declared
from ottla.broker.metrics.admin_client import asking
from ottla.broker.metrics.slices import Slices

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.broker.metrics.page import Page

log = logging.getLogger("ottla.metrics")

ASKED_ABOUT_AFTER_MS = 60_000
"""Most transactions end sooner. The age counts from the first page that saw the transaction, by this broker's clock,
because producers may set any record timestamp.
"""

Name = tuple[str, int, int, int]
"""Topic, partition, producer id, first offset."""


class HangingTransactions:
    """Remembers across pages since when transactions are open."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._seen_ms: dict[Name, float] = {}

    async def add_to(self, page: Page, slices: Slices) -> None:
        """Adds the number of hanging transactions, or nothing if the coordinators cannot be queried."""
        suspects = await self._open_for_long(slices)
        hanging = await self._ask(suspects) if suspects else 0
        if hanging is not None:
            page.add(declared.HANGING_TRANSACTIONS, hanging)

    async def _open_for_long(self, slices: Slices) -> set[Name]:
        now_ms = self._broker.clock.monotonic_ms()
        seen_ms: dict[Name, float] = {}
        for topic in list(self._broker.topics):
            for partition in list(topic.partitions):
                if partition.is_led_here and partition.log.transactions.open_producers:
                    for each in partition.log.transactions.open_transactions():
                        name = (topic.name, partition.index, each.producer_id, each.first_offset)
                        seen_ms[name] = self._seen_ms.get(name, now_ms)
                await slices.give_way()
        self._seen_ms = seen_ms
        return {name for name, since_ms in seen_ms.items() if now_ms - since_ms >= ASKED_ABOUT_AFTER_MS}

    async def _ask(self, suspects: set[Name]) -> int | None:
        """Counts the suspects that are hanging. Returns None if that cannot be determined in time."""
        from ottla.client import ClientError

        try:
            async with asking(self._broker) as admin:
                found, _ = await admin.find_hanging_transactions({(topic, index) for topic, index, _, _ in suspects})
        except (ClientError, TimeoutError) as failure:
            why = str(failure) or "timed out"
            log.warning("could not determine whether %d transactions are hanging: %s", len(suspects), why)
            return None
        names = {(each.topic, each.partition, each.producer_id, each.first_offset) for each in found}
        return len(names & suspects)
