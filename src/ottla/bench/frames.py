"""Requests prepared as bytes: produces of one batch, fetches of one partition."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from ottla.records.batch import HEADER_BYTES
from ottla.records.bridge import RowEncoder, Traits, seal
from ottla.wire.fetch import FetchPartition, FetchRequest
from ottla.wire.fetch_client import encode_fetch_request
from ottla.wire.headers import request_header
from ottla.wire.produce import encode_produce_request

PRODUCE, PRODUCE_VERSION = 0, 11
FETCH, FETCH_VERSION = 1, 12
CLIENT_ID = "bench"
ACKS_ALL = -1
TIMEOUT_MS = 30_000
FETCH_BYTES = 1 << 20

_SIZE = struct.Struct(">i")
_RESPONSE_HEADER_BYTES = 9
"""The size, the correlation id, no tagged fields."""


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    data: bytes
    record_count: int
    record_bytes: int
    """Of each record's value; there are no keys and no headers."""

    @property
    def value_bytes(self) -> int:
        return self.record_count * self.record_bytes


def prepare_batch(record_bytes: int, batch_bytes_max: int, timestamp_ms: int) -> PreparedBatch:
    """As many records as the limit allows, at least one."""
    encoder = RowEncoder(batch_bytes_max - HEADER_BYTES)
    value = os.urandom(record_bytes)
    while encoder.append(None, value, [], timestamp_ms) and encoder.size_bytes < batch_bytes_max - HEADER_BYTES:
        pass
    records = encoder.take()
    return PreparedBatch(bytes(seal(records, Traits())), records.record_count, record_bytes)


def framed(header: bytes, body: bytes) -> bytes:
    return _SIZE.pack(len(header) + len(body)) + header + body


def produce_frame(topic: str, batch: PreparedBatch, partition: int = 0) -> bytes:
    header = request_header(PRODUCE, PRODUCE_VERSION, 1, CLIENT_ID)
    topics = [(topic, [(partition, batch.data)])]
    return framed(header, b"".join(encode_produce_request(PRODUCE_VERSION, None, ACKS_ALL, TIMEOUT_MS, topics)))


def produce_error_at(topic: str) -> int:
    """Where in a reply the low byte of the partition's error code stands: no error has a zero there."""
    return _RESPONSE_HEADER_BYTES + 1 + (1 + len(topic)) + 1 + 4 + 1


def fetch_frame(topic: str, offset: int, max_bytes: int = FETCH_BYTES) -> bytes:
    wanted = FetchPartition(0, -1, offset, -1, -1, max_bytes)
    request = FetchRequest(-1, 500, 1, 50 << 20, 0, 0, -1, [(topic, [wanted])], [])
    return framed(request_header(FETCH, FETCH_VERSION, 1, CLIENT_ID), encode_fetch_request(FETCH_VERSION, request))


def fetch_error_at(topic: str) -> int:
    return _RESPONSE_HEADER_BYTES + 4 + 2 + 4 + 1 + (1 + len(topic)) + 1 + 4 + 1


def size_checks(reply_bytes: int) -> list[tuple[int, int]]:
    """A reply of another size is no success; the first bytes say so before all that follows is misread."""
    return list(enumerate(_SIZE.pack(reply_bytes - _SIZE.size)))
