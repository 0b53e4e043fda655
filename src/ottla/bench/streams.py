"""Clients that write small records one after another and record when each is acknowledged."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from itertools import pairwise
from types import TracebackType
from typing import Self

from ottla.client import Producer
from ottla.client.errors import ClientError
from ottla.client.producer.deliveries import RecordMetadata

PAUSE_S = 0.002
VALUE = bytes(100)
END_S = 60.0


class Stream(ABC):
    """One producer with acks=all and idempotence, in its own thread."""

    name: str

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.acknowledged_at: list[float] = []
        """Times of `perf_counter`."""
        self.failures: list[str] = []
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self.run, name=self.name, daemon=True)

    @abstractmethod
    def run(self) -> None:
        """Writes until `ended` is set."""

    def first_after(self, moment: float, timeout_s: float = END_S) -> float:
        """Waits for the first acknowledgement after a moment, and returns its time."""
        at = len(self.acknowledged_at)
        while at and self.acknowledged_at[at - 1] > moment:
            at -= 1
        deadline = time.perf_counter() + timeout_s
        while len(self.acknowledged_at) <= at:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{self.name} got no acknowledgement in {timeout_s} s: {self.failures[-1:]}")
            time.sleep(PAUSE_S)
        return self.acknowledged_at[at]

    def longest_gap(self, begin: float, end: float) -> float:
        """Returns the longest time between acknowledgements, in seconds. The interval must have passed."""
        moments = [begin, *(at for at in self.acknowledged_at if begin < at < end), end]
        return max(later - earlier for earlier, later in pairwise(moments))

    def __enter__(self) -> Self:
        self._thread.start()
        self.first_after(0.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self._thread.join(END_S)


class LibrdkafkaStream(Stream):
    """librdkafka with its defaults, except for idempotence."""

    name = "librdkafka"

    def run(self) -> None:
        from confluent_kafka import KafkaError, Message
        from confluent_kafka import Producer as Librdkafka

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self.acknowledged_at.append(time.perf_counter())
            else:
                self.failures.append(str(error))

        settings = {"enable.idempotence": True, "acks": "all", "linger.ms": 0, "log_level": 0}
        producer = Librdkafka({"bootstrap.servers": self.bootstrap, **settings})
        while not self.ended.is_set():
            producer.produce(self.topic, VALUE, partition=0, on_delivery=on_delivery)
            deadline = time.perf_counter() + PAUSE_S
            while (left_s := deadline - time.perf_counter()) > 0:
                producer.poll(left_s)
        producer.flush(END_S)


class OttlaStream(Stream):
    """Ottla's own client with its defaults."""

    name = "ottla.client"

    def run(self) -> None:
        asyncio.run(self._write())

    async def _write(self) -> None:
        async with Producer(self.bootstrap) as producer:
            while not self.ended.is_set():
                sent = await producer.enqueue(self.topic, VALUE, partition=0)
                sent.add_done_callback(self._on_done)
                await asyncio.sleep(PAUSE_S)
            await producer.flush()

    def _on_done(self, sent: asyncio.Future[RecordMetadata]) -> None:
        if not sent.cancelled() and isinstance(error := sent.exception(), ClientError):
            self.failures.append(str(error))
        else:
            self.acknowledged_at.append(time.perf_counter())
