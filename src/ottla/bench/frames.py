"""Requests prepared as bytes: produce requests of one batch, and fetch requests of one partition."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from ottla.protocol.records.batch import HEADER_BYTES
from ottla.protocol.records.bridge import RowEncoder, Traits, seal
from ottla.protocol.wire.fetch import FetchPartition, FetchRequest
from ottla.protocol.wire.fetch_client import encode_fetch_request
from ottla.protocol.wire.headers import request_header
from ottla.protocol.wire.produce import encode_produce_request

PRODUCE, PRODUCE_VERSION = 0, 11
FETCH, FETCH_VERSION = 1, 12
CLIENT_ID = "bench"
ACKS_ALL = -1
TIMEOUT_MS = 30_000
FETCH_BYTES = 1 << 20

_SIZE = struct.Struct(">i")
_RESPONSE_HEADER_BYTES = 9
"""The size, the correlation id and the empty tagged fields."""


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """An encoded batch of records of one size."""

    data: bytes
    record_count: int
    record_bytes: int
    """The size of each record's value; there are no keys and no headers."""

    @property
    def value_bytes(self) -> int:
        """The size of all values, without the overhead of records and batch."""
        return self.record_count * self.record_bytes


def prepare_batch(record_bytes: int, batch_bytes_max: int, timestamp_ms: int) -> PreparedBatch:
    """Returns a batch with as many records as the limit allows, but at least one."""
    encoder = RowEncoder(batch_bytes_max - HEADER_BYTES)
    value = os.urandom(record_bytes)
    while encoder.append(None, value, [], timestamp_ms) and encoder.size_bytes < batch_bytes_max - HEADER_BYTES:
        pass
    records = encoder.take()
    return PreparedBatch(bytes(seal(records, Traits())), records.record_count, record_bytes)


def framed(header: bytes, body: bytes) -> bytes:
    """Prepends the size to a request."""
    return _SIZE.pack(len(header) + len(body)) + header + body


def produce_frame(topic: str, batch: PreparedBatch, partition: int = 0) -> bytes:
    """Returns a produce request of one batch with acks=all, ready to be sent."""
    header = request_header(PRODUCE, PRODUCE_VERSION, 1, CLIENT_ID)
    topics = [(topic, [(partition, batch.data)])]
    return framed(header, b"".join(encode_produce_request(PRODUCE_VERSION, None, ACKS_ALL, TIMEOUT_MS, topics)))


def produce_error_at(topic: str) -> int:
    """Returns the position of the low byte of the partition's error code, which is zero only without an error."""
    return _RESPONSE_HEADER_BYTES + 1 + (1 + len(topic)) + 1 + 4 + 1


def fetch_frame(topic: str, offset: int, max_bytes: int = FETCH_BYTES) -> bytes:
    """Returns a fetch request of partition 0 that waits up to 500 ms for a byte, ready to be sent."""
    wanted = FetchPartition(0, -1, offset, -1, -1, max_bytes)
    request = FetchRequest(-1, 500, 1, 50 << 20, 0, 0, -1, [(topic, [wanted])], [])
    return framed(request_header(FETCH, FETCH_VERSION, 1, CLIENT_ID), encode_fetch_request(FETCH_VERSION, request))


def fetch_error_at(topic: str) -> int:
    """Returns the position of the low byte of the partition's error code in a reply."""
    return _RESPONSE_HEADER_BYTES + 4 + 2 + 4 + 1 + (1 + len(topic)) + 1 + 4 + 1


def size_checks(reply_bytes: int) -> list[tuple[int, int]]:
    """Returns checks of the size field, which detect a reply of another size before the bytes after it are misread."""
    return list(enumerate(_SIZE.pack(reply_bytes - _SIZE.size)))
