"""A worker with Ottla's client: reads from a topic, transforms, and writes to another topic, exactly once.

    python -m tests.conformance.own_worker BOOTSTRAP SOURCE TARGET GROUP UNTIL [CRASH]

It ends when the group has read UNTIL records. With CRASH, one of `CRASHES`, its process dies at that point of its third
transaction, as with kill -9.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from ottla.client import Consumer, ConsumerRecord, Producer
from ottla.net.connection import Connection

CRASHES = ("read", "written", "offsets sent", "commit under way", "committed")
IN_TRANSACTION = 3
AT_ONCE = 10
END_TXN = 26


def consumer_of(bootstrap: str, group: str, **settings: Any) -> Consumer:
    return Consumer(
        bootstrap,
        group_id=group,
        auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        fetch_max_wait_ms=100,
        **settings,
    )


def transformed(record: ConsumerRecord) -> bytes:
    return b"=" + (record.value or b"")


class Crash:
    def __init__(self, where: str | None) -> None:
        self._where = where
        self.transactions = 0

    def here(self, where: str) -> None:
        if where == self._where and self.transactions == IN_TRANSACTION:
            os._exit(9)

    def on_request(self) -> None:
        """The commit request was sent; its reply is never received."""
        send = Connection.request

        def request(connection: Connection, api_key: int, *arguments: Any, **named: Any) -> Any:
            reply = send(connection, api_key, *arguments, **named)
            if api_key == END_TXN:
                self.here("commit under way")
            return reply

        Connection.request = request  # type: ignore[method-assign,assignment]  # kills the process


async def work(bootstrap: str, source: str, target: str, group: str, until: int, crash: Crash) -> None:
    async with (
        consumer_of(bootstrap, group, group_instance_id="worker") as consumer,
        Producer(bootstrap, transactional_id=group) as producer,
    ):
        consumer.subscribe([source])
        while await positions(consumer) < until:
            records = await consumer.fetch_records(max_records=AT_ONCE, timeout_ms=100)
            if not records:
                continue
            crash.transactions += 1
            crash.here("read")
            async with producer.transaction() as transaction:
                for record in records:
                    await transaction.enqueue(target, transformed(record), record.key)
                await producer.flush()
                crash.here("written")
                await transaction.send_offsets(consumer)
                crash.here("offsets sent")
            crash.here("committed")


async def positions(consumer: Consumer) -> int:
    """Returns how many records the group has read: the sources have no gaps."""
    return sum([await consumer.position(at) for at in consumer.assignment])


def main(bootstrap: str, source: str, target: str, group: str, until: str, where: str | None = None) -> None:
    crash = Crash(where)
    crash.on_request()
    asyncio.run(work(bootstrap, source, target, group, int(until), crash))


if __name__ == "__main__":
    main(*sys.argv[1:])
