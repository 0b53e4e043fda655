"""Produce replies name the invalid records of a rejected batch (KIP-467)."""

from __future__ import annotations

import asyncio
import struct
import time
from collections import Counter
from uuid import UUID

import confluent_kafka
import pytest

from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.records.codecs import Compression
from ottla.protocol.records.record import Record, encode_batch
from ottla.protocol.wire.headers import parse_response_header, request_header
from ottla.protocol.wire.produce import PartitionProduced, encode_produce_request, parse_produce_response
from tests.conformance.conftest import ClientOf, TopicOf
from tests.conformance.leaders import wait_until_known

INVALID_RECORD = confluent_kafka.KafkaError.INVALID_RECORD
INVALID_DIFFERENT_RECORD = -138
"""RD_KAFKA_RESP_ERR__INVALID_DIFFERENT_RECORD: a valid record in a batch with an invalid one."""
PRODUCE = 0
FAR_AHEAD_MS = 30 * 24 * 3_600_000


@pytest.fixture
def compacted(client_of: ClientOf, fresh_topic: TopicOf, bootstrap: str) -> str:
    return created(client_of, fresh_topic, bootstrap, {"cleanup.policy": "compact"})


def created(client_of: ClientOf, fresh_topic: TopicOf, bootstrap: str, configs: dict[str, str]) -> str:
    topic = fresh_topic("validated")
    client_of("confluent-kafka").create_topic(topic, configs=configs)
    wait_until_known(bootstrap, topic)
    return topic


def delivered(bootstrap: str, topic: str, **settings: object) -> dict[int, int | None]:
    """Writes 100 records, every tenth of them without a key; returns the error of each."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **settings})
    errors: dict[int, int | None] = {}

    def on_delivery(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        errors[int(message.value() or b"")] = error.code() if error is not None else None

    for number in range(100):
        key = None if number % 10 == 0 else b"%d" % number
        producer.produce(topic, b"%d" % number, key, partition=0, on_delivery=on_delivery)
    assert producer.flush(60) == 0
    return errors


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_librdkafka_tells_invalid_records_from_valid_ones(bootstrap: str, compacted: str, codec: str) -> None:
    settings = {"linger.ms": 5000, "compression.type": codec}
    errors = delivered(bootstrap, compacted, **settings)
    expected = {number: INVALID_RECORD if number % 10 == 0 else INVALID_DIFFERENT_RECORD for number in range(100)}
    assert errors == expected, Counter(errors.values())


def test_librdkafka_writes_the_valid_records_that_have_a_batch_of_their_own(bootstrap: str, compacted: str) -> None:
    errors = delivered(bootstrap, compacted, **{"batch.num.messages": 1})
    assert errors == {number: INVALID_RECORD if number % 10 == 0 else None for number in range(100)}


async def produced_raw(bootstrap: str, topic: str | UUID, version: int, batch: bytes | bytearray) -> PartitionProduced:
    host, port = bootstrap.split(",", maxsplit=1)[0].rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    body = encode_produce_request(version, None, -1, 30_000, [(topic, [(0, batch)])])
    frame = request_header(PRODUCE, version, 7, "test") + b"".join(map(bytes, body))
    writer.write(struct.pack(">i", len(frame)) + frame)
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    reply = memoryview(await reader.readexactly(size))
    writer.close()
    response = parse_produce_response(reply[parse_response_header(PRODUCE, version, reply)[1] :], version)
    ((_, (result,)),) = response.topics
    return result


@pytest.mark.parametrize("codec", [Compression.none, Compression.lz4])
@pytest.mark.parametrize("version", [7, 8, 9, 12])
def test_the_reply_lists_the_records_without_a_key(
    bootstrap: str, compacted: str, version: int, codec: Compression
) -> None:
    now_ms = int(time.time() * 1000)
    keys = [b"a", None, b"b", None]
    batch = encode_batch([Record(i, now_ms, key, b"v") for i, key in enumerate(keys)], compression=codec)
    result = asyncio.run(produced_raw(bootstrap, compacted, version, batch))
    assert (result.error, result.base_offset) == (ErrorCode.invalid_record, -1)
    assert [index for index, _ in result.record_errors] == ([] if version < 8 else [1, 3])
    assert all(message for _, message in result.record_errors)
    assert (result.error_message is None) == (version < 8)


def test_the_reply_lists_the_records_out_of_time(client_of: ClientOf, fresh_topic: TopicOf, bootstrap: str) -> None:
    """Both limits are checked for each record; a record without a timestamp is valid."""
    limits = {"message.timestamp.after.max.ms": "3600000", "message.timestamp.before.max.ms": "3600000"}
    topic = created(client_of, fresh_topic, bootstrap, limits)
    now_ms = int(time.time() * 1000)
    times = [now_ms - FAR_AHEAD_MS, now_ms, now_ms + FAR_AHEAD_MS, now_ms - FAR_AHEAD_MS, -1]
    batch = encode_batch([Record(i, time_ms, None, b"v") for i, time_ms in enumerate(times)])
    result = asyncio.run(produced_raw(bootstrap, topic, 9, batch))
    assert result.error == ErrorCode.invalid_timestamp
    assert [index for index, _ in result.record_errors] == [0, 2, 3]
    assert result.error_message


def test_a_wrong_timestamp_counts_more_than_a_missing_key(bootstrap: str, compacted: str) -> None:
    now_ms = int(time.time() * 1000)
    records = [
        Record(0, now_ms, None, b"v"),
        Record(1, now_ms + FAR_AHEAD_MS, b"k", b"v"),
        Record(2, now_ms + FAR_AHEAD_MS, None, b"v"),
        Record(3, now_ms, b"k", b"v"),
    ]
    result = asyncio.run(produced_raw(bootstrap, compacted, 9, encode_batch(records)))
    assert result.error == ErrorCode.invalid_timestamp
    assert [index for index, _ in result.record_errors] == [0, 1, 2]
