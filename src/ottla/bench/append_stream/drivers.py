"""Load drivers: the append stream and librdkafka, with one or many appends in flight, for a number of seconds."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.bench.quotients import rate
from ottla.wal import Log, LogSettings

if TYPE_CHECKING:
    from collections.abc import Callable

CREATE_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration to measure."""

    durability: str
    acks: str
    """`leader` or `all`."""
    size_bytes: int
    in_flight: int
    replicas: int


@dataclass(slots=True)
class AppendResult:
    """The latencies of one subject."""

    latencies_s: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Appends per second."""
        return rate(len(self.latencies_s), self.seconds)

    def at(self, percent: float) -> float:
        """Returns a percentile of the latencies in milliseconds."""
        ordered = sorted(self.latencies_s)
        return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)] * 1000 if ordered else 0.0

    def add(self, other: AppendResult) -> None:
        """Adds the measurements of another round."""
        self.latencies_s += other.latencies_s
        self.seconds += other.seconds


def _retention_ms(case: Case) -> int | None:
    """Returns a short retention for `memory`, because all cases and rounds share 1 GB of memory."""
    return 3_000 if case.durability == "memory" else None


async def append_stream(servers: str, topic: str, case: Case, seconds: float) -> AppendResult:
    """Appends through the append stream."""
    log = await Log.open(
        servers,
        topic,
        create=LogSettings(replicas=case.replicas, durability=case.durability, retention_ms=_retention_ms(case)),
        acks="leader" if case.acks == "leader" else "all",
    )
    measured = AppendResult()
    data = bytes(case.size_bytes)
    await log.append(data)
    began_s = time.perf_counter()
    until = began_s + seconds

    async def one_after_another() -> None:
        note = measured.latencies_s.append
        while (sent_s := time.perf_counter()) < until:
            await log.append(data)
            note(time.perf_counter() - sent_s)

    await asyncio.gather(*(one_after_another() for _ in range(case.in_flight)))
    measured.seconds = time.perf_counter() - began_s
    await log.close()
    return measured


def librdkafka(
    bootstrap: str, topic: str, case: Case, seconds: float, configs: dict[str, str] | None = None
) -> AppendResult:
    """Writes with librdkafka. With acks=all it is idempotent, which is exactly what the append stream guarantees."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    chosen = {"ottla.durability": case.durability} if configs is None else dict(configs)
    if configs is None and (retention_ms := _retention_ms(case)) is not None:
        chosen["retention.ms"] = str(retention_ms)
    for future in admin.create_topics([NewTopic(topic, 1, case.replicas, config=chosen)]).values():
        _ignore_existing(future)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "1" if case.acks == "leader" else "all",
            "enable.idempotence": case.acks == "all",
            "linger.ms": 0 if case.in_flight == 1 else 1,
        }
    )
    measured, data, waiting = AppendResult(), bytes(case.size_bytes), [0]
    _send(producer, topic, data, lambda: None)
    producer.flush(CREATE_PATIENCE_S)
    began_s = time.perf_counter()
    until = began_s + seconds
    while time.perf_counter() < until:
        while waiting[0] < case.in_flight:
            sent_s = time.perf_counter()

            def done(sent_s: float = sent_s) -> None:
                measured.latencies_s.append(time.perf_counter() - sent_s)
                waiting[0] -= 1

            waiting[0] += 1
            _send(producer, topic, data, done)
            producer.poll(0)
        producer.poll(0.01)
    producer.flush(CREATE_PATIENCE_S)
    measured.seconds = time.perf_counter() - began_s
    return measured


def _send(producer: Any, topic: str, data: bytes, done: Callable[[], None]) -> None:
    def on_delivery(error: object, message: object) -> None:
        if error is not None:
            raise RuntimeError(f"librdkafka: {error}")
        done()

    producer.produce(topic, data, on_delivery=on_delivery)


def _ignore_existing(future: Any) -> None:
    from confluent_kafka import KafkaException

    try:
        future.result(CREATE_PATIENCE_S)
    except KafkaException as failure:
        if failure.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise
