"""A minimal producer that sends prepared batches in transactions of version 2 (KIP-890).

Writing to a partition adds it to the transaction, and the reply to the end of a transaction has the epoch of the next
one. So a transaction is its batches and one EndTxn. Without a transactional id it is a plain idempotent producer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta

from ottla.bench.frames import ACKS_ALL, TIMEOUT_MS
from ottla.bench.group_members import exchange
from ottla.net.apis import END_TXN_IN_V2, FIND_COORDINATOR, INIT_PRODUCER_ID
from ottla.net.connection import Connection
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.records.batch import set_producer
from ottla.protocol.records.bridge import RowEncoder
from ottla.protocol.records.envelope import INT32_MAX, Traits, seal
from ottla.protocol.wire.produce import encode_produce_request, parse_produce_response

PRODUCE, PRODUCE_VERSION = 0, 12
IN_FLIGHT_MAX = 5
"""The limit of brokers for an idempotent producer."""
TRANSACTION_KEY = 1
LOOK_AGAIN_S = 0.02

_COMING = (ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator)


class ProducerRefusedError(Exception):
    """A producer received an unexpected error."""


class ConcurrentTransactionsError(Exception):
    """The previous transaction is still being completed. Nothing of this one was accepted, so it may begin again."""


class TransactionalProducer:
    """A producer with or without a transactional id."""

    def __init__(self, connection: Connection, topic: str, partition: int, transactional_id: str | None) -> None:
        self._connection = connection
        self._topic = topic
        self._partition = partition
        self._transactional_id = transactional_id
        self._identity = (-1, -1)
        self._sequence = 0
        self._under_way: deque[asyncio.Future[memoryview]] = deque()
        self.offsets_taken = 0
        """Offsets taken by records and by the markers of transactions."""

    async def begin(self) -> None:
        """Gets a producer id, from the coordinator if there is a transactional id."""
        if self._transactional_id is not None:
            await self._find_coordinator()
        body = {
            "transactional_id": self._transactional_id,
            "transaction_timeout": timedelta(seconds=60),
            "producer_id": -1,
            "producer_epoch": -1,
        }
        reply = await exchange(self._connection, INIT_PRODUCER_ID, body)
        while reply.error_code in _COMING:
            await asyncio.sleep(LOOK_AGAIN_S)
            reply = await exchange(self._connection, INIT_PRODUCER_ID, body)
        _check(reply.error_code)
        self._identity = reply.producer_id, reply.producer_epoch

    async def _find_coordinator(self) -> None:
        """Finds the coordinator, which creates the topic of transactions if it is missing."""
        body = {"key_type": TRANSACTION_KEY, "coordinator_keys": [self._transactional_id]}
        is_found = False
        while not is_found:
            reply = await exchange(self._connection, FIND_COORDINATOR, body)
            is_found = reply.coordinators[0].error_code is ErrorCode.none
            await asyncio.sleep(0 if is_found else LOOK_AGAIN_S)

    async def write(self, batch: bytearray, record_count: int) -> None:
        """Sends a batch, after an earlier one if too many are in flight. The batch can be reused when this returns."""
        if len(self._under_way) == IN_FLIGHT_MAX:
            await self._settle_one()
        set_producer(batch, *self._identity, self._sequence)
        self._sequence += record_count
        self.offsets_taken += record_count
        topics = [(self._topic, [(self._partition, bytes(batch))])]
        parts = encode_produce_request(PRODUCE_VERSION, self._transactional_id, ACKS_ALL, TIMEOUT_MS, topics)
        self._under_way.append(self._connection.request(PRODUCE, PRODUCE_VERSION, parts, what="writing"))

    async def begin_again(self) -> None:
        """Starts over after TooEarlyError. The batches after a rejected first batch are rejected as well."""
        for reply in self._under_way:
            await reply
        self._under_way.clear()
        self.offsets_taken -= self._sequence
        self._sequence = 0
        await asyncio.sleep(LOOK_AGAIN_S)

    async def settle(self) -> None:
        """Waits for the replies of all batches in flight."""
        while self._under_way:
            await self._settle_one()

    async def _settle_one(self) -> None:
        reply = parse_produce_response(await self._under_way.popleft(), PRODUCE_VERSION)
        ((_, [result]),) = reply.topics
        if result.error == ErrorCode.concurrent_transactions:
            raise ConcurrentTransactionsError
        _check(ErrorCode(result.error))

    async def commit(self) -> None:
        """Commits the transaction."""
        body = {
            "transactional_id": self._transactional_id,
            "producer_id": self._identity[0],
            "producer_epoch": self._identity[1],
            "committed": True,
        }
        reply = await exchange(self._connection, END_TXN_IN_V2, body)
        _check(reply.error_code)
        self._identity = reply.producer_id, reply.producer_epoch
        self._sequence = 0
        self.offsets_taken += 1

    def close(self) -> None:
        """Ends the connection; an open transaction stays open until its timeout."""
        self._connection.end()


def _check(error: ErrorCode) -> None:
    if error is not ErrorCode.none:
        raise ProducerRefusedError(error.name)


def batch_of(value: bytes, record_count: int, timestamp_ms: int, *, transactional: bool) -> bytearray:
    """Returns a sealed batch of equal records without keys."""
    encoder = RowEncoder(INT32_MAX)
    for _ in range(record_count):
        encoder.append(None, value, [], timestamp_ms)
    return seal(encoder.take(), Traits(transactional=transactional))
