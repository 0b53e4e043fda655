"""Reads the stored batches of a partition, to see what a client really sent, whatever its settings were."""

from __future__ import annotations

import socket
import struct
import time

from ottla.bench.leaders import leader_of
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.records.batch import BatchHeader, read_header
from ottla.protocol.wire.fetch import FetchPartition, FetchRequest
from ottla.protocol.wire.fetch_client import FetchedPartition, encode_fetch_request, parse_fetch_response
from ottla.protocol.wire.headers import parse_response_header, request_header

MOVED = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch, ErrorCode.unknown_topic_or_partition)
FETCH = 1
VERSION = 12
"""The last version with topic names."""


def stored_batches(bootstrap: str, topic: str, record_count: int) -> list[BatchHeader]:
    """Returns the batches in the first few megabytes of partition 0.

    Retries while the leader moves, and until a new leader knows that all of them are committed.
    """
    deadline = time.monotonic() + 60
    while True:
        found = _fetch(leader_of(bootstrap, topic)[1], topic)
        if found.error == ErrorCode.none:
            batches = _headers(found.records)
            if sum(batch.record_count for batch in batches) >= record_count or time.monotonic() > deadline:
                return batches
        assert found.error in MOVED or found.error == ErrorCode.none
        assert time.monotonic() < deadline, ErrorCode(found.error)
        time.sleep(0.05)


def _fetch(address: tuple[str, int], topic: str) -> FetchedPartition:
    partition = FetchPartition(0, -1, 0, -1, -1, 8 << 20)
    request = FetchRequest(-1, 1000, 1, 8 << 20, 0, 0, -1, [(topic, [partition])], [])
    body = request_header(FETCH, VERSION, 1, "conformance") + encode_fetch_request(VERSION, request)
    with socket.create_connection(address, timeout=20) as connection, connection.makefile("rb") as stream:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", stream.read(4))
        frame = memoryview(stream.read(size))
    _, at = parse_response_header(FETCH, VERSION, frame)
    ((_, (found,)),) = parse_fetch_response(frame[at:], VERSION).topics
    return found


def _headers(records: memoryview) -> list[BatchHeader]:
    found = []
    at = 0
    while at < len(records):
        found.append(read_header(records, at))
        at += found[-1].size_bytes
    return found
