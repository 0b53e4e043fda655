"""Serializers and deserializers, and the errors for records that are not bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.client import Consumer, ConsumerRecord, DeserializationError, Producer, SerializationError
from ottla.testing import Cluster


def to_json(given: Any) -> bytes:
    return json.dumps(given).encode()


async def read(bootstrap: str, count: int, **settings: Any) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    async with Consumer(bootstrap, auto_offset_reset="earliest", **settings) as consumer:
        consumer.subscribe(["orders"])
        while len(records) < count:
            records += await consumer.fetch_records(timeout_ms=20_000)
    return records


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"value": "one"}, "the value of a record for topic 'orders' is a str; records hold bytes: encode it"),
        ({"value": b"", "key": "k"}, "the key of a record for topic 'orders' is a str.* or create the producer with a"),
        ({"value": 1}, "is an int; records hold bytes: convert it to bytes, or .* value_serializer"),
        ({"value": {"a": 1}}, "is a dict"),
        ({"value": b"", "headers": {"a": b"b"}}, r"are a dict; .*list\(headers.items\(\)\)"),
        ({"value": b"", "headers": [("a", "b")]}, "the header 'a' for topic 'orders' is a str.*bytes or None: encode"),
        ({"value": b"", "headers": [(b"a", b"b")]}, "the name of a header .* is a bytes; it has to be a str"),
        ({"value": b"", "headers": [b"ab"]}, "it has to be a pair"),
    ],
)
async def test_what_is_not_bytes_is_refused_at_once(ottla: Cluster, record: dict[str, Any], sentence: str) -> None:
    """Also for a topic whose partitions are not known yet, where the record would be encoded later."""
    ottla.create_topic("orders")
    async with Producer(ottla.bootstrap_servers) as producer:
        for _ in range(2):
            with pytest.raises(TypeError, match=sentence):
                producer.send_nowait("orders", **record)
            with pytest.raises(TypeError, match=sentence):
                await producer.send("orders", **record)
            await producer.send("orders", b"fine")
        await producer.flush()
    assert [record.value for record in await read(ottla.bootstrap_servers, 2)] == [b"fine", b"fine"]


async def test_what_was_sent_does_not_change_with_the_programs_buffer(ottla: Cluster) -> None:
    ottla.create_topic("orders")
    buffer = bytearray(b"first")
    async with Producer(ottla.bootstrap_servers, linger_ms=50) as producer:
        sent = producer.send_nowait("orders", buffer, key=memoryview(buffer))
        buffer[:] = b"other"
        await sent
    [record] = await read(ottla.bootstrap_servers, 1)
    assert (record.key, record.value) == (b"first", b"first")


async def test_objects_go_in_and_come_out(ottla: Cluster) -> None:
    ottla.create_topic("orders")
    serializers: Any = {"key_serializer": str.encode, "value_serializer": to_json}
    async with Producer(ottla.bootstrap_servers, **serializers) as producer:
        await producer.send("orders", {"amount": 3}, key="anna")
        await producer.send("orders", None, key="anna")
        await producer.send("orders", {"amount": 4})
    deserializers: Any = {"key_deserializer": bytes.decode, "value_deserializer": json.loads}
    records = await read(ottla.bootstrap_servers, 3, **deserializers)
    assert [(each.key, each.value) for each in records] == [
        ("anna", {"amount": 3}),
        ("anna", None),
        (None, {"amount": 4}),
    ]


async def test_in_a_transaction_too(ottla: Cluster) -> None:
    ottla.create_topic("orders")
    producer = Producer(ottla.bootstrap_servers, transactional_id="t", value_serializer=to_json)
    async with producer, producer.transaction() as transaction:
        await transaction.send("orders", [1, 2])
    [record] = await read(ottla.bootstrap_servers, 1, isolation_level="read_committed")
    assert record.value == b"[1, 2]"


async def test_a_serializer_that_fails_names_the_topic_and_sends_nothing(ottla: Cluster) -> None:
    ottla.create_topic("orders")
    async with Producer(ottla.bootstrap_servers, value_serializer=to_json) as producer:
        with pytest.raises(
            SerializationError, match=r"value_serializer failed for a record of 'orders': TypeError"
        ) as caught:
            await producer.send("orders", {1, 2})
        assert (caught.value.topic, caught.value.what) == ("orders", "value")
        assert isinstance(caught.value.__cause__, TypeError)
        assert (await producer.send("orders", "next")).offset == 0


async def test_a_serializer_that_returns_no_bytes(ottla: Cluster) -> None:
    async with Producer(ottla.bootstrap_servers, value_serializer=json.dumps) as producer:  # type: ignore[arg-type]  # as users do
        with pytest.raises(
            TypeError, match="value_serializer returned a str for topic 'orders'; it has to return bytes"
        ):
            await producer.send("orders", {})


def only_numbers(data: bytes) -> int:
    return int(data)


@pytest.mark.parametrize("by", ["fetch", "iteration"])
async def test_a_record_that_cannot_be_read_does_not_move_the_position(ottla: Cluster, by: str) -> None:
    ottla.create_topic("orders")
    async with Producer(ottla.bootstrap_servers, linger_ms=20) as producer:
        for value in (b"0", b"1", b"two", b"3"):
            producer.send_nowait("orders", value)
    settings: Any = {"group_id": "g", "auto_offset_reset": "earliest", "value_deserializer": only_numbers}

    async def read_on(consumer: Consumer) -> list[int]:
        if by == "fetch":
            return [record.value for record in await consumer.fetch_records(timeout_ms=20_000)]
        async for record in consumer:
            return [record.value]
        return []

    async with Consumer(ottla.bootstrap_servers, **settings) as consumer:
        consumer.subscribe(["orders"])
        values: list[int] = []
        while len(values) < 2:
            values += await read_on(consumer)
        assert values == [0, 1]
        for _ in range(2):
            with pytest.raises(DeserializationError, match="offset 2 of orders-0: ValueError") as caught:
                await read_on(consumer)
            assert (*caught.value.at, caught.value.offset, caught.value.what) == ("orders", 0, 2, "value")
            assert caught.value.data == b"two"
            assert await consumer.position(("orders", 0)) == 2
        await consumer.commit()
    async with Consumer(ottla.bootstrap_servers, **settings) as consumer:
        consumer.subscribe(["orders"])
        with pytest.raises(DeserializationError, match="offset 2"):
            await read_on(consumer)
        consumer.seek(caught.value.at, caught.value.offset + 1)
        assert await read_on(consumer) == [3]
