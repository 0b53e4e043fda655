"""Handles consecutive produce requests of one connection to one partition as one unit, a run.

Most of a broker's work for a small batch does not depend on its bytes: it looks up the partition, records the batch in
the log, the index, the cache and the journal, waits, and replies. A run does this once for many batches. Each batch
keeps its own offset and its own reply. Anything unusual about a request ends the run before it: that request takes the
general path, where every rejection has its message. A run therefore knows only success, and failures that happen later.

    run = find_run(frames, at, count_max)      the frames from `at` on that belong together; None if the first does not
    run.admit(...)                             keeps those whose headers and checksums are right
    run.stamp(base_offset, leader_epoch)       gives each its offset
    run.replies(...)                           all replies, each with its size in front

The compiled version is in `_produce_run.pyx`. The pure Python version is here: it is the fallback, and the test oracle
of the compiled one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ottla.protocol.records.batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    crc_matches,
    read_header,
    stamp,
)
from ottla.protocol.wire.headers import RequestHeader, parse_request_header, response_header
from ottla.protocol.wire.primitives import DECODE_ERRORS, I16, I32, MalformedRequest
from ottla.protocol.wire.produce import (
    FLEXIBLE_FROM,
    PartitionProduced,
    TopicKey,
    encode_produce_response,
    parse_one_batch,
)

PRODUCE_KEY = 0
VERSION_MAX = 13
_UNUSUAL_BITS = CONTROL_BIT | TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT


class BatchRun(Protocol):
    """A run of batches that a log appends at once."""

    @property
    def record_count(self) -> int:
        """The number of records in all batches."""
        ...

    @property
    def size_bytes(self) -> int:
        """Total size of the batches."""
        ...

    @property
    def batches(self) -> list[memoryview]:
        """The batches, with their offsets already assigned."""
        ...

    @property
    def max_timestamps(self) -> list[int]:
        """The highest timestamp of each batch, in milliseconds."""
        ...

    @property
    def bases(self) -> list[int]:
        """The base offset of each batch."""
        ...

    @property
    def ends(self) -> list[int]:
        """The offset after each batch."""
        ...

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of all batches."""
        ...

    def __len__(self) -> int: ...


class ProduceRun(Protocol):
    """The interface of compiled and pure Python runs."""

    version: int
    acks: int
    timeout_ms: int
    topic: TopicKey
    partition: int
    record_count: int
    size_bytes: int
    """Total size of the batches."""
    frame_bytes: int
    """Total size of the requests."""
    has_producers: bool
    """Set by `admit`: True if a batch comes from an idempotent producer, so that its sequence must be checked."""
    batches: list[memoryview]
    max_timestamps: list[int]
    """Set by `admit`."""
    bases: list[int]
    ends: list[int]
    leader_epoch: int
    """Set by `stamp`: the base offset and next offset of each batch, and the leader epoch of all."""

    def __len__(self) -> int: ...

    def cut(self, count: int) -> None:
        """Keeps the first `count` batches. Must be called before `stamp`."""
        ...

    def admit(self, size_bytes_max: int, after_max_ms: int, before_max_ms: int, now_ms: int) -> int:
        """Keeps the batches before the first one that is damaged, unusual or to be rejected, and returns their
        number."""
        ...

    def stamp(self, base_offset: int, leader_epoch: int) -> None:
        """Assigns consecutive offsets from `base_offset` on, and the leader epoch."""
        ...

    def replies(self, acknowledged_end: int, error: int, log_start_offset: int) -> bytes:
        """Encodes the replies: success for batches that end at or below `acknowledged_end`, the error for the
        others."""
        ...


FindRun = Callable[[Sequence[memoryview], int, int], ProduceRun | None]


class _Request(NamedTuple):
    header: RequestHeader
    acks: int
    timeout_ms: int
    topic: TopicKey
    partition: int
    records: memoryview
    frame_bytes: int

    def goes_with(self, other: _Request) -> bool:
        same_way = (
            self.header.api_version == other.header.api_version and self.header.client_id == other.header.client_id
        )
        return same_way and self[1:5] == other[1:5]


class PlainProduceRun:
    """The pure Python version of a run."""

    def __init__(self, requests: list[_Request]) -> None:
        first = requests[0]
        self.version = first.header.api_version
        self.acks, self.timeout_ms, self.topic, self.partition = first[1:5]
        self.has_producers = False
        self.leader_epoch = -1
        self.max_timestamps: list[int] = []
        self.bases: list[int] = []
        self.ends: list[int] = []
        self._requests = requests
        self._sum_up()

    def _sum_up(self) -> None:
        self.batches = [request.records for request in self._requests]
        self._headers = [read_header(batch) for batch in self.batches]
        self.record_count = sum(header.record_count for header in self._headers)
        self.size_bytes = sum(map(len, self.batches))
        self.frame_bytes = sum(request.frame_bytes for request in self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def cut(self, count: int) -> None:
        del self._requests[count:], self.max_timestamps[count:]
        self._sum_up()

    def admit(self, size_bytes_max: int, after_max_ms: int, before_max_ms: int, now_ms: int) -> int:
        for number, (header, batch) in enumerate(zip(self._headers, self.batches, strict=True)):
            is_in_time = header.max_timestamp - now_ms <= after_max_ms and not (
                header.base_timestamp >= 0 and now_ms - header.base_timestamp > before_max_ms
            )
            is_fine = is_in_time and len(batch) <= size_bytes_max and _is_usual(header, len(batch))
            if not is_fine or not crc_matches(batch, header):
                self.cut(number)
                return number
            self.max_timestamps.append(header.max_timestamp)
            self.has_producers |= header.has_producer
        return len(self)

    def stamp(self, base_offset: int, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        for header, batch in zip(self._headers, self.batches, strict=True):
            stamp(batch, base_offset, leader_epoch)
            self.bases.append(base_offset)
            base_offset += header.record_count
            self.ends.append(base_offset)

    def replies(self, acknowledged_end: int, error: int, log_start_offset: int) -> bytes:
        out = bytearray()
        for request, base_offset, end in zip(self._requests, self.bases, self.ends, strict=True):
            if end <= acknowledged_end:
                result = PartitionProduced(self.partition, 0, base_offset, -1, log_start_offset)
            else:
                result = PartitionProduced(self.partition, error)
            head = response_header(PRODUCE_KEY, self.version, request.header.correlation_id)
            body = encode_produce_response(self.version, [(self.topic, [result])])
            out += I32.pack(len(head) + len(body)) + head + body
        return bytes(out)


def _is_usual(header: BatchHeader, size_bytes: int) -> bool:
    """Reports whether the general path is not needed. Batches without a timestamp need it, because it records their
    arrival time."""
    if header.magic != MAGIC or header.size_bytes != size_bytes or header.max_timestamp < 0:
        return False
    if header.attributes & _UNUSUAL_BITS or header.compression > 4:
        return False
    return not header.has_producer or (header.base_sequence >= 0 and header.producer_epoch >= 0)


def find_run_plainly(frames: Sequence[memoryview], at: int, count_max: int) -> PlainProduceRun | None:
    """The pure Python version of `find_run`."""
    first = _usual_request(frames[at])
    if first is None:
        return None
    requests = [first]
    for frame in frames[at + 1 : at + count_max]:
        request = _usual_request(frame)
        if request is None or not request.goes_with(first):
            break
        requests.append(request)
    return PlainProduceRun(requests)


def _usual_request(frame: memoryview) -> _Request | None:
    """Parses a request with one batch for one partition, no transaction, no tagged fields, and names of up to 126
    bytes; None for any other."""
    if frame.readonly:
        return None
    try:
        header = parse_request_header(frame)
        version, body_at = header.api_version, header.body_at
        if header.api_key != PRODUCE_KEY or not FLEXIBLE_FROM <= version <= VERSION_MAX:
            return None
        (client_id_bytes,) = I16.unpack_from(frame, 8)
        if body_at != 11 + max(client_id_bytes, 0):
            return None
        request = parse_one_batch(frame[body_at:], version)
    except (*DECODE_ERRORS, MalformedRequest):
        return None
    if request is None or request.acks not in (-1, 0, 1):
        return None
    ((key, ((index, records),)),) = request.topics
    if records is None or len(records) < HEADER_BYTES:
        return None
    batch = read_header(records)
    if batch.last_offset_delta < 0 or batch.last_offset_delta + 1 != batch.record_count:
        return None
    return _Request(header, request.acks, request.timeout_ms, key, index, records, len(frame))


def _best_find_run() -> FindRun:
    try:
        from ottla.protocol.records import _produce_run
    except ImportError:
        return find_run_plainly
    return _produce_run.find_run


find_run: FindRun = _best_find_run()
