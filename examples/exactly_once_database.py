"""Exactly once with a database: results and offsets are stored in one database, in the same database transaction.

The group only assigns the partitions; the offsets come from the database. No broker transactions are needed.

    python examples/exactly_once_database.py
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from multiprocessing import get_context

from ottla.client import Consumer, ConsumerRecord, Producer, TopicPartition
from ottla.testing import Cluster

TOPIC, GROUP = "payments", "accounts"
PAYMENTS = [(b"anna", 10), (b"ben", 5), (b"anna", 20), (b"ben", 7), (b"anna", 1)]
TABLES = """
CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, amount INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS offsets (topic TEXT, "partition" INTEGER, next INTEGER NOT NULL,
                                    PRIMARY KEY (topic, "partition"));
"""


def stored_offset(database: sqlite3.Connection, at: TopicPartition) -> int:
    with database:
        database.execute("INSERT OR IGNORE INTO offsets VALUES (?, ?, 0)", at)
    (offset,) = database.execute('SELECT next FROM offsets WHERE topic = ? AND "partition" = ?', at).fetchone()
    return int(offset)


def book(database: sqlite3.Connection, record: ConsumerRecord, dies: bool) -> bool:
    """Books a record in one database transaction. Returns False if another worker, which took over meanwhile, has
    already booked it."""
    with database:
        moved = database.execute(
            'UPDATE offsets SET next = ? WHERE topic = ? AND "partition" = ? AND next <= ?',
            (record.offset + 1, record.topic, record.partition, record.offset),
        )
        if moved.rowcount == 0:
            return False
        account, amount = (record.key or b"").decode(), int(record.value or b"0")
        database.execute("INSERT OR IGNORE INTO balances VALUES (?, 0)", (account,))
        database.execute("UPDATE balances SET amount = amount + ? WHERE account = ?", (amount, account))
        print(f"books {amount} for {account}", flush=True)
        if dies:
            print("the worker dies before the database has committed", flush=True)
            os._exit(9)
    return True


async def work(bootstrap: str, path: str, dies_at: int | None) -> None:
    database = sqlite3.connect(path)
    database.executescript(TABLES)
    consumer = Consumer(
        bootstrap,
        group_id=GROUP,
        group_instance_id="worker-1",  # a worker that restarts with this id gets its partitions back at once
        auto_commit=False,
        isolation_level="read_committed",
    )

    def go_on(partitions: list[TopicPartition]) -> None:
        for at in partitions:
            consumer.seek(at, stored_offset(database, at))

    async with consumer:
        consumer.subscribe([TOPIC], on_assigned=go_on)
        async for record in consumer:
            book(database, record, dies=record.offset == dies_at)
            if record.offset == len(PAYMENTS) - 1:
                return


def run_worker(bootstrap: str, path: str, dies_at: int | None) -> None:
    asyncio.run(work(bootstrap, path, dies_at))


async def pay(bootstrap: str) -> None:
    async with Producer(bootstrap) as producer:
        for account, amount in PAYMENTS:
            await producer.send(TOPIC, b"%d" % amount, key=account)


def main(bootstrap: str, path: str) -> None:
    asyncio.run(pay(bootstrap))
    for dies_at in (2, None):
        worker = get_context("spawn").Process(target=run_worker, args=(bootstrap, path, dies_at))
        worker.start()
        worker.join()
    for account, amount in sqlite3.connect(path).execute("SELECT account, amount FROM balances ORDER BY account"):
        print(f"{account} has {amount}")


if __name__ == "__main__":
    with Cluster() as cluster, tempfile.TemporaryDirectory() as directory:
        cluster.create_topic(TOPIC)
        main(cluster.bootstrap_servers, os.path.join(directory, "accounts.db"))
