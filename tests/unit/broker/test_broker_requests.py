"""Produce and Fetch frames against a broker whose disk the test controls: when a reply is sent, and its content."""

from __future__ import annotations

import asyncio

import pytest

from ottla.broker.api.api import ConnectionState
from ottla.broker.api.dispatch import dispatch
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.headers import parse_response_header, request_header
from ottla.protocol.wire.produce import PartitionProduced, encode_produce_request, parse_produce_response
from tests.support.sim_broker import BrokerBench
from tests.support.sim_logs import batch_of


class Client:
    def __init__(self, bench: BrokerBench) -> None:
        self.bench = bench
        self.connection = ConnectionState("test")

    def produce(
        self, sequence: int, *, acks: int = -1, timeout_ms: int = 5000, topics: tuple[str, ...] = ("t",)
    ) -> asyncio.Future[list[PartitionProduced]] | None:
        batch = batch_of(
            [b"v"],
            timestamps_ms=[self.bench.clock.now_ms()],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
        )
        body = encode_produce_request(9, None, acks, timeout_ms, [(topic, [(0, batch)]) for topic in topics])
        frame = bytearray(request_header(0, 9, 1, "test") + b"".join(body))
        reply = dispatch(self.bench.broker, self.connection, memoryview(frame))
        return None if reply is None else asyncio.ensure_future(self._results(reply))

    async def _results(self, reply: object) -> list[PartitionProduced]:
        buffers = await reply if asyncio.isfuture(reply) else reply
        whole = b"".join(buffers)  # type: ignore[arg-type]  # buffers
        _, body_at = parse_response_header(0, 9, memoryview(whole))
        return [
            result for _, results in parse_produce_response(memoryview(whole)[body_at:], 9).topics for result in results
        ]


async def client_of(bench: BrokerBench, *names: str) -> Client:
    for name in names or ("t",):
        await bench.create(name)
    return Client(bench)


async def test_a_reply_and_the_reply_to_its_retry_leave_with_the_acknowledgement() -> None:
    """A duplicate waits for what the original waits for (safety: duplicates)."""
    bench = BrokerBench()
    client = await client_of(bench)
    bench.disk.stall("journal")
    first, again = client.produce(0), client.produce(0)
    assert first is not None
    assert again is not None
    await bench.settle()
    assert not first.done()
    assert not again.done()
    bench.disk.release("journal")
    results = await bench.until(asyncio.gather(first, again))
    assert [(r.error, r.base_offset) for (r,) in results] == [(ErrorCode.none, 0)] * 2
    later = client.produce(0)
    assert later is not None
    assert [(r.error, r.base_offset) for r in await bench.until(later)] == [(ErrorCode.none, 0)]


async def test_a_retry_between_two_acknowledgements() -> None:
    """The first batch is durable, the second is not: each retry is answered by the state of its own batch."""
    bench = BrokerBench()
    client = await client_of(bench)
    first = client.produce(0)
    assert first is not None
    await bench.until(first)
    bench.disk.stall("journal")
    second, retry_of_first, retry_of_second = client.produce(1), client.produce(0), client.produce(1)
    assert second is not None
    assert retry_of_first is not None
    assert retry_of_second is not None
    await bench.settle()
    assert [second.done(), retry_of_first.done(), retry_of_second.done()] == [False, True, False]
    bench.disk.release("journal")
    assert [r.base_offset for (r,) in await bench.until(asyncio.gather(second, retry_of_second))] == [1, 1]


async def test_a_retry_of_a_batch_that_others_follow() -> None:
    bench = BrokerBench()
    client = await client_of(bench)
    bench.disk.stall("journal")
    replies = [client.produce(0), client.produce(1), client.produce(0)]
    await bench.settle()
    assert not any(reply is None or reply.done() for reply in replies)
    bench.disk.release("journal")
    await bench.settle()
    assert all(reply is not None and reply.done() for reply in replies)


async def test_a_reply_waits_for_all_its_partitions() -> None:
    bench = BrokerBench()
    await bench.create("c", durability="cache")
    client = await client_of(bench, "d")
    bench.disk.stall("journal")
    reply = client.produce(0, topics=("c", "d"))
    assert reply is not None
    await bench.settle()
    assert not reply.done()
    bench.disk.release("journal")
    assert [r.error for r in await bench.until(reply)] == [ErrorCode.none] * 2


@pytest.mark.parametrize("acks", [-1, 1])
async def test_a_reply_that_takes_too_long_says_so_and_the_retry_finds_the_record(acks: int) -> None:
    bench = BrokerBench()
    client = await client_of(bench)
    bench.disk.stall("journal")
    reply = client.produce(0, acks=acks, timeout_ms=300)
    assert reply is not None
    assert [r.error for r in await bench.until(reply)] == [ErrorCode.request_timed_out]
    bench.disk.release("journal")
    again = client.produce(0, acks=acks)
    assert again is not None
    assert [(r.error, r.base_offset) for r in await bench.until(again)] == [(ErrorCode.none, 0)]
    assert len(await bench.values("t")) == 1


async def test_a_failed_journal_is_told_to_all_that_wait() -> None:
    bench = BrokerBench()
    client = await client_of(bench)
    bench.disk.faults.fail_write(path="/journal/", count=None)
    replies = [client.produce(sequence) for sequence in range(3)]
    for reply in replies:
        assert reply is not None
        assert [r.error for r in await bench.until(reply)] == [ErrorCode.kafka_storage_error]


async def test_without_acks_there_is_no_reply_and_the_record_is_there() -> None:
    bench = BrokerBench()
    client = await client_of(bench)
    assert client.produce(0, acks=0) is None
    await bench.settle()
    assert await bench.values("t") == [b"v"]
