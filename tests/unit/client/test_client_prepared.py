"""Transactions that one producer writes and another process ends, on a real broker; ranges of a partition."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.client import Admin, Consumer, PreparedTransaction, PreparedTransactions, Producer, TopicPartition
from ottla.client.consumer import fetcher
from ottla.client.errors import BrokerRefusedError, RequestTimedOutError
from ottla.client.transactions import coordinator as asking
from ottla.protocol.wire.fetch import FetchRequest
from ottla.protocol.wire.fetch_client import encode_fetch_request
from ottla.testing import Cluster

TOPIC = "prepared"
AT = TopicPartition(TOPIC, 0)


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    if request.param == 1:
        monkeypatch.setattr(asking, "TRANSACTION_VERSION", "none")
    return int(request.param)


async def prepare(cluster: Cluster, values: list[bytes], name: str = "x") -> PreparedTransaction | None:
    async with Producer(cluster.bootstrap_servers, transactional_id=name) as producer:
        transaction = producer.transaction()
        async with transaction:
            for value in values:
                await transaction.enqueue(TOPIC, value, partition=0)
            return await transaction.prepare()


async def end(cluster: Cluster, prepared: PreparedTransaction, *, commit: bool) -> None:
    async with PreparedTransactions(cluster.bootstrap_servers) as open_transactions:
        await open_transactions.end(prepared, commit=commit)


async def log_end(cluster: Cluster) -> int:
    """Returns the end after open transactions and pending markers, for which a read_committed reader waits."""
    async with Consumer(cluster.bootstrap_servers) as consumer:
        return (await consumer.end_offsets([AT]))[AT]


async def stable_end(cluster: Cluster) -> int:
    async with Consumer(cluster.bootstrap_servers, isolation_level="read_committed") as consumer:
        return (await consumer.end_offsets([AT]))[AT]


async def read(cluster: Cluster, *, max_bytes: int = 1 << 20, since: int = 0, until: int | None = None) -> list[bytes]:
    """Returns all committed values in a range."""
    async with Consumer(
        cluster.bootstrap_servers, isolation_level="read_committed", auto_offset_reset="none"
    ) as consumer:
        consumer.assign([AT])
        consumer.seek(AT, since)
        end = await log_end(cluster) if until is None else until
        values: list[bytes] = []
        while (found := await consumer.fetch_range(AT, end, max_bytes=max_bytes, timeout_ms=20_000)) is not None:
            values += found[0].column("value").to_pylist()
        return values


async def test_it_is_committed_after_its_producer_is_gone(ottla: Cluster, version: int) -> None:
    ottla.create_topic(TOPIC)
    prepared = await prepare(ottla, [b"a", b"b"])
    assert prepared is not None
    assert prepared.version == version
    assert await stable_end(ottla) == 0
    await end(ottla, prepared, commit=True)
    await end(ottla, prepared, commit=True)  # a repetition does no harm
    assert await read(ottla) == [b"a", b"b"]
    async with Admin(ottla.bootstrap_servers) as admin:
        assert (await admin.describe_transaction("x")).state in {"PrepareCommit", "CompleteCommit"}


async def test_it_is_aborted_by_somebody_else(ottla: Cluster, version: int) -> None:
    ottla.create_topic(TOPIC)
    prepared = await prepare(ottla, [b"a"])
    assert prepared is not None
    await end(ottla, prepared, commit=False)
    with pytest.raises(BrokerRefusedError):
        await end(ottla, prepared, commit=True)
    assert await read(ottla) == []


async def test_whoever_begins_with_its_id_aborts_it(ottla: Cluster, version: int) -> None:
    ottla.create_topic(TOPIC)
    first = await prepare(ottla, [b"first"])
    second = await prepare(ottla, [b"second"])
    assert first is not None
    assert second is not None
    with pytest.raises(BrokerRefusedError):
        await end(ottla, first, commit=True)
    await end(ottla, second, commit=True)
    assert await read(ottla) == [b"second"]


async def test_an_empty_one_has_nothing_to_end(ottla: Cluster) -> None:
    async with Producer(ottla.bootstrap_servers, transactional_id="x") as producer:
        transaction = producer.transaction()
        async with transaction:
            assert await transaction.prepare() is None
        ottla.create_topic(TOPIC)
        async with producer.transaction() as transaction:
            await transaction.send(TOPIC, b"next")
    assert await read(ottla) == [b"next"]


async def test_a_range_ends_with_what_nobody_sees(ottla: Cluster) -> None:
    """Markers and aborted records at its end, in its middle, and as all of it."""
    ottla.create_topic(TOPIC)
    for number, committed in enumerate([True, False, True, False]):
        prepared = await prepare(ottla, [b"%d" % number] * 3)
        assert prepared is not None
        await end(ottla, prepared, commit=committed)
    assert await read(ottla) == [b"0"] * 3 + [b"2"] * 3
    assert await read(ottla, max_bytes=1) == [b"0"] * 3 + [b"2"] * 3
    assert await read(ottla, since=1, until=2) == [b"0"]
    assert await read(ottla, since=2, until=9) == [b"0", b"2"]
    assert await read(ottla, since=4, until=8) == []
    assert await read(ottla, since=12, until=16) == []


async def test_a_range_that_does_not_come_is_told(ottla: Cluster) -> None:
    ottla.create_topic(TOPIC)
    async with Consumer(ottla.bootstrap_servers, auto_offset_reset="none") as consumer:
        consumer.assign([AT])
        consumer.seek(AT, 0)
        with pytest.raises(RequestTimedOutError, match="prepared-0"):
            await consumer.fetch_range(AT, 1, timeout_ms=50)


async def test_a_range_that_ends_where_the_log_begins_is_over_at_once(ottla: Cluster) -> None:
    ottla.create_topic(TOPIC)
    async with Producer(ottla.bootstrap_servers) as producer, Admin(ottla.bootstrap_servers) as admin:
        for removed in (0, 1):
            if removed:
                await producer.send(TOPIC, b"gone")
                await admin.delete_records({AT: removed})
            async with Consumer(ottla.bootstrap_servers, auto_offset_reset="earliest") as consumer:
                consumer.assign([AT])
                assert await consumer.fetch_range(AT, removed, timeout_ms=20_000) is None


async def test_what_is_after_a_range_is_not_fetched(ottla: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a longer range or another read requests it."""
    asked: list[int] = []

    def note(version: int, request: FetchRequest) -> Any:
        asked.append(request.topics[0][1][0].fetch_offset)
        return encode_fetch_request(version, request)

    monkeypatch.setattr(fetcher, "encode_fetch_request", note)
    ottla.create_topic(TOPIC)
    async with Producer(ottla.bootstrap_servers) as producer:
        for number in range(6):
            await producer.send(TOPIC, b"%d" % number)
    async with Consumer(ottla.bootstrap_servers, auto_offset_reset="none", max_partition_fetch_bytes=1) as consumer:
        consumer.assign([AT])
        consumer.seek(AT, 0)
        for until in (2, 4):
            while await consumer.fetch_range(AT, until, timeout_ms=20_000) is not None:
                pass
            await asyncio.sleep(0.2)  # a prefetch would be done by now
            assert asked == list(range(until))
        assert [record.value for record in await consumer.fetch_records(timeout_ms=20_000)] == [b"4"]


async def test_a_range_says_whose_timestamps_it_has(ottla: Cluster) -> None:
    ottla.create_topic(TOPIC)
    async with Producer(ottla.bootstrap_servers) as producer, Admin(ottla.bootstrap_servers) as admin:
        await producer.send(TOPIC, b"mine", timestamp_ms=5)
        await admin.alter_configs(TOPIC, set_values={"message.timestamp.type": "LogAppendTime"})
        await producer.send(TOPIC, b"theirs", timestamp_ms=5)
    async with Consumer(ottla.bootstrap_servers, auto_offset_reset="none") as consumer:
        consumer.assign([AT])
        consumer.seek(AT, 0)
        found = []
        while (part := await consumer.fetch_range(AT, 2, timeout_ms=20_000)) is not None:
            found.append(part)
    assert [(rows.column("value").to_pylist(), by_broker) for rows, by_broker in found] == [
        ([b"mine"], False),
        ([b"theirs"], True),
    ]
