"""A real broker on a simulated disk, and a caller that sends it frames as a client would."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, is_dataclass, replace
from types import NoneType
from typing import Any, get_args, get_origin

from ottla.broker.adapters.clock import RealClock
from ottla.broker.api.api import ConnectionState
from ottla.broker.api.dispatch import dispatch
from ottla.broker.broker import Broker
from ottla.broker.context import BrokerContext
from ottla.broker.endpoints import Endpoint
from ottla.broker.standalone.catalog import CatalogState, TopicRecord
from ottla.broker.standalone.metadata import StandaloneMetadata
from ottla.broker.storage.journal import JournalLimits
from ottla.broker.storage.log_resources import LogResources, MemoryBudget
from ottla.broker.storage.tail_cache import TailCache
from ottla.broker.topics.log_store import LogStore
from ottla.protocol.model.broker_config import parse_broker_config
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import TopicId
from ottla.protocol.records.batch import BatchHeader, checksum, write_header
from ottla.protocol.wire.headers import parse_response_header, request_header
from ottla.protocol.wire.produce import encode_produce_request, parse_produce_response
from ottla.protocol.wire.schema import decode, encode, request_type, response_type
from ottla.sim.disk import SimDisk

MIB = 1 << 20


class MemoryCatalog:
    """A catalog that stores nothing: enough for a broker that is never restarted."""

    def __init__(self) -> None:
        self.state = CatalogState("test-cluster", 0)

    def load(self) -> CatalogState:
        return replace(self.state)

    def begin_incarnation(self) -> int:
        self.state.incarnation += 1
        return self.state.incarnation

    def put_topic(self, topic: TopicRecord) -> None:
        self.put_topics([topic])

    def put_topics(self, topics: Sequence[TopicRecord]) -> None:
        self.state.topics += topics

    def delete_topic(self, topic_id: TopicId, gone: Iterable[TopicId] = ()) -> None:
        self.state.topics = [topic for topic in self.state.topics if topic.id != topic_id]

    def forget_deleted(self, gone: Iterable[TopicId]) -> None: ...

    def put_dynamic_configs(self, configs: Mapping[str, str]) -> None:
        self.state.dynamic_configs = dict(configs)

    def change_entries(self, puts: Mapping[str, bytes], deletes: Iterable[str] = ()) -> None:
        for key in deletes:
            self.state.entries.pop(key, None)
        self.state.entries.update(puts)

    def reserve_producer_ids(self, count: int) -> int:
        self.state.next_producer_id += count
        return self.state.next_producer_id - count

    def reserve_offsets(self, ends: Mapping[tuple[TopicId, int], int]) -> None:
        self.state.reserved_offsets.update(ends)

    def close(self) -> None: ...


@asynccontextmanager
async def calling(**properties: str) -> AsyncIterator[Caller]:
    """Yields a caller of a fresh broker; properties are broker configurations with `_` for `.`."""
    given = {name.replace("_", "."): value for name, value in properties.items()}
    config = parse_broker_config(given)
    assert not isinstance(config, Refused), config
    clock = RealClock(asyncio.get_running_loop())
    disk = SimDisk(clock)
    shared = LogResources(disk, clock, TailCache(16 * MIB), MemoryBudget(16 * MIB))
    store = LogStore(shared, "/data", bytes(16), JournalLimits(4 * MIB, MIB))
    context = BrokerContext(config, shared, store, "/data")
    metadata = StandaloneMetadata(context, MemoryCatalog())
    broker = Broker(context, metadata)
    metadata.recover()
    broker.start()
    context.endpoints.clients = Endpoint("broker.example", 9092)
    try:
        yield Caller(broker, disk)
    finally:
        await broker.stop()


class Caller:
    def __init__(self, broker: Broker, disk: SimDisk) -> None:
        self.broker = broker
        self.disk = disk
        self.connection = ConnectionState("test")

    async def call(self, key: int, version: int, /, **values: Any) -> Any:
        """Sends a request built from plain values, lists and dicts, and returns the decoded response."""
        request = build(request_type(key, version), values)
        frame = request_header(key, version, 7, "test") + encode(request)
        whole = await self.send(frame)
        correlation_id, body_at = parse_response_header(key, version, memoryview(whole))
        assert correlation_id == 7
        response, end = decode(response_type(key, version), memoryview(whole), body_at)
        assert end == len(whole)
        return response

    async def send(self, frame: bytes) -> bytes:
        reply: Any = dispatch(self.broker, self.connection, memoryview(bytearray(frame)))
        if inspect.isawaitable(reply):
            reply = await reply
        return b"".join(reply)

    async def create_topic(self, name: str, partitions: int = 1, **configs: str) -> Any:
        configs = {key.replace("_", "."): value for key, value in configs.items()}
        topic = await self.broker.metadata.admin.create_topic(name, partitions, configs)
        assert not isinstance(topic, Refused), topic
        return topic

    async def produce(
        self,
        topic: str,
        partition: int = 0,
        *,
        records: int = 1,
        timestamp_ms: int | None = None,
        expected: ErrorCode = ErrorCode.none,
    ) -> int:
        """Appends one batch, waits for its acknowledgement and returns its base offset."""
        if timestamp_ms is None:
            timestamp_ms = self.broker.clock.now_ms()
        body = encode_produce_request(9, None, -1, 5000, [(topic, [(partition, batch(records, timestamp_ms))])])
        whole = await self.send(request_header(0, 9, 1, "test") + b"".join(body))
        _, body_at = parse_response_header(0, 9, memoryview(whole))
        ((_, [result]),) = parse_produce_response(memoryview(whole)[body_at:], 9).topics
        assert result.error == expected, result
        return result.base_offset


def batch(records: int, timestamp_ms: int) -> bytes:
    """Encodes a batch of empty records, one millisecond apart."""
    body = b"".join(_record(delta) for delta in range(records))
    header = BatchHeader(
        0, 49 + len(body), -1, 2, 0, 0, records - 1, timestamp_ms, timestamp_ms + records - 1, -1, -1, -1, records
    )
    out = bytearray(61) + body
    write_header(out, header)
    write_header(out, header._replace(crc=checksum(out)))
    return bytes(out)


def _record(delta: int) -> bytes:
    """Encodes a record: length, attributes, timestamp delta, offset delta, null key, empty value, no headers."""
    assert delta < 64
    fields = bytes([0, delta * 2, delta * 2, 1, 0, 0])
    return bytes([len(fields) * 2]) + fields


def build(type_: Any, values: Any) -> Any:
    """Builds an entity from plain dicts and lists."""
    known = {field.name: field.type for field in fields(type_)}
    return type_(**{name: _build_value(known[name], value) for name, value in values.items()})


def _build_value(type_: Any, value: Any) -> Any:
    if value is None:
        return None
    args = get_args(type_)
    if NoneType in args:
        (type_,) = (arg for arg in args if arg is not NoneType)
    if get_origin(type_) is tuple:
        return tuple(_build_value(get_args(type_)[0], each) for each in value)
    if is_dataclass(type_) and isinstance(value, dict):
        return build(type_, value)
    return value
