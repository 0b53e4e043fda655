"""Producers of four libraries behind one small interface: send a value, get its outcome.

`done` is called with the offset, a certain failure, or an unknown outcome. It may be called on another thread.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from kafka import KafkaProducer
from kafka.errors import MessageSizeTooLargeError, NotEnoughReplicasError, UnknownTopicOrPartitionError

from ottla.client import Producer as OwnProducer
from ottla.client.errors import DeliveryError

DELIVERY_TIMEOUT_MS = 15_000
REQUEST_TIMEOUT_MS = 5_000
PATIENCE_MS = 600_000

CERTAIN = (NotEnoughReplicasError, MessageSizeTooLargeError, UnknownTopicOrPartitionError)
"""Errors that a broker returns before it has appended anything. NOT_LEADER_OR_FOLLOWER is not among them: a leader that
is deposed while a write waits for its followers returns it too, in Ottla and in Kafka."""


NO_OFFSET = -1
"""The offset of an acknowledged record is unknown."""


class Outcome(NamedTuple):
    offset: int | None
    """None for a failure."""
    error: str = ""
    is_certain: bool = True
    """For a failure: nothing was written."""


Done = Callable[[Outcome], None]


class SenderFailedError(Exception):
    """This producer cannot continue; a new one can."""


class Sender(Protocol):
    in_order: bool

    async def start(self) -> None: ...
    async def send(self, topic: str, partition: int, value: bytes, done: Done) -> None:
        """Sends a value. Raises SenderFailedError if it was not accepted."""

    async def flush(self) -> None: ...
    async def close(self) -> None: ...


class ConfluentSender:
    """librdkafka with a delivery timeout that never expires: when a record times out, it bumps the producer epoch and
    renumbers all pending records, even those that may have been written, which would cause duplicates."""

    in_order = True

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 2,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": PATIENCE_MS,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS,
                "request.timeout.ms": REQUEST_TIMEOUT_MS,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 5000,
            }
        )
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
        """Reports an outcome. The offset is unknown if only the reply to a later record confirmed this one."""
        if error is not None:
            done(Outcome(None, error.name(), is_certain=False))
        else:
            offset = message.offset()
            done(Outcome(NO_OFFSET if offset is None else offset))

    async def flush(self) -> None:
        await asyncio.to_thread(self._producer.flush, PATIENCE_MS / 1000)

    async def close(self) -> None:
        self._ended.set()
        await asyncio.to_thread(self._poller.join)


class KafkaPythonSender:
    """Without idempotence and retries: the first reply is the outcome. librdkafka cannot be configured that way: it
    always retries records that a just deposed leader rejected."""

    in_order = False

    def __init__(self, bootstrap: str) -> None:
        self._settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap.split(","),
            "acks": "all",
            "enable_idempotence": False,
            "retries": 0,
            "max_in_flight_requests_per_connection": 1,
            "linger_ms": 2,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "delivery_timeout_ms": DELIVERY_TIMEOUT_MS,
            "max_block_ms": 2_000,
            "metadata_max_age_ms": 5_000,
        }
        self._producer: KafkaProducer | None = None

    async def start(self) -> None:
        self._producer = await asyncio.to_thread(KafkaProducer, **self._settings)

    async def send(self, topic: str, partition: int, value: bytes, done: Done) -> None:
        assert self._producer is not None
        try:
            future = self._producer.send(topic, value, partition=partition)
        except Exception as problem:
            raise SenderFailedError(repr(problem)) from problem
        future.add_callback(lambda metadata: done(Outcome(metadata.offset)))
        future.add_errback(functools.partial(self._report, done))

    def _report(self, done: Done, error: Exception) -> None:
        done(Outcome(None, type(error).__name__, is_certain=isinstance(error, CERTAIN)))

    async def flush(self) -> None:
        assert self._producer is not None
        await asyncio.to_thread(self._producer.flush, DELIVERY_TIMEOUT_MS / 1000 + 5)

    async def close(self) -> None:
        if self._producer is not None:
            await asyncio.to_thread(self._producer.close, 5)


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
            # The record may have been buffered when the wait for space ended, so its outcome is unknown.
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
    "librdkafka": ConfluentSender,
    "kafka-python": KafkaPythonSender,
    "aiokafka": AiokafkaSender,
    "ottla": OwnSender,
}
