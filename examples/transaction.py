"""Writes records to two topics in one transaction, which is committed, or aborted by an exception.

python examples/transaction.py               # starts and stops its own broker
python examples/transaction.py host:port     # uses a running broker
"""

from __future__ import annotations

import asyncio
import sys

from ottla.client import Consumer, Producer
from ottla.testing import Cluster

ACCOUNTS, JOURNAL = "example-accounts", "example-journal"


class TooMuchError(Exception):
    """Raised for an amount that is too large."""


async def pay(producer: Producer, sender: str, receiver: str, amount: int) -> None:
    async with producer.transaction() as transaction:
        await transaction.enqueue(ACCOUNTS, b"%d" % -amount, key=sender.encode())
        await transaction.enqueue(ACCOUNTS, b"%d" % amount, key=receiver.encode())
        await transaction.enqueue(JOURNAL, f"{sender} pays {amount} to {receiver}".encode())
        if amount > 100:
            raise TooMuchError(f"{sender} cannot pay {amount}")


async def main(bootstrap: str) -> None:
    async with Producer(bootstrap, transactional_id="example-bank") as producer:
        await pay(producer, "anna", "ben", 10)
        try:
            await pay(producer, "anna", "carl", 1000)
        except TooMuchError as error:
            print(f"aborted: {error}")
        await pay(producer, "ben", "carl", 7)

    async with Consumer(bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([JOURNAL])
        async for record in consumer:
            print(f"committed: {(record.value or b'').decode()}")
            if record.value == b"ben pays 7 to carl":
                return


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with Cluster() as cluster:
            asyncio.run(main(cluster.bootstrap_servers))
