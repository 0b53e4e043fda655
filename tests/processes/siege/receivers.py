"""Consumers of three libraries behind one small interface: seek, poll, request the end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ottla.client import Consumer as OwnConsumer

REQUEST_TIMEOUT_MS = 5_000
POLL_S = 0.3
RECORDS_MAX = 1000

Where = tuple[str, int]


class Received(NamedTuple):
    where: Where
    offset: int
    value: bytes


class ReceiverFailedError(Exception):
    """The consumer failed; a new one has to continue from the same place."""


class Receiver(Protocol):
    async def start(self) -> None: ...
    async def assign(self, positions: Mapping[Where, int]) -> None: ...
    async def seek(self, where: Where, offset: int) -> None: ...
    async def poll(self) -> list[Received]: ...
    async def ends(self, where: Where) -> tuple[int, int]:
        """Returns the first offset and the one after the last."""

    async def close(self) -> None: ...


class ConfluentReceiver:
    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 2,
                "group.id": "none",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 5000,
            }
        )
        self._positions: dict[Where, int] = {}

    async def start(self) -> None:
        pass

    async def assign(self, positions: Mapping[Where, int]) -> None:
        self._positions = dict(positions)
        self._assign()

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(*where, offset) for where, offset in self._positions.items()])

    async def seek(self, where: Where, offset: int) -> None:
        """Seeks by a new assignment: a seek in librdkafka may fail while a leader is down."""
        self._positions[where] = offset
        self._assign()

    async def poll(self) -> list[Received]:
        received = []
        for message in await asyncio.to_thread(self._consumer.consume, RECORDS_MAX, POLL_S):
            where = (message.topic() or "", message.partition() or 0)
            error = message.error()
            if error is None:
                at = message.offset() or 0
                self._positions[where] = at + 1
                received.append(Received(where, at, message.value() or b""))
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                raise ReceiverFailedError(f"{where}: {error.str()}")
        return received

    async def ends(self, where: Where) -> tuple[int, int]:
        ask = functools.partial(self._consumer.get_watermark_offsets, TopicPartition(*where), REQUEST_TIMEOUT_MS / 1000)
        try:
            ends = await asyncio.to_thread(ask)
        except KafkaException as problem:
            raise ReceiverFailedError(problem.args[0].name()) from problem
        if ends is None:
            raise ReceiverFailedError("no answer")
        return int(ends[0]), int(ends[1])

    async def close(self) -> None:
        await asyncio.to_thread(self._consumer.close)


class AiokafkaReceiver:
    def __init__(self, bootstrap: str) -> None:
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            metadata_max_age_ms=5000,
            retry_backoff_ms=50,
        )

    async def start(self) -> None:
        await asyncio.wait_for(self._consumer.start(), 15)

    async def assign(self, positions: Mapping[Where, int]) -> None:
        self._consumer.assign([AiokafkaPartition(*where) for where in positions])
        for where, offset in positions.items():
            self._consumer.seek(AiokafkaPartition(*where), offset)

    async def seek(self, where: Where, offset: int) -> None:
        self._consumer.seek(AiokafkaPartition(*where), offset)

    async def poll(self) -> list[Received]:
        batches = await self._consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=RECORDS_MAX)
        return [
            Received((at.topic, at.partition), record.offset, record.value)
            for at, records in batches.items()
            for record in records
        ]

    async def ends(self, where: Where) -> tuple[int, int]:
        at = AiokafkaPartition(*where)
        first: Any = await asyncio.wait_for(self._consumer.beginning_offsets([at]), 10)
        end: Any = await asyncio.wait_for(self._consumer.end_offsets([at]), 10)
        return int(first[at]), int(end[at])

    async def close(self) -> None:
        await asyncio.wait_for(self._consumer.stop(), 10)


class OwnReceiver:
    def __init__(self, bootstrap: str) -> None:
        self._consumer = OwnConsumer(
            bootstrap,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            connect_timeout_ms=2_000,
            metadata_max_age_ms=5_000,
        )

    async def start(self) -> None:
        await asyncio.wait_for(self._consumer.start(), 15)

    async def assign(self, positions: Mapping[Where, int]) -> None:
        self._consumer.assign(positions)
        for where, offset in positions.items():
            self._consumer.seek(where, offset)

    async def seek(self, where: Where, offset: int) -> None:
        self._consumer.seek(where, offset)

    async def poll(self) -> list[Received]:
        records = await self._consumer.fetch_records(RECORDS_MAX, POLL_S * 1000)
        return [Received((one.topic, one.partition), one.offset, one.value or b"") for one in records]

    async def ends(self, where: Where) -> tuple[int, int]:
        (first,) = (await asyncio.wait_for(self._consumer.beginning_offsets([where]), 10)).values()
        (end,) = (await asyncio.wait_for(self._consumer.end_offsets([where]), 10)).values()
        return int(first), int(end)

    async def close(self) -> None:
        await asyncio.wait_for(self._consumer.close(), 10)


RECEIVERS: dict[str, Callable[[str], Receiver]] = {
    "librdkafka": ConfluentReceiver,
    "aiokafka": AiokafkaReceiver,
    "ottla": OwnReceiver,
}
