"""Sends raw requests to a broker, as a transactional producer, its coordinator and a reader do, without any client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.records.batch import split_batches
from ottla.protocol.records.record import Record, decode_batch, encode_batch
from ottla.protocol.wire.fetch import TOPIC_IDS_FROM, FetchPartition, FetchRequest
from ottla.protocol.wire.fetch_client import FetchedPartition, encode_fetch_request, parse_fetch_response
from ottla.protocol.wire.headers import parse_response_header, request_header
from ottla.protocol.wire.produce import PartitionProduced, TopicKey, encode_produce_request, parse_produce_response
from ottla.protocol.wire.schema import decode, encode, request_type, response_type
from tests.support.handlers_caller import build

PRODUCE, FETCH, LIST_OFFSETS, WRITE_TXN_MARKERS, DESCRIBE_PRODUCERS = 0, 1, 2, 27, 61
PRODUCE_IDS_FROM = 13
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
Send = Callable[[bytes], Awaitable[bytes]]


class Read(NamedTuple):
    error: ErrorCode
    values: list[bytes]
    """The values of all records in the reply except markers."""
    aborted: list[tuple[int, int]] | None
    last_stable_offset: int
    high_watermark: int

    @property
    def ends(self) -> tuple[int, int]:
        return self.last_stable_offset, self.high_watermark


class Peer:
    def __init__(self, send: Send, topic: str, topic_id: UUID, now_ms: Callable[[], int]) -> None:
        self._send = send
        self._topic = topic
        self._topic_id = topic_id
        self._now_ms = now_ms

    async def call(self, key: int, version: int, /, **values: Any) -> Any:
        frame = request_header(key, version, 7, "test") + encode(build(request_type(key, version), values))
        whole = memoryview(await self._send(frame))
        response, end = decode(response_type(key, version), whole, parse_response_header(key, version, whole)[1])
        assert end == len(whole)
        return response

    async def produce(
        self,
        *values: bytes,
        producer: tuple[int, int, int],
        partition: int = 0,
        transactional: bool = True,
        version: int = 12,
        transactional_id: str | None = "tx",
        key: bytes | None = b"key",
    ) -> PartitionProduced:
        """Produces a record. `producer` is its id, its epoch and the first sequence."""
        batch = self._batch(values, producer, key, transactional=transactional)
        given = transactional_id if transactional else None
        (result,) = await self._produce({partition: batch}, version, given)
        return result

    async def produce_to(
        self, partitions: Iterable[int], *, producer: tuple[int, int, int], version: int
    ) -> list[ErrorCode]:
        """Produces the same record to each partition in one request."""
        batches = {at: self._batch([b"%d" % at], producer, b"key", transactional=True) for at in partitions}
        return [ErrorCode(result.error) for result in await self._produce(batches, version, "tx")]

    def _batch(
        self, values: Iterable[bytes], producer: tuple[int, int, int], key: bytes | None, *, transactional: bool
    ) -> bytearray:
        producer_id, producer_epoch, sequence = producer
        now_ms = self._now_ms()
        return encode_batch(
            [Record(place, now_ms, key, value) for place, value in enumerate(values)],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            transactional=transactional,
        )

    async def _produce(
        self, batches: Mapping[int, bytearray], version: int, transactional_id: str | None
    ) -> list[PartitionProduced]:
        topic: TopicKey = self._topic_id if version >= PRODUCE_IDS_FROM else self._topic
        body = encode_produce_request(version, transactional_id, -1, 30_000, [(topic, list(batches.items()))])
        whole = memoryview(await self._send(request_header(PRODUCE, version, 1, "test") + b"".join(body)))
        at = parse_response_header(PRODUCE, version, whole)[1]
        ((_, results),) = parse_produce_response(whole[at:], version).topics
        return list(results)

    async def end(
        self,
        producer: tuple[int, int],
        *,
        commit: bool,
        coordinator_epoch: int = 0,
        partitions: tuple[int, ...] = (0,),
        version: int = 2,
        transaction_version: int = 0,
        topic: str | None = None,
    ) -> list[ErrorCode]:
        """Sends WriteTxnMarkers, as a coordinator does."""
        marker: dict[str, Any] = {
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "transaction_result": commit,
            "coordinator_epoch": coordinator_epoch,
            "topics": [{"name": topic or self._topic, "partition_indexes": list(partitions)}],
        }
        if version >= 2:
            marker["transaction_version"] = transaction_version
        response = await self.call(WRITE_TXN_MARKERS, version, markers=[marker])
        (result,) = response.markers
        assert result.producer_id == producer[0]
        return [each.error_code for each in result.topics[0].partitions]

    async def fetch(
        self,
        offset: int = 0,
        isolation: int = READ_COMMITTED,
        *,
        partition: int = 0,
        version: int = 18,
        wait_ms: int = 0,
        max_bytes: int = 1 << 20,
    ) -> Read:
        wanted = FetchPartition(partition, -1, offset, -1, -1, max_bytes)
        topic: TopicKey = self._topic_id if version >= TOPIC_IDS_FROM else self._topic
        request = FetchRequest(-1, wait_ms, 1, max_bytes, isolation, 0, -1, [(topic, [wanted])], [])
        frame = request_header(FETCH, version, 1, "test") + encode_fetch_request(version, request)
        whole = memoryview(await self._send(frame))
        response = parse_fetch_response(whole[parse_response_header(FETCH, version, whole)[1] :], version)
        ((_, [data]),) = response.topics
        return _read(data, offset)

    async def committed(self, partition: int = 0, max_bytes: int = 1 << 20, from_offset: int = 0) -> list[bytes]:
        """Returns all records that a read_committed consumer delivers."""
        found: list[bytes] = []
        offset = from_offset
        while True:
            read, next_offset = await self._fetch_and_filter(offset, partition, max_bytes)
            if next_offset == offset:
                return found
            found += read
            offset = next_offset

    async def _fetch_and_filter(self, offset: int, partition: int, max_bytes: int) -> tuple[list[bytes], int]:
        version = 11
        wanted = FetchPartition(partition, -1, offset, -1, -1, max_bytes)
        request = FetchRequest(-1, 0, 1, max_bytes, READ_COMMITTED, 0, -1, [(self._topic, [wanted])], [])
        frame = request_header(FETCH, version, 1, "test") + encode_fetch_request(version, request)
        whole = memoryview(await self._send(frame))
        response = parse_fetch_response(whole[parse_response_header(FETCH, version, whole)[1] :], version)
        ((_, [data]),) = response.topics
        assert data.error == 0, data
        return committed_values(data, offset)

    async def list_offset(self, timestamp: int, isolation: int = READ_COMMITTED, partition: int = 0) -> int:
        asked = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1}
        topics = [{"name": self._topic, "partitions": [asked]}]
        response = await self.call(LIST_OFFSETS, 7, replica_id=-1, isolation_level=isolation, topics=topics)
        found = response.topics[0].partitions[0]
        assert found.error_code is ErrorCode.none
        return int(found.offset)

    async def describe(self, partition: int = 0) -> list[Any]:
        topics = [{"name": self._topic, "partition_indexes": [partition]}]
        response = await self.call(DESCRIBE_PRODUCERS, 0, topics=topics)
        found = response.topics[0].partitions[0]
        assert found.error_code is ErrorCode.none
        return list(found.active_producers)


def _read(data: FetchedPartition, offset: int) -> Read:
    values = [
        record.value
        for batch in split_batches(data.records)
        if not batch.header.is_control
        for record in decode_batch(batch.data)
        if record.offset >= offset and record.value is not None
    ]
    aborted = None if data.aborted is None else list(data.aborted)
    return Read(ErrorCode(data.error), values, aborted, data.last_stable_offset, data.high_watermark)


def committed_values(data: FetchedPartition, offset: int) -> tuple[list[bytes], int]:
    """Filters as Kafka's consumer does: from its first offset on, a producer's records are aborted until its marker."""
    waiting = sorted(data.aborted or (), key=lambda aborted: aborted[1])
    aborted: set[int] = set()
    found: list[bytes] = []
    for header, batch in split_batches(data.records):
        while waiting and waiting[0][1] <= header.last_offset:
            aborted.add(waiting.pop(0)[0])
        if header.is_control:
            if header.record_count and decode_batch(batch)[0].key == b"\0\0\0\0":
                aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            found += [r.value for r in decode_batch(batch) if r.offset >= offset and r.value is not None]
        offset = header.next_offset
    return found, offset
