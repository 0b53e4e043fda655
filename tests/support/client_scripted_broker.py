"""A fake broker with one partition that behaves as Kafka does and fails where a script says so. For producer tests.

It checks the producer's sequence numbers and answers duplicates with their first offset.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from ottla.net.apis import build
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.records.batch import BatchHeader, read_header
from ottla.protocol.records.bridge import decode_records, split_batches
from ottla.protocol.wire.headers import parse_request_header, response_header
from ottla.protocol.wire.produce import PartitionProduced, encode_produce_response, parse_produce_request
from ottla.protocol.wire.schema import encode, response_type

TOPIC = "t"
TOPIC_ID = UUID(int=77)
PRODUCER_ID = 4711
REMEMBERED_BATCHES = 5
VERSIONS = {0: (9, 13), 1: (12, 17), 2: (6, 10), 3: (10, 13), 18: (0, 4), 22: (2, 5)}


@dataclass(frozen=True, slots=True)
class Fault:
    """The outcome of one produce request: whether the batch is written, and how the broker replies."""

    written: bool = False
    error: ErrorCode | None = None
    """None, unless `silent`: the broker closes the connection instead of replying."""
    silent: bool = False
    log_start_offset: int = 0


@dataclass
class ScriptedBroker:
    faults: deque[Fault | None] = field(default_factory=deque)
    """One entry for each future produce request; None means an ordinary reply."""
    records: list[bytes | None] = field(default_factory=list)
    batches: list[BatchHeader] = field(default_factory=list)
    """Every batch received, whether it was written or not."""
    bytes_max: int = 1 << 20
    port: int = 0

    def __post_init__(self) -> None:
        self._remembered: dict[int, list[tuple[int, int, int, int]]] = {}
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}
        self._server: asyncio.Server | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        connections = dict(self._connections)
        for writer in connections:
            writer.transport.abort()
        await asyncio.gather(*filter(None, connections.values()))
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[writer] = asyncio.current_task()
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = memoryview(await reader.readexactly(size))
                header = parse_request_header(frame)
                body = self._answer(header.api_key, header.api_version, frame[header.body_at :])
                if body is None:
                    return
                if body:
                    head = response_header(header.api_key, header.api_version, header.correlation_id)
                    writer.write((len(head) + len(body)).to_bytes(4, "big") + head + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._connections.pop(writer, None)
            writer.transport.abort()

    def _answer(self, api_key: int, version: int, body: memoryview) -> bytes | None:
        """Returns the reply; empty for no reply, None to close the connection."""
        if api_key == 0:
            return self._produce(version, body)
        answers: dict[int, Callable[[], dict[str, Any]]] = {3: self._metadata, 18: _api_versions, 22: _producer_id}
        return encode(build(response_type(api_key, version), answers[api_key]()))

    def _metadata(self) -> dict[str, Any]:
        partition = {
            "error_code": ErrorCode.none,
            "partition_index": 0,
            "leader_id": 1,
            "leader_epoch": 0,
            "replica_nodes": [1],
            "isr_nodes": [1],
            "offline_replicas": [],
        }
        topic = {"error_code": ErrorCode.none, "name": TOPIC, "topic_id": TOPIC_ID, "partitions": [partition]}
        return {
            "throttle_time": timedelta(),
            "brokers": [{"node_id": 1, "host": "127.0.0.1", "port": self.port, "rack": None}],
            "cluster_id": "scripted",
            "controller_id": 1,
            "topics": [topic],
            "error_code": ErrorCode.none,
        }

    def _produce(self, version: int, body: memoryview) -> bytes | None:
        request = parse_produce_request(body, version)
        ((key, ((index, records),)),) = request.topics
        assert records is not None
        batch = bytes(records)
        header = read_header(batch)
        self.batches.append(header)
        fault = self.faults.popleft() if self.faults else None
        result = PartitionProduced(index, ErrorCode.none)
        if fault is None or fault.written:
            result = self._append(index, header, batch)
        if fault is not None:
            if fault.silent:
                return b""
            if fault.error is None:
                return None
            result = PartitionProduced(index, fault.error, log_start_offset=fault.log_start_offset)
        return encode_produce_response(version, [(key, [result])])

    def _append(self, index: int, header: BatchHeader, batch: bytes) -> PartitionProduced:
        if len(batch) > self.bytes_max:
            return PartitionProduced(index, ErrorCode.message_too_large)
        known = self._remembered.setdefault(header.producer_id, [])
        if header.has_producer and known:
            epoch, _, last_sequence, _ = known[-1]
            for seen_epoch, first, last, offset in known:
                if (seen_epoch, first, last) == (header.producer_epoch, header.base_sequence, header.last_sequence):
                    return PartitionProduced(index, ErrorCode.none, offset)
            if header.producer_epoch < epoch:
                return PartitionProduced(index, ErrorCode.invalid_producer_epoch)
            expected = 0 if header.producer_epoch > epoch else (last_sequence + 1) & 0x7FFFFFFF
            if header.base_sequence != expected:
                return PartitionProduced(index, ErrorCode.out_of_order_sequence_number)
        offset = len(self.records)
        known.append((header.producer_epoch, header.base_sequence, header.last_sequence, offset))
        del known[:-REMEMBERED_BATCHES]
        self.records += [record.value for record in decode_records(split_batches(batch))]
        return PartitionProduced(index, ErrorCode.none, offset)


def _api_versions() -> dict[str, Any]:
    keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in VERSIONS.items()]
    return {"error_code": ErrorCode.none, "api_keys": keys, "throttle_time": timedelta()}


def _producer_id() -> dict[str, Any]:
    return {
        "throttle_time": timedelta(),
        "error_code": ErrorCode.none,
        "producer_id": PRODUCER_ID,
        "producer_epoch": 0,
    }
