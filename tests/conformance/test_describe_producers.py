"""DescribeProducers on every replica, which `kafka-transactions find-hanging --broker-id` relies on."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.headers import parse_response_header, request_header
from ottla.protocol.wire.schema import decode, encode, request_type, response_type
from tests.conformance.conftest import LEADERS_MOVE, ClientOf, TopicOf
from tests.conformance.leaders import wait_until_known
from tests.support.handlers_caller import build

DESCRIBE_PRODUCERS = 61
DEADLINE_S = 60.0
pytestmark = pytest.mark.worlds(LEADERS_MOVE)


async def described(host: str, port: int, topic: str, index: int = 0) -> Any:
    reader, writer = await asyncio.open_connection(host, port)
    values = {"topics": [{"name": topic, "partition_indexes": [index]}]}
    body = encode(build(request_type(DESCRIBE_PRODUCERS, 0), values))
    frame = request_header(DESCRIBE_PRODUCERS, 0, 7, "test") + body
    writer.write(struct.pack(">i", len(frame)) + frame)
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    whole = memoryview(await reader.readexactly(size))
    writer.close()
    at = parse_response_header(DESCRIBE_PRODUCERS, 0, whole)[1]
    return decode(response_type(DESCRIBE_PRODUCERS, 0), whole, at)[0].topics[0].partitions[0]


def brokers(bootstrap: str) -> list[tuple[str, int]]:
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30)
    return [(str(broker.host), broker.port) for broker in metadata.brokers.values()]


@pytest.fixture
def topic(client_of: ClientOf, fresh_topic: TopicOf, bootstrap: str) -> str:
    name = fresh_topic("producers")
    client_of("confluent-kafka").create_topic(name)
    wait_until_known(bootstrap, name)
    return name


def test_each_replica_knows_an_open_transaction(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(60) == 0
    for host, port in brokers(bootstrap):
        deadline_s = time.monotonic() + DEADLINE_S
        found = asyncio.run(described(host, port, topic))
        while not found.active_producers and time.monotonic() < deadline_s:  # a follower may lag
            assert found.error_code is ErrorCode.none
            found = asyncio.run(described(host, port, topic))
        assert found.error_code is ErrorCode.none
        (state,) = found.active_producers
        assert (state.current_txn_start_offset, state.last_sequence) == (0, 0)
    producer.abort_transaction(60)


def test_a_partition_that_does_not_exist(bootstrap: str, topic: str) -> None:
    for host, port in brokers(bootstrap):
        found = asyncio.run(described(host, port, topic, 7))
        assert found.error_code is ErrorCode.unknown_topic_or_partition
