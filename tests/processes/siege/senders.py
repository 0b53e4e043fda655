"""Producers of three libraries behind one small interface: hand over a value, learn what became of it.

`done` is told the offset, or that the value certainly failed, or that nobody knows. It may be called on another thread.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ottla.client import Producer as OwnProducer
from ottla.client.errors import DeliveryError

DELIVERY_TIMEOUT_MS = 15_000
REQUEST_TIMEOUT_MS = 5_000

REFUSED = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
"""What a broker answers before it has appended anything."""


class Outcome(NamedTuple):
    offset: int | None
    error: str = ""
    is_certain: bool = True
    """Of a failure: nothing was written."""


Done = Callable[[Outcome], None]


class SenderFailedError(Exception):
    """This producer cannot go on; a new one can."""


class Sender(Protocol):
    in_order: bool

    async def start(self) -> None: ...
    async def send(self, topic: str, partition: int, value: bytes, done: Done) -> None:
        """Raises SenderFailedError if the value was not taken."""

    async def flush(self) -> None: ...
    async def close(self) -> None: ...


class ConfluentSender:
    """librdkafka, idempotent, or without idempotence and retries: then the broker's first answer is the outcome."""

    def __init__(self, bootstrap: str, *, idempotent: bool) -> None:
        self.in_order = idempotent
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "log_level": 2,
            "acks": -1,
            "linger.ms": 2,
            "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            "socket.timeout.ms": REQUEST_TIMEOUT_MS,
            "request.timeout.ms": REQUEST_TIMEOUT_MS,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.interval.ms": 5000,
        }
        if idempotent:
            settings |= {"enable.idempotence": True, "retry.backoff.ms": 20, "retry.backoff.max.ms": 200}
        else:
            settings |= {"message.send.max.retries": 0, "max.in.flight.requests.per.connection": 1}
        self._producer = Producer(settings)
        self._ended = threading.Event()
        self._poller = threading.Thread(target=self._poll, daemon=True)

    async def start(self) -> None:
        self._poller.start()

    def _poll(self) -> None:
        while not self._ended.is_set():
            self._producer.poll(0.1)

    async def send(self, topic: str, partition: int, value: bytes, done: Done) -> None:
        report = functools.partial(self._report, done)
        try:
            self._producer.produce(topic, value=value, partition=partition, on_delivery=report)
        except (BufferError, KafkaException) as problem:
            raise SenderFailedError(str(problem)) from problem

    def _report(self, done: Done, error: KafkaError | None, message: Message) -> None:
        if error is None:
            done(Outcome(message.offset()))
        else:
            done(Outcome(None, error.name(), is_certain=not self.in_order and error.code() in REFUSED))

    async def flush(self) -> None:
        await asyncio.to_thread(self._producer.flush, DELIVERY_TIMEOUT_MS / 1000 + 5)

    async def close(self) -> None:
        self._ended.set()
        await asyncio.to_thread(self._poller.join)


class AiokafkaSender:
    in_order = True

    def __init__(self, bootstrap: str) -> None:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            linger_ms=2,
            request_timeout_ms=DELIVERY_TIMEOUT_MS,
            retry_backoff_ms=50,
            metadata_max_age_ms=5000,
        )
        self._left: set[asyncio.Future[Any]] = set()

    async def start(self) -> None:
        await self._producer.start()

    async def send(self, topic: str, partition: int, value: bytes, done: Done) -> None:
        try:
            future = await self._producer.send(topic, value, partition=partition)
        except Exception as problem:
            # It may have been buffered when the wait for room ended: nobody knows.
            done(Outcome(None, type(problem).__name__, is_certain=False))
            raise SenderFailedError(repr(problem)) from problem
        self._left.add(future)
        future.add_done_callback(functools.partial(self._report, done))

    def _report(self, done: Done, future: asyncio.Future[Any]) -> None:
        self._left.discard(future)
        if future.cancelled() or (error := future.exception()) is not None:
            name = "cancelled" if future.cancelled() else type(error).__name__
            done(Outcome(None, name, is_certain=False))
        else:
            done(Outcome(future.result().offset))

    async def flush(self) -> None:
        if self._left:
            await asyncio.wait(self._left, timeout=DELIVERY_TIMEOUT_MS / 1000 + 5)

    async def close(self) -> None:
        await asyncio.wait_for(self._producer.stop(), 10)


class OwnSender:
    """Ottla's own client."""

    in_order = True

    def __init__(self, bootstrap: str) -> None:
        self._producer = OwnProducer(
            bootstrap,
            linger_ms=2,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            retry_backoff_ms=50,
            connect_timeout_ms=2_000,
            metadata_max_age_ms=5_000,
        )
        self._left: set[asyncio.Future[Any]] = set()

    async def start(self) -> None:
        await self._producer.start()

    async def send(self, topic: str, partition: int, value: bytes, done: Done) -> None:
        try:
            future = self._producer.send_nowait(topic, value, partition=partition)
        except Exception as problem:
            raise SenderFailedError(repr(problem)) from problem
        self._left.add(future)
        future.add_done_callback(functools.partial(self._report, done))

    def _report(self, done: Done, future: asyncio.Future[Any]) -> None:
        self._left.discard(future)
        if future.cancelled():
            done(Outcome(None, "cancelled", is_certain=False))
        elif (error := future.exception()) is not None:
            certain = isinstance(error, DeliveryError) and not error.may_be_written
            done(Outcome(None, type(error).__name__, is_certain=certain))
        else:
            done(Outcome(future.result().offset))

    async def flush(self) -> None:
        if self._left:
            await asyncio.wait(self._left, timeout=DELIVERY_TIMEOUT_MS / 1000 + 5)

    async def close(self) -> None:
        await asyncio.wait_for(self._producer.close(), 10)


SENDERS: dict[str, Callable[[str], Sender]] = {
    "librdkafka": functools.partial(ConfluentSender, idempotent=True),
    "librdkafka-plain": functools.partial(ConfluentSender, idempotent=False),
    "aiokafka": AiokafkaSender,
    "ottla": OwnSender,
}
