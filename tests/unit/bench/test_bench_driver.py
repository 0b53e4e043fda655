"""The load driver counts replies, detects errors, and prepares requests that brokers accept."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.bench.calls import Caller
from ottla.bench.fetch import FilledTopic, fill
from ottla.bench.floor import Exchange, _serve_connection
from ottla.bench.frames import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    fetch_error_at,
    fetch_frame,
    framed,
    prepare_batch,
    produce_error_at,
    produce_frame,
    size_checks,
)
from ottla.bench.pipeline import BadReplyError, Load, drive
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.fetch import PartitionData, encode_fetch_response
from ottla.protocol.wire.headers import response_header
from ottla.protocol.wire.produce import PartitionProduced, encode_produce_response
from ottla.testing import Cluster

REQUEST_BYTES = 40
REPLY = b"\x00\x00\x00\x08" + bytes(8)


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Accepts one connection and serves it in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            client, _ = listener.accept()
            with client:
                serve(client)

        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)
        assert not thread.is_alive()


def load_for(port: int, requests: bytes, **changes: object) -> Load:
    values: dict[str, object] = {
        "port": port,
        "requests": requests,
        "request_bytes": REQUEST_BYTES,
        "reply_bytes": len(REPLY),
        "inflight": 3,
        "warm_up_s": 0.02,
        "seconds": 0.05,
        "server_pids": (os.getpid(),),
    }
    return Load(**{**values, **changes})  # type: ignore[arg-type] # the test's own values


def test_requests_go_round_in_order_and_all_are_answered() -> None:
    requests = b"".join(bytes([number]) * REQUEST_BYTES for number in range(5))
    seen = bytearray()

    def serve(client: socket.socket) -> None:
        answered = 0
        while data := client.recv(1000):
            seen.extend(data)
            whole = len(seen) // REQUEST_BYTES
            client.sendall(REPLY * (whole - answered))
            answered = whole

    with server(serve) as port:
        measured = drive(load_for(port, requests))
    assert len(seen) == measured.requests_sent * REQUEST_BYTES
    assert seen == (requests * (measured.requests_sent // 5 + 1))[: len(seen)]
    assert 0 < measured.requests <= measured.requests_sent
    assert sum(measured.latencies.values()) == measured.requests


def test_a_time_that_is_over_at_once_still_measures_a_request() -> None:
    """On a busy machine a short measurement may be over before it starts."""

    def serve(client: socket.socket) -> None:
        while data := client.recv(REQUEST_BYTES, socket.MSG_WAITALL):
            assert len(data) == REQUEST_BYTES
            client.sendall(REPLY)

    with server(serve) as port:
        measured = drive(load_for(port, bytes(REQUEST_BYTES), warm_up_s=0.0, seconds=0.0))
    assert measured.requests > 0
    assert measured.requests_per_s > 0


def test_replies_in_pieces_are_counted_once() -> None:
    def serve(client: socket.socket) -> None:
        got = answered = 0
        while data := client.recv(1000):
            got += len(data)
            for _ in range(got // REQUEST_BYTES - answered):
                client.sendall(REPLY[:5])
                client.sendall(REPLY[5:])
            answered = got // REQUEST_BYTES

    with server(serve) as port:
        measured = drive(load_for(port, bytes(REQUEST_BYTES), checks=size_checks(len(REPLY))))
    assert measured.requests > 0


@pytest.mark.parametrize("position", [2, 11])
def test_a_refusal_is_no_throughput(position: int) -> None:
    def serve(client: socket.socket) -> None:
        bad = bytearray(REPLY)
        bad[position] = 0x2A
        replies = [REPLY, bytes(bad), REPLY]
        client.recv(1000)
        client.sendall(b"".join(replies))
        while client.recv(1000):
            pass

    checks = [*size_checks(len(REPLY)), (11, 0)]
    with server(serve) as port, pytest.raises(BadReplyError):
        drive(load_for(port, bytes(REQUEST_BYTES), checks=checks))


def test_a_server_that_leaves_is_an_error() -> None:
    with server(lambda client: client.close()) as port, pytest.raises(ConnectionError):
        drive(load_for(port, bytes(REQUEST_BYTES)))


@pytest.mark.parametrize(("writes", "keeps"), [(True, False), (True, True), (False, False)])
def test_the_floor_answers_each_frame_and_keeps_its_bytes(tmp_path: Path, writes: bool, keeps: bool) -> None:
    exchange = Exchange(REQUEST_BYTES, 200_000 if not writes else len(REPLY), writes, keeps)
    file = os.open(tmp_path / "floor", os.O_RDWR | os.O_CREAT)
    frame = framed(b"", os.urandom(REQUEST_BYTES - 4))
    try:
        with server(lambda client: _serve_connection(client, file, exchange)) as port:
            measured = drive(load_for(port, frame, reply_bytes=exchange.reply_bytes, inflight=1))
        assert measured.requests > 0
        assert os.pread(file, REQUEST_BYTES, 0) == (frame if writes else b"")
    finally:
        os.close(file)


@pytest.mark.parametrize(("record_bytes", "limit"), [(100, 16384), (1024, 16384), (10240, 16384), (1024, 1024)])
def test_a_batch_is_as_full_as_it_may_be(record_bytes: int, limit: int) -> None:
    batch = prepare_batch(record_bytes, limit, 1_700_000_000_000)
    assert batch.value_bytes == batch.record_count * record_bytes
    assert batch.record_count == 1 or len(batch.data) <= limit
    assert len(batch.data) + record_bytes + 20 > limit


def test_the_byte_that_tells_a_produce_error() -> None:
    def reply(error: ErrorCode) -> bytes:
        body = encode_produce_response(PRODUCE_VERSION, [("some-topic", [PartitionProduced(0, error, 5, -1, 0)])])
        return framed(response_header(0, PRODUCE_VERSION, 1), body)

    at = produce_error_at("some-topic")
    assert reply(ErrorCode.none)[at] == 0
    assert reply(ErrorCode.kafka_storage_error)[at] == int(ErrorCode.kafka_storage_error)


def test_the_byte_that_tells_a_fetch_error() -> None:
    def reply(error: ErrorCode) -> bytes:
        buffers = encode_fetch_response(FETCH_VERSION, 0, 0, 0, [("some-topic", [PartitionData(0, error)])])
        return framed(response_header(1, FETCH_VERSION, 1), b"".join(buffers))

    at = fetch_error_at("some-topic")
    assert reply(ErrorCode.none)[at] == 0
    assert reply(ErrorCode.offset_out_of_range)[at] == int(ErrorCode.offset_out_of_range)


def test_a_broker_takes_prepared_produces_and_answers_prepared_fetches() -> None:
    batch = prepare_batch(100, 4096, int(time.time() * 1000))
    topic = FilledTopic("bench", batch, batches=600)
    with Cluster(storage="cache") as cluster, Caller(int(cluster.bootstrap_servers.rpartition(":")[2])) as caller:
        port = int(cluster.bootstrap_servers.rpartition(":")[2])
        caller.create_topics([topic.name], 1, {})
        fill(caller, topic)
        replies = [caller.exchange(request) for request in topic.requests()]
        assert len(replies) == 600 // topic.batches_a_reply
        assert {len(reply) for reply in replies} == {len(replies[0])}
        frame = produce_frame(topic.name, batch)
        reply_bytes = len(caller.exchange(frame))
        checks = [*size_checks(reply_bytes), (produce_error_at(topic.name), 0)]
        measured = drive(
            load_for(port, frame, request_bytes=len(frame), reply_bytes=reply_bytes, inflight=8, checks=checks)
        )
        assert caller.end_offset(topic.name) == (601 + measured.requests_sent) * batch.record_count
        refused = fetch_frame(topic.name, 10**9)
        assert caller.exchange(refused)[fetch_error_at(topic.name)] == int(ErrorCode.offset_out_of_range)
