"""Runs of produce requests that have to wait, and how the server groups frames into runs."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest

from ottla.broker.api.api import ConnectionState
from ottla.broker.api.dispatch import dispatch_run
from ottla.broker.partition.pending_reply import PendingReply
from ottla.broker.server.port import RunReplies
from ottla.broker.server.server import Server
from ottla.broker.storage import segment_writer
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.records.produce_run import FindRun, find_run, find_run_plainly
from ottla.protocol.wire.headers import request_header
from ottla.protocol.wire.produce import encode_produce_request, parse_produce_response
from tests.support import sim_broker
from tests.support.server_client import ECHO, LATER, SILENT, Client, Stub, config_of, on_uvloop, request, until
from tests.support.sim_broker import BrokerBench
from tests.support.sim_logs import batch_of
from tests.unit.broker.storage.journal.test_journal import given_to


def frames_of(bench: BrokerBench, count: int, timeout_ms: int = 5000, value: bytes = b"value") -> list[memoryview]:
    frames = []
    for number in range(count):
        batch = batch_of([value], timestamps_ms=[bench.clock.now_ms()])
        body = encode_produce_request(9, None, -1, timeout_ms, [("t", [(0, batch)])])
        frames.append(memoryview(bytearray(request_header(0, 9, number, "test") + b"".join(body))))
    return frames


def results_of(replies: bytes) -> list[tuple[int, int, int]]:
    """Returns (correlation id, error, base offset) of each."""
    found, at = [], 0
    while at < len(replies):
        size, correlation_id = struct.unpack_from(">ii", replies, at)
        response = parse_produce_response(memoryview(replies)[at + 9 : at + 4 + size], 9)
        ((_, [result]),) = response.topics
        found.append((correlation_id, result.error, result.base_offset))
        at += 4 + size
    return found


async def waiting_run(
    bench: BrokerBench, count: int, timeout_ms: int = 5000, value: bytes = b"value"
) -> PendingReply[bytes]:
    frames = frames_of(bench, count, timeout_ms, value)
    replies, taken = dispatch_run(bench.broker, ConnectionState("test"), frames, 0, 1000)
    assert taken == count
    assert isinstance(replies, PendingReply)
    return cast(PendingReply[bytes], replies)


async def test_a_run_waits_for_the_journal() -> None:
    bench = BrokerBench()
    await bench.create("t")
    await bench.produce("t")
    bench.disk.stall("journal")
    replies = await waiting_run(bench, 3)
    await bench.settle()
    assert not replies.done()
    bench.disk.release("journal")
    assert results_of(await bench.until(replies)) == [(0, 0, 1), (1, 0, 2), (2, 0, 3)]


async def test_a_run_that_waits_too_long_is_answered_so() -> None:
    bench = BrokerBench()
    await bench.create("t")
    await bench.produce("t")
    bench.disk.stall("journal")
    replies = await waiting_run(bench, 2, timeout_ms=50)
    await bench.settle(100)
    timed_out = ErrorCode.request_timed_out
    assert results_of(await replies) == [(0, timed_out, -1), (1, timed_out, -1)]
    bench.disk.release("journal")
    await bench.settle()
    assert bench.partition("t").high_watermark == 3


async def test_a_failed_journal_fails_the_run() -> None:
    bench = BrokerBench()
    await bench.create("t")
    await bench.produce("t")
    bench.disk.stall("journal")
    replies = await waiting_run(bench, 2)
    bench.partition("t").log.fail(OSError(5, "broken"))  # type: ignore[union-attr] # a log on disk
    failed = ErrorCode.kafka_storage_error
    assert results_of(await bench.until(replies)) == [(0, failed, -1), (1, failed, -1)]


@pytest.mark.parametrize("durability", ["disk", "cache", "memory"])
async def test_a_deleted_topic_ends_the_run(durability: str) -> None:
    bench = BrokerBench()
    await bench.create("t", durability=durability)
    await bench.produce("t")
    frames = frames_of(bench, 2)
    topic = bench.broker.topics.get("t")
    assert topic is not None
    await bench.until(bench.admin.delete_topic(topic))
    assert dispatch_run(bench.broker, ConnectionState("test"), frames, 0, 1000) == (None, 0)


async def test_a_large_run_does_not_wait_for_the_end_of_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later runs of the same loop iteration go to the next write, which the disk starts by itself; the rest waits."""
    monkeypatch.setattr(sim_broker, "LIMITS", replace(sim_broker.LIMITS, early_bytes=10_000))
    bench = BrokerBench()
    await bench.create("t")
    await bench.produce("t")
    await bench.settle()
    small = await waiting_run(bench, 3)
    assert bench.disk.journal_queue.pending() == 0
    large = await waiting_run(bench, 3, value=bytes(4000))
    assert given_to(bench.disk) == 1
    behind = await waiting_run(bench, 3, value=bytes(4000))
    assert given_to(bench.disk) == 2
    last = await waiting_run(bench, 3, value=bytes(4000))
    assert given_to(bench.disk) == 2
    for replies in (small, large, behind, last):
        assert {error for _, error, _ in results_of(await bench.until(replies))} == {0}


async def test_a_cache_log_writes_a_large_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "EARLY_WRITE_BYTES", 10_000)
    bench = BrokerBench()
    await bench.create("t", durability="cache")
    await bench.produce("t")
    await bench.settle()
    writes: list[int] = []
    write_now = segment_writer.SegmentWriter.write_now

    def note_and_write(writer: segment_writer.SegmentWriter) -> None:
        writes.append(bench.partition("t").log.end_offset)
        write_now(writer)

    monkeypatch.setattr(segment_writer.SegmentWriter, "write_now", note_and_write)
    small = await waiting_run(bench, 2)
    assert writes == []
    large = await waiting_run(bench, 2, value=bytes(6000))
    assert writes == [5]
    for replies in (small, large):
        assert {error for _, error, _ in results_of(await bench.until(replies))} == {0}


@pytest.mark.parametrize("find", [find_run, find_run_plainly])
def test_a_run_that_is_cut_to_nothing_answers_nothing(find: FindRun) -> None:
    run = find(frames_of(BrokerBench(), 3), 0, 10)
    assert run is not None
    run.cut(0)
    run.stamp(5, 1)
    assert (len(run), run.size_bytes, run.frame_bytes, run.replies(9, 0, 0)) == (0, 0, 0, b"")


def test_offsets_come_before_answers() -> None:
    run = find_run(frames_of(BrokerBench(), 2), 0, 10)
    assert run is not None
    with pytest.raises(ValueError, match=r"offsets|argument"):
        run.replies(9, 0, 0)


# -- the server ------------------------------------------------------------------------------------------------------

RUN = b"R"
"""Requests answered together: at once, or when the test says so if the payload begins with an L."""


class RunStub(Stub):
    def __init__(self) -> None:
        super().__init__()
        self.runs: list[list[int]] = []
        self.waiting: list[tuple[PendingReply[bytes], bytes]] = []

    def handle_run(self, frames: Sequence[memoryview], at: int, count_max: int) -> tuple[RunReplies | None, int]:
        taken = []
        for frame in frames[at : at + count_max]:
            if bytes(frame[:1]) != RUN:
                break
            taken.append(frame)
        if not taken:
            return None, 0
        numbers = [struct.unpack_from(">i", frame, 4)[0] for frame in taken]
        self.runs.append(numbers)
        self.seen += numbers
        replies = b"".join(struct.pack(">i", 8) + bytes(frame[:8]) for frame in taken)
        if bytes(taken[0][8:9]) != b"L":
            return replies, len(taken)
        pending = PendingReply[bytes]()
        self.waiting.append((pending, replies))
        return pending, len(taken)

    def complete_runs(self) -> None:
        for pending, replies in self.waiting:
            pending.complete(replies)
        self.waiting.clear()


@asynccontextmanager
async def serving(stub: RunStub, **settings: int) -> AsyncIterator[tuple[Server, int]]:
    server = Server(stub, config_of(**settings))
    _, port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop(0)


@on_uvloop
async def test_runs_keep_their_place_among_other_replies() -> None:
    stub = RunStub()
    async with serving(stub) as (_, port):
        client = await Client.connect(port)
        kinds = [ECHO, RUN, RUN, LATER, RUN, ECHO, SILENT, RUN, RUN, RUN]
        client.send(b"".join(request(kind, number) for number, kind in enumerate(kinds)))
        await stub.has_future(3)
        stub.complete(3)
        assert await client.reply_numbers(9) == [0, 1, 2, 3, 4, 5, 7, 8, 9]
        assert [number for run in stub.runs for number in run] == [1, 2, 4, 7, 8, 9]


@on_uvloop
async def test_runs_that_wait_count_as_many_requests_as_they_are() -> None:
    stub = RunStub()
    async with serving(stub, ottla_max_inflight_requests_per_connection=4) as (server, port):
        client = await Client.connect(port)
        client.send(b"".join(request(RUN, number, b"L") for number in range(10)))
        await until(lambda: sum(map(len, stub.runs)) == 4)
        await asyncio.sleep(0.02)
        assert stub.seen == [0, 1, 2, 3]
        replies = asyncio.create_task(client.reply_numbers(10))
        while not replies.done():
            stub.complete_runs()
            await asyncio.sleep(0.001)
        assert replies.result() == list(range(10))
        assert max(map(len, stub.runs)) <= 4
        await until(lambda: server.buffered_bytes == 0)


@on_uvloop
async def test_large_frames_are_handled_together_and_in_order() -> None:
    stub = RunStub()
    async with serving(stub) as (server, port):
        client = await Client.connect(port)
        payload = b"x" * 100_000
        kinds = [RUN] * 20 + [ECHO] + [RUN] * 5
        client.send(b"".join(request(kind, number, payload) for number, kind in enumerate(kinds)))
        numbers = await client.reply_numbers(len(kinds))
        assert numbers == stub.seen == list(range(len(kinds)))
        assert max(map(len, stub.runs)) > 1
        assert server.buffered_bytes == 0


@on_uvloop
async def test_large_frames_without_a_reply_are_handled_before_the_end() -> None:
    """Requests that a client sent before it disconnected count, though there is no reply."""
    stub = RunStub()
    async with serving(stub) as (server, port):
        client = await Client.connect(port)
        client.send(b"".join(request(SILENT, number, b"x" * 70_000) for number in range(30)))
        await client.sent()
        client.close()
        await until(lambda: len(stub.seen) == 30)
        assert stub.seen == list(range(30))
        await until(lambda: server.connection_count == 0)
        assert server.buffered_bytes == 0
