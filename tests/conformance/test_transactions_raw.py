"""Transactions written by raw requests and read by real clients, without a coordinator.

The test sends a producer's batches and a coordinator's markers, so it knows what is committed; every read_committed
client has to find exactly that.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.protocol.model.errors import ErrorCode
from ottla.testing.broker_process import BrokerProcess
from tests.support.transactional_peer import Peer

NONE = ErrorCode.none
PRODUCERS = (900_001, 900_002, 900_003)


@pytest.fixture(scope="module")
def unverified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that does not verify transactions with a coordinator: these have none."""
    config = {"transaction.partition.verification.enable": "false"}
    with BrokerProcess(tmp_path_factory.mktemp("unverified") / "data", config=config) as broker:
        yield broker.bootstrap


def fresh_topic(bootstrap: str) -> str:
    name = f"transactions-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
    return name


@asynccontextmanager
async def raw_peer(bootstrap: str, topic: str) -> AsyncIterator[Peer]:
    host, port = bootstrap.split(",", maxsplit=1)[0].rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))

    async def send(frame: bytes) -> bytes:
        writer.write(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)

    try:
        yield Peer(send, topic, UUID(int=0), lambda: int(time.time() * 1000))
    finally:
        writer.close()


async def write_transactions(peer: Peer, dice: random.Random, count: int) -> list[bytes]:
    """Writes overlapping transactions, some committed and some aborted; returns the committed records."""
    found: list[tuple[int, bytes]] = []
    written: dict[int, list[tuple[int, bytes]]] = {}
    sequences = dict.fromkeys(PRODUCERS, 0)
    for number in range(count):
        producer = dice.choice(PRODUCERS)
        if producer in written and dice.random() < 0.4:
            commit = dice.random() < 0.5
            assert await peer.end((producer, 0), commit=commit, version=1) == [NONE]
            done = written.pop(producer)
            found += done if commit else []
            continue
        value = b"%d" % number
        result = await peer.produce(
            value, producer=(producer, 0, sequences[producer]), version=9, transactional_id=f"raw-{producer}"
        )
        assert result.error == NONE
        sequences[producer] += 1
        written.setdefault(producer, []).append((result.base_offset, value))
    for producer in list(written):
        assert await peer.end((producer, 0), commit=False, version=1) == [NONE]
    return [value for _, value in sorted(found)]


def by_librdkafka(bootstrap: str, topic: str, isolation: str) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "raw",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 2000,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "no end of the partition"
            error, value = message.error(), message.value()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                return found
            assert value is not None
            found.append(value)
    finally:
        consumer.close()


def by_aiokafka(bootstrap: str, topic: str, isolation: str) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation)
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            end = (await consumer.end_offsets([partition]))[partition]
            found: list[bytes] = []
            while await consumer.position(partition) < end:
                batches = await consumer.getmany(timeout_ms=200)
                found += [record.value for records in batches.values() for record in records]
            return found
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(read(), 120))


@pytest.mark.parametrize("read", [by_librdkafka, by_aiokafka])
def test_readers_find_what_was_committed(unverified: str, read: Callable[[str, str, str], list[bytes]]) -> None:
    topic = fresh_topic(unverified)

    async def write() -> list[bytes]:
        async with raw_peer(unverified, topic) as peer:
            return await write_transactions(peer, random.Random(5), 150)

    expected = asyncio.run(write())
    assert expected
    assert read(unverified, topic, "read_committed") == expected
    everything = read(unverified, topic, "read_uncommitted")
    assert set(everything) > set(expected)


def test_an_open_transaction_ends_what_readers_see(unverified: str) -> None:
    topic = fresh_topic(unverified)

    async def write(*, ends: bool) -> None:
        async with raw_peer(unverified, topic) as peer:
            if ends:
                assert await peer.end((900_009, 0), commit=True, version=1) == [NONE]
            else:
                result = await peer.produce(b"open", producer=(900_009, 0, 0), version=9, transactional_id="raw-9")
                assert result.error == NONE

    asyncio.run(write(ends=False))
    assert by_librdkafka(unverified, topic, "read_committed") == []
    assert by_librdkafka(unverified, topic, "read_uncommitted") == [b"open"]
    asyncio.run(write(ends=True))
    assert by_librdkafka(unverified, topic, "read_committed") == [b"open"]
